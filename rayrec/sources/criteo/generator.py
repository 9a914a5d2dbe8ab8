"""Rows in Criteo's raw layout, any number of them in constant memory, drawn from a known click model.

Rows come in chunks of fixed size, each from its own random stream, so a row depends on the seed and its position alone:
more rows, or other files, repeat the rows that fewer rows had.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.files import new_folder, write_json
from rayrec.common.progress import Progress, SilentProgress
from rayrec.sources.criteo.click_model import ClickModel, RawValues
from rayrec.sources.criteo.layout import CATEGORICAL, LABEL, NUMERIC, SEPARATOR
from rayrec.sources.criteo.truth import TRUTH_FILE, FileTruth, GeneratedTruth, TruthAccumulator
from rayrec.sources.generated_text import csv_file, to_hexadecimal

CHUNK_ROWS = 16_384
CALIBRATION_ROWS = 65_536
SINGLE_FILE = "criteo.tsv"
_SCHEMA = pa.schema([(LABEL, pa.int8()), *((n, pa.int64()) for n in NUMERIC), *((n, pa.string()) for n in CATEGORICAL)])

_MOST_VALUES = np.array([
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
], np.float64)  # fmt: skip
"""Distinct values of C1 ... C26: those of the Kaggle data set."""
EXPONENT = 1.45
"""The value of rank r has a share of about r^-EXPONENT of a column's rows; as in NVIDIA's synthetic Criteo data."""


_LOG_MEANS = np.array([0.75, 1.60, 2.10, 1.70, 7.90, 3.75, 1.50, 2.10, 3.75, 0.50, 0.90, 0.40, 1.90])
_LOG_SDS = np.array([1.20, 2.00, 1.45, 1.05, 2.00, 1.60, 1.50, 1.20, 1.55, 0.45, 0.75, 0.70, 1.10])
"""I1 ... I13 are floor(exp(N(mean, sd))) - 1, never below 0; shapes follow the quantiles of the Kaggle data set."""
_NUMERIC_MISSING = np.array([0.45, 0.00, 0.21, 0.22, 0.03, 0.22, 0.04, 0.001, 0.04, 0.45, 0.04, 0.76, 0.22])
_NEGATIVE_COLUMN = NUMERIC.index("I2")
_SHARE_OF_MINUS_ONE, _SHARE_OF_MINUS_TWO = 0.10, 0.002
_CATEGORICAL_MISSING = dict.fromkeys(CATEGORICAL, 0.0) | {
    **dict.fromkeys(("C3", "C4", "C12", "C16", "C21", "C24"), 0.034),
    "C6": 0.12,
    **dict.fromkeys(("C19", "C20", "C25", "C26"), 0.44),
    "C22": 0.76,
}


@dataclass(frozen=True)
class Chunk:
    """Consecutive generated rows."""

    rows: pa.RecordBatch
    """Columns of the raw files: label int8, I1 ... I13 int64, C1 ... C26 string; null if missing."""
    values: RawValues
    probability: NDArray[np.float64]
    """(n,) the true probability of label 1."""


class CriteoGenerator:
    """An endless sequence of rows that depends on the seed alone."""

    def __init__(self, seed: int = 0) -> None:
        model_seed, calibration_seed, self._rows_seed, spelling_seed = np.random.SeedSequence(seed).generate_state(4)
        self._spelling = np.random.default_rng(spelling_seed).integers(2**32, size=len(CATEGORICAL), dtype=np.uint32)
        sample = self._draw_values(np.random.default_rng(calibration_seed), CALIBRATION_ROWS)
        self.click_model = ClickModel(int(model_seed), sample)

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """The first `rows` rows, in chunks of CHUNK_ROWS (the last one shorter)."""
        for number, start in enumerate(range(0, rows, CHUNK_ROWS)):
            rng = np.random.default_rng([self._rows_seed, number])
            values = self._draw_values(rng, CHUNK_ROWS)
            probability = self.click_model.probability(values)
            label = rng.random(CHUNK_ROWS) < probability
            count = min(CHUNK_ROWS, rows - start)
            values = RawValues(values.numbers[:count], values.numbers_missing[:count], values.ranks[:count])
            yield Chunk(self._to_arrow(values, label[:count]), values, probability[:count])

    def _draw_values(self, rng: np.random.Generator, rows: int) -> RawValues:
        logs = _LOG_MEANS + _LOG_SDS * rng.standard_normal((rows, len(NUMERIC)))
        numbers = np.minimum(np.exp(np.maximum(logs, 0.0)), 2.0**31).astype(np.int64) - 1
        negative = rng.random(rows)
        numbers[negative < _SHARE_OF_MINUS_ONE, _NEGATIVE_COLUMN] = -1
        numbers[negative < _SHARE_OF_MINUS_TWO, _NEGATIVE_COLUMN] = -2
        numbers_missing = rng.random(numbers.shape) < _NUMERIC_MISSING
        # Inverse of the cumulative distribution of a density ~ x^-exponent on [1, cardinality + 1).
        power = 1.0 - EXPONENT
        uniform = rng.random((rows, len(CATEGORICAL)))
        ranks = (1.0 + uniform * ((_MOST_VALUES + 1.0) ** power - 1.0)) ** (1.0 / power)
        present = rng.random(ranks.shape) >= list(_CATEGORICAL_MISSING.values())
        ranks = np.where(present, np.minimum(ranks, _MOST_VALUES), 0.0)
        return RawValues(numbers, numbers_missing, ranks.astype(np.int64))

    def _to_arrow(self, values: RawValues, label: NDArray[np.bool_]) -> pa.RecordBatch:
        numbers = [pa.array(values.numbers[:, j], mask=values.numbers_missing[:, j]) for j in range(len(NUMERIC))]
        strings = [
            to_hexadecimal(_scramble(values.ranks[:, k], self._spelling[k]), values.ranks[:, k] == 0)
            for k in range(len(CATEGORICAL))
        ]
        return pa.RecordBatch.from_arrays([pa.array(label.astype(np.int8)), *numbers, *strings], schema=_SCHEMA)


def generate(
    output: Path,
    rows: int,
    *,
    seed: int = 0,
    days: int | None = None,
    compress: bool = False,
    progress: Progress | None = None,
) -> GeneratedTruth:
    """Write `rows` rows and `truth.json` into the new folder `output`, which is whole or absent.

    One file `criteo.tsv` (Kaggle layout), or with `days` the files `day_0` ... (Terabyte layout) with equal shares of
    the rows; with `compress`, gzip files ending in `.gz`. Raises UserError on arguments out of range or an existing
    output.
    """
    if days is not None and not 1 <= days <= rows:
        raise UserError(f"days: {days}; give 1 to {rows}, the number of rows")
    names = [SINGLE_FILE] if days is None else [f"day_{day}" for day in range(days)]
    ends = [rows * (i + 1) // len(names) for i in range(len(names))]
    progress = progress or SilentProgress()
    total, files = TruthAccumulator(), []
    with new_folder(output) as folder:
        progress.stage("generate", rows)
        chunks = CriteoGenerator(seed).chunks(rows)
        pieces = _cut(chunks, ends)
        for name, end in zip(names, ends, strict=True):
            path = folder / (f"{name}.gz" if compress else name)
            truth = TruthAccumulator()
            with csv_file(path, _SCHEMA, separator=SEPARATOR, has_header=False) as write:
                for position, batch, probability in pieces:
                    write(batch)
                    label = batch.column(LABEL).to_numpy() == 1
                    for accumulator in (total, truth):
                        accumulator.add(probability, label)
                    progress.advance(len(label))
                    if position == end:
                        break
            files.append(FileTruth(path=path.name, **truth.result().model_dump()))
        result = GeneratedTruth(source="criteo", seed=seed, files=tuple(files), **total.result().model_dump())
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return result


def _cut(chunks: Iterable[Chunk], ends: Sequence[int]) -> Iterator[tuple[int, pa.RecordBatch, NDArray[np.float64]]]:
    """The rows and probabilities of `chunks` in pieces that do not cross `ends`, each with the position of its end."""
    start = 0
    for chunk in chunks:
        stop = start + chunk.rows.num_rows
        cuts = [start, *(end for end in ends if start < end < stop), stop]
        for low, high in pairwise(cuts):
            piece = slice(low - start, high - start)
            yield high, chunk.rows.slice(low - start, high - low), chunk.probability[piece]
        start = stop


def _scramble(ranks: NDArray[np.int64], key: np.uint32) -> NDArray[np.uint32]:
    """Distinct 32-bit numbers for distinct ranks: the finalizer of MurmurHash3, which is a bijection."""
    x = ranks.astype(np.uint32) ^ key
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))

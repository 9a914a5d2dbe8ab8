"""Rows in Criteo's raw layout, any number of them in constant memory, drawn from a known click model.

Rows come in chunks of fixed size, each from its own random stream, so a row depends on the seed and its position alone:
more rows, or other files, repeat the rows that fewer rows had. If days drift, each has such a sequence of rows of its
own, that of day 0 being the one without days; a day is found from the day before, its rows are not.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.sources.criteo.click_model import HEAD, ClickModel, RawValues
from rayrec.sources.criteo.config import CATEGORICAL, LABEL, NUMERIC, SEPARATOR
from rayrec.sources.criteo.turnover import Turnover, most_days
from rayrec.sources.generated_text import csv_file, rows_by_file, to_hexadecimal
from rayrec.sources.generated_truth import BINS, TRUTH_FILE, RowsTruth, TruthAccumulator
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

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


class FileTruth(RowsTruth):
    """Metrics of the true probabilities on the rows of a file."""

    path: str
    """Relative to the folder of `truth.json`."""
    new_values: float
    """Share of the categorical values, missing ones aside, that the click model had on no earlier day."""


class CriteoTruth(RowsTruth):
    """The content of `truth.json`, of generated data: for all rows, and for those of each file."""

    source: str
    seed: int
    drift: float
    """How much values and preferences change from day to day; 0 if the rows of all files are alike."""
    files: tuple[FileTruth, ...]
    method: str = (
        "Labels are drawn from a known click model; on average no model ranks the rows better than the true "
        "probabilities do. AUC: of the true probabilities of all rows, from a histogram of "
        f"{BINS} equal bins, pairs within a bin counted half. Log loss: exact."
    )


@dataclass(frozen=True)
class GeneratedRows:
    """Consecutive generated rows."""

    rows: pa.RecordBatch
    """Columns of the raw files: label int8, I1 ... I13 int64, C1 ... C26 string; null if missing."""
    values: RawValues
    probability: NDArray[np.float64]
    """(n,) the true probability of label 1."""


class CriteoGenerator:
    """An endless sequence of the rows of a day, which depends on the seed, the drift and the day alone."""

    def __init__(self, seed: int = 0, drift: float = 0.0) -> None:
        """The generator of day 0. `drift`: how much values and preferences change from day to day, 0 to 10."""
        seeds = np.random.SeedSequence(seed).generate_state(6)
        model_seed, self._calibration_seed, self._rows_seed, spelling_seed, turnover_seed, self._drift_seed = seeds
        self._spelling = np.random.default_rng(spelling_seed).integers(2**32, size=len(CATEGORICAL), dtype=np.uint32)
        self._day, self._drift = 0, drift
        self._turnover = Turnover(int(turnover_seed), _MOST_VALUES, drift)
        self.click_model = ClickModel(int(model_seed), self._sample())

    def next_day(self) -> "CriteoGenerator":
        """Return the generator of the next day."""
        other = copy.copy(self)
        other._day += 1
        rng = np.random.default_rng([self._drift_seed, other._day])
        generations, renewed = self._turnover.newest(other._day, HEAD)
        other.click_model = self.click_model.next_day(rng, self._drift, generations, renewed, other._sample())
        return other

    def chunks(self, rows: int, *, first: int = 0) -> Iterator[GeneratedRows]:
        """`rows` rows, from the day's row `first` on, in chunks of at most CHUNK_ROWS."""
        for number in range(first // CHUNK_ROWS, -(-(first + rows) // CHUNK_ROWS)):
            # An additional 0 as on day 0 leaves a seed as it is.
            rng = np.random.default_rng([self._rows_seed, number, self._day])
            values = self._draw_values(rng, CHUNK_ROWS)
            probability = self.click_model.probability(values)
            label = rng.random(CHUNK_ROWS) < probability
            start = number * CHUNK_ROWS
            part = slice(max(first - start, 0), min(first + rows - start, CHUNK_ROWS))
            values = values.rows(part)
            yield GeneratedRows(self._to_arrow(values, label[part]), values, probability[part])

    def _sample(self) -> RawValues:
        return self._draw_values(np.random.default_rng([self._calibration_seed, self._day]), CALIBRATION_ROWS)

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
        drawn = (1.0 + uniform * ((_MOST_VALUES + 1.0) ** power - 1.0)) ** (1.0 / power)
        present = rng.random(drawn.shape) >= list(_CATEGORICAL_MISSING.values())
        ranks = np.where(present, np.minimum(drawn, _MOST_VALUES), 0.0).astype(np.int64)
        generations, is_new = self._turnover.draw(rng, self._day, ranks)
        return RawValues(numbers, numbers_missing, ranks, generations, is_new)

    def _to_arrow(self, values: RawValues, label: NDArray[np.bool_]) -> pa.RecordBatch:
        numbers = [pa.array(values.numbers[:, j], mask=values.numbers_missing[:, j]) for j in range(len(NUMERIC))]
        strings = [
            to_hexadecimal(
                _scramble(values.generations[:, k] << 24 | values.ranks[:, k], self._spelling[k]),
                values.ranks[:, k] == 0,
            )
            for k in range(len(CATEGORICAL))
        ]
        return pa.RecordBatch.from_arrays([pa.array(label.astype(np.int8)), *numbers, *strings], schema=_SCHEMA)


def generate(
    output: Path,
    rows: int,
    *,
    seed: int = 0,
    days: int | None = None,
    drift: float = 0.0,
    compress: bool = False,
    progress: Progress | None = None,
) -> CriteoTruth:
    """Write `rows` rows and `truth.json` into the new folder `output`, which is whole or absent.

    One file `criteo.tsv` (Kaggle layout), or with `days` the files `day_0` ... (Terabyte layout) with equal shares of
    the rows; with `compress`, gzip files ending in `.gz`. `drift`: how much values and preferences change from day to
    day, 0 to 10; at 0 the days together are the rows of the one file. Raises UserError on arguments out of range or an
    existing output.
    """
    rows_of_files = rows_by_file(rows, days)
    if days is not None and days > most_days(drift):
        raise UserError(f"days: {days}; with drift {drift:g} give at most {most_days(drift):g}, or a smaller drift")
    progress = progress or SilentProgress()
    total, files = TruthAccumulator(), []
    generator, first = CriteoGenerator(seed, drift), 0
    with new_folder(output) as folder:
        progress.stage("generate", rows)
        for day, rows_of_file in enumerate(rows_of_files):
            if drift and day:
                generator, first = generator.next_day(), 0
            name = SINGLE_FILE if days is None else f"day_{day}"
            path = folder / (f"{name}.gz" if compress else name)
            truth, values, new_values = TruthAccumulator(), 0, 0
            with csv_file(path, _SCHEMA, separator=SEPARATOR, has_header=False) as write:
                for chunk in generator.chunks(rows_of_file, first=first):
                    write(chunk.rows)
                    label = chunk.rows.column(LABEL).to_numpy() == 1
                    for accumulator in (total, truth):
                        accumulator.add(chunk.probability, label)
                    values += int(np.count_nonzero(chunk.values.ranks))
                    new_values += int(np.count_nonzero(chunk.values.is_new))
                    progress.advance(len(label))
            first += rows_of_file
            files.append(FileTruth(path=path.name, new_values=new_values / values, **truth.result().model_dump()))
        stated = total.result().model_dump()
        result = CriteoTruth(source="criteo", seed=seed, drift=drift, files=tuple(files), **stated)
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return result


def _scramble(ranks: NDArray[np.int64], key: np.uint32) -> NDArray[np.uint32]:
    """Return distinct 32-bit numbers for distinct ranks: the finalizer of MurmurHash3, which is a bijection."""
    x = ranks.astype(np.uint32) ^ key
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))

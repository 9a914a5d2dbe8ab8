"""Rows in Criteo's raw layout, any number of them in constant memory, drawn from a known click model.

A row depends on the seed and its position alone: more rows, or other files, repeat the rows that fewer rows had. If
days drift, each has such a sequence of rows of its own, that of day 0 being the one without days.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.sources.criteo.config import CATEGORICAL, LABEL, NUMERIC, CriteoSourceConfig
from rayrec.sources.generated_files import (
    TRUTH_FILE,
    GeneratedTruth,
    GeneratorOptions,
    RowsTruth,
    TruthAccumulator,
    rows_file,
    to_hexadecimal,
)
from rayrec.sources.synthetic import RANK_BITS, TURNOVER, Category, Column, Drawn, GeneratedRows, World
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

SINGLE_FILE = "criteo.tsv"

_MOST_VALUES = (
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
"""Distinct values of C1 ... C26: those of the Kaggle data set."""
_CATEGORICAL_MISSING = (
    dict.fromkeys(("C3", "C4", "C12", "C16", "C21", "C24"), 0.034)
    | {"C6": 0.12, "C22": 0.76}
    | dict.fromkeys(("C19", "C20", "C25", "C26"), 0.44)
)
_LOG_MEANS = (0.75, 1.60, 2.10, 1.70, 7.90, 3.75, 1.50, 2.10, 3.75, 0.50, 0.90, 0.40, 1.90)
_LOG_SDS = (1.20, 2.00, 1.45, 1.05, 2.00, 1.60, 1.50, 1.20, 1.55, 0.45, 0.75, 0.70, 1.10)
"""I1 ... I13 are floor(exp(N(mean, sd))) - 1, never below 0; shapes follow the quantiles of the Kaggle data set."""
_NUMERIC_MISSING = (0.45, 0.00, 0.21, 0.22, 0.03, 0.22, 0.04, 0.001, 0.04, 0.45, 0.04, 0.76, 0.22)
_NEGATIVE = "I2"
_SHARE_OF_MINUS_ONE, _SHARE_OF_MINUS_TWO = 0.10, 0.002
PAIRS = (
    ("C1", "C14"), ("C2", "C17"), ("C5", "C23"), ("C6", "C20"), ("C8", "C9"), ("C15", "C22"), ("C18", "C25"),
)  # fmt: skip
"""Columns whose values act together."""
_MOST_GENERATIONS = 2 ** (32 - RANK_BITS)
"""Values that a rank may have one after the other: a value is spelled with 32 bits."""


class FileTruth(RowsTruth):
    """Metrics of the true probabilities on the rows of a file."""

    path: str
    """Relative to the folder of `truth.json`."""
    new_values: float
    """Share of the categorical values, missing ones aside, that the click model had on no earlier day."""


class CriteoTruth(GeneratedTruth):
    """The content of `truth.json`, for all rows and for those of each file."""

    drift: float
    """How much values and preferences change from day to day; 0 if the rows of all files are alike."""
    files: tuple[FileTruth, ...]


def _integers(name: str, mean: float, deviation: float, missing: float) -> Column:
    """Return a column; the logit is linear in ln(x + 3), as models are that read the features of the recipes."""

    def draw(rng: np.random.Generator, rows: NDArray[np.int64]) -> Drawn:
        logs = mean + deviation * rng.standard_normal(len(rows))
        numbers = np.minimum(np.exp(np.maximum(logs, 0.0)), 2.0**31).astype(np.int64) - 1
        if name == _NEGATIVE:
            negative = rng.random(len(rows))
            numbers[negative < _SHARE_OF_MINUS_ONE] = -1
            numbers[negative < _SHARE_OF_MINUS_TWO] = -2
        is_missing = rng.random(len(rows)) < missing
        # A missing number is encoded as 0 in place of the logarithm.
        return Drawn({name: pa.array(numbers, mask=is_missing)}, np.where(is_missing, 0.0, np.log(numbers + 3.0)))

    return Column(name, draw)


def criteo_rows(seed: int = 0, day: int = 0, drift: float = 0.0) -> GeneratedRows:
    """Return the rows of a day, which depend on the seed, the drift and the day alone."""
    world = World(seed, day, drift)
    numbers = map(_integers, NUMERIC, _LOG_MEANS, _LOG_SDS, _NUMERIC_MISSING)
    categories = [
        Category(world, name, most, _spelling(world, name), _CATEGORICAL_MISSING.get(name, 0.0))
        for name, most in zip(CATEGORICAL, _MOST_VALUES, strict=True)
    ]
    return GeneratedRows(world, [*numbers, *categories], _label, (LABEL, *NUMERIC, *CATEGORICAL), PAIRS)


def _label(rng: np.random.Generator, label: NDArray[np.bool_]) -> dict[str, pa.Array]:
    return {LABEL: pa.array(label.astype(np.int8))}


def _spelling(world: World, name: str) -> Callable[[NDArray[np.int64], NDArray[np.bool_]], pa.Array]:
    """Return what writes the values of a column, distinct ones for distinct numbers: the finalizer of MurmurHash3."""
    key = np.uint32(world.random.choice(f"spelling {name}", np.zeros(1, np.int64), 2**32)[0])

    def spell(numbers: NDArray[np.int64], missing: NDArray[np.bool_]) -> pa.Array:
        x = numbers.astype(np.uint32) ^ key
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return to_hexadecimal(x ^ (x >> np.uint32(16)), missing)

    return spell


def generate(output: Path, options: GeneratorOptions, progress: Progress) -> CriteoTruth:
    """Write rows and `truth.json` into the new folder `output`, which is whole or absent.

    One file `criteo.tsv` (Kaggle layout), or by day the files `day_0` ... (Terabyte layout) with equal shares of the
    rows; without drift the days together are the rows of the one file. Raises UserError on arguments out of range or
    an existing output.
    """
    days, drift, given = options.days, options.drift, options.files(SINGLE_FILE, "day_{}")
    most_days = 1 + (_MOST_GENERATIONS - 1) // (TURNOVER * drift) if drift else np.inf
    if days is not None and days > most_days:
        raise UserError(f"days: {days}; with drift {drift:g} give at most {most_days:g}, or a smaller drift")
    total, files = TruthAccumulator(), []
    source, first = criteo_rows(options.seed, 0, drift), 0
    with new_folder(output) as folder:
        progress.stage("generate", options.rows)
        for day, (name, rows) in enumerate(given):
            if drift and day:
                source, first = criteo_rows(options.seed, day, drift), 0
            truth, values, new_values = TruthAccumulator(), 0, 0
            with rows_file(folder / name, CriteoSourceConfig()) as write:
                for chunk in source.chunks(rows, first=first):
                    write(chunk.rows)
                    for accumulator in (total, truth):
                        accumulator.add(chunk.probability, chunk.label)
                    values += sum(len(chunk.label) - chunk.rows[column].null_count for column in CATEGORICAL)
                    new_values += chunk.new_values
                    progress.advance(len(chunk.label))
            first += rows
            files.append(FileTruth(path=name, new_values=new_values / values, **truth.result().model_dump()))
        stated = total.result().model_dump()
        result = CriteoTruth(source="criteo", seed=options.seed, drift=drift, files=tuple(files), **stated)
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return result

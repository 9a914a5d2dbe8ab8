"""Writes the files of generators, and measures the best possible model on their rows, which knows each row's
probability of a click.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.config.table import FileFormat
from rayrec.metrics.auc import ScoreHistogram
from rayrec.recipes import Recipe

_BATCH_ROWS = 16_384
_WITHOUT_QUOTES = FileFormat(quote=False)
TRUTH_FILE = "truth.json"
BINS = 2**18


@dataclass(frozen=True)
class GeneratorOptions:
    """What raw files to generate."""

    rows: int
    seed: int = 0
    days: int | None = None
    """Write a file for each of this many days; None unless `GeneratedData.has_days`."""
    drift: float = 0.0
    """How much values and preferences change from one of the days to the next, 0 to 10; 0 for not at all.

    Without days, it needs `GeneratedData.drifts_in_a_file`.
    """
    compress: bool = False
    """Write gzip files."""
    recipe: Recipe | None = None
    """What describes the rows of a source that `generates_from_recipe`."""
    cardinality: Mapping[str, int] = field(default_factory=dict)
    """Distinct values of the recipe's columns, by name or pattern."""

    def files(self, single: str, of_day: str) -> list[tuple[str, int]]:
        """Return the name and rows of the one file, or of each day's, as equal as they can be; `{}` is the day.

        Raises UserError if a day would have no rows.
        """
        ending = ".gz" * self.compress
        if self.days is None:
            return [(single + ending, self.rows)]
        if not 1 <= self.days <= self.rows:
            raise UserError(f"days: {self.days}; give 1 to {self.rows}, the number of rows")
        starts = [self.rows * day // self.days for day in range(self.days + 1)]
        return [(of_day.format(day) + ending, last - first) for day, (first, last) in enumerate(pairwise(starts))]


@contextmanager
def rows_file(
    path: Path, form: FileFormat = _WITHOUT_QUOTES, *, codec: str = "snappy"
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that appends rows to a new file: Parquet, JSON lines, or else delimited text, as `path` ends.

    Text is packed by gzip if the path ends in `.gz`, Parquet's columns by `codec`. `form`: that of delimited text, of
    which separator, header and double quotes count.
    """
    name, writer = path.name.removesuffix(".gz"), None
    with ExitStack() as stack:
        sink: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            # A fixed time keeps the same rows the same bytes; higher levels cost much time and save little.
            sink = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=1, fileobj=sink, mtime=0))

        def write(batch: pa.RecordBatch) -> None:
            nonlocal writer
            if name.endswith(".jsonl"):
                sink.write("".join(json.dumps(row) + "\n" for row in batch.to_pylist()).encode())
                return
            # The first rows say which columns there are.
            if writer is None and name.endswith(".parquet"):
                writer = stack.enter_context(pq.ParquetWriter(sink, batch.schema, compression=codec))
            elif writer is None:
                style = "needed" if form.quote is True else "none"
                options = csv.WriteOptions(
                    include_header=form.header is None,
                    delimiter=form.separator or ",",
                    quoting_style=style,
                    quoting_header=style,
                    batch_size=_BATCH_ROWS,
                )
                writer = stack.enter_context(csv.CSVWriter(sink, batch.schema, write_options=options))
            writer.write_batch(batch)

        yield write


def to_hexadecimal(numbers: NDArray[np.unsignedinteger], missing: NDArray[np.bool_] | None = None) -> pa.StringArray:
    """Return the strings of lowercase hexadecimal digits, two a byte of the numbers' type; null if missing."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    data = numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8)
    text = np.stack([digits[data >> 4], digits[data & 15]], axis=1)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 2 * numbers.itemsize
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text), valid)


class RowsTruth(Config):
    """Metrics of the true probabilities on some rows."""

    rows: int
    positives: int
    best_auc: float | None
    """AUC of the true probabilities against the labels that were drawn; None if all labels are the same."""
    best_auc_error: float
    """The largest error of `best_auc`: half the share of the (positive, negative) pairs within a histogram bin."""
    expected_auc: float
    """AUC over all labels that could have been drawn: pairs weighted p_i (1 - p_j)."""
    best_log_loss: float
    """Mean log loss of the true probabilities against the labels, in nats."""
    expected_log_loss: float
    """Mean entropy of the true probabilities, in nats."""


class GeneratedTruth(RowsTruth):
    """The content of `truth.json`, for all rows."""

    source: str
    seed: int
    method: str = (
        "Labels are drawn from a logistic model of hidden weights; on average no model ranks the rows better than its "
        f"probabilities do. AUC: of these probabilities, from a histogram of {BINS} equal bins, pairs within a bin "
        "counted half. Log loss: exact. Weights of rows are not counted."
    )


class TruthAccumulator:
    """Accumulates what `RowsTruth` is computed from, in constant memory."""

    def __init__(self) -> None:
        self._rows = 0
        self._drawn, self._expected = ScoreHistogram(BINS), ScoreHistogram(BINS)
        self._log_loss = 0.0
        self._entropy = 0.0

    def add(self, probability: NDArray[np.float64], label: NDArray[np.bool_]) -> None:
        """Count n rows: their true probabilities, strictly between 0 and 1, and labels."""
        bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
        np.add.at(self._drawn.positives, bins[label], 1.0)
        np.add.at(self._drawn.negatives, bins[~label], 1.0)
        np.add.at(self._expected.positives, bins, probability)
        np.add.at(self._expected.negatives, bins, 1.0 - probability)
        surprise_positive, surprise_negative = -np.log(probability), -np.log1p(-probability)
        self._rows += len(label)
        self._log_loss += float(np.where(label, surprise_positive, surprise_negative).sum())
        self._entropy += float((probability * surprise_positive + (1.0 - probability) * surprise_negative).sum())

    def result(self) -> RowsTruth:
        """Return what the true probabilities reach on the rows so far; at least one."""
        expected = self._expected.auc()
        assert expected is not None
        best = self._drawn.auc()
        return RowsTruth(
            rows=self._rows,
            positives=int(self._drawn.positives.sum()),
            best_auc=None if best is None else best.value,
            best_auc_error=self._drawn.error_bound(),
            expected_auc=expected.value,
            best_log_loss=self._log_loss / self._rows,
            expected_log_loss=self._entropy / self._rows,
        )

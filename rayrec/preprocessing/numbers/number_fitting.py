"""Fits transforms of numbers to rows; the result does not depend on how rows are spread over tasks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.table import FitFill
from rayrec.config.transforms import Fill, NumericTransform
from rayrec.features.numeric import transformed
from rayrec.preprocessing.engines.engine import Source
from rayrec.preprocessing.numbers.summary import Fit, Summary, fitted
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.workspace import Workspace

Summaries = dict[str, Summary]
"""The summaries of numbers by name; a number that is missing in every row has none."""
_SUMMARY = pa.schema([
    ("keys", pa.list_(pa.int64())), ("counts", pa.list_(pa.int64())), ("shift", pa.int64()),
    ("least", pa.float64()), ("most", pa.float64()), ("total", pa.string()), ("squares", pa.string()),
])  # fmt: skip
"""A summary as it is shuffled; integers of any size are hexadecimal."""


@dataclass(frozen=True)
class Number:
    """A number of each row."""

    name: str
    inputs: tuple[str, ...]
    """The raw columns that it is computed from; of lists every value counts."""
    transforms: tuple[NumericTransform, ...] = ()


@dataclass(frozen=True)
class UnfittedNumber:
    """A number of each row with transforms of which some are to be fitted, each to what those before it give."""

    name: str
    inputs: tuple[str, ...]
    steps: tuple[Fit | NumericTransform, ...]


def fit_numbers(
    workspace: Workspace, read: ReadRows, segments: Sequence[Segment], numbers: Sequence[UnfittedNumber]
) -> dict[str, tuple[NumericTransform, ...]]:
    """Return the transforms of numbers, by name, fitted to the rows of `segments`."""
    done: dict[str, tuple[NumericTransform, ...]] = {number.name: () for number in numbers}
    while True:
        pending: dict[str, tuple[Number, Fit]] = {}
        for number in numbers:
            transforms = done[number.name]
            for step in map(_as_transform, number.steps[len(transforms) :]):
                if isinstance(step, Fit):
                    pending[number.name] = (Number(number.name, number.inputs, transforms), step)
                    break
                transforms = (*transforms, step)
            done[number.name] = transforms
        if not pending:
            return done
        summaries = summarize(workspace, "fit numbers", read, segments, [before for before, _ in pending.values()])
        for name, (_, fit) in pending.items():
            done[name] = (*done[name], fitted(fit, summaries.get(name)))


def _as_transform(step: Fit | NumericTransform) -> Fit | NumericTransform:
    """`step`, or the transform that it is if nothing has to be known of the rows."""
    return Fill(value=step.value) if isinstance(step, FitFill) and not isinstance(step.value, str) else step


def summarize(
    workspace: Workspace, stage: str, read: ReadRows, segments: Sequence[Segment], numbers: Sequence[Number]
) -> Summaries:
    """Return what is known of numbers in the rows of `segments`."""
    columns = list(dict.fromkeys(name for number in numbers for name in number.inputs))
    with counted_rows(workspace.engine, workspace.progress, stage, count_rows(segments)) as counter:
        # A task summarizes the numbers of its rows ...
        def of_segment(segment: Segment) -> Iterator[tuple[int, pa.RecordBatch]]:
            summaries = merged(look(batch, numbers) for batch in read(segment, columns))
            for place, number in enumerate(numbers):
                if number.name in summaries:
                    yield place, _as_row(summaries[number.name])
            counter.add(segment.piece.rows)

        # ... and one for each number brings its summaries together, of which all segments have as many as one has.
        def of_all(place: int, tables: Mapping[str, pa.Table]) -> Summaries:
            return merged({numbers[place].name: _of_row(row)} for row in zip(*tables["found"].columns, strict=True))

        source = Source(segments, _SUMMARY, of_segment)
        return merged(workspace.engine.shuffle({"found": source}, len(numbers), of_all))


def look(batch: pa.RecordBatch, numbers: Sequence[Number]) -> Summaries:
    """Return what is known of numbers in a batch."""
    found = {number.name: Summary.of(_values(number, batch)) for number in numbers}
    return {name: summary for name, summary in found.items() if summary is not None}


def merged(parts: Iterable[Mapping[str, Summary]]) -> Summaries:
    """Return what is known of numbers in several batches."""
    result: Summaries = {}
    for part in parts:
        for name, summary in part.items():
            result[name] = result[name] + summary if name in result else summary
    return result


def _values(number: Number, batch: pa.RecordBatch) -> NDArray[np.float64]:
    column = batch[number.inputs[0]]
    if pa.types.is_list(column.type):
        column = column.flatten()
    if pa.types.is_timestamp(column.type) and not number.transforms:
        column = column.cast(pa.int64())
    return transformed(number.name, column, number.transforms, *(batch[name] for name in number.inputs[1:]))


def _as_row(summary: Summary) -> pa.RecordBatch:
    sums = {"total": f"{summary.total:x}", "squares": f"{summary.squares:x}"}
    return pa.RecordBatch.from_pylist([{**vars(summary), **sums}], schema=_SUMMARY)


def _of_row(row: Sequence[pa.Scalar]) -> Summary:
    keys, counts, *rest = row
    shift, least, most, total, squares = (value.as_py() for value in rest)
    ranges = keys.values.to_numpy(), counts.values.to_numpy()
    return Summary(*ranges, shift, least, most, int(total, 16), int(squares, 16))

"""Fits transforms of numbers to rows, with Spark; the result does not depend on how rows are spread over tasks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.table import FitFill
from rayrec.config.transforms import Fill, NumericTransform
from rayrec.features.numeric import transformed
from rayrec.preprocessing.engines.engine import Counter
from rayrec.preprocessing.numbers.summary import Fit, Summary, fitted
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.workspace import Workspace
from rayrec.store.files import new_file

_FILES_AT_ONCE = 32
Summaries = dict[str, Summary]
"""The summaries of numbers by name; a number that is missing in every row has none."""
_KEPT = pa.schema([
    ("name", pa.string()),
    ("keys", pa.list_(pa.int64())),
    ("counts", pa.list_(pa.int64())),
    ("shift", pa.int64()),
    ("least", pa.float64()),
    ("most", pa.float64()),
    ("total", pa.string()),
    ("squares", pa.string()),
])  # fmt: skip
"""Summaries in a file, a row each; integers of any size are hexadecimal."""


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
    folder = workspace.scratch / "numbers"
    with counted_rows(workspace.runner, workspace.progress, stage, count_rows(segments)) as counter:
        first = partial(_summarize_segment, read=read, numbers=numbers, folder=folder, counter=counter)
        files = workspace.runner.run(segments, first)
        while len(files) > _FILES_AT_ONCE:
            groups = [files[start : start + _FILES_AT_ONCE] for start in range(0, len(files), _FILES_AT_ONCE)]
            files = workspace.runner.run(groups, _merge_files)
    return merged(map(_load, files))


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


def _summarize_segment(
    segment: Segment, read: ReadRows, numbers: Sequence[Number], folder: Path, counter: Counter
) -> Path:
    columns = list(dict.fromkeys(name for number in numbers for name in number.inputs))
    summaries = merged(look(batch, numbers) for batch in read(segment, columns))
    counter.add(segment.piece.rows)
    return _save(folder / f"{segment.index:06d}", summaries)


def _merge_files(files: Sequence[Path]) -> Path:
    return _save(files[0].with_name(f"{files[0].name}+"), merged(map(_load, files)))


def _save(path: Path, summaries: Summaries) -> Path:
    rows = [
        {"name": name, **vars(summary), "total": f"{summary.total:x}", "squares": f"{summary.squares:x}"}
        for name, summary in summaries.items()
    ]
    table = pa.Table.from_pylist(rows, schema=_KEPT)
    with new_file(path) as temporary, pa.ipc.new_file(temporary, _KEPT) as writer:
        writer.write_table(table)
    return path


def _load(path: Path) -> Summaries:
    summaries: Summaries = {}
    for row in zip(*pa.ipc.open_file(path.read_bytes()).read_all(), strict=True):
        name, keys, counts, *rest = row
        shift, least, most, total, squares = (value.as_py() for value in rest)
        sums = int(total, 16), int(squares, 16)
        summaries[name.as_py()] = Summary(keys.values.to_numpy(), counts.values.to_numpy(), shift, least, most, *sums)
    return summaries

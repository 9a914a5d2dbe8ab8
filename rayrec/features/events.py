"""Events as histories take them: of a log, of a table beside it, and of a row that brings its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.labels import read_labels
from rayrec.features.raw_columns import History
from rayrec.features.text_forms import TextForm, in_form

Columns = Mapping[str, pa.Array]
_LARGEST = 1e100
"""Numbers from this on are missing, as those that are not finite, so that sums of any number of them are finite."""


def summed(history: History) -> list[str | None]:
    """Return the columns of which running sums are kept; None for the label."""
    return list(dict.fromkeys(taken.of for taken in history.takes if taken.op in ("rate", "mean", "sum")))


def listed(history: History) -> list[str]:
    """Return the columns of which the values are kept."""
    return list(dict.fromkeys(taken.of for taken in history.takes if taken.op == "last" and taken.of is not None))


def taken_of(
    history: History, events: Columns, time: str, label: str | None, forms: Mapping[str, TextForm]
) -> list[pa.Array]:
    """Return the times (int64) of m events, the numbers that are summed (float64, null where one is missing or too
    large), and the values that are listed. Those of a moment are in the order of these columns.

    `label`: the column of the label (0 or 1); `forms`: of texts, by column.
    """
    arrays = [events[time].cast(pa.int64())]
    for of in summed(history):
        number = pc.add(events[of or label or ""].cast(pa.float64()), 0.0)  # makes 0 of -0
        arrays.append(pc.if_else(pc.less(pc.abs(number), _LARGEST), number, None))
    return arrays + [in_form(events[of], forms.get(of, "text")) for of in listed(history)]


def that_count(history: History, events: Columns) -> pa.BooleanArray | None:
    """Return (m,) which events meet the condition of a history; None if it has none. The column of the label is 0 or
    1.
    """
    if history.where is None:
        return None
    labels, _ = read_labels(events[history.where.column], history.where)
    return pc.equal(labels, 1.0).fill_null(False)


def labels_of(history: History, events: Columns) -> pa.FloatArray:
    """Return (m,) the labels (0 or 1) of events that rows bring, whose column is as the log has it; null if one has
    none.
    """
    assert history.label is not None and history.label_column is not None
    field = next(field for field in history.fields if field.name == history.label_column)
    number = field.model_copy(update={"type": "number"})
    labels, wrong = read_labels(events[history.label_column], history.label, number)
    return pc.if_else(pa.array(wrong), None, labels)


@dataclass(frozen=True)
class OwnEvents:
    """The events that rows bring and that count, in the order of the rows, and of time and values as in a table."""

    rows: NDArray[np.int64]
    """(m,) the row of each."""
    times: NDArray[np.int64]
    """(m,) in microseconds since 1970."""
    numbers: Mapping[str | None, NDArray[np.float64]]
    """(m,) by column (None: the label); NaN where one is missing."""
    values: Mapping[str, pa.Array]

    @classmethod
    def of(cls, history: History, column: pa.ListArray) -> "OwnEvents":
        """Take the events of n rows, a list of structs each, as `RawColumn.arrow` of `History.events` has them."""
        given = pa.RecordBatch.from_struct_array(column.flatten())
        events = dict(zip(given.schema.names, given.columns, strict=True))
        if history.label_column is not None:
            events[history.label_column] = labels_of(history, events)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        arrays = taken_of(history, events, history.fields[0].name, history.label_column, {})
        owner = pa.array(np.repeat(np.arange(len(column)), lengths))
        table = pa.RecordBatch.from_arrays([owner, *arrays], names=[str(n) for n in range(len(arrays) + 1)])
        counts = that_count(history, events)
        table = table if counts is None else table.filter(counts)
        table = table.sort_by([(name, "ascending") for name in table.schema.names])
        rows, times, *taken = table.columns
        numbers = [number.to_numpy(zero_copy_only=False) for number in taken[: len(summed(history))]]
        values = dict(zip(listed(history), taken[len(numbers) :], strict=True))
        return cls(rows.to_numpy(), times.to_numpy(), dict(zip(summed(history), numbers, strict=True)), values)


def with_forms(history: History, forms: Mapping[str, TextForm]) -> History:
    """Return the history whose events have texts in these forms, by column."""
    fields = (field.model_copy(update={"form": forms.get(field.name, field.form)}) for field in history.fields)
    return history.model_copy(update={"fields": tuple(fields)})

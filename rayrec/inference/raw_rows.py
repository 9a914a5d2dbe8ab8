"""Raw rows from outside (JSON objects, data frames, Arrow) checked and brought into the columns that the encoder reads.

A feature that a row does not name, or whose value is null, is missing there. Columns that scoring does not need, such
as the label, are left out; other names that the schema does not know and values of another type are errors that name
the row (from 0) and the field.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError, did_you_mean
from rayrec.config.table import matches
from rayrec.features.events import labels_of
from rayrec.features.raw_columns import History, ListLength, RawColumn, flat_row, is_index
from rayrec.features.raw_values import MOST_EVENTS, Values, element_of, needs, read_column, read_values
from rayrec.features.schema import Schema
from rayrec.features.stacked_columns import StackedColumns
from rayrec.features.transforms import lengths_of, wrong_lists

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_MOST_TOGETHER = 65_536
"""Most texts of several columns that are copied into one."""
FindRows = Callable[[Callable[[str], pa.Array], int], NDArray[np.bool_]]
"""Tells which of some rows are wrong, by what gives their columns by name, and their number."""
_OR_NULL = ", or null if it is missing"
_PLAIN = {
    kind: frozenset({*types, type(None)})
    for kind, types in {"number": (int, float), "text": (str,), "integer": (int,)}.items()
}
"""Python types that Arrow converts as they are meant, by type of column (it would make 1.0 of True)."""


class RawRows:
    """Checks raw rows against one schema."""

    def __init__(
        self, schema: Schema, unneeded: Sequence[str] = (), other_names: Mapping[str, str] | None = None
    ) -> None:
        """`unneeded`: names or patterns of columns that rows may have beside features (`Recipe.unneeded_columns`).

        `other_names`: names that raw files have for columns, each with the column's (`SourceConfig.other_names`).
        """
        self._raw = {column.name: column for column in schema.request_columns}
        self._list_lengths = schema.list_lengths
        self._in_lists = {name for needed in self._list_lengths for name in needed if isinstance(name, str)}
        """The columns that `_check_lists` reads."""
        self._pasts = [history for history in schema.histories if history.earliest is not None]
        """The histories of which the model has the newest events alone."""
        self._of_events = {history.events_name: history for history in schema.histories if history.fields}
        """The histories by the columns of the events that rows bring."""
        alike: dict[RawColumn, list[str]] = {}
        for column in schema.request_columns:
            if column.type in _PLAIN:
                alike.setdefault(column.model_copy(update={"name": ""}), []).append(column.name)
        self._alike = {raw: tuple(names) for raw, names in alike.items()}
        """The columns that are read alike, by how."""
        self.columns = pa.schema([(column.name, column.arrow) for column in schema.request_columns])
        """The Arrow columns that it makes: those of `FeatureEncoder.raw_schema`."""
        self._known = frozenset({*self._raw, *schema.other_columns, *unneeded})
        self._other_names = {name: column for name, column in (other_names or {}).items() if name not in self._known}
        self._patterns = tuple(name for name in unneeded if "*" in name or "?" in name)

    def from_rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return the rows as mappings of feature names to values. Raises UserError naming row and field.

        Values are those of JSON or Python, read as those of files are (`read_values`): a number may be given as a text,
        a text as a number or a boolean, a time as a text, a number or a `datetime`, a list as a text where the column
        has a separator.
        """
        return self.stacked(rows).batch()

    def stacked(self, rows: Sequence[Mapping[str, Any]]) -> StackedColumns:
        """Read rows as `from_rows` does, into columns of which those that are read alike are stacked."""
        rows = self._of_known_names(rows)
        stacks: dict[tuple[str, ...], pa.Array] = {}
        for raw, names in self._alike.items():
            values = [row.get(name) for name in names for row in rows]
            # Of plain values all columns are read in one call, unless one of their values may be wrong.
            if set(map(type, values)) <= _PLAIN[raw.type]:
                with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeEncodeError):
                    together, unreadable = read_column(pa.array(values, raw.arrow, from_pandas=True), raw)
                    if not np.count_nonzero(unreadable) and (raw.type != "number" or _in_range(together)):
                        stacks[names] = together
        stacked = {name for names in stacks for name in names}
        for name, raw in self._raw.items():
            if name not in stacked:
                values = [row.get(name) for row in rows]
                is_there = any(value is not None for value in values)
                stacks[name,] = self.from_values(name, values) if is_there else pa.nulls(len(rows), raw.arrow)
        columns = StackedColumns(self.columns, len(rows), stacks)
        self._check_lists({name: columns.stack((name,)) for name in self._in_lists})
        self._require_past(lambda name: columns.stack((name,)), len(rows))
        return columns

    def _of_known_names(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the rows, with the names of the schema. Raises UserError naming a row or a name that is not known."""
        known: Set[str] = self._known
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise UserError(f"row {index}: {describe_value(row)}; a row is an object of feature names and values")
            if not row.keys() <= known:
                others = [(name, value) for name, value in row.items() if name not in known]
                if any(isinstance(value, Mapping) or self._is_missing_object(name, value) for name, value in others):
                    return self._of_known_names([self._flat(number, given) for number, given in enumerate(rows)])
                unknown = [name for name, _ in others if not self.is_unneeded(name)]
                if unknown and self._column(unknown[0]) in self._known:
                    self.require_features(self.named(row))
                    return self._of_known_names([self._renamed(row) for row in rows])
                if unknown:
                    raise UserError(f"row {index}: {self.unknown(unknown[0])}")
                # Rows have the same columns, as a rule; a set for each row would take long if they do not.
                known = known if isinstance(known, set) else set(known)
                known.update(row)
        return rows

    def _flat(self, index: int, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row with the fields of its objects as columns; a missing object has none."""
        if not isinstance(row, Mapping):
            return row
        # An object without fields gives no column that could be unknown.
        for name in _empty_objects(row, self._known):
            if not self._is_missing_object(name, None) and not self.is_unneeded(name):
                raise UserError(f"row {index}: {self.unknown(name)}")
        fields = flat_row(row, self._known).items()
        return {name: value for name, value in fields if not self._is_missing_object(name, value)}

    def _is_missing_object(self, name: str, value: Any) -> bool:
        return value is None and name not in self._known and any(column.startswith(f"{name}.") for column in self._raw)

    def from_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return Arrow columns named as the features; absent columns are missing in every row. Raises UserError.

        Columns are read as those of files are (`read_column`), so that texts may hold numbers, for one.
        """
        names = self.named(batch.schema.names)
        self.require_features(names)
        return self.from_columns(dict(zip(names, batch.columns, strict=True)), batch.num_rows)

    def from_columns(self, given: Mapping[str, Values], rows: int) -> pa.RecordBatch:
        """Read columns of known features, of `rows` values each, as `from_batch` does; values may be Python's."""
        columns: dict[str, pa.Array] = {}
        for raw, names in self._alike.items():
            found = {name: values for name in names if isinstance(values := given.get(name), pa.Array)}
            alike = [name for name, values in found.items() if values.type == raw.arrow]
            # To read a few texts of each of many columns takes longer than to copy all of them into one.
            if raw.type == "text" and alike and rows * len(alike) <= _MOST_TOGETHER:
                texts, _ = read_column(pa.concat_arrays([found[name] for name in alike]), raw)
                columns |= {name: texts.slice(place * rows, rows) for place, name in enumerate(alike)}
        for name, raw in self._raw.items():
            if name not in columns:
                columns[name] = self.from_values(name, given[name]) if name in given else pa.nulls(rows, raw.arrow)
        return self.checked([columns[name] for name in self._raw])

    def require_in_range(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return checked rows. Raises UserError naming the first number that is infinite or too large for the model."""
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            _require_in_range(name, column)
        return rows

    def named(self, names: Iterable[Any]) -> list[str]:
        """Return names of columns as the schema has them.

        Blanks around them say nothing, as in a file's header; a name that raw files have stands for the column.
        """
        return [self._column(name) for name in names]

    def _column(self, name: Any) -> str:
        """Return the column that a name stands for; the name itself, if it is not known."""
        text = str(name)
        if text in self._known:
            return text
        column = self._other_names.get(text.strip(), text.strip())
        return column if column in self._known else text

    def _renamed(self, row: Any) -> Any:
        """Name the values of a row as `named` does; what is no row stays, for `from_rows` to refuse."""
        if not isinstance(row, Mapping):
            return row
        names = self.named(row)
        if len(set(names)) < len(names):
            self.require_features(names)
        return dict(zip(names, row.values(), strict=True))

    def require_features(self, names: Sequence[str]) -> None:
        """Raise UserError if a column's name is not known, or if that of a feature is given twice."""
        for name, count in Counter(names).items():
            if name not in self._raw and not self.is_unneeded(name):
                raise UserError(self.unknown(name))
            if count > 1 and name in self._raw:
                others = [other for other, column in self._other_names.items() if column == name]
                also = f" ({', '.join(others)} mean it too); give one of them" if others else ""
                raise UserError(f"column '{name}': given {count} times{also}")

    def from_values(self, name: str, values: Values) -> pa.Array:
        """Read the column of one known feature, from a value a row or Arrow's array. Raises UserError."""
        column = _column(self._raw[name], values)
        if name in self._of_events:
            self._check_events(self._of_events[name], column)
        return column

    def _check_events(self, history: History, column: pa.ListArray) -> None:
        """Raise UserError for the first event that has no label, or that the model knows."""
        found = [(int(wrong.argmax()), why) for wrong, why in _wrong_events(history, column) if wrong.any()]
        if found:
            place, why = min(found, key=lambda one: one[0])
            owner = _owner_of_events(column)
            row = int(owner[place])
            event = place - int(owner.searchsorted(row))
            raise UserError(f"row {row}, '{history.events_name}', event {event}: {why}")

    def bring_wrong_events(self, column: Callable[[str], pa.Array], rows: int) -> NDArray[np.bool_]:
        """Return (rows,) which rows bring an event that has no label, or that the model knows, by columns as read."""
        wrong = np.zeros(rows, bool)
        for name, history in self._of_events.items():
            brought = column(name)
            for is_wrong, _ in _wrong_events(history, brought) if brought.null_count < rows else ():
                wrong[_owner_of_events(brought)[is_wrong]] = True
        return wrong

    def is_unneeded(self, name: Any) -> bool:
        """Tell whether rows may have a column that is no feature's, as scoring does not need it."""
        if name in self._raw:
            return False
        return (
            name in self._known or is_index(str(name)) or any(matches(str(name), pattern) for pattern in self._patterns)
        )

    def unknown(self, name: Any) -> str:
        """Return the error message for a name that is not known."""
        return f"unknown feature '{str(name)[:100]}'; {did_you_mean(str(name), self.columns.names, 'features:')}"

    def checked(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return the columns as a batch, if vectors are as long as they must be and values have weights.

        Raises UserError.
        """
        self._check_lists(dict(zip(self._raw, columns, strict=True)))
        checked = pa.RecordBatch.from_arrays(columns, schema=self.columns)
        self._require_past(checked.column, checked.num_rows)
        return checked

    def too_old(self, column: Callable[[str], pa.Array], rows: int) -> NDArray[np.bool_]:
        """Return (rows,) which rows lack what only older events than the model has would tell, by columns as read."""
        wrong = np.zeros(rows, bool)
        for past in self._pasts:
            assert past.earliest is not None
            # A missing time, which is now, is NaN: no calls of Arrow, which take most of a lone row's time.
            is_early = column(past.time).view(pa.int64()).to_numpy(zero_copy_only=False) < past.earliest
            if is_early.any():
                lacks = [column(name).is_null().to_numpy(zero_copy_only=False) for name in past.columns]
                wrong |= is_early & np.logical_or.reduce(lacks)
        return wrong

    def _require_past(self, column: Callable[[str], pa.Array], rows: int) -> None:
        if self._pasts and (wrong := self.too_old(column, rows)).any():
            row, time = int(wrong.argmax()), self._pasts[0].time
            since = max(past.earliest for past in self._pasts if past.earliest is not None)
            least = _time_text(pa.scalar(since, pa.timestamp("us", "UTC")))
            raise UserError(
                f"row {row}, '{time}': {_time_text(column(time)[row])} is too old; the model knows what was before "
                f"{least} or later"
            )

    def _check_lists(self, by_name: Mapping[str, pa.Array]) -> None:
        for needed in self._list_lengths:
            wrong = wrong_lists(needed, by_name)
            if wrong.any():
                row = int(wrong.argmax())
                raise UserError(f"row {row}, '{needed.column}': {_wrong_list(needed, by_name, row)}")


def _empty_objects(row: Mapping[str, Any], columns: Container[str], above: str = "") -> Iterator[str]:
    """Yield the names of the objects without fields in a row, written as those of columns (`a.b`)."""
    for name, value in row.items():
        if isinstance(value, Mapping) and f"{above}{name}" not in columns:
            if not value:
                yield f"{above}{name}"
            yield from _empty_objects(value, columns, f"{above}{name}.")


def _wrong_list(needed: ListLength, columns: Mapping[str, pa.Array], row: int) -> str:
    """Return what is wrong with a list of numbers, and what is needed."""
    numbers = columns[needed.column][row].as_py()
    if isinstance(needed.length, int):
        return f"a list of {len(numbers)} numbers; needs {needed.length}{_OR_NULL}"
    values = columns[needed.length][row].as_py() or []
    if len(numbers) != len(values):
        return (
            f"a list of {len(numbers)} weights; '{needed.length}' has {len(values)} values; give one for each, or null "
            "if all weigh the same"
        )
    wrong = next(number for number in numbers if number is None or not 0 <= number <= _FLOAT32_MAX)
    return f"the weight {'null' if wrong is None else wrong}; needs a number of at least 0 for each value"


def _column(raw: RawColumn, values: Values) -> pa.Array:
    """Read the values of one column. Raises UserError naming the row of the first one that is wrong."""
    column, unreadable = read_values(values, raw)
    if isinstance(values, list):
        _require_in_range(raw.name, column)
    if unreadable.any():
        row = int(unreadable.argmax())
        value = values[row].as_py() if isinstance(values, pa.Array) else values[row]
        if raw.fields:
            raise UserError(f"row {row}, '{raw.name}'{_unreadable_event(value, raw)}")
        if isinstance(value, list | tuple) and pa.types.is_list(raw.arrow):
            raw = element_of(raw)
            value = value[int(read_values(list(value), raw)[1].argmax())]
        raise UserError(f"row {row}, '{raw.name}': {describe_value(value)}; needs {needs(raw)}{_OR_NULL}")
    return column


def _wrong_events(history: History, column: pa.ListArray) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """Yield (m,) which of the events that n rows bring are wrong, with each reason for which one may be."""
    events = column.flatten()
    if history.since is not None:
        since = _time_text(pa.scalar(history.since, events.field(0).type))
        times = events.field(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        yield times < history.since, f"is before {since}; leave out events that the model knows"
    if history.label_column is not None:
        labels = labels_of(history, {field.name: events.field(n) for n, field in enumerate(history.fields)})
        lacks = labels.is_null().to_numpy(zero_copy_only=False)
        yield lacks, f"has no '{history.label_column}' that tells its label"


def _owner_of_events(column: pa.ListArray) -> NDArray[np.int64]:
    """Return (m,) the row of each event that n rows bring."""
    return np.repeat(np.arange(len(column)), lengths_of(column))


def _unreadable_event(value: Any, raw: RawColumn) -> str:
    """Return which of the events that a row brings cannot be read, and what is needed."""
    if not isinstance(value, list | tuple | np.ndarray) or len(value) > MOST_EVENTS:
        found = f"{len(value):,} events" if isinstance(value, list | tuple | np.ndarray) else describe_value(value)
        return f": {found}; needs {needs(raw)}{_OR_NULL}"
    fields = {field.name: field for field in raw.fields}
    for place, given in enumerate(value):
        if not isinstance(given, Mapping):
            return f", event {place}: {describe_value(given)}; needs an object with {', '.join(fields)}"
        event = flat_row(given, fields)
        for name, one in event.items():
            if name not in fields:
                return f", event {place}: unknown field '{name[:100]}'; {did_you_mean(name, list(fields), 'fields:')}"
            if read_values([one], fields[name])[1].any():
                return f", event {place}, '{name}': {describe_value(one)}; needs {needs(fields[name])}"
        time = raw.fields[0]
        if not read_values([event.get(time.name)], time)[0].is_valid()[0].as_py():
            return f", event {place}: has no '{time.name}'; needs {needs(time)}"
    raise AssertionError(raw.name)


def _time_text(time: pa.Scalar) -> str:
    """Return a time of UTC as people write it: `2026-01-31T23:59:59Z`, with a fraction if it has one."""
    text: str = time.cast(pa.string()).as_py()
    return text.removesuffix(".000000Z").removesuffix("Z").replace(" ", "T") + "Z"


def _in_range(column: pa.Array) -> bool:
    numbers = column.flatten() if pa.types.is_list(column.type) else column
    if not pa.types.is_floating(numbers.type):
        return True
    # A null is NaN. For a few numbers `any` takes longer than all else here.
    return not np.count_nonzero(np.abs(numbers.to_numpy(zero_copy_only=False)) > _FLOAT32_MAX)


def _require_in_range(name: str, column: pa.Array) -> None:
    if not _in_range(column):
        row = next(row for row in range(len(column)) if not _in_range(column[row : row + 1]))
        raise UserError(f"row {row}, '{name}': a number is out of range; numbers go up to {_FLOAT32_MAX:.3g}")


def describe_value(value: Any) -> str:
    """Describe a value in the terms of JSON, cut to a readable length."""
    match value:
        case None:
            return "null"
        case bool():
            return f"{str(value).lower()} (a boolean)"
        case str():
            return f"the string {value[:40]!a}"
        case Mapping():
            return "an object"
        case bytes():
            return "bytes that are not UTF-8"
        case Sequence():
            return "a list"
        case int() if value.bit_length() > 128:  # one of thousands of digits cannot even be printed
            return "an integer of more than 38 digits"
        case Real():
            return f"the number {value}"
    return f"a value of type {type(value).__name__}"

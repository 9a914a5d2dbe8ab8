"""The columns of raw rows: their types, how their values are read, and what is looked up for rows that lack them.

JSON, Parquet and requests may hold objects within rows, whose fields become columns, however deep: the row
{"user": {"geo": {"country": "NZ"}}} has the column `user.geo.country`. No other part knows of objects. Objects within
lists stay as they are.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import pyarrow as pa
from pydantic import Field

from rayrec.config import Config
from rayrec.config.base import NumberFormat, TimeFormat, Zone
from rayrec.config.table import LabelCondition
from rayrec.features.text_forms import TextForm

STATISTICS_FOLDER = "statistics"
"""Tables in which columns or features of rows are looked up; export copies them into the model folder."""

SECOND = 1_000_000
"""Microseconds, the unit of times."""
RawType = Literal["number", "integer", "text", "time", "numbers", "integers", "texts", "events"]
_SCALARS = {"number": pa.float64(), "integer": pa.int64(), "text": pa.string(), "time": pa.timestamp("us", "UTC")}
_ARROW_TYPES = _SCALARS | {f"{name}s": pa.list_(_SCALARS[name]) for name in ("number", "integer", "text")}


class RawColumn(Config):
    """A column of raw rows, and how its values are read; the same in files and in requests."""

    name: str
    type: RawType
    """The type of a value: numbers, integers and texts are lists, events are lists of objects. An integer read as a
    text is its decimal digits.
    """
    separator: str | None = None
    """The separator of the values of a list that a file or a request gives as one text (`rayrec.features.text_forms`);
    None takes lists alone.
    """
    time_format: TimeFormat = "iso"
    zone: Zone = "UTC"
    """The IANA time zone of times that do not name one."""
    form: TextForm = "text"
    """How texts are spelled (`rayrec.features.text_forms`)."""
    null_values: tuple[str, ...] = ()
    """Texts that stand for a missing value, as the empty text does."""
    number_format: NumberFormat = Field("plain", exclude_if=lambda given: given == "plain")
    """How texts are numbers; of a column of texts, those that are numbers so have one spelling. Left out of files where
    `plain`, as before there were others.
    """
    fields: "tuple[RawColumn, ...]" = Field((), exclude_if=lambda given: not given)
    """What an event has; its time is the first."""

    @property
    def arrow(self) -> pa.DataType:
        """Return the type of the column in raw rows: float64, int64, string, timestamp[us, UTC], or lists of them or of
        structs.
        """
        if self.fields:
            return pa.list_(pa.struct([(field.name, field.arrow) for field in self.fields]))
        return _ARROW_TYPES[self.type]


class ListLength(NamedTuple):
    """Required length of the lists of numbers in a raw column."""

    column: str
    length: int | str
    """A number of elements, or the raw column of the lists whose elements these numbers weigh."""

    def renamed(self, name: Callable[[str], str]) -> "ListLength":
        """Return this rule for columns that have other names."""
        return ListLength(name(self.column), name(self.length) if isinstance(self.length, str) else self.length)


class _HasKeys(Protocol):
    @property
    def keys(self) -> tuple[str, ...]:
        """Return the raw columns of the key."""


class _FoundByKeys:
    """A look-up that needs nothing but the columns of its key."""

    @property
    def reads(self: _HasKeys) -> tuple[str, ...]:
        """Return the raw columns that it needs."""
        return self.keys

    @property
    def asked(self: _HasKeys) -> tuple[str, ...]:
        """Return the columns of rows that say what is found."""
        return self.keys


class SideTable(_FoundByKeys, Config):
    """Raw columns that are looked up by a key, unless a request gives them."""

    kind: Literal["table"] = "table"
    name: str
    """The table lies in the folder `statistics/tables/NAME` (`rayrec.features.lookup_table`)."""
    key: str
    """The raw column (text) whose value is looked up."""
    columns: tuple[str, ...]
    """The raw columns that it gives; a column NAME_x is x in the table's files."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the raw columns that it is looked up by."""
        return (self.key,)


class Rate(_FoundByKeys, Config):
    """A raw column (number) that is looked up by keys: the smoothed rate of the label in rows of `train`.

    (positives + smoothing * mean) / (rows + smoothing); `mean` where the keys were never seen or one is missing. A row
    of `train` counts only the rows of other folds (docs/own-data.md).
    """

    kind: Literal["rate"] = "rate"
    name: str
    """The raw column; the table lies in the folder `statistics/rates/NAME` (`rayrec.features.lookup_table`)."""
    keys: tuple[str, ...]
    """Raw columns of texts or numbers."""
    smoothing: float
    mean: float

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the raw columns that it gives."""
        return (self.name,)


class Taken(Config):
    """A raw column that is taken of the past of a row."""

    column: str
    op: Literal["count", "age", "rate", "mean", "sum", "last"]
    of: str | None = None
    """The column of the events; None for what needs none, and for the label."""
    smoothing: float = 0.0
    """Of a rate: events with the mean of all keys that are added."""
    length: int = 0
    """Of the last values: most of them."""


class History(Config):
    """Raw columns that are taken of events with the same key that happened before the row.

    With all times in microseconds, those with `since - window <= event.time < since` count, where `since` is
    `row.time - delay`, or with `known` the last full `known` up to the row's time, less `delay`; with `staleness` also
    `event.time < row.time - staleness - delay`. Events of the same moment are either all in the past or none is.
    """

    kind: Literal["history"] = "history"
    name: str
    """The table lies in the folder `statistics/histories/NAME` (`rayrec.features.histories`)."""
    keys: tuple[str, ...]
    """Raw columns of texts or numbers."""
    time: str
    """The raw column of the row's time; a row without one is of now."""
    delay: int = 0
    window: int | None = None
    """None counts all events before the row."""
    known: int | None = None
    """None knows an event as soon as it counts."""
    takes: tuple[Taken, ...]
    staleness: int = Field(0, exclude_if=lambda given: not given)
    """How old the table is taken to be at each row, where that is measured: later events do not count."""
    where: LabelCondition | None = None
    """Condition for the events that count; on the column of the label it is one on 0 and 1."""
    label: str | LabelCondition | None = None
    """How the label of an event that a row brings is told; None where events need none."""
    fields: tuple[RawColumn, ...] = ()
    """How an event that a row brings is read: its time, then what is taken of it; the label as the log has it."""
    since: int | None = None
    """Rows whose `since` is this moment or a later one (microseconds since 1970) can be told; None tells all."""
    until: int | None = None
    """The time up to which events are known: that of the newest, which `where` may have left out; None without one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the raw columns that it gives."""
        return tuple(taken.column for taken in self.takes)

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the raw columns that it needs."""
        return (*self.keys, self.time)

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the columns of rows that say what is found: those that it needs, and that of events which they may
        bring.
        """
        return (*self.reads, self.events_name)

    @property
    def events(self) -> RawColumn:
        """Return the column of the events that a row brings itself, which count beside those of the table."""
        return RawColumn(name=self.events_name, type="events", fields=self.fields)

    @property
    def events_name(self) -> str:
        """Return the name of that column."""
        return f"{self.name}_events"

    @property
    def label_column(self) -> str | None:
        """Return the name of the column of an event's label."""
        return self.label.column if isinstance(self.label, LabelCondition) else self.label

    @property
    def rule(self) -> "History":
        """Return the same without what its table's events say, which differs from day to day, and their spelling."""
        return self.model_copy(update={"fields": (), "since": None, "until": None})

    @property
    def earliest(self) -> int | None:
        """Return the first moment of rows that can be told, in microseconds since 1970; None tells all."""
        if self.since is None:
            return None
        moment = self.since + self.delay
        return moment if self.known is None else -(-moment // self.known) * self.known


Lookup = Annotated[SideTable | Rate | History, Field(discriminator="kind")]


def is_events(kind: pa.DataType) -> bool:
    """Tell whether a column of this type holds the events that rows bring."""
    return bool(pa.types.is_list(kind) and pa.types.is_struct(kind.value_type))


def is_index(name: str) -> bool:
    """Tell whether a column is the index of a data frame, as pandas writes one without a name: numbers of rows."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None


def fields_of(
    row: Mapping[str, Any], columns: Container[str] = (), above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of a row, those of its objects in their place, each with the names that lead to it.

    An object that stands where one of `columns` should have its value stays whole, as what is wrong.
    """
    for name, value in row.items():
        path = (*above, name)
        if isinstance(value, Mapping) and ".".join(path) not in columns:
            yield from fields_of(value, columns, path)
        else:
            yield path, value


def flat_row(row: Mapping[str, Any], columns: Container[str] = ()) -> Mapping[str, Any]:
    """Return the row with the fields of its objects in their place; itself if it has none. See `fields_of`."""
    if not any(isinstance(value, Mapping) for value in row.values()):
        return row
    return {".".join(path): value for path, value in fields_of(row, columns)}


def flat_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the fields of structs in their place."""
    while any(pa.types.is_struct(field.type) for field in schema):
        schema = pa.schema([part for field in schema for part in field.flatten()])
    return schema


def flat_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return (n,) rows with the fields of structs in their place; those of a missing struct are missing."""
    while any(pa.types.is_struct(kind) for kind in batch.schema.types):
        flat = pa.Table.from_batches([batch]).flatten()
        batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in flat.columns], flat.column_names)
    return batch


def nested_schema(kinds: Mapping[tuple[str, ...], pa.DataType]) -> pa.Schema | None:
    """Return the schema of rows whose values have these types, by the names that lead to them.

    None if there is none: an object has the name of another value.
    """
    columns = {path[0]: kind for path, kind in kinds.items() if len(path) == 1}
    inner: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for path, kind in kinds.items():
        if len(path) > 1:
            inner.setdefault(path[0], {})[path[1:]] = kind
    for name, fields in inner.items():
        schema = nested_schema(fields)
        if name in columns or schema is None:
            return None
        columns[name] = pa.struct(list(schema))
    return pa.schema(columns)

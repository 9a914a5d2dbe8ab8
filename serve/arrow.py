"""Requests as Arrow's IPC stream or file (Feather): raw columns in, a stream with the column `score` out.

    https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc

What a body states is checked before memory is spent on it: its rows, its types, and what it is once it is unpacked.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.raw_columns import is_events
from rayrec.inference.raw_rows import RawRows
from serve.requests import MOST_VALUES, RequestError, content_errors, most_bytes

MEDIA_TYPE, FILE_MEDIA_TYPE = "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"
SCORE = "score"
AT_ONCE_BYTES = 2**18
"""Columns of so many bytes are read in about the time that handing them to a thread takes."""
_MOST_BATCHES = 64
"""Record batches of a request, each of which takes some time however few rows it has."""
_SCHEMA_BYTES, _COLUMN_BYTES = 2**16, 2**12
"""Bytes of a schema, and more for each column of the model: a field of a few bytes takes hundreds in memory."""
_FILE_MARK = b"ARROW1\0\0"
_FLOAT32_MAX = float(np.finfo(np.float32).max)
# A body may name a type that this Arrow does not know, or a size that no number holds.
_NOT_ARROW = (pa.ArrowException, OSError, NotImplementedError, OverflowError, ValueError, struct.error)


def memory_of(body: bytes, limit: int) -> int:
    """Return the most bytes that the columns of a body take, of which `limit` are read: those of the body, unless it
    packs or repeats them.
    """
    try:
        is_packed = any(_stated(message).is_packed for message in _messages(body) if message.type != "schema")
    except _NOT_ARROW:  # it will be refused
        is_packed = False
    return most_bytes(len(body), limit) if is_packed else len(body)


def parse_columns(body: bytes, raw_rows: RawRows, max_rows: int, limit: int) -> pa.RecordBatch:
    """Return the checked raw rows of a request, whose columns take no more than `limit` bytes.

    Raises RequestError: 400 not Arrow, 413 too many rows or bytes, 422 wrong content.
    """
    if not body:
        raise RequestError(400, f"the body is empty; send an Arrow IPC stream of raw columns ({MEDIA_TYPE})")
    try:
        rows = _read(body, raw_rows, max_rows, most_bytes(len(body), limit))
    except _NOT_ARROW as error:
        reason = " ".join(str(error).split())[:200]
        raise RequestError(400, f"the body is not a valid Arrow IPC stream: {reason}") from None
    with content_errors():
        return raw_rows.from_batch(rows)


def scores_stream(model: str, version: str, scores: NDArray[np.float32]) -> bytes:
    """Return the body of an answer with (n,) scores; the schema's metadata names the model and the version."""
    schema = pa.schema([pa.field(SCORE, pa.float32(), False)], {"model": model, "version": version})
    return stream_of(pa.RecordBatch.from_arrays([pa.array(scores)], schema=schema))


def stream_of(rows: pa.RecordBatch) -> bytes:
    """Return an Arrow IPC stream of one record batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _stream(body: bytes) -> pa.Buffer:
    """Return the stream that a body is, or which a file has between its first bytes and its footer."""
    return pa.py_buffer(body).slice(len(_FILE_MARK) if body.startswith(_FILE_MARK) else 0)


def _messages(body: bytes) -> Iterator[pa.ipc.Message]:
    return iter(pa.ipc.MessageReader.open_stream(_stream(body)))


def _read(body: bytes, raw_rows: RawRows, max_rows: int, most: int) -> pa.RecordBatch:
    messages = _messages(body)
    schema, features = _schema(messages, raw_rows)
    counts = {"record batch": 0, "dictionary": 0}
    rows = unpacked = 0
    for message in messages:
        if message.type not in counts:
            raise RequestError(422, f"the stream has a message of type '{message.type}'; send only record batches")
        counts[message.type] += 1
        if counts["record batch"] > _MOST_BATCHES or counts["dictionary"] > _MOST_BATCHES + len(schema):
            raise RequestError(413, f"more than {_MOST_BATCHES} record batches; join them, or send several requests")
        stated = _stated(message)
        if stated.is_delta:
            raise RequestError(422, "a dictionary is sent in parts; send it whole")
        rows += stated.rows if message.type == "record batch" else 0
        if rows > max_rows:
            raise RequestError(413, f"{rows} rows, at most {max_rows} a request; send several requests")
        unpacked += stated.unpacked
        _require_size(unpacked, most)
    if rows == 0:
        raise RequestError(422, "the stream has no rows; send at least one")
    batches: list[pa.RecordBatch] = []
    for batch in pa.ipc.open_stream(_stream(body)):
        # Of a batch without rows Arrow checks no offsets, and ends the process where they are followed.
        if not batch.num_rows:
            continue
        chosen = batch.select(features)
        chosen.validate(full=True)
        columns = []
        for column in chosen.columns:
            plain, size = _plain(column, most - unpacked)
            unpacked += size
            columns.append(plain)
        names = chosen.schema.names
        chosen = pa.RecordBatch.from_arrays(columns, names=names) if names else chosen
        _require_in_range(chosen, sum(one.num_rows for one in batches))
        batches.append(chosen)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _require_size(size: int, most: int) -> None:
    if size > most:
        message = f"the columns take {size} bytes once they are unpacked, at most {most}; send several requests"
        raise RequestError(413, message)


def _plain(column: pa.Array, most: int) -> tuple[pa.Array, int]:
    """Return a valid column without views and dictionaries, and the bytes of texts that these stand for.

    They name the same long text again and again. Raises RequestError 413 if it is more than `most` bytes.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        values, size = _plain(column.dictionary, most)
        if _is_text(values.type):
            size += pc.sum(pc.binary_length(values).take(column.indices)).as_py() or 0
            _require_size(size, most)
        return values.take(column.indices), size
    if _is_list(kind) and _is_view(kind.value_type):
        _, size = _plain(column.flatten(), most)
        return pa.array(column.to_pylist(), pa.large_list(_large(kind.value_type))), size
    if _is_view(kind):
        # A view is four integers, the first of which is its length; Arrow also follows those of missing values.
        _, given, *texts = column.buffers()
        views = np.frombuffer(given or b"", np.int32).reshape(-1, 4)[column.offset : column.offset + len(column)].copy()
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        views[~is_there] = 0
        size = int(views[:, 0].sum(dtype=np.int64))
        _require_size(size, most)
        mask = pa.array(is_there).buffers()[1]
        return pa.Array.from_buffers(kind, len(column), [mask, pa.py_buffer(views), *texts]).cast(_large(kind)), size
    return column, 0


def _large(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()


def _schema(messages: Iterator[pa.ipc.Message], raw_rows: RawRows) -> tuple[pa.Schema, list[str]]:
    """Return the schema that a stream begins with, and the names of its columns that features are made of."""
    message = next(messages, None)
    if message is None:
        raise RequestError(400, "the body is not a valid Arrow IPC stream: it ends before its schema")
    if message.type != "schema":
        raise RequestError(400, "the body is not a valid Arrow IPC stream: it does not begin with a schema")
    most = _SCHEMA_BYTES + _COLUMN_BYTES * len(raw_rows.columns)
    content = message.serialize()
    if content.size > most:
        raise RequestError(413, f"the schema has {content.size} bytes, at most {most}; leave out metadata")
    return _checked_schema(content.to_pybytes(), raw_rows)


# The requests of a client have the same schema, and to check it takes as long as to read some hundred rows.
@lru_cache(maxsize=16)
def _checked_schema(message: bytes, raw_rows: RawRows) -> tuple[pa.Schema, list[str]]:
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    with content_errors():
        raw_rows.require_features(raw_rows.named(schema.names))
    features = [field for field in schema if not raw_rows.is_unneeded(field.name)]
    for field in features:
        if not _is_plain(field.type):
            raise RequestError(422, f"column '{field.name}': type {str(field.type)[:100]}; {_NEEDS}")
    return schema, [field.name for field in features]


_NEEDS = "send numbers, strings, booleans, times, or lists of numbers, of strings or, for events, of structs"


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a column can be read: of values, of lists of them or of structs of them, or of a dictionary of
    them.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _is_value(kind.storage_type)
    if is_events(kind):
        return all(_is_value(field.type) for field in kind.value_type)
    if _is_list(kind) or pa.types.is_dictionary(kind):
        return _is_value(kind.value_type) or _is_view(kind.value_type)
    return _is_value(kind) or _is_view(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_value(kind: pa.DataType) -> bool:
    """Return whether values take about as much memory as they do in the stream."""
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    times = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_duration)
    return _is_text(kind) or any(is_one(kind) for is_one in (*numbers, *times))


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string)
    of_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(is_one(kind) for is_one in (*texts, *of_bytes))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _require_in_range(batch: pa.RecordBatch, first_row: int) -> None:
    """Raise RequestError: 413 for lists of too many values, 422 for a number beyond float32, infinity too."""
    numbers: dict[str, NDArray[np.floating]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.flatten() if pa.types.is_nested(column.type) else column
        if values is not column and len(values) > MOST_VALUES:
            message = f"column '{name}': {len(values)} values, at most {MOST_VALUES} a request; send several requests"
            raise RequestError(413, message)
        if pa.types.is_floating(values.type):
            numbers[name] = values.to_numpy(zero_copy_only=False)
    # All columns together: a call for each would take longer than to look at the numbers.
    if not numbers or not _are_too_large(*numbers.values()).any():
        return
    name, too_large = next((name, wrong) for name in numbers if (wrong := _are_too_large(numbers[name])).any())
    is_list = pa.types.is_nested(batch.column(name).type)
    where = f"column '{name}'" if is_list else f"row {first_row + int(too_large.argmax())}, '{name}'"
    raise RequestError(422, f"{where}: a number is out of range; numbers go up to {_FLOAT32_MAX:.3g}")


def _are_too_large(*numbers: NDArray[np.floating]) -> NDArray[np.bool_]:
    return np.abs(np.concatenate(numbers, dtype=np.float64)) > _FLOAT32_MAX


class _Stated(NamedTuple):
    """What a record batch, or the one that holds a dictionary, says of itself."""

    rows: int
    unpacked: int
    """Bytes of its columns once they are unpacked; 0 if they are not packed."""
    is_packed: bool
    """Whether the columns may take more bytes than in the stream."""
    is_delta: bool
    """Whether it adds to a dictionary."""


def _stated(message: pa.ipc.Message) -> _Stated:
    """Return what a message says of its record batch. Raises ValueError or struct.error if that cannot be.

    Arrow tells it only after it has unpacked the columns. A message is a `Message` of Arrow's `Message.fbs` (as a
    FlatBuffer, which Arrow has verified), whose header is a `RecordBatch`, or a `DictionaryBatch` that has one.
    """
    data = message.metadata.to_pybytes()

    def number(kind: str, position: int) -> int:
        value: int = struct.unpack_from(kind, data, position)[0]
        return value

    def field(table: int, index: int) -> int | None:
        """Return the position of a table's field; None if it is absent."""
        fields = table - number("<i", table)
        place = 4 + 2 * index
        offset = number("<H", fields + place) if place < number("<H", fields) else 0
        return table + offset if offset else None

    def inner(table: int, index: int) -> int:
        """Return the position of a table or vector that a field refers to."""
        place = field(table, index)
        if place is None:
            raise ValueError("a message without content")
        return place + number("<I", place)

    batch, is_delta = inner(number("<I", 0), 2), False
    is_dictionary = message.type == "dictionary"
    if is_dictionary:
        delta = field(batch, 2)
        batch, is_delta = inner(batch, 1), delta is not None and number("<B", delta) != 0
    length = field(batch, 0)
    rows = 0 if length is None else number("<q", length)
    if rows < 0:
        raise ValueError(f"a record batch of {rows} rows")
    if field(batch, 3) is None:
        return _Stated(rows, 0, is_dictionary or field(batch, 4) is not None, is_delta)
    # The size of a packed buffer stands before it; -1 if it is not packed.
    unpacked, buffers = 0, inner(batch, 2)
    for place in range(buffers + 4, buffers + 4 + 16 * number("<I", buffers), 16):
        offset, size = number("<q", place), number("<q", place + 8)
        if size:
            if offset < 0:
                raise ValueError("a column before its record batch")
            unpacked += max(struct.unpack_from("<q", message.body, offset)[0], 0)
    return _Stated(rows, unpacked, True, is_delta)

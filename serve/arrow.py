"""Requests as Arrow's IPC stream: raw columns in, a column `score` out.

    https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format

What a stream states is checked before memory is spent on it: its rows, its types, and that nothing is compressed.
"""

import struct
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.inference.raw_rows import RawRows
from serve.requests import MOST_VALUES, RequestError, content_errors

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
SCORE = "score"
AT_ONCE_BYTES = 2**18
"""Columns of so many bytes are read in about the time that handing them to a thread takes."""
_MOST_BATCHES = 64
"""Record batches of a request, each of which takes some time however few rows it has."""
_SCHEMA_BYTES, _COLUMN_BYTES = 2**16, 2**12
"""Bytes of a schema, and more for each column of the model: a field of a few bytes takes hundreds in memory."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def parse_columns(body: bytes, raw_rows: RawRows, max_rows: int) -> pa.RecordBatch:
    """Return the checked raw rows of a request.

    Raises RequestError: 400 not an Arrow stream, 413 too many rows, 415 compressed, 422 wrong content.
    """
    if not body:
        raise RequestError(400, f"the body is empty; send an Arrow IPC stream of raw columns ({MEDIA_TYPE})")
    try:
        rows = _read(body, raw_rows, max_rows)
    # A stream may name a type that this Arrow does not know, or a size that no number holds.
    except (pa.ArrowException, OSError, NotImplementedError, OverflowError, ValueError) as error:
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


def _read(body: bytes, raw_rows: RawRows, max_rows: int) -> pa.RecordBatch:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    schema, features = _schema(messages, raw_rows)
    batches: list[pa.RecordBatch] = []
    rows = 0
    for message in messages:
        if message.type != "record batch":
            raise RequestError(422, f"the stream has a message of type '{message.type}'; send only record batches")
        if len(batches) == _MOST_BATCHES:
            raise RequestError(413, f"more than {_MOST_BATCHES} record batches; join them, or send several requests")
        length, is_compressed = _stated(message.metadata)
        rows += length
        if rows > max_rows:
            raise RequestError(413, f"{rows} rows, at most {max_rows} a request; send several requests")
        if is_compressed:
            raise RequestError(415, "the record batches are compressed: send them as they are")
        batch = pa.ipc.read_record_batch(message, schema).select(features)
        batch.validate(full=True)
        _require_in_range(batch, sum(one.num_rows for one in batches))
        batches.append(batch)
    if rows == 0:
        raise RequestError(422, "the stream has no rows; send at least one")
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _schema(messages: pa.ipc.MessageReader, raw_rows: RawRows) -> tuple[pa.Schema, list[str]]:
    """Return the schema that a stream begins with, and the names of its columns that features are made of."""
    try:
        message = messages.read_next_message()
    except StopIteration:
        raise RequestError(400, "the body is not a valid Arrow IPC stream: it ends before its schema") from None
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


_NEEDS = "send numbers, strings, booleans, times, or lists of numbers or strings, without a dictionary"


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values take about as much memory as they do in the stream.

    Views and dictionaries name the same long text, or list, again and again.
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_number(kind.value_type) or _is_text(kind.value_type)
    others = (pa.types.is_boolean, pa.types.is_null, pa.types.is_timestamp, pa.types.is_date, pa.types.is_duration)
    return _is_number(kind) or _is_text(kind) or any(is_other(kind) for is_other in others)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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


def _stated(metadata: pa.Buffer) -> tuple[int, bool]:
    """Return how many rows a record batch says that it has, and whether its columns are compressed.

    Arrow tells neither before it has decompressed the columns. `metadata` is a `Message` of Arrow's `Message.fbs` (as a
    FlatBuffer, which Arrow has verified), whose header is a `RecordBatch`.
    """
    data = metadata.to_pybytes()

    def number(kind: str, position: int) -> int:
        value: int = struct.unpack_from(kind, data, position)[0]
        return value

    def field(table: int, index: int) -> int | None:
        """Return the position of a table's field; None if it is absent."""
        fields = table - number("<i", table)
        place = 4 + 2 * index
        offset = number("<H", fields + place) if place < number("<H", fields) else 0
        return table + offset if offset else None

    header = field(number("<I", 0), 2)
    assert header is not None, "a message has a header"
    batch = header + number("<I", header)
    length = field(batch, 0)
    rows = 0 if length is None else number("<q", length)
    if rows < 0:
        raise RequestError(400, f"the body is not a valid Arrow IPC stream: a record batch of {rows} rows")
    return rows, field(batch, 3) is not None

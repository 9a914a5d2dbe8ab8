"""Counts the values of a `ModelInferRequest` before they are parsed."""

from contextlib import suppress

from serve.engine.admission import MOST_VALUES
from serve.errors import RequestError

_LOOKED_INTO = (frozenset({5, 6}), frozenset({5}), frozenset[int]())
"""Fields that are counted as what is in them: the request's inputs and outputs, a tensor's contents."""
_BYTES_CONTENTS = 2, 8
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SMALLEST_NUMBER = 4
"""Bytes of a number among packed ones, as nearly all have them; those of fewer take 4 to 8 times as much parsed."""


def require_few_values(message: bytes) -> None:
    """Raise RequestError 413 for more values than a request may have; of a damaged message the start counts."""
    with suppress(IndexError):  # it ends within a field, or a number does not end: the parser says it better
        _require_few(_count(memoryview(message), 0, 0))


def _require_few(count: int) -> None:
    if count > MOST_VALUES:
        raise RequestError(413, f"the message has more than {MOST_VALUES} values; send several requests")


def _count(data: memoryview, level: int, count: int) -> int:
    """`count` and the fields of a request (level 0), a tensor (1) or its contents (2), and of messages within."""
    position = 0
    while position < len(data):
        _require_few(count)
        key, position = _varint(data, position)
        field, kind = key >> 3, key & 7
        count += 1
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind in {_FIXED64, _FIXED32}:
            position += 8 if kind == _FIXED64 else 4
        elif kind == _LENGTH:
            length, position = _varint(data, position)
            if field in _LOOKED_INTO[level]:
                count = _count(data[position : position + length], level + 1, count)
            elif level > 0 and (level, field) != _BYTES_CONTENTS:
                count += min(length, len(data) - position) // _SMALLEST_NUMBER
            position += length
    return count


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends. Raises IndexError if it has more than 10 bytes, or no end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
    raise IndexError

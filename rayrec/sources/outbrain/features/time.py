"""What the time of a row's event tells: the hour and the weekend where the user is, the age of documents."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features.places import countries, states
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.layout import DAY_MILLISECONDS, FIRST_MILLISECOND
from rayrec.sources.outbrain.time_zones import DEFAULT_OFFSET, OFFSET_BY_COUNTRY, OFFSET_BY_STATE

MOST_DAYS = 3650
_HOUR, _MINUTE = 3_600_000, 60_000
_BIN_STARTS = (5, 8, 11, 14, 19, 22)
_LAST_BIN = 5
"""Of the hours from the last start on, and of those before the first."""
_FIRST_WEEKDAY = 3
"""The first day of the Unix epoch was a Thursday; Monday is 0."""
_SATURDAY = 5


def hour_bin(rows: Rows) -> Numbers:
    """0 ... 5 by the local hour of the event."""
    hour = _local_milliseconds(rows) // _HOUR % 24
    found = np.searchsorted(_BIN_STARTS, hour, side="right") - 1
    return Numbers(np.where(found < 0, _LAST_BIN, found), rows.timestamp.valid)


def is_weekend(rows: Rows) -> Numbers:
    """1 where the event is on a local Saturday or Sunday, else 0."""
    weekday = (_local_milliseconds(rows) // DAY_MILLISECONDS + _FIRST_WEEKDAY) % 7
    return Numbers((weekday >= _SATURDAY).astype(np.int64), rows.timestamp.valid)


def days_since_published(rows: Rows, published: Numbers, *, outside: float = np.nan) -> NDArray[np.float64]:
    """Whole days from the publication (ms since the Unix epoch) to the event; NaN where either is missing.

    `outside`: what days before the publication and beyond MOST_DAYS become.
    """
    days = (FIRST_MILLISECOND + rows.timestamp.values - published.values) // DAY_MILLISECONDS
    kept = np.where((days >= 0) & (days <= MOST_DAYS), days, outside)
    return np.where(rows.timestamp.valid & published.valid, kept, np.nan)


def _local_milliseconds(rows: Rows) -> NDArray[np.int64]:
    return FIRST_MILLISECOND + rows.timestamp.values + _MINUTE * _offsets(rows.place)


def _offsets(places: pa.Array) -> NDArray[np.int64]:
    """Minutes that local time is ahead of UTC."""
    encoded = places.dictionary_encode()
    names = zip(*(part(encoded.dictionary).to_pylist() for part in (states, countries)), strict=True)
    known = [OFFSET_BY_STATE.get(s, OFFSET_BY_COUNTRY.get(c, DEFAULT_OFFSET)) for s, c in names]
    offsets = np.array([*known, DEFAULT_OFFSET], np.int64)
    return offsets[encoded.indices.cast(pa.int64()).fill_null(len(known)).to_numpy()]

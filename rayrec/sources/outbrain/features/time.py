"""Features of the time of an event: the hour and the weekend at the user's place, and the age of documents."""

import numpy as np
from numpy.typing import NDArray

from rayrec.features.table_parts import Numbers
from rayrec.sources.outbrain.features.ad_rows import AdRows
from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS, FIRST_MILLISECOND
from rayrec.sources.outbrain.places import utc_offsets
from rayrec.sources.outbrain.statistics import Referred

MOST_DAYS = 3650
_HOUR, _MINUTE = 3_600_000, 60_000
_BIN_STARTS = (5, 8, 11, 14, 19, 22)
_LAST_BIN = 5
"""The bin of the hours from the last start on, and of those before the first."""
_FIRST_WEEKDAY = 3
"""The first day of the Unix epoch was a Thursday; Monday is 0."""
_SATURDAY = 5


def hour_bin(rows: AdRows) -> Numbers:
    """Return 0 ... 5 by the local hour of the event."""
    return Numbers(bins_of_hours(_local_milliseconds(rows) // _HOUR % 24), rows.numbers("timestamp").valid)


def bins_of_hours(hour: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bins, 0 to 5, of hours of a day (n,)."""
    found = np.searchsorted(_BIN_STARTS, hour, side="right") - 1
    return np.where(found < 0, _LAST_BIN, found)


def is_weekend(rows: AdRows) -> Numbers:
    """Return 1 if the event is on a local Saturday or Sunday, else 0."""
    weekday = (_local_milliseconds(rows) // DAY_MILLISECONDS + _FIRST_WEEKDAY) % 7
    return Numbers((weekday >= _SATURDAY).astype(np.int64), rows.numbers("timestamp").valid)


def days_since_published(rows: AdRows, document: Referred) -> NDArray[np.float64]:
    """Return the full days from a document's publication to the event, (n,).

    NaN if either time is missing, before the publication, and beyond MOST_DAYS.
    """
    published, shown = rows.numbers("publish_time", document), rows.numbers("timestamp")
    days = (FIRST_MILLISECOND + shown.values - published.values) // DAY_MILLISECONDS
    return np.where(shown.valid & published.valid & (days >= 0) & (days <= MOST_DAYS), days, np.nan)


def _local_milliseconds(rows: AdRows) -> NDArray[np.int64]:
    return FIRST_MILLISECOND + rows.numbers("timestamp").values + _MINUTE * utc_offsets(rows.place)

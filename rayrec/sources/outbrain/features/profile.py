"""What the user's profile says of a row."""

import numpy as np
from numpy.typing import NDArray

from rayrec.features.keyed_table import UNKNOWN, Numbers
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.features.similarity import search_ranges


def user_views(rows: Rows) -> NDArray[np.float64]:
    """(n,) page views of the profile; NaN without one."""
    views = rows.statistics.profiles.numbers("views", rows.user)
    return np.where(views.valid, views.values, np.nan)


def has_viewed_ad_document(rows: Rows) -> Numbers:
    """1 where the user has viewed the ad document, else 0; not valid without a profile."""
    viewed = np.zeros(len(rows), np.int64)
    document = rows.ad_document_id
    for part in rows.statistics.profiles.ranges("viewed", rows.user):
        wanted = document.values[part.asked]
        _, is_there = search_ranges(part.fields[""], part.start, part.stop, wanted)
        viewed[part.asked] = is_there & document.valid[part.asked]
    return Numbers(viewed, rows.user != UNKNOWN)

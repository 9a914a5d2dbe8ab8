"""What the user's profile says of a row."""

import numpy as np
from numpy.typing import NDArray

from rayrec.features.keyed_table import UNKNOWN
from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features.rows import Rows


def user_views(rows: Rows) -> NDArray[np.float64]:
    """(n,) page views of the profile; NaN without one."""
    views = rows.statistics.profiles.numbers("views", rows.user)
    return np.where(views.valid, views.values, np.nan)


def has_viewed_ad_document(rows: Rows) -> Numbers:
    """1 where the user has viewed the ad document, else 0; not valid without a profile or an ad document."""
    document = rows.ad_document_id
    has_viewed = rows.statistics.profiles.contains("viewed", rows.user, document.values)
    return Numbers(has_viewed.astype(np.int64), (rows.user != UNKNOWN) & document.valid)

"""Rows, each an ad shown in a context, and what the statistics hold of them, looked up once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.table_parts import Lists, Numbers
from rayrec.sources.outbrain.outbrain_tables import EVENT_FIELDS
from rayrec.sources.outbrain.statistics import Aspect, Statistics

T = TypeVar("T")

ROW_SCHEMA = pa.schema([pa.field("ad_id", pa.int64(), False), *EVENT_FIELDS, pa.field("traffic_source", pa.int8())])
"""The ad, and its context as the tables have it; `document_id` is the landing document."""
FOLD = "fold"
"""Optional column (int8): the fold of a row of `train`, whose rates then leave that fold out; null for other rows."""


@dataclass(frozen=True)
class RateEstimate:
    """Values of a feature for n rows, and their confidences; (n,) each."""

    value: NDArray[np.float64]
    confidence: NDArray[np.float64]


class AdRows:
    """n rows. Arrays are (n,) in their order.

    `user`, `landing`, `ad` and `ad_document` say which rows of the statistics' tables belong to them.
    """

    def __init__(self, statistics: Statistics, batch: pa.RecordBatch) -> None:
        """`batch`: columns of `ROW_SCHEMA`, perhaps `FOLD`, among others."""
        self.statistics = statistics
        self._batch = batch
        self._computed: dict[str, Any] = {}

    def __len__(self) -> int:
        return self._batch.num_rows

    @property
    def place(self) -> pa.Array:
        return self._batch.column("geo_location")

    @cached_property
    def ad_id(self) -> Numbers:
        return self.numbers("ad_id")

    @cached_property
    def landing_id(self) -> Numbers:
        return self.numbers("document_id")

    @cached_property
    def timestamp(self) -> Numbers:
        return self.numbers("timestamp")

    @cached_property
    def fold(self) -> Numbers | None:
        """Fold that the rates of a row leave out; None if the rates of no row leave anything out."""
        return self.numbers(FOLD) if FOLD in self._batch.schema.names else None

    @cached_property
    def user(self) -> NDArray[np.int64]:
        return self.statistics.profiles.find_texts(self._batch.column("uuid"))

    @cached_property
    def landing(self) -> NDArray[np.int64]:
        return self._find_document(self.landing_id)

    @cached_property
    def ad(self) -> NDArray[np.int64]:
        return self.statistics.ads.find({"ad_id": self.ad_id.values}, self.ad_id.valid)

    @cached_property
    def ad_document_id(self) -> Numbers:
        return self.of_ad("document_id")

    @cached_property
    def ad_document(self) -> NDArray[np.int64]:
        return self._find_document(self.ad_document_id)

    def of_ad(self, column: str) -> Numbers:
        return self.statistics.ads.numbers(column, self.ad)

    def of_landing(self, column: str) -> Numbers:
        return self.statistics.documents.numbers(column, self.landing)

    def of_ad_document(self, column: str) -> Numbers:
        return self.statistics.documents.numbers(column, self.ad_document)

    def landing_values(self, aspect: Aspect) -> Lists:
        """Return the values of the landing document, with confidences and weights."""
        return self.once(f"landing {aspect}", lambda: self.statistics.documents.lists(aspect, self.landing))

    def ad_values(self, aspect: Aspect) -> Lists:
        """Return the values of the ad document, with confidences and weights."""
        return self.once(f"ad {aspect}", lambda: self.statistics.documents.lists(aspect, self.ad_document))

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, called once for each name: several features share a result."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def numbers(self, column: str) -> Numbers:
        """Return a column of the batch."""
        values = self._batch.column(column)
        is_valid = values.is_valid().to_numpy(zero_copy_only=False)
        return Numbers(values.cast(pa.int64()).fill_null(0).to_numpy(), is_valid)

    def _find_document(self, ids: Numbers) -> NDArray[np.int64]:
        return self.statistics.documents.find({"document_id": ids.values}, ids.valid)

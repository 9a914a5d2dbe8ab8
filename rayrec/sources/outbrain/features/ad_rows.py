"""Rows, each an ad shown in a context, and what the statistics hold of them, looked up once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.lookup_table import LookupTable
from rayrec.features.table_parts import Lists, Numbers
from rayrec.sources.outbrain.outbrain_tables import EVENT_FIELDS
from rayrec.sources.outbrain.statistics import Referred, Statistics

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
    """n rows, and what each of them refers to. Arrays are (n,) in their order."""

    def __init__(self, statistics: Statistics, batch: pa.RecordBatch) -> None:
        """`batch`: columns of `ROW_SCHEMA`, perhaps `FOLD`, among others."""
        self.statistics = statistics
        self._batch = batch
        self._computed: dict[tuple[str | None, ...], Any] = {}

    def __len__(self) -> int:
        return self._batch.num_rows

    @property
    def place(self) -> pa.Array:
        return self._batch.column("geo_location")

    @property
    def folds(self) -> NDArray[np.int64] | None:
        """Folds that the rates of the rows leave out, -1 for none; None if no row's rates leave anything out."""
        if FOLD not in self._batch.schema.names:
            return None
        fold = self.numbers(FOLD)
        return np.where(fold.valid, fold.values, -1)

    def found(self, of: Referred) -> tuple[LookupTable, NDArray[np.int64]]:
        """Return the table that these rows refer to, and (n,) its rows there."""
        return self.once(lambda: self._find(of), of)

    def _find(self, of: Referred) -> tuple[LookupTable, NDArray[np.int64]]:
        tables = self.statistics
        match of:
            case "user":
                return tables.profiles, tables.profiles.find_texts(self._batch.column("uuid"))
            case "ad":
                table, key, ids = tables.ads, "ad_id", self.numbers("ad_id")
            case "landing":
                table, key, ids = tables.documents, "document_id", self.numbers("document_id")
            case "ad_document":
                table, key, ids = tables.documents, "document_id", self.numbers("document_id", "ad")
        return table, table.find({key: ids.values}, ids.valid)

    def numbers(self, column: str, of: Referred | None = None) -> Numbers:
        """Return a column of the rows referred to, or of the rows themselves."""

        def compute() -> Numbers:
            if of is not None:
                table, rows = self.found(of)
                return table.numbers(column, rows)
            values = self._batch.column(column)
            is_valid = values.is_valid().to_numpy(zero_copy_only=False)
            return Numbers(values.cast(pa.int64()).fill_null(0).to_numpy(), is_valid)

        return self.once(compute, column, of)

    def lists(self, column: str, of: Referred) -> Lists:
        """Return a column of lists, such as the values of a document with confidences and weights."""
        table, rows = self.found(of)
        return self.once(lambda: table.lists(column, rows), column, of)

    def once(self, compute: Callable[[], T], *name: str | None) -> T:
        """Return the result of `compute`, called once for each name: several features share a result."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

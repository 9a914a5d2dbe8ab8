"""The features of ads in a context, looked up in the statistics of a model."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rayrec.sources.outbrain.features.feature_sets import raw_features
from rayrec.sources.outbrain.features.rows import ROW_SCHEMA
from rayrec.sources.outbrain.layout import CODES
from rayrec.sources.outbrain.statistics import Statistics

_CODED = ("platform", "traffic_source")


class AdLookup:
    """Computes the features of ads in a context.

    A context has, all optional: uuid, document_id (the page shown), timestamp (ms, as in events.csv), platform (1 to
    3), geo_location (CC>ST>DMA), traffic_source (1 to 3). A value that was never seen, or a code other than these,
    counts as missing.
    """

    candidate = pa.field("ad_id", pa.int64())
    context = pa.schema(
        [
            field.with_type(pa.int64()) if pa.types.is_integer(field.type) else field
            for field in ROW_SCHEMA
            if field.name != "ad_id"
        ]
    )

    def __init__(self, folder: Path) -> None:
        """`folder` holds the statistics. Raises UserError if they are damaged."""
        self.statistics = Statistics.open(folder)

    def features(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The raw features (n rows) of n rows with the columns of `candidate` and `context`."""
        columns = []
        for field in ROW_SCHEMA:
            values = rows[field.name]
            if field.name in _CODED:
                is_known = pc.is_in(values, value_set=pa.array(sorted(CODES), values.type))
                values = pc.if_else(is_known, values, None).cast(field.type)
            columns.append(values)
        return raw_features(self.statistics, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA))

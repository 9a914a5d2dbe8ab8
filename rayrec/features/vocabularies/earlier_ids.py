"""Rows of a dataset as the schema of one that it extends encodes them, so that an earlier model can score them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.transforms import HashUnlisted
from rayrec.features.categorical import encode_cross, hash_unlisted, id_dtype
from rayrec.features.lists import ids_of, with_weights
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema
from rayrec.features.vocabularies.row_origins import row_origins


class EarlierIds:
    """Turns encoded rows back to the ids that they had in the dataset that theirs extends.

    Values that are new since then were unlisted: missing, or hashed. In a capped table ids stand for several values, so
    that a new value keeps the row that it shares.
    """

    def __init__(self, now: Schema, folder: Path, before: Schema, folder_before: Path) -> None:
        """The folders have the vocabularies of the schemas, whose features are the same."""
        self._features = tuple(zip(now.categorical, before.categorical, strict=True))
        self._ids_before: dict[str, NDArray[np.signedinteger]] = {}
        """For each feature with a table of its own, the id that each of its ids had before."""
        for feature, earlier in self._features:
            if feature.table is None and feature.reads is not None:
                ids = _ids_before(feature, folder, earlier, folder_before)
                self._ids_before[feature.name] = ids.astype(id_dtype(earlier))

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the encoded rows with the ids of the earlier schema; other columns stay."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for feature, earlier in self._features:
            column = columns[feature.name]
            if feature.reads is None:
                crossed = [columns[name].to_numpy() for name in feature.inputs]
                columns[feature.name] = pa.array(encode_cross(earlier, crossed))
                continue
            ids_before = self._ids_before[feature.table or feature.name]
            if isinstance(feature, MultiHotFeature):
                columns[feature.name] = _lists(column, ids_before)
            else:
                columns[feature.name] = pa.array(ids_before[column.to_numpy()])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _ids_before(
    feature: CategoricalFeature, folder: Path, earlier: CategoricalFeature, folder_before: Path
) -> NDArray[np.int64]:
    """(cardinality of `feature`,) the id before of each id."""
    origins = row_origins(earlier, feature, folder, lambda: folder_before)
    ids = origins.rows.copy()
    ids[origins.new] = 0
    hashing = next((t for t in earlier.transforms if isinstance(t, HashUnlisted)), None)
    if hashing is not None and len(origins.new):
        texts = origins.values.take(pa.array(origins.new - origins.first_value_row))
        ids[origins.new] = hash_unlisted(ids[origins.new], texts, hashing)
    return ids


def _lists(column: pa.ListArray, ids_before: NDArray[np.signedinteger]) -> pa.ListArray:
    elements = column.flatten()
    ids = pa.array(ids_before[ids_of(elements).to_numpy()])
    if pa.types.is_struct(elements.type):
        ids = with_weights(ids.to_numpy(), elements.field("weight").to_numpy())
    offsets = column.offsets.to_numpy()
    return pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), ids)

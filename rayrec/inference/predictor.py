"""The predictor: raw rows in, probabilities out, from a model folder."""

import warnings
from collections.abc import Iterable, Mapping, Sequence, ValuesView
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.raw_values import Values
from rayrec.features.schema import SCHEMA_FILE
from rayrec.features.stacked_columns import StackedColumns
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.raw_rows import RawRows
from rayrec.inference.scorer import Scorer, StoredModel
from rayrec.inference.unknown_values import ENOUGH, UnknownValues, count_unknown
from rayrec.metrics.estimates import SplitMetrics

if TYPE_CHECKING:
    import pandas as pd


def load_model(folder: str | Path, memory: TableMemory | None = None) -> "Predictor":
    """Return the predictor of a model folder, on CPU. Raises UserError naming the file that is missing or does not fit.

    `memory` limits what its tables and vocabularies hold in memory; without one they hold the pages of all rows and
    values that were looked up.
    """
    return Predictor(ModelFolder.open(folder), memory)


class Predictor(Scorer):
    """Scores raw rows: checks and encodes them. Threads may share one: only the columns that it has warned of change
    after construction.
    """

    def __init__(self, model: StoredModel, memory: TableMemory | None = None) -> None:
        super().__init__(model, memory)
        self.metrics: SplitMetrics = model.metrics
        """Metrics of the exported checkpoint, by split."""
        here = model.path(SCHEMA_FILE).parent
        self._encoder = FeatureEncoder(self.schema, here, model.vocabulary, model.lookup_table)
        self.vocabularies = self._encoder.vocabularies
        """The look-ups of values, by feature."""
        if memory is not None:
            for vocabulary in self.vocabularies.values():
                for file in vocabulary.mapped:
                    memory.add(file)
        self.raw_rows = RawRows(self.schema, self.recipe.unneeded_columns, self.recipe.source.other_names)
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        features = len(self.schema.features)
        return f"<model {str(self.folder)!r}: {self.recipe.model.kind} of {features} features>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Carry the path of the model folder to another process, which opens it there."""
        return load_model, (self.model_folder.folder,)

    @property
    def model_folder(self) -> ModelFolder:
        """The model folder that it scores with."""
        if not isinstance(self.model, ModelFolder):
            raise UserError(f"{self.folder}: a checkpoint, not a model folder; export it first with `rayrec export`")
        return self.model

    def predict(
        self, rows: "Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table | pd.DataFrame"
    ) -> NDArray[np.float32]:
        """Return the probabilities (n,) float32 of n rows of raw features, as the raw data has them.

        Rows are mappings of feature names to values, also one after the other, or columns named as the features: a data
        frame, Arrow's table, or an array of NumPy with named fields. A feature that is left out, null
        or (in columns) NaN is missing; columns that scoring does not need, such as the label, are left out. Raises
        UserError naming the row and the field that is unknown or wrong. Warns once for each column of which 100 values
        or more are given and most of them are unknown to the model.
        """
        # Checked columns, then ids and numbers as the model was trained on.
        raw = self.columns_of(rows)
        encoded = self.encode(raw)
        if raw.num_rows >= ENOUGH:
            for column, found in self.count_unknown(raw, encoded).items():
                if found.are_most and found.values >= ENOUGH and column not in self._warned:
                    self._warned.add(column)
                    warnings.warn(found.described(column), stacklevel=2)
        return self.predict_encoded(encoded)

    def count_unknown(self, raw: pa.RecordBatch, encoded: pa.RecordBatch) -> dict[str, UnknownValues]:
        """Count values of raw rows that the model does not know; `encoded` is what `encode` made of them."""
        return count_unknown(self.schema, raw, encoded, self._encoder.lookups)

    def encode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Encode n rows of raw features that `raw_rows` has checked, for `predict_encoded`."""
        return self._encoder.encode(rows)

    def encode_stacked(self, rows: StackedColumns) -> StackedColumns:
        """Encode the rows of a request as `encode` does, for `predict_encoded`."""
        return self._encoder.encode_stacked(rows)

    def columns_of(self, rows: Any) -> pa.RecordBatch:
        """Return the rows of raw features, as `predict` takes them, checked, for `encode`. Raises UserError as
        `predict`.
        """
        if isinstance(rows, pa.RecordBatch):
            return self.raw_rows.require_in_range(self.raw_rows.from_batch(rows))
        if isinstance(rows, (Mapping, str)):
            raise UserError("rows: give a list of rows (objects of feature names and values), not a single row")
        if hasattr(rows, "collect_schema"):  # a LazyFrame of polars
            rows = rows.collect()
        is_counted = hasattr(rows, "__len__") and not isinstance(rows, ValuesView)
        if isinstance(rows, Iterable) and not is_counted and not hasattr(rows, "read_all"):  # of batches
            rows = list(rows)
        if isinstance(rows, Sequence):
            return self.raw_rows.from_rows(rows)
        if isinstance(rows, np.ndarray) and rows.dtype.names is not None:
            rows = {name: pa.array(np.ascontiguousarray(rows[name]).ravel()) for name in rows.dtype.names}
        if hasattr(rows, "columns") and hasattr(rows, "iloc"):  # pandas' columns may have values of several types
            # The index may be a feature.
            given = {*self.raw_rows.named(rows.columns)}
            levels = [name for name in rows.index.names if name is not None and name not in given]
            rows = rows.reset_index([name for name in levels if name in self.raw_rows.columns.names])
            names = self.raw_rows.named(rows.columns)
            self.raw_rows.require_features(names)
            needed = [place for place, name in enumerate(names) if not self.raw_rows.is_unneeded(name)]
            columns = {names[place]: _values_of(rows.iloc[:, place]) for place in needed}
            count = len(rows)
        else:
            try:
                table = pa.table(rows)
            except (TypeError, ValueError, pa.ArrowException):
                raise UserError(
                    f"rows: {'None' if rows is None else f'a {type(rows).__name__}, which has no names of columns'}; "
                    "give a list of rows (objects of feature names and values), or a data frame or an Arrow table "
                    "whose columns are named as the features"
                ) from None
            count = table.num_rows
            names = self.raw_rows.named(table.column_names)
            self.raw_rows.require_features(names)
            columns = {name: column.combine_chunks() for name, column in zip(names, table.columns, strict=True)}
        return self.raw_rows.require_in_range(self.raw_rows.from_columns(columns, count))


def _values_of(column: "pd.Series[Any]") -> Values:
    """Return the values of a pandas column: Arrow's array, or a list if their types differ."""
    if hasattr(column.dtype, "freq"):  # periods, of which Arrow would show the numbers that pandas gives them
        column = column.astype("string")
    try:
        found = pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError):
        return column.tolist()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

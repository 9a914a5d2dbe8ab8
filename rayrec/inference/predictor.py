"""The predictor: raw rows in, probabilities out, from a model folder."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from rayrec.common.errors import UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.few_rows import EncodedRows, PlainRows
from rayrec.features.lists import ids_of
from rayrec.features.raw_values import Values
from rayrec.features.schema import STATISTICS_FOLDER, MultiHotFeature, Schema, VectorFeature
from rayrec.inference.folder.model_folder import Metrics, ModelFolder
from rayrec.inference.folder.table_files import (
    SCALE_TENSOR,
    TABLE_TENSOR,
    JoinedArrays,
    MappedTable,
    StoredTable,
    TableMemory,
)
from rayrec.inference.raw_rows import RawRows
from rayrec.inference.unknown_values import ENOUGH, count_unknown
from rayrec.models.common.precision import AmpError, Precision, resolve_precision
from rayrec.models.common.ranking import ScoresPairs
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    import pandas as pd

_EXACT = resolve_precision("fp32", "cpu")
CHUNK_ROWS = 1024
"""Rows of one forward pass: their embeddings stay in the processor's cache and memory does not grow with the rows."""


def load_model(folder: str | Path, memory: TableMemory | None = None) -> "Predictor":
    """Return the predictor of a model folder, on CPU. Raises UserError naming the file that is missing or does not fit.

    `memory` limits what its tables and vocabularies hold in memory; without one they hold the pages of all rows and
    values that were looked up.
    """
    return Predictor(ModelFolder.open(folder), memory)


class Predictor:
    """Scores rows. Threads may share one: only the columns that it has warned of change after construction."""

    def __init__(self, model_folder: ModelFolder, memory: TableMemory | None = None) -> None:
        self.model_folder = model_folder
        self.folder: Path = model_folder.folder
        self.schema: Schema = model_folder.schema
        """Every feature with its transforms, cardinality and embedding dimension."""
        self.recipe: Recipe = model_folder.recipe
        self.metrics: Metrics = model_folder.metrics
        """Metrics of the exported checkpoint, by split."""
        statistics = model_folder.path(STATISTICS_FOLDER)
        self._encoder = FeatureEncoder(self.schema, statistics.parent, open_vocabulary=model_folder.vocabulary)
        self.vocabularies = self._encoder.vocabularies
        """The look-ups of values, by feature."""
        self.raw_rows = RawRows(self.schema, self.recipe.unneeded_columns, self.recipe.source.other_names)
        self.encoded_columns = self._encoder.encoded_schema
        """The Arrow columns that `encode` gives."""
        self._dense_network = _load_dense_network(model_folder)
        self.precision = _EXACT
        """How the dense network computes: in float32 unless another `resolve_precision` is put in its place."""
        multi_hot = {feature.name for feature in self.schema.features if isinstance(feature, MultiHotFeature)}
        tables = {table: model_folder.mapped_table(table) for table in model_folder.tables}
        lookups = [
            _Lookup(
                feature=output.feature,
                dim=output.table.dim,
                rows=tables[output.table],
                pooling=output.pooling if output.feature in multi_hot else None,
            )
            for output in model_folder.pooled
        ]
        self._lookups = lookups
        self._id_rows = {self.encoded_columns.names[place]: row for row, place in enumerate(self._encoder.id_places)}
        self._together = _joined(lookups, self._id_rows)
        """All look-ups for a few rows, those of tables that are read as one joined."""
        self._warned: set[str] = set()
        self._memory = memory
        if memory is not None:
            for mapped in (*tables.values(), *self.vocabularies.values()):
                for file in mapped.mapped:
                    memory.add(file)
        self._dense_width = self.schema.dense_width
        widths = [feature.size if isinstance(feature, VectorFeature) else 1 for feature in self.schema.dense]
        starts = np.cumsum([0, *widths]).tolist()
        self._dense = dict(zip((feature.name for feature in self.schema.dense), starts, strict=False))
        """The first column of each feature in the dense input."""
        self._dense_of_numbers = [self._dense[self.encoded_columns.names[p]] for p in self._encoder.number_places]
        self._pooled_width = sum(lookup.dim for lookup in self._lookups)

    def predict(
        self, rows: "Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table | pd.DataFrame"
    ) -> NDArray[np.float32]:
        """Return the probabilities (n,) float32 of n rows of raw features, as the raw data has them.

        Rows are mappings of feature names to values, or columns named as the features. A feature that is left out, null
        or (in columns) NaN is missing; columns that scoring does not need, such as the label, are left out. Raises
        UserError naming the row and the field that is unknown or wrong. Warns once for each column of which 100 values
        or more are given and most of them are unknown to the model.
        """
        raw = self.columns_of(rows)
        encoded = self.encode(raw)
        if raw.num_rows >= ENOUGH:
            for column, found in count_unknown(self.schema, raw, encoded).items():
                if found.are_most and found.values >= ENOUGH and column not in self._warned:
                    self._warned.add(column)
                    warnings.warn(found.described(column), stacklevel=2)
        return self.predict_encoded(encoded)

    def encode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Encode n rows of raw features that `raw_rows` has checked, for `predict_encoded`."""
        return self._encoder.encode(rows)

    def encode_few(self, rows: PlainRows) -> pa.RecordBatch | EncodedRows:
        """Encode a few rows of raw features that `raw_rows` has checked, for `predict_encoded`."""
        return self._encoder.encode_few(rows)

    def predict_encoded(self, rows: pa.RecordBatch | EncodedRows) -> NDArray[np.float32]:
        """Return the probabilities (n,) float32 of n encoded rows: columns of a dataset folder, found by name.

        Raises UserError if a feature has no column.
        """
        return torch.sigmoid(torch.from_numpy(self.logits_encoded(rows))).numpy()

    def logits_encoded(self, rows: pa.RecordBatch | EncodedRows) -> NDArray[np.float32]:
        """Return the logits (n,) float32 of n encoded rows, as `predict_encoded` takes them."""
        if isinstance(rows, EncodedRows):
            if rows.num_rows <= CHUNK_ROWS:
                return self._logits(*self._inputs_of_few(rows))
            rows = rows.batch()
        # What `encode` gives has exactly these columns; to find each by name would take as long as to read it.
        if not rows.schema.equals(self.encoded_columns):
            for feature in self.schema.features:
                if feature.name not in rows.schema.names:
                    message = f"column '{feature.name}': missing; rows must have every feature of the model"
                    raise UserError(message)
            rows = rows.select(self.encoded_columns.names)
        if 0 < rows.num_rows <= CHUNK_ROWS:
            return self._logits(*self._inputs(rows))
        slices = (rows.slice(start, CHUNK_ROWS) for start in range(0, rows.num_rows, CHUNK_ROWS))
        parts = [self._logits(*self._inputs(part)) for part in slices]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def predict_pairs(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the probabilities (M, N) float32 of every pair of M ids of the schema's first feature and N of the
        second.

        For models whose only features are two one-hot ones. The scores are those of `predict_encoded` up to the
        rounding of sums.
        """
        if isinstance(self._dense_network, ScoresPairs):
            one, other = self._lookups
            scores = np.empty((len(first), len(second)), np.float32)
            with torch.inference_mode():
                for row in range(0, len(first), CHUNK_ROWS):
                    some = self._embeddings(one, first[row : row + CHUNK_ROWS])
                    for column in range(0, len(second), CHUNK_ROWS):
                        others = self._embeddings(other, second[column : column + CHUNK_ROWS])
                        with self.precision.autocast():
                            found = torch.sigmoid(self._dense_network.pair_logits(some, others).float())
                        scores[row : row + CHUNK_ROWS, column : column + CHUNK_ROWS] = found.numpy()
            return scores
        names = [feature.name for feature in self.schema.features]
        columns = [np.repeat(first, len(second)), np.tile(second, len(first))]
        scores = self.predict_encoded(pa.RecordBatch.from_arrays([pa.array(ids) for ids in columns], names=names))
        return scores.reshape(len(first), len(second))

    def amp_error(self, rows: pa.RecordBatch) -> AmpError:
        """Measure how far `precision` moves the probabilities of the first 1,024 encoded rows, as `encode` gives them.

        No rows are compared where `precision` is float32.
        """
        error = AmpError()
        if self.precision.name != _EXACT.name and rows.num_rows:
            inputs = self._inputs(rows.slice(0, CHUNK_ROWS))
            logits = (self._logits(*inputs, precision) for precision in (self.precision, _EXACT))
            error.add(*(torch.sigmoid(torch.from_numpy(values)).numpy() for values in logits))
        return error

    def _embeddings(self, lookup: "_Lookup", ids: NDArray[np.int64]) -> Tensor:
        """(n, dim) the pooled embeddings of n rows of ids."""
        rows = np.empty((len(ids), lookup.dim), np.float32)
        self._note(lookup.read(pa.array(ids), out=rows))
        return torch.from_numpy(rows)

    def _note(self, rows: int) -> None:
        """Count rows of tables that were read."""
        if self._memory is not None:
            self._memory.note(rows)

    def columns_of(self, rows: Any) -> pa.RecordBatch:
        """Return the rows of raw features, as `predict` takes them, checked, for `encode`. Raises UserError as
        `predict`.
        """
        if isinstance(rows, pa.RecordBatch):
            return self.raw_rows.from_batch(rows)
        if isinstance(rows, (Mapping, str)):
            raise UserError("rows: give a list of rows (objects of feature names and values), not a single row")
        if isinstance(rows, Sequence):
            return self.raw_rows.from_rows(rows)
        if hasattr(rows, "iloc"):  # pandas' columns may have values of several types
            names = self.raw_rows.named(rows.columns)
            self.raw_rows.require_features(names)
            needed = [place for place, name in enumerate(names) if not self.raw_rows.is_unneeded(name)]
            columns = {names[place]: _values_of(rows.iloc[:, place]) for place in needed}
        else:
            table = pa.table(rows)
            names = self.raw_rows.named(table.column_names)
            self.raw_rows.require_features(names)
            columns = {name: column.combine_chunks() for name, column in zip(names, table.columns, strict=True)}
        return self.raw_rows.from_columns(columns, len(rows))

    def _inputs(self, rows: pa.RecordBatch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the inputs of the dense network, (n, `dense_width`) and (n, sum of widths), for n encoded rows."""
        columns = dict(zip(self.encoded_columns.names, rows.columns, strict=True))
        dense = np.empty((rows.num_rows, self._dense_width), np.float32)
        for name in self._dense:
            self._set_dense(dense, name, columns[name])
        pooled = np.empty((rows.num_rows, self._pooled_width), np.float32)
        start = 0
        for lookup in self._lookups:
            read = lookup.read(columns[lookup.feature], out=pooled[:, start : start + lookup.dim])
            start += lookup.dim
            self._note(read)
        return dense, pooled

    def _inputs_of_few(self, rows: EncodedRows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what `_inputs` does, for a few encoded rows."""
        others = {self.encoded_columns.names[place]: column for place, column in rows.others.items()}
        dense = np.empty((rows.num_rows, self._dense_width), np.float32)
        dense[:, self._dense_of_numbers] = rows.numbers.T
        for name in self._dense.keys() & others.keys():
            self._set_dense(dense, name, others[name])
        pooled = np.empty((rows.num_rows, self._pooled_width), np.float32)
        start = 0
        for lookup in self._together:
            out = pooled[:, start : start + lookup.width]
            start += lookup.width
            if isinstance(lookup, _JoinedLookups):
                self._note(lookup.read(rows.ids, out))
            elif lookup.feature in others:
                self._note(lookup.read(others[lookup.feature], out))
            else:
                self._note(lookup.read_one_hot(rows.ids[self._id_rows[lookup.feature]], out))
        return dense, pooled

    def _set_dense(self, dense: NDArray[np.float32], name: str, column: pa.Array) -> None:
        """Write the encoded column of a feature to its columns of the dense input."""
        start = self._dense[name]
        if pa.types.is_fixed_size_list(column.type):
            size = column.type.list_size
            dense[:, start : start + size] = column.flatten().to_numpy().reshape(-1, size)
        else:
            dense[:, start] = column.to_numpy()

    def _logits(
        self, dense: NDArray[np.float32], pooled: NDArray[np.float32], precision: Precision | None = None
    ) -> NDArray[np.float32]:
        with torch.inference_mode(), (precision or self.precision).autocast():
            logits: Tensor = self._dense_network(torch.from_numpy(dense), torch.from_numpy(pooled))
            return logits.float().numpy()


def _values_of(column: "pd.Series[Any]") -> Values:
    """Return the values of a pandas column: Arrow's array, or a list if their types differ."""
    try:
        found = pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError):
        return column.tolist()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


@dataclass(frozen=True)
class _Lookup:
    """The look-up and pooling of one feature, as the model does them.

    A one-hot feature is a plain gather, several times faster than a bag of one id for the few rows of a request.
    """

    feature: str
    dim: int
    rows: StoredTable
    pooling: Literal["sum", "mean"] | None
    """None for a feature of one id a row."""

    @property
    def width(self) -> int:
        """Columns that `read` writes."""
        return self.dim

    def read_one_hot(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> int:
        """Write the (B, dim) embeddings of B ids; return how many rows of the table were read."""
        self.rows.read(ids, out)
        return len(ids)

    def read(self, ids: pa.Array, out: NDArray[np.float32]) -> int:
        """Write the (B, dim) pooled embeddings of B rows of ids (int32 or int64, or lists of them, or with weights).

        Return how many rows of the table were read.
        """
        if self.pooling is None:
            return self.read_one_hot(ids.to_numpy(), out)
        # `offsets` of a slice do not begin at 0; `flatten` respects the slice.
        offsets, elements = ids.offsets.to_numpy().astype(np.int64), ids.flatten()
        values = ids_of(elements).to_numpy()
        read = np.empty((len(values), self.dim), np.float32)
        self.rows.read(values, read)
        bags = torch.from_numpy(offsets - offsets[0])
        with torch.inference_mode():
            if pa.types.is_struct(elements.type):
                weights = torch.tensor(elements.field("weight").to_numpy())
                pooled = _pooled(torch.from_numpy(read), bags, "sum", weights)
                if self.pooling == "mean":
                    totals = _pooled(weights.unsqueeze(1), bags, "sum")
                    pooled /= torch.where(totals > 0, totals, 1.0)
            else:
                pooled = _pooled(torch.from_numpy(read), bags, self.pooling)
        out[:] = pooled.numpy()
        return len(values)


class _JoinedLookups:
    """Look-ups of one id a row in whole tables of one shape, whose embeddings follow each other, as one look-up."""

    def __init__(self, lookups: Sequence[_Lookup], ids: Sequence[int]) -> None:
        """`ids`: for each look-up the row of `EncodedRows.ids` that it reads."""
        tables = [lookup.rows.stored for lookup in lookups if isinstance(lookup.rows, MappedTable)]
        self._dim = lookups[0].dim
        self._ids = np.array(ids)
        self._numbers = np.arange(len(tables))
        self._rows = JoinedArrays([table[TABLE_TENSOR][:, : self._dim] for table in tables])
        has_scales = SCALE_TENSOR in tables[0]
        self._scales = JoinedArrays([table[SCALE_TENSOR] for table in tables]) if has_scales else None
        self.width = len(tables) * self._dim

    def read(self, ids: NDArray[np.int32], out: NDArray[np.float32]) -> int:
        """Write the (n, width) embeddings of n rows, of (columns, n) ids; return how many rows were read."""
        places = ids[self._ids].T.astype(np.int64)
        embeddings = out.reshape(len(places), -1, self._dim)
        rows = self._rows.take(self._numbers, places)
        if self._scales is None:
            embeddings[:] = rows
        else:
            np.multiply(rows, self._scales.take(self._numbers, places)[..., None], out=embeddings)
        return places.size


def _joined(lookups: Sequence[_Lookup], id_rows: Mapping[str, int]) -> list[_Lookup | _JoinedLookups]:
    """Return the look-ups in their order, those joined that can be; `id_rows`: rows of `EncodedRows.ids`, by
    feature.
    """

    def shape(lookup: _Lookup) -> Any:
        table = lookup.rows
        if lookup.feature not in id_rows or not isinstance(table, MappedTable):
            return None
        weights = table.stored[TABLE_TENSOR]
        return lookup.dim, weights.dtype, weights.strides

    found: list[_Lookup | _JoinedLookups] = []
    for key, group in groupby(lookups, shape):
        alike = list(group)
        found += alike if key is None else [_JoinedLookups(alike, [id_rows[one.feature] for one in alike])]
    return found


def _pooled(rows: Tensor, bags: Tensor, mode: Literal["sum", "mean"], weights: Tensor | None = None) -> Tensor:
    """(B, columns) of (n, columns) rows, of rows bags[i] ... bags[i + 1] - 1 each; (n,) `weights` are for sums."""
    places = torch.arange(len(rows))
    return F.embedding_bag(places, rows, bags, mode=mode, per_sample_weights=weights, include_last_offset=True)


def _load_dense_network(model_folder: ModelFolder) -> nn.Module:
    model = build_model(model_folder.recipe.model, model_folder.schema, device="meta")
    network = model.dense_network
    weights = model_folder.dense()
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{model_folder.folder}: dense weight '{name}' is {found.get(name, 'missing')}, "
                f"config.yaml makes it {expected.get(name, 'unknown')}; export the model again"
            )
    network.load_state_dict(weights, assign=True)
    return network.eval()

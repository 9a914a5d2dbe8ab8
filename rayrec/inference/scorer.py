"""The scorer: encoded rows in, logits out, from the embedding tables and the dense network of a model.

A run's checkpoint is scored without an export, from its undistributed weights (`CheckpointModel`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from rayrec.common.errors import UserError
from rayrec.config.train import DeviceName
from rayrec.features.encoder import encoded_schema
from rayrec.features.lookup_table import LookupTable
from rayrec.features.lookups import lookup_folder, open_lookup
from rayrec.features.raw_columns import STATISTICS_FOLDER, Lookup
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema, VectorFeature
from rayrec.features.stacked_columns import StackedColumns
from rayrec.features.transforms import ids_of
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.folder.table_files import (
    SCALE_TENSOR,
    TABLE_TENSOR,
    JoinedArrays,
    MappedTable,
    StoredTable,
    TableMemory,
    new_table,
    table_file,
)
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import num_item_rows
from rayrec.metrics.estimates import SplitMetrics
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.common.held_out_events import ItemIds
from rayrec.models.common.next_item import ScoresNextItems, newest_events
from rayrec.models.common.precision import AmpError, Precision, resolve_precision
from rayrec.models.common.ranking import HasItemVectors, ScoresPairs
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.store.files import new_file

CHUNK_ROWS = 1024
"""Rows of one forward pass: their embeddings stay in the processor's cache and memory does not grow with the rows."""
_CHUNK_ROWS_OF_GPU = 65_536
"""As many as keep a GPU busy."""
_CHUNK_EVENTS = 4_096
"""Events of histories that are read at once."""


class CheckpointModel:
    """The model's part of a checkpoint, a folder of torch.distributed.checkpoint; it travels by pickle.

    It holds the unsharded names `model.embeddings.embedding_bags.<table>.weight` and `model.dense_network.*`, whatever
    number of workers and sharding plan wrote it. Every method raises UserError if a weight of the model is missing,
    has another shape or cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        schema: Schema,
        dataset: Path | None = None,
        files: Path | None = None,
    ) -> None:
        """`recipe` is the run's, `schema` its dataset's or its model's.

        To score, `files` is a folder on each node for the tables, which the caller removes; to score raw rows,
        `dataset` is the folder that the model was trained on.
        """
        # Only now: torch's checkpoints take a second to import, which servers of model folders do without.
        from rayrec.store.tensors import StoredTensors

        self.folder, self.recipe, self.metrics = folder, recipe, SplitMetrics()
        self._given = (folder, recipe, schema, dataset, files)
        self._dataset, self._files = dataset, files
        self._model = build_model(recipe.model, schema, device="meta")
        self.schema = self._model.schema
        """The schema with every embedding_dim resolved."""
        self.tables, self.pooled = self._model.tables, self._model.pooled
        self._stored = StoredTensors(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def dense(self) -> dict[str, Tensor]:
        """Return the state dict of the model's `dense_network`."""
        empty = self._model.dense_network.state_dict()
        dense = {name: torch.empty_like(value, device="cpu") for name, value in empty.items()}
        self._stored.fill({f"model.dense_network.{name}": value for name, value in dense.items()})
        return dense

    def table(self, table: EmbeddingTable) -> Tensor:
        """Return the (rows, columns) float32 weights of a table."""
        weights = torch.empty(table.shape)
        self.fill_table(table, weights)
        return weights

    def fill_table(self, table: EmbeddingTable, weights: Tensor) -> None:
        """Fill `weights` in place; each shard of the checkpoint is read on its own, so memory holds one of them."""
        self._stored.fill({f"model.embeddings.embedding_bags.{table.name}.weight": weights})

    def mapped_table(self, table: EmbeddingTable) -> MappedTable:
        """Return the table as rows that are looked up in a file on this node.

        It takes disk space, not memory, so a model that was trained on several machines can be scored on one.
        """
        assert self._files is not None
        path = self._files / table_file(table.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The first worker of a node makes the file, the others wait for it.
        with FileLock(f"{path}.lock"):
            if not path.exists():
                with new_file(path) as temporary, new_table(temporary, table, "fp32") as tensors:
                    self.fill_table(table, torch.from_numpy(tensors[TABLE_TENSOR]))
        return MappedTable.open(path, table.dim)

    def path(self, name: str) -> Path:
        """Return where a file or folder of the dataset is that raw rows are encoded by."""
        return self._raw_side / name

    def lookup_table(self, lookup: Lookup) -> LookupTable:
        """Return the table of a look-up."""
        return open_lookup(lookup_folder(self.path(STATISTICS_FOLDER), lookup), lookup)

    def vocabulary(self, feature: CategoricalFeature) -> VocabularyLookup:
        """Return the look-up of the values of a feature that has a vocabulary."""
        assert feature.vocabulary is not None
        return VocabularyLookup.load(self._raw_side / feature.vocabulary.file)

    @cached_property
    def _raw_side(self) -> Path:
        if self._dataset is None:
            raise UserError(
                f"{self.folder}: the dataset that it was trained on is gone or has changed, so raw rows cannot be "
                "read; bring it back, or give the output of `rayrec export`"
            )
        return Dataset.open(self._dataset).folder


StoredModel = ModelFolder | CheckpointModel
"""A trained model on disk, whose tables are mapped."""


class Scorer:
    """Scores encoded rows, as datasets have them. Threads may share one: nothing changes after construction.

    Only the pages of rows that were looked up are in memory, so tables may be larger than that.
    """

    def __init__(self, model: StoredModel, memory: TableMemory | None = None, device: DeviceName = "cpu") -> None:
        """`memory` limits what tables hold in memory. `device` computes the dense network; tables stay on the host."""
        self.model = model
        self.folder: Path = model.folder
        self.schema: Schema = model.schema
        """Every feature with its transforms, cardinality and embedding dimension."""
        self.recipe: Recipe = model.recipe
        self.encoded_columns = encoded_schema(self.schema)
        """The Arrow columns that rows have."""
        self.precision: Precision = resolve_precision("fp32", device)
        """How the dense network computes: in float32 unless another `resolve_precision` is put in its place."""
        self._exact, self._device = self.precision, torch.device(device)
        self._chunk_rows = CHUNK_ROWS if device == "cpu" else _CHUNK_ROWS_OF_GPU
        self._dense_network = _load_dense_network(model).to(self._device)
        self.scores_next_items: bool = isinstance(self._dense_network, ScoresNextItems)
        """Whether the model scores every item as the next one of a history, and no rows."""

        # Every table is mapped once, and looked up for each feature that reads it.
        multi_hot = {feature.name for feature in self.schema.features if isinstance(feature, MultiHotFeature)}
        tables = {table: model.mapped_table(table) for table in model.tables}
        self._lookups = [
            PooledLookup(
                feature=output.feature,
                dim=output.table.dim,
                rows=tables[output.table],
                pooling=output.pooling if output.feature in multi_hot else None,
                length=output.length,
            )
            for output in model.pooled
        ]
        self._joined_lookups = _joined(self._lookups)
        """All of them, neighbours in tables of one shape as one."""
        self._pooled_width = sum(lookup.width for lookup in self._lookups)
        self._memory = memory
        if memory is not None:
            for mapped in tables.values():
                for file in mapped.mapped:
                    memory.add(file)

        self._dense_width = self.schema.dense_width
        widths = [feature.size if isinstance(feature, VectorFeature) else 1 for feature in self.schema.dense]
        starts = np.cumsum([0, *widths]).tolist()
        first = dict(zip((feature.name for feature in self.schema.dense), starts, strict=False))
        self._vectors = [(f.name, slice(first[f.name], first[f.name] + f.size)) for f in self.schema.vectors]
        """Features of several columns in the dense input, and their columns."""
        self._numbers = tuple(feature.name for feature in self.schema.numeric)
        self._number_places = [first[name] for name in self._numbers] if self._vectors else slice(None)
        """Their columns in the dense input."""

    def logits_encoded(self, rows: pa.RecordBatch | StackedColumns) -> NDArray[np.float32]:
        """Return the logits (n,) float32 of n encoded rows: columns of a dataset folder, found by name, or what
        `FeatureEncoder.encode_stacked` gives.

        Raises UserError if a feature has no column, or the model scores no rows.
        """
        if self.scores_next_items:
            raise UserError(
                f"{self.folder}: a model of kind '{self.recipe.model.kind}' scores the next items of people, and no "
                "rows; use `rayrec predict --top-k` or `:recommend`"
            )
        if isinstance(rows, StackedColumns):
            if 0 < rows.num_rows <= self._chunk_rows:
                return self._logits(*self._inputs(rows))
            rows = rows.batch()
        # What `encode` gives has exactly these columns; to find each by name would take as long as to read it.
        if not rows.schema.equals(self.encoded_columns):
            for feature in self.schema.features:
                if feature.name not in rows.schema.names:
                    message = f"column '{feature.name}': missing; rows must have every feature of the model"
                    raise UserError(message)
            rows = rows.select(self.encoded_columns.names)
        # Look-ups and forward pass, chunk by chunk.
        slices = (rows.slice(start, self._chunk_rows) for start in range(0, rows.num_rows, self._chunk_rows))
        parts = [self._logits(*self._inputs(StackedColumns.of(part))) for part in slices]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def predict_encoded(self, rows: pa.RecordBatch | StackedColumns) -> NDArray[np.float32]:
        """Return the probabilities (n,) float32 of n encoded rows, as `logits_encoded` takes them."""
        return torch.sigmoid(torch.from_numpy(self.logits_encoded(rows))).numpy()

    def pair_logits(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits (M, N) float32 of every pair of M ids of the schema's first feature and N of the second.

        For models whose only features are two one-hot ones. They are those of `logits_encoded` up to the rounding of
        sums.
        """
        if isinstance(self._dense_network, ScoresPairs):
            one, other = self._lookups
            logits = np.empty((len(first), len(second)), np.float32)
            with torch.inference_mode():
                for row in range(0, len(first), CHUNK_ROWS):
                    some = self._embeddings(one, first[row : row + CHUNK_ROWS])
                    for column in range(0, len(second), CHUNK_ROWS):
                        others = self._embeddings(other, second[column : column + CHUNK_ROWS])
                        with self.precision.autocast():
                            found = self._dense_network.pair_logits(some, others).float().cpu()
                        logits[row : row + CHUNK_ROWS, column : column + CHUNK_ROWS] = found.numpy()
            return logits
        names = [feature.name for feature in self.schema.features]
        columns = [np.repeat(first, len(second)), np.tile(second, len(first))]
        logits = self.logits_encoded(pa.RecordBatch.from_arrays([pa.array(ids) for ids in columns], names=names))
        return logits.reshape(len(first), len(second))

    def person_vectors(self, histories: Sequence[ItemIds]) -> NDArray[np.float32]:
        """Return the vectors (n, D) of n people by their histories: ids of items, oldest first.

        The newest that the model reads count. For models that score next items: the logit of an item as the next one of
        a person is the product of their vectors, and its probability the softmax over `item_vectors`. On a CPU people
        are read one by one: the order of sums in a product of matrices depends on their shapes, and who is scored
        beside a person, over HTTP, in a batch or in an evaluation, is to change no bit.
        """
        network, vectors = self._next_item_network, []
        at_once = 1 if self._device.type == "cpu" else max(1, _CHUNK_EVENTS // network.length)
        with torch.inference_mode(), self.precision.autocast():
            for start in range(0, len(histories), at_once):
                ids, numbers = newest_events(histories[start : start + at_once], network.length)
                events = self._embeddings(self._lookups[0], ids.reshape(-1)).view(*ids.shape, -1)
                lengths = torch.from_numpy(numbers).to(self._device)
                vectors.append(network.person_vectors(events, lengths).cpu().numpy())
        return np.concatenate([self.item_vectors[:0], *vectors])

    def next_item_logits(self, histories: Sequence[ItemIds]) -> NDArray[np.float32]:
        """Return the logits (n, N) of items 1 ... N as the next ones of n people, whose histories are as in
        `person_vectors`; those of a person are the same alone and among others.
        """
        logits = np.empty((len(histories), len(self.item_vectors)), np.float32)
        for row, person in zip(logits, self.person_vectors(histories), strict=True):
            np.einsum("nd,d->n", self.item_vectors, person, out=row)  # without BLAS, and as fast
        return logits

    @cached_property
    def item_vectors(self) -> NDArray[np.float32]:
        """Return the vectors (N, D) of items 1 ... N of a model of interactions; D is 0 if it has none."""
        return self._item_vectors(np.arange(1, num_item_rows(self.schema)))

    @property
    def compares_items(self) -> bool:
        """Return whether a model of interactions has vectors of items."""
        return self._item_vectors(np.empty(0, np.int64)).shape[1] > 0

    def _item_vectors(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        assert self.schema.interactions is not None, "the caller has looked for users and items"
        (lookup,) = (lookup for lookup in self._lookups if lookup.feature == self.schema.interactions.item)
        if not isinstance(self._dense_network, HasItemVectors):
            return np.empty((len(ids), 0), np.float32)
        with torch.inference_mode(), self.precision.autocast():
            vectors = self._dense_network.item_vectors(self._embeddings(lookup, ids)).float()
            return np.ascontiguousarray(vectors.cpu().numpy())

    @property
    def _next_item_network(self) -> ScoresNextItems:
        if not isinstance(self._dense_network, ScoresNextItems):
            kind = self.recipe.model.kind
            raise UserError(f"{self.folder}: a model of kind '{kind}' scores rows, not next items; use one of 'sasrec'")
        return self._dense_network

    def amp_error(self, rows: pa.RecordBatch) -> AmpError:
        """Measure how far `precision` moves the probabilities of the first 1,024 encoded rows, as `encode` gives them.

        No rows are compared where `precision` is float32.
        """
        error = AmpError()
        if self.precision.name != self._exact.name and rows.num_rows:
            inputs = self._inputs(StackedColumns.of(rows.slice(0, CHUNK_ROWS)))
            logits = (self._logits(*inputs, precision) for precision in (self.precision, self._exact))
            error.add(*(torch.sigmoid(torch.from_numpy(values)).numpy() for values in logits))
        return error

    def _embeddings(self, lookup: "PooledLookup", ids: NDArray[np.int64]) -> Tensor:
        """Return the pooled embeddings of n rows of ids, (n, dim)."""
        rows = np.empty((len(ids), lookup.dim), np.float32)
        self._note(lookup.read_one_hot(ids, rows))
        return torch.from_numpy(rows).to(self._device)

    def _note(self, rows: int) -> None:
        """Count rows of tables that were read."""
        if self._memory is not None:
            self._memory.note(rows)

    def _inputs(self, rows: StackedColumns) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the inputs of the dense network, (n, `dense_width`) and (n, sum of widths), for n encoded rows."""
        dense = np.empty((rows.num_rows, self._dense_width), np.float32)
        if self._numbers:
            dense[:, self._number_places] = np.asarray(rows.stack(self._numbers)).reshape(-1, rows.num_rows).T
        for name, places in self._vectors:
            vectors: pa.Array = rows.stack((name,))
            dense[:, places] = vectors.flatten().to_numpy().reshape(rows.num_rows, -1)
        pooled = np.empty((rows.num_rows, self._pooled_width), np.float32)
        start = 0
        for lookup in self._joined_lookups:
            self._note(lookup.read(rows, out=pooled[:, start : start + lookup.width]))
            start += lookup.width
        return dense, pooled

    def _logits(
        self, dense: NDArray[np.float32], pooled: NDArray[np.float32], precision: Precision | None = None
    ) -> NDArray[np.float32]:
        with torch.inference_mode(), (precision or self.precision).autocast():
            inputs = (torch.from_numpy(values).to(self._device) for values in (dense, pooled))
            logits: Tensor = self._dense_network(*inputs)
            return logits.float().cpu().numpy()


@dataclass(frozen=True)
class PooledLookup:
    """The look-up and pooling of one feature, as the model does them.

    A one-hot feature is a plain gather, several times faster than a bag of one id for the few rows of a request.
    """

    feature: str
    dim: int
    rows: StoredTable
    pooling: Literal["sum", "mean", "sequence"] | None
    """None for a feature of one id a row."""
    length: int = 0
    """The most ids of a row of a sequence."""

    @property
    def width(self) -> int:
        """Columns that `read` writes."""
        return self.length * self.dim + 1 if self.pooling == "sequence" else self.dim

    def read_one_hot(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> int:
        """Write the (B, dim) embeddings of B ids; return how many rows of the table were read."""
        self.rows.read(ids, out)
        return len(ids)

    def read(self, rows: StackedColumns, out: NDArray[np.float32]) -> int:
        """Write the (B, width) pooled embeddings of B encoded rows (int32 or int64, or lists of them, or with weights).

        Return how many rows of the table were read.
        """
        ids: pa.Array = rows.stack((self.feature,))
        if self.pooling is None:
            return self.read_one_hot(np.asarray(ids), out)
        # `offsets` of a slice do not begin at 0; `flatten` respects the slice.
        offsets, elements = ids.offsets.to_numpy().astype(np.int64), ids.flatten()
        # The rows of all ids of all lists, then their sum or mean for each list.
        values = ids_of(elements).to_numpy()
        read = np.empty((len(values), self.dim), np.float32)
        self.rows.read(values, read)
        if self.pooling == "sequence":
            self._write_sequence(read, offsets - offsets[0], out)
            return len(values)
        bags = torch.from_numpy(offsets - offsets[0])
        weights = torch.tensor(elements.field("weight").to_numpy()) if pa.types.is_struct(elements.type) else None
        pooled = _sums(torch.from_numpy(read), bags, weights)
        if self.pooling == "mean":
            # What torch computes, which takes 50 us longer to do so itself.
            counts = np.diff(offsets).astype(np.float32)[:, None]
            totals = counts if weights is None else _sums(weights.unsqueeze(1), bags)
            pooled /= np.where(totals > 0, totals, np.float32(1.0))
        out[:] = pooled
        return len(values)

    def _write_sequence(
        self, embeddings: NDArray[np.float32], offsets: NDArray[np.int64], out: NDArray[np.float32]
    ) -> None:
        """Write the embeddings of lists side by side, the last one first, and how many there are."""
        numbers = np.diff(offsets)
        rows = np.repeat(np.arange(len(numbers)), numbers)
        places = np.zeros((len(numbers), self.length, self.dim), np.float32)
        places[rows, offsets[1:][rows] - 1 - np.arange(len(rows))] = embeddings
        out[:, :-1] = places.reshape(len(numbers), -1)
        out[:, -1] = numbers


class _JoinedLookups:
    """Look-ups of one id a row in whole tables of one shape, whose embeddings follow each other, as one look-up."""

    def __init__(self, lookups: Sequence[PooledLookup]) -> None:
        tables = [lookup.rows.stored for lookup in lookups if isinstance(lookup.rows, MappedTable)]
        self._features = tuple(lookup.feature for lookup in lookups)
        self._dim = lookups[0].dim
        self._rows = JoinedArrays([table[TABLE_TENSOR][:, : self._dim] for table in tables])
        has_scales = SCALE_TENSOR in tables[0]
        self._scales = JoinedArrays([table[SCALE_TENSOR] for table in tables]) if has_scales else None
        self.width = len(tables) * self._dim

    def read(self, rows: StackedColumns, out: NDArray[np.float32]) -> int:
        """Write the (B, width) embeddings of B encoded rows; return how many rows of the tables were read."""
        ids = np.asarray(rows.stack(self._features)).reshape(-1, rows.num_rows).T.astype(np.int64)
        embeddings = out.reshape(len(ids), -1, self._dim)
        read = self._rows.take(ids)
        if self._scales is None:
            embeddings[:] = read
        else:
            np.multiply(read, self._scales.take(ids)[..., None], out=embeddings)
        return ids.size


def _joined(lookups: Sequence[PooledLookup]) -> list[PooledLookup | _JoinedLookups]:
    """Return the look-ups in their order, those joined that can be."""

    def shape(lookup: PooledLookup) -> Any:
        table = lookup.rows
        if lookup.pooling is not None or not isinstance(table, MappedTable):
            return None
        weights = table.stored[TABLE_TENSOR]
        return lookup.dim, weights.dtype, weights.strides, len(table) > 2**31  # whose ids are int64

    found: list[PooledLookup | _JoinedLookups] = []
    for key, group in groupby(lookups, shape):
        alike = list(group)
        found += alike if key is None else [_JoinedLookups(alike)]
    return found


def _sums(rows: Tensor, bags: Tensor, weights: Tensor | None = None) -> NDArray[np.float32]:
    """Return (B, columns) sums of (n, columns) rows bags[i] to bags[i + 1] - 1, perhaps by weights (n,)."""
    places = torch.arange(len(rows))
    with torch.inference_mode():
        sums = F.embedding_bag(places, rows, bags, mode="sum", per_sample_weights=weights, include_last_offset=True)
    return sums.numpy()


def _load_dense_network(stored: StoredModel) -> nn.Module:
    model = build_model(stored.recipe.model, stored.schema, device="meta")
    network = model.dense_network
    weights = stored.dense()
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{stored.folder}: dense weight '{name}' is {found.get(name, 'missing')}, "
                f"config.yaml makes it {expected.get(name, 'unknown')}; export the model again"
            )
    network.load_state_dict(weights, assign=True)
    return network.eval()

"""A run that continues another one: its weights and the state of its optimizers, on a later dataset.

Rows of tables, and of what optimizers keep of them, are taken over by what they stand for
(`rayrec.features.id_meanings`). New rows are drawn by what they stand for, and have the optimizer state of
a new run. The dense network is taken over as it is, and so are loss scale and counts of steps.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.features.id_meanings import RowOrigins, row_origins
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.ingest.dataset import Dataset
from rayrec.internals.torchrec import local_shards, whole_shape
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.common.initialization import draw_rows
from rayrec.recipes import Recipe
from rayrec.store.artifact import MANIFEST_FILE
from rayrec.store.paths import to_path
from rayrec.store.tensors import StoredTensors
from rayrec.training.loop.step import TrainStep
from rayrec.training.run.compatibility import require_compatible
from rayrec.training.run.folder import Origin, RunFolder, RunProgress, read_progress

_ROWS_AT_ONCE = 65_536
"""Rows that are copied together, so that beside a stored table memory holds no copy of all of it."""


@dataclass(frozen=True)
class WarmStart:
    """State that a new run takes over; it travels to the workers by pickle."""

    checkpoint: Path
    schema: Schema
    """The schema of the checkpoint's model."""
    dataset: Path
    """The folder of the checkpoint's dataset, of which only vocabularies are read with which new ones do not begin."""
    progress: RunProgress
    """Progress of the checkpoint."""
    reset: frozenset[str]
    """Features whose tables begin as in a new run."""
    new_dataset: Path
    seed: int
    """With it new rows are drawn."""

    @classmethod
    def open(cls, origin: Origin, output: Path, recipe: Recipe, dataset: Dataset) -> "WarmStart":
        """Return what the run in `output`, of `recipe` on `dataset`, takes over from `origin`.

        Raises ConfigError, which names the feature or field and the fix, where it cannot go on from it, and UserError
        where the checkpoint is gone.
        """
        run = RunFolder.open(to_path(origin.run))
        checkpoint = run.checkpoints / origin.checkpoint
        if not (checkpoint / MANIFEST_FILE).exists():
            raise UserError(
                f"{run.path}: checkpoint {origin.checkpoint} was removed; give another --output to start again"
            )
        require_compatible(run, origin, recipe, dataset)
        return cls(
            checkpoint=checkpoint,
            schema=run.schema,
            dataset=run.dataset_folder,
            progress=read_progress(checkpoint),
            reset=frozenset(origin.reset),
            new_dataset=dataset.folder,
            seed=recipe.train.seed,
        )

    def fill(self, step: TrainStep) -> RunProgress:
        """Fill this rank's shards of a new model and its optimizers in place; memory holds one table beside them."""
        stored, state = StoredTensors(self.checkpoint), step.state_dict()
        new = Dataset.open(self.new_dataset)
        for table in step.model.stated_tables:
            if self.reset.isdisjoint(table.features):
                self._take_table(table, stored, state, new)
        dense = {f"model.{name}": v for name, v in state["model"].items() if name.startswith("dense_network.")}
        for part, optimizer in state["dense_optimizer"].items():
            for parameter, moments in optimizer["state"].items():
                dense |= {f"dense_optimizer.{part}.state.{parameter}.{name}": v for name, v in moments.items()}
        stored.fill(dense)
        steps = self.progress.steps_before + self.progress.step
        step.finish_loading(state, steps, self.progress.loss_scale)
        return RunProgress(steps_before=steps)

    def _take_table(self, table: EmbeddingTable, stored: StoredTensors, state: dict[str, Any], new: Dataset) -> None:
        """Take over a table and its moments, as far as this rank holds them."""
        weight = state["model"][f"embeddings.embedding_bags.{table.name}.weight"]
        if not local_shards(weight):
            return
        old, now = (_owner(schema, table.features[0]) for schema in (self.schema, new.schema))
        origins = row_origins(old, now, new.folder, lambda: Dataset.open(self.dataset).folder)
        held = {f"model.embeddings.embedding_bags.{table.name}.weight": weight}
        for name, moment in state["table_optimizer"].items():
            if name.rpartition(".")[0] == table.name:
                held[f"table_optimizer.{name}"] = moment
        for name, value in held.items():
            shape = whole_shape(value)
            if not shape:  # a count of steps
                stored.fill({name: value})
                continue
            whole = torch.empty(old.cardinality, *shape[1:])
            stored.fill({name: whole})
            for shard, row, column in local_shards(value):
                _copy_rows(shard, whole, origins.rows[row : row + len(shard)], column)
        for shard, row, column in local_shards(weight):
            self._draw_new_rows(shard, table, origins, row, column)

    def _draw_new_rows(self, shard: Tensor, table: EmbeddingTable, origins: RowOrigins, row: int, column: int) -> None:
        """Draw the new rows of a shard that begins at `row` and `column` of its table."""
        first, last = np.searchsorted(origins.new, [row, row + len(shard)])
        for start in range(int(first), int(last), _ROWS_AT_ONCE):
            rows = origins.new[start : min(start + _ROWS_AT_ONCE, int(last))]
            drawn = draw_rows(table, self.seed, origins.keys(rows))[:, column : column + shard.shape[1]]
            _set_rows(shard, torch.from_numpy(rows - row), drawn)


def _copy_rows(shard: Tensor, whole: Tensor, origins: NDArray[np.int64], column: int) -> None:
    """Set the rows of a shard that have an origin in the stored tensor `whole`; `column`: the shard's first one."""
    for start in range(0, len(shard), _ROWS_AT_ONCE):
        sources = torch.from_numpy(origins[start : start + _ROWS_AT_ONCE])
        taken = (sources >= 0).nonzero().squeeze(1)
        rows = whole[sources[taken]]
        _set_rows(shard, start + taken, rows if rows.ndim == 1 else rows[:, column : column + shard.shape[1]])


def _set_rows(shard: Tensor, places: Tensor, rows: Tensor) -> None:
    shard.index_copy_(0, places.to(shard.device), rows.to(shard.device))


def _owner(schema: Schema, name: str) -> CategoricalFeature:
    """Return the feature whose table a feature reads."""
    features = {feature.name: feature for feature in schema.categorical}
    return features[features[name].table or name]

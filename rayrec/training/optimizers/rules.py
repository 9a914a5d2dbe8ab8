"""What a table's optimizer means for it: where it may lie, which kernel computes it, how much memory it takes."""

from dataclasses import dataclass
from typing import Literal

from rayrec.config.train import Sharding, TrainConfig
from rayrec.models.common.tables import EmbeddingTable

Kernel = Literal["fused", "dense"]
"""TorchRec's kernels: `fused` updates the batch's rows within the backward pass; `dense` leaves a gradient of the whole
shard, which a torch optimizer takes (`rayrec.training.optimizers.stepped`)."""

_FUSED = {"sgd", "adagrad", "rowwise_adagrad", "adam", "lamb"}
_SHARDED: dict[str, tuple[Sharding, ...]] = {
    "sgd": ("table_wise", "row_wise", "column_wise"),
    "adagrad": ("table_wise", "row_wise", "column_wise"),
    # One moment a row and column shard, which other plans could not load.
    "rowwise_adagrad": ("table_wise", "row_wise"),
    "adam": ("table_wise", "row_wise"),
    "lamb": ("table_wise", "row_wise"),
    # TorchRec puts column shards of one table that lie on one worker behind each other in a dense kernel.
    "rmsprop": ("table_wise", "row_wise"),
    "ftrl": ("table_wise", "row_wise"),
}
# A data-parallel table is updated by torch's optimizer, which is the fused one's rule, or the only one; but Adam and
# LAMB also move rows that are not in the batch.
_REPLICATED = {"sgd", "adagrad", "rowwise_adagrad", "rmsprop", "ftrl"}


@dataclass(frozen=True)
class TableRule:
    """What one table may have under its optimizer."""

    optimizer: str
    """The kind of the optimizer."""
    automatic: tuple[Sharding, ...]
    """The planner's choices: shardings under which predictions and resumed runs are the same."""
    on_request: tuple[Sharding, ...]
    """A recipe's choices: dense Adam, too, which `TrainConfig` gives to all tables or to none."""

    def kernel(self, sharding: Sharding) -> Kernel:
        return "fused" if sharding != "data_parallel" and self.optimizer in _FUSED else "dense"

    def row_bytes(self, columns: int, sharding: Sharding) -> int:
        """Bytes of one row of a shard in float32: weights, optimizer state, the gradient that a dense kernel leaves."""
        moments = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": columns, "rmsprop": columns}
        gradient = columns if self.kernel(sharding) == "dense" else 0
        return 4 * (columns + moments.get(self.optimizer, 2 * columns) + gradient)


def table_rule(table: EmbeddingTable, train: TrainConfig) -> TableRule:
    """The rule of a table under the optimizer of its part."""
    kind = train.by_part[train.trained_part(table.part)].embedding_optimizer.kind
    replicated: tuple[Sharding, ...] = ("data_parallel",)
    automatic = _SHARDED[kind] + (replicated if kind in _REPLICATED else ())
    return TableRule(kind, automatic, automatic + (replicated if kind == "adam" else ()))

"""DLRM by hand with FBGEMM's tables: one operator looks all of them up, its backward pass updates them by SGD.

The argument and what is printed are those of torch_dlrm.py, and so is the network, but that one index-select takes the
pairs of the interaction.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn

from benchmarks.peers.programs.torch_dlrm import batches, layers, read, timed


class DLRM(nn.Module):
    """The network of torch_dlrm.py."""

    def __init__(
        self, tables: int, rows: int, dim: int, numbers: int, bottom: list[int], top: list[int], lr: float
    ) -> None:
        super().__init__()
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * tables,
            optimizer=EmbOptimType.EXACT_SGD,
            learning_rate=lr,
        )
        self.tables.init_embedding_weights_uniform(-(rows**-0.5), rows**-0.5)
        vectors = tables + 1
        self.bottom = layers([numbers, *bottom], last_relu=True)
        self.top = layers([dim + vectors * (vectors - 1) // 2, *top, 1], last_relu=False)
        row, column = torch.tril_indices(vectors, vectors, offset=-1)
        self.pairs = row * vectors + column

    def forward(self, dense: Tensor, offsets: Tensor, ids: Tensor) -> Tensor:
        """Return logits (B,) of dense (B, N) float32, offsets (tables x B + 1,) and ids (tables x B,)."""
        x = self.bottom(dense)
        vectors = torch.cat([x, self.tables(ids, offsets)], dim=1).view(x.shape[0], -1, x.shape[1])
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products.index_select(1, self.pairs)], dim=1)).squeeze(1)


def training(arguments: dict[str, Any]) -> Iterator[Tensor]:
    """Read the rows and build the model, then train step after step, without an end: the loss () of each."""
    torch.manual_seed(0)
    dense, ids, label = read(arguments["parts"])
    model = DLRM(
        len(ids),
        arguments["rows_of_table"],
        arguments["dim"],
        dense.shape[1],
        arguments["bottom_mlp"],
        arguments["top_mlp"],
        arguments["lr"],
    )
    others = [*model.bottom.parameters(), *model.top.parameters()]
    optimizer, loss_of = torch.optim.SGD(others, lr=arguments["lr"]), nn.BCEWithLogitsLoss()
    offsets = torch.arange(len(ids) * arguments["batch"] + 1)
    for rows in batches(label, arguments["batch"]):
        loss = loss_of(model(dense[rows], offsets, ids[:, rows].reshape(-1)), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(arguments["threads"])
    steps = itertools.islice(training(arguments), arguments["warmup"] + arguments["steps"])
    print(json.dumps(timed(steps, arguments["batch"], arguments["warmup"])))


if __name__ == "__main__":
    main()

"""Wide & Deep by hand in plain torch, of a recipe that `rayrec inspect` writes: two embeddings a column, Adagrad.

`training` takes `parts` (Parquet files), `rows_of_tables`, `dim`, `mlp`, `dropout`, `lr_embeddings`, `lr_dense`, `l2`
and `batch`. All rows are read into tensors first. Gradients are dense, as torch has it by default.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.programs.torch_dlrm import batches, read


class WideDeep(nn.Module):
    """The network of Cheng et al. 2016 (arXiv:1606.07792); every number is in both parts."""

    def __init__(self, rows: list[int], dim: int, numbers: int, mlp: list[int], dropout: float) -> None:
        super().__init__()
        deep, wide = ([nn.Embedding(count, width) for count in rows] for width in (dim, 1))
        for table in deep:
            nn.init.trunc_normal_(table.weight, std=dim**-0.5)
        for table in wide:
            nn.init.zeros_(table.weight)
        self.deep, self.wide = nn.ModuleList(deep), nn.ModuleList(wide)
        self.numbers = nn.Linear(numbers, 1)
        found: list[nn.Module] = []
        for width, following in itertools.pairwise([len(rows) * dim + numbers, *mlp]):
            found += [nn.Linear(width, following), nn.ReLU(), nn.Dropout(dropout)]
        self.mlp = nn.Sequential(*found, nn.Linear(mlp[-1], 1))

    def forward(self, dense: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B,) of dense (B, N) float32 and ids (tables, B), and the rows read: (B, D), (B, tables)."""
        deep = torch.cat([table(ids[index]) for index, table in enumerate(self.deep)], dim=1)
        wide = torch.cat([table(ids[index]) for index, table in enumerate(self.wide)], dim=1)
        logits = self.mlp(torch.cat([deep, dense], dim=1)) + self.numbers(dense)
        return logits.squeeze(1) + wide.sum(1), deep, wide


def training(arguments: dict[str, Any]) -> Iterator[Tensor]:
    """Read the rows and build the model, then train step after step, without an end: the loss () of each."""
    torch.manual_seed(0)
    dense, ids, label = read(arguments["parts"])
    batch = arguments["batch"]
    model = WideDeep(
        arguments["rows_of_tables"], arguments["dim"], dense.shape[1], arguments["mlp"], arguments["dropout"]
    )
    tables = [*model.deep.parameters(), *model.wide.parameters()]
    layers = [*model.numbers.parameters(), *model.mlp.parameters()]
    optimizer = torch.optim.Adagrad([
        {"params": tables, "lr": arguments["lr_embeddings"]},
        {"params": layers, "lr": arguments["lr_dense"]},
    ])  # fmt: skip
    loss_of = nn.BCEWithLogitsLoss()
    for rows in batches(label, batch):
        logits, deep, wide = model(dense[rows], ids[:, rows])
        loss = loss_of(logits, label[rows])
        penalty = arguments["l2"] / (2 * batch) * (deep.square().sum() + wide.square().sum())
        optimizer.zero_grad()
        (loss + penalty).backward()
        optimizer.step()
        yield loss.detach()

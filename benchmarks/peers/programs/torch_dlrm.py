"""DLRM by hand in plain torch, as facebookresearch/dlrm has it: a sparse EmbeddingBag a table, bmm, SGD.

The argument is a JSON object of `parts` (Parquet files), `rows_of_table`, `dim`, `bottom_mlp`, `top_mlp`, `lr`,
`batch`, `warmup`, `steps` and `threads`. All rows are read into tensors before the clock starts. Prints JSON: samples/s
after the warm-up, and the mean loss.
"""

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class DLRM(nn.Module):
    """The network of Naumov et al. 2019 (arXiv:1906.00091) with the dot interaction."""

    def __init__(self, rows: list[int], dim: int, numbers: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        tables = [nn.EmbeddingBag(count, dim, mode="sum", sparse=True) for count in rows]
        for table, count in zip(tables, rows, strict=True):
            nn.init.uniform_(table.weight, -(count**-0.5), count**-0.5)
        self.tables = nn.ModuleList(tables)
        vectors = len(rows) + 1
        self.bottom = layers([numbers, *bottom], last_relu=True)
        self.top = layers([dim + vectors * (vectors - 1) // 2, *top, 1], last_relu=False)
        self.pairs = torch.tril_indices(vectors, vectors, offset=-1)

    def forward(self, dense: Tensor, offsets: Tensor, ids: Tensor) -> Tensor:
        """Return logits (B,) of dense (B, N) float32, offsets (B,) and ids (tables, B)."""
        x = self.bottom(dense)
        looked_up = [table(ids[index], offsets) for index, table in enumerate(self.tables)]
        vectors = torch.cat([x, *looked_up], dim=1).view(x.shape[0], -1, x.shape[1])
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, pairs], dim=1)).squeeze(1)


def layers(widths: list[int], *, last_relu: bool) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    found: list[nn.Module] = []
    for width, following in itertools.pairwise(widths):
        linear = nn.Linear(width, following)
        nn.init.normal_(linear.weight, std=math.sqrt(2 / (width + following)))
        nn.init.normal_(linear.bias, std=math.sqrt(1 / following))
        found += [linear, nn.ReLU()]
    return nn.Sequential(*(found if last_relu else found[:-1]))


def read(parts: list[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the numbers (rows, N) float32, ids (tables, rows) int64 and labels (rows,) float32 of Parquet files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables(pq.read_table(part) for part in parts)
    numbers = [name for name in table.column_names if name.startswith("I")]
    categories = [name for name in table.column_names if name.startswith("C")]
    dense = np.stack([table[name].to_numpy() for name in numbers], axis=1).astype(np.float32)
    ids = np.stack([table[name].to_numpy() for name in categories]).astype(np.int64)
    return (
        torch.from_numpy(dense),
        torch.from_numpy(ids),
        torch.from_numpy(table["label"].to_numpy().astype(np.float32)),
    )


def timed(steps: Iterator[Tensor], batch: int, warmup: int) -> dict[str, float]:
    """Return the samples/s (median of windows of ten steps) and the mean loss of the steps after the warm-up."""
    rates, losses, began = [], [], 0.0
    for step, loss in enumerate(steps):
        if step >= warmup:
            losses.append(loss)
        done = step + 1 - warmup
        if done >= 0 and done % 10 == 0:
            now = time.perf_counter()
            if done:
                rates.append(10 * batch / (now - began))
            began = now
    return {"samples_per_second": statistics.median(rates), "loss": sum(map(float, losses)) / len(losses)}


def batches(label: Tensor, batch: int) -> Iterator[slice]:
    """Return the rows of one batch after the other, in their order, again and again; what is left of them fills
    none.
    """
    starts = range(0, len(label) - batch + 1, batch)
    return (slice(start, start + batch) for start in itertools.cycle(starts))


def training(arguments: dict[str, Any]) -> Iterator[Tensor]:
    """Read the rows and build the model, then train step after step, without an end: the loss () of each."""
    torch.manual_seed(0)
    dense, ids, label = read(arguments["parts"])
    model = DLRM(
        [arguments["rows_of_table"]] * len(ids),
        arguments["dim"],
        dense.shape[1],
        arguments["bottom_mlp"],
        arguments["top_mlp"],
    )
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=arguments["lr"]), nn.BCEWithLogitsLoss()
    offsets = torch.arange(arguments["batch"])
    for rows in batches(label, arguments["batch"]):
        loss = loss_of(model(dense[rows], offsets, ids[:, rows]), label[rows])
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

"""DLRM by hand in TorchRec: its DLRM, DistributedModelParallel on one process, SGD fused into the backward pass.

The argument and what is printed are those of torch_dlrm.py; batches are cut from tensors, too.
"""

import json
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from benchmarks.peers.programs.torch_dlrm import read, timed


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(arguments["threads"])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dense, ids, label = read(arguments["parts"])
    ids = ids.int()
    count, batch = arguments["rows_of_table"], arguments["batch"]
    keys = [f"C{index + 1}" for index in range(len(ids))]
    tables = [
        EmbeddingBagConfig(
            name=key,
            feature_names=[key],
            num_embeddings=count,
            embedding_dim=arguments["dim"],
            init_fn=lambda weight: nn.init.uniform_(weight, -(count**-0.5), count**-0.5),
        )
        for key in keys
    ]
    plain = DLRM(
        EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
        dense.shape[1],
        arguments["bottom_mlp"],
        [*arguments["top_mlp"], 1],
    )
    apply_optimizer_in_backward(torch.optim.SGD, plain.sparse_arch.parameters(), {"lr": arguments["lr"]})
    model = DistributedModelParallel(plain, device=torch.device("cpu"))
    of_tables = {id(parameter) for parameter in model.module.sparse_arch.parameters()}
    others = [parameter for parameter in model.parameters() if id(parameter) not in of_tables]
    optimizer, loss_of = torch.optim.SGD(others, lr=arguments["lr"]), nn.BCEWithLogitsLoss()
    lengths = torch.ones(len(keys) * batch, dtype=torch.int32)

    def steps() -> Iterator[Tensor]:
        for step in range(arguments["warmup"] + arguments["steps"]):
            rows = slice(step * batch, (step + 1) * batch)
            sparse = KeyedJaggedTensor(keys=keys, values=ids[:, rows].reshape(-1), lengths=lengths)
            loss = loss_of(model(dense[rows], sparse).squeeze(1), label[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.detach()

    print(json.dumps(timed(steps(), batch, arguments["warmup"])))


if __name__ == "__main__":
    main()

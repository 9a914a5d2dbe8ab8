"""The collection of a model's embedding tables, and their pooled outputs in the model's order."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from rayrec.models.common.tables import EmbeddingTable, require_usable


def build_embeddings(tables: Sequence[EmbeddingTable], device: torch.device) -> EmbeddingBagCollection:
    """The tables as one collection, which sums the embeddings of a row's ids; `PooledOutputs` makes means of sums.

    TorchRec's own mean is not used: in a sharded collection a row-wise table with mean pooling makes it divide the
    outputs of multi-hot features of other tables, too, and all outputs by 1 + 1e-6. Raises UserError where a table's
    name cannot name one.
    """
    require_usable(tables)
    configs = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.columns,
            feature_names=[table.feature],
            pooling=PoolingType.SUM,
        )
        for table in tables
    ]
    return EmbeddingBagCollection(configs, device=device)


class PooledOutputs:
    """Pooled embeddings of every table side by side, in the order of the tables.

    A sharded collection returns its outputs in an order that depends on the sharding plan, so they are taken by key.
    """

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self._tables = tuple(tables)
        shared = Counter(table.feature for table in tables)
        # TorchRec's keys: a feature that has several tables is named with each of them.
        self._keys = [f"{t.feature}@{t.name}" if shared[t.feature] > 1 else t.feature for t in tables]
        self._are_whole = all(table.pooling == "sum" and table.dim == table.columns for table in tables)

    def __call__(self, sums: KeyedTensor, sparse: KeyedJaggedTensor) -> Tensor:
        """(B, sum of dims) float32 from a collection's outputs for the ids `sparse`."""
        if self._are_whole and self._keys == sums.keys():
            return sums.values()
        by_key = sums.to_dict()
        outputs = []
        for key, table in zip(self._keys, self._tables, strict=True):
            output = by_key[key][:, : table.dim]
            if table.pooling == "mean":
                output = output / sparse[table.feature].lengths().clamp(min=1).unsqueeze(1)
            outputs.append(output)
        return torch.cat(outputs, dim=1)

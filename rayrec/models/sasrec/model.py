"""SASRec: Self-Attentive Sequential Recommendation (Kang & McAuley 2018, arXiv:1808.09781).

Shapes: B people, L events, D columns.
"""

import math

import torch
from torch import Tensor, nn

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.models.common.embedding_tables import EmbeddingTable, Normal, PooledFeature
from rayrec.models.common.layers import Dropout, to_autocast_dtype
from rayrec.models.common.next_item import ScoresNextItems
from rayrec.models.common.ranking import RankingModel
from rayrec.models.common.transformer import Block, LayerNorm, Positions
from rayrec.models.sasrec.config import SASRecConfig

TABLE_VALUES = Normal(std=0.02)


def build(config: SASRecConfig, schema: Schema, device: torch.device) -> RankingModel:
    """Build SASRec for the interactions of `schema`; its one table is that of the items.

    Raises UserError where the schema does not name the user and the item, or has further features.
    """
    columns = schema.interactions
    other = [f.name for f in schema.features if columns is None or f.name not in {columns.user, columns.item}]
    if columns is None or other:
        found = f"the dataset also has a feature '{other[0]}'" if columns else "the dataset names none (interactions)"
        raise UserError(
            f"model.kind: 'sasrec' reads the items of a user in order of time and nothing else, but {found}; give a "
            "dataset of source.kind interactions, or use another model"
        )
    schema = schema.with_embedding_dims(config.embedding_dim, {})
    (rows,) = (feature.cardinality for feature in schema.categorical if feature.name == columns.item)
    table = EmbeddingTable(columns.item, (columns.item,), rows, config.embedding_dim, TABLE_VALUES)
    return RankingModel(schema, [PooledFeature(columns.item, table)], SASRecDenseNetwork(config, device), device)


class SASRecDenseNetwork(ScoresNextItems):
    """Transformer blocks over the embeddings of events and of their positions; the vector of an item is its embedding.

    Positions count from the oldest event that is read.
    """

    def __init__(self, config: SASRecConfig, device: torch.device) -> None:
        super().__init__()
        self.length, width = config.length, config.embedding_dim
        self._scale = math.sqrt(width)
        self.positions = Positions(self.length, width, device)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(width, config.heads, config.dropout, device) for _ in range(config.blocks))
        self.norm = LayerNorm(width, device=device)

    def position_vectors(self, events: Tensor) -> Tensor:
        """Return (B, L, D) for (B, L, D): the output of the last block at each position, behind a layer norm."""
        x_BLD = self.dropout(self.positions(to_autocast_dtype(events * self._scale)))
        for block in self.blocks:
            x_BLD = block(x_BLD, is_causal=True)
        vectors: Tensor = self.norm(x_BLD)
        return vectors

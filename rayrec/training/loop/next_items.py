"""Evaluation of a distributed model on held-out events: every item as the next one of a person."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from rayrec.ingest.interactions import interaction_columns, pair_batch
from rayrec.ingest.next_item_batches import item_batch
from rayrec.ingest.next_items import NextItems
from rayrec.metrics.next_items import NextItemMetrics, RankedEvents
from rayrec.models.common.held_out_events import HeldOutEvents
from rayrec.models.common.next_item import ScoresNextItems, newest_events
from rayrec.models.common.ranking import ScoresPairs
from rayrec.training.parallel.parallel_model import ParallelModel

_LOOKED_UP = 2**16
"""Items that are looked up at once."""


def rank_next_items(model: ParallelModel, items: NextItems, metrics: NextItemMetrics) -> None:
    """Add the events of this rank's people to `metrics`. A collective: every rank looks up the catalogue once, and its
    own people, of whom it has as many batches as the others. The rest is local.
    """
    network = model.dense_network
    if isinstance(network, ScoresNextItems):
        scores_of, batches = _by_histories(model, network, items)
    else:
        assert isinstance(network, ScoresPairs), "`require_evaluable` refuses others"
        scores_of, batches = _by_pairs(model, network, items)

    @torch.no_grad()  # which each thread has for itself
    def ranked(batch: tuple[HeldOutEvents, Tensor | None]) -> RankedEvents:
        return metrics.rank(scores_of(*batch), batch[0])

    for found in model.threads.map(ranked, batches):
        metrics.update(found)


_Batches = Iterable[tuple[HeldOutEvents, Tensor | None]]
"""Events, and what their people were looked up for, if anything."""


def _by_histories(
    model: ParallelModel, network: ScoresNextItems, items: NextItems
) -> tuple[Callable[[HeldOutEvents, Tensor | None], Tensor], _Batches]:
    """Return what scores every item by vectors of histories and of items, and the events."""
    every = torch.arange(items.num_items + 1, device=model.device)
    table = torch.cat([model.exact_pooled(item_batch(model.schema, some)) for some in every.split(_LOOKED_UP)])
    with torch.no_grad():
        catalogue = network.item_vectors(table[1:]).float()

    def scores_of(events: HeldOutEvents, _: Tensor | None) -> Tensor:
        newest = newest_events(events.histories, network.length)
        histories, numbers = (torch.from_numpy(values).to(model.device) for values in newest)
        return network.person_vectors(table[histories], numbers) @ catalogue.T

    return scores_of, ((events, None) for events in items.batches())


def _by_pairs(
    model: ParallelModel, network: ScoresPairs, items: NextItems
) -> tuple[Callable[[HeldOutEvents, Tensor | None], Tensor], _Batches]:
    """Return what scores every item by a model of a user and an item, and the events with the embeddings of their
    users; people who are not in the vocabulary are user 0.
    """
    schema = model.schema
    sides = [feature.name for feature in schema.categorical]
    user, item = (sides.index(name) for name in (interaction_columns(schema).user, interaction_columns(schema).item))
    widths = [feature.embedding_dim or 0 for feature in schema.categorical]

    def look_up(side: int, ids: Tensor) -> Tensor:
        """Return the embeddings (n, width) of ids of one side, which are looked up beside id 0 of the other."""
        none = torch.zeros_like(ids)
        users, of_items = (ids, none) if side == user else (none, ids)
        return model.exact_pooled(pair_batch(schema, users, of_items, none, none)).split(widths, dim=1)[side]

    every = torch.arange(1, items.num_items + 1, device=model.device)
    catalogue = torch.cat([look_up(item, some) for some in every.split(_LOOKED_UP)])

    def batches() -> _Batches:
        for events in items.batches():
            users = torch.from_numpy(np.unique(events.users)).to(model.device)
            # Every rank looks up as many.
            padded = torch.cat([users, users.new_zeros(items.events_at_once - len(users))])
            yield events, look_up(user, padded)[: len(users)]

    def scores_of(events: HeldOutEvents, people: Tensor | None) -> Tensor:
        assert people is not None
        pair = (people, catalogue) if user < item else (catalogue, people)
        logits = network.pair_logits(*pair)
        _, of_event = np.unique(events.users, return_inverse=True)
        return (logits if user < item else logits.T)[torch.from_numpy(of_event).to(logits.device)]

    return scores_of, batches()

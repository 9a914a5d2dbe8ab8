"""Evaluation of a distributed model on held-out events: every item as the next one of a person."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rayrec.ingest.interactions import pair_batch
from rayrec.ingest.next_item_batches import item_batch
from rayrec.ingest.next_items import NextItems
from rayrec.models.common.held_out_events import HeldOutEvents
from rayrec.models.common.next_item import ScoresNextItems
from rayrec.training.parallel.parallel_model import ParallelModel

_LOOKED_UP = 2**16
"""Items that are looked up at once."""


def score_next_items(model: ParallelModel, items: NextItems, size: int) -> Iterator[tuple[Tensor, HeldOutEvents]]:
    """Score every item for each event of this rank's people; yield the logits (n, items) of some events.

    `size`: pairs of a user and an item that are scored at once, by models of these. A collective.
    """
    network = model.dense_network
    if isinstance(network, ScoresNextItems):
        return _score_histories(model, network, items)
    return _score_pairs(model, items, size)


def _score_histories(
    model: ParallelModel, network: ScoresNextItems, items: NextItems
) -> Iterator[tuple[Tensor, HeldOutEvents]]:
    """Score by vectors of histories and of items. The catalogue is looked up once, by every rank; the rest is local."""
    every = torch.arange(items.num_items + 1, device=model.device)
    table = torch.cat([model.exact_pooled(item_batch(model.schema, some)) for some in every.split(_LOOKED_UP)])
    with torch.no_grad():
        catalogue = network.item_vectors(table[1:]).float()

    @torch.no_grad()  # which each thread has for itself
    def scores_of(events: HeldOutEvents) -> tuple[Tensor, HeldOutEvents]:
        newest = [history[-network.length :] for history in events.histories]
        lengths = np.array([len(history) for history in newest], np.int64)
        ids = np.zeros((len(newest), max(1, lengths.max(initial=0))), np.int64)
        for row, history in zip(ids, newest, strict=True):
            row[: len(history)] = history
        histories, numbers = (torch.from_numpy(values).to(model.device) for values in (ids, lengths))
        return network.person_vectors(table[histories], numbers) @ catalogue.T, events

    yield from model.threads.map(scores_of, items.batches())


def _score_pairs(model: ParallelModel, items: NextItems, size: int) -> Iterator[tuple[Tensor, HeldOutEvents]]:
    """Score every item for each person of this rank by a model of a user and an item, `size` pairs at a time.

    Yield the logits (n, items) of all events of some people. People who are not in the vocabulary are user 0. Look-ups
    in sharded tables are collectives, so every rank scores as many pairs.
    """
    schema, device = model.schema, model.device
    people = max(1, size // items.num_items)
    catalogue = torch.arange(1, items.num_items + 1, device=device)
    for events in items.batches_of_people(people):
        users, of_event = torch.from_numpy(events.users).to(device).unique_consecutive(return_inverse=True)
        users = torch.cat([users, users.new_zeros(people - len(users))])
        pairs = torch.stack([users.repeat_interleave(len(catalogue)), catalogue.repeat(people)])
        logits = []
        for user, item in zip(*(column.split(size) for column in pairs), strict=True):
            none = torch.zeros(len(user), device=device)
            logits.append(model.logits(pair_batch(schema, user, item, none, none)))
        scores = torch.cat(logits).view(people, len(catalogue))
        for first in range(0, len(events), items.events_at_once):
            some = slice(first, first + items.events_at_once)
            yield scores[of_event[some]], events[some]

"""Evaluation of a distributed model on held-out events: every item as the next one of a person."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rayrec.ingest.interactions import pair_batch
from rayrec.ingest.next_items import NextItems
from rayrec.models.common.held_out_events import HeldOutEvents
from rayrec.training.parallel.parallel_model import ParallelModel


def score_pairs(model: ParallelModel, items: NextItems, size: int) -> Iterator[tuple[Tensor, HeldOutEvents]]:
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

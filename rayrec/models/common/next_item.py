"""Dense networks that score every item as the next one of a person, and the loss that trains them.

Shapes: B people, L events, d columns of the item table, D columns of a vector, P predicted events, C candidates.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rayrec.internals import onednn
from rayrec.models.common.held_out_events import ItemIds
from rayrec.models.common.layers import to_autocast_dtype

_LOGITS_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}
"""Logits that the loss has at once, so that its memory grows neither with the batch nor with the catalogue."""


class ScoresNextItems(nn.Module):
    """A dense network over the embeddings of one item table: the logit of an item as a person's next one is the product
    of their vectors.
    """

    length: int
    """Newest events that are read."""

    def position_vectors(self, events: Tensor) -> Tensor:
        """Return what is known after each event: embeddings (B, L, d), oldest first, L at most `length`, padded at the
        end -> (B, L, D). No vector depends on later events.
        """
        raise NotImplementedError

    def item_vectors(self, embeddings: Tensor) -> Tensor:
        """Return the vectors of items: (N, d) -> (N, D)."""
        return embeddings

    def person_vectors(self, events: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors of people by their histories: embeddings (B, L, d), oldest first, L from 1 to `length`,
        padded at the end, and their numbers (B,) int64 -> (B, D) float32. Without an event it is 0, so
        that all items are alike.
        """
        last = (lengths - 1).clamp(min=0).view(-1, 1, 1)
        vectors = self.position_vectors(events).take_along_dim(last, dim=1).squeeze(1).float()
        return vectors * (lengths > 0).unsqueeze(1)

    def forward(
        self,
        events: Tensor,
        ids: Tensor,
        weights: Tensor,
        candidates: Tensor,
        candidate_ids: Tensor,
        log_counts: Tensor | None,
    ) -> Tensor:
        """Return () float32: the loss of windows of people's events, `next_item_loss` of every event but the first.

        Args:
            events: (B, L + 1, d) embeddings, oldest first, padded at the end.
            ids: (B, L + 1) their items.
            weights: (B, L + 1) float32 of each event's successor: 0 for the last event and for padding.
            candidates: (C, d) embeddings of the items that the next ones are told from.
            candidate_ids: (C,) these items.
            log_counts: See `next_item_loss`.
        """
        vectors = self.position_vectors(events[:, :-1])
        return next_item_loss(
            vectors.flatten(0, 1),
            self.item_vectors(events[:, 1:].flatten(0, 1)),
            self.item_vectors(candidates),
            ids[:, 1:].flatten(),
            candidate_ids,
            weights[:, :-1].flatten(),
            log_counts,
        )


def newest_events(histories: Sequence[ItemIds], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the newest `length` items of n histories, oldest first, padded at the end with 0 (n, L), and their numbers
    (n,); L is 1 at least.
    """
    newest = [history[-length:] for history in histories]
    lengths = np.array([len(history) for history in newest], np.int64)
    ids = np.zeros((len(newest), max(1, lengths.max(initial=0))), np.int64)
    for row, history in zip(ids, newest, strict=True):
        row[: len(history)] = history
    return ids, lengths


def next_item_loss(
    persons: Tensor,
    targets: Tensor,
    items: Tensor,
    target_ids: Tensor,
    item_ids: Tensor,
    weights: Tensor,
    log_counts: Tensor | None = None,
) -> Tensor:
    """Return () float32: the weighted sum of the cross entropies of next items among themselves and candidates.

    With p the vector of a person (P, D), t that of the next item (P, D) and v_c those of the candidates (C, D), of
    which those of the next item itself do not count:

        loss = sum over P of w (ln(exp(p t) + sum over c of exp(p v_c) / n_c) - p t)

    n_c is the number of times that c is expected among the candidates; `log_counts` (C,) are the logarithms, None where
    each is 1. If the candidates are all items, this is the softmax over them; if they are drawn, the sum over them is
    an unbiased estimate of that over all (Bengio & Senecal 2008, "Adaptive importance sampling to accelerate training
    of a neural probabilistic language model", equation 10; the log-Q correction of Yi et al. 2019, "Sampling-bias-
    corrected neural modeling for large corpus item recommendations").

    Memory beside the gradients does not grow with P times C.
    """
    persons, targets, items = (to_autocast_dtype(vectors) for vectors in (persons, targets, items))
    loss: Tensor = _NextItemLoss.apply(persons, targets, items, target_ids, item_ids, weights, log_counts)
    return loss


class _NextItemLoss(torch.autograd.Function):
    """Computes gradients together with the loss, some rows at once: to keep logits for later would take P times C."""

    @staticmethod
    def forward(
        ctx: Any,
        persons: Tensor,
        targets: Tensor,
        items: Tensor,
        target_ids: Tensor,
        item_ids: Tensor,
        weights: Tensor,
        log_counts: Tensor | None,
    ) -> Tensor:
        loss = torch.zeros((), device=persons.device)
        grad_items = torch.zeros(items.shape, device=items.device)
        of_persons, of_targets = [], []
        rows = max(1, _LOGITS_AT_ONCE[persons.device.type] // len(items))
        columns = (persons, targets, target_ids, weights)
        for person, target, target_id, weight in zip(*(column.split(rows) for column in columns), strict=True):
            own = (person.float() * target.float()).sum(1, keepdim=True)
            logits = _product(person, items).float()
            if log_counts is not None:
                logits -= log_counts
            logits.masked_fill_(item_ids == target_id.unsqueeze(1), -torch.inf)
            # One exponential each, of the distance from the highest logit; from here on `logits` are shares.
            highest = torch.maximum(logits.amax(1, keepdim=True), own)
            shares = logits.sub_(highest).exp_()
            of_own = (own - highest).exp()
            sums = shares.sum(1, keepdim=True) + of_own
            loss += (weight.unsqueeze(1) * (highest + sums.log() - own)).sum()
            # The gradient of each logit is its share; of the next item's it is the share less 1.
            scale = weight.unsqueeze(1) / sums
            shares = shares.mul_(scale).to(items.dtype)
            of_own = of_own * scale - weight.unsqueeze(1)
            of_persons.append(_product(shares, items.T).float() + of_own * target)
            of_targets.append(of_own * person)
            grad_items += _product(shares.T, person.T)
        ctx.save_for_backward(torch.cat(of_persons), torch.cat(of_targets), grad_items)
        ctx.dtype = persons.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (saved.mul_(grad).to(ctx.dtype) for saved in ctx.saved_tensors)
        return (*gradients, None, None, None, None)


def _product(rows: Tensor, others: Tensor) -> Tensor:
    """Return `rows @ others.T`, without a gradient."""
    if rows.device.type == "cpu" and onednn.multiplies(rows.dtype):
        return onednn.linear(rows, others, None)
    return rows @ others.T

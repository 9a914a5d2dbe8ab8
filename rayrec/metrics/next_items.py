"""Exact metrics of held-out events: where the item that a person chose stands among all that it could have chosen.

The list of an event is every item that its person did not have before, by descending score, and has one positive at
rank r: hr@k and recall@k are 1 if r <= k, else 0; ndcg@k is 1 / log2(r + 1) and mrr@k and map@k are 1 / r if r <= k,
else 0 (see `rayrec.metrics.ranking`). Each is averaged over events. Of all lists together:

- `coverage@k`: share of the catalogue that is among the best k of anybody's list.
- `top_share@k`: share of the lists that have the item which most lists have, among their best k.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.config.evaluate import RankingConfig
from rayrec.metrics.estimates import Estimate, MetricValues, SumsOfRows
from rayrec.metrics.ranking import gain_at, require_finite
from rayrec.models.common.held_out_events import HeldOutEvents

_LENGTHS = (0, 1, 5, 20)
"""The least events of histories that are measured together."""


@dataclass(frozen=True)
class EventSlice:
    """Some of the events, measured apart."""

    name: str
    events: int
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class RankedEvents:
    """What is counted of n events."""

    events: HeldOutEvents
    rank: NDArray[np.int64]
    """(n,) the rank of each event's item, from 1."""
    best: NDArray[np.int64]
    """(n, largest k) the places of the best items, best first; -1 where a person has fewer candidates."""
    scores: int
    """Scores that were ranked."""
    not_finite: int
    """Those that were infinite or NaN."""


class NextItemMetrics:
    """Accumulator of events; `add` merges those of several processes.

    Memory: 25 bytes an event and 8 bytes an item for each `k`. How events are cut into updates and ranks changes
    nothing beyond float64 rounding.
    """

    def __init__(self, config: RankingConfig, num_items: int) -> None:
        """Items are 1 ... `num_items`."""
        self._config = config
        self._scores = self._not_finite = 0
        self._ranks, self._persons, self._lengths = ([np.empty(0, np.int64)] for _ in range(3))
        self._is_new = [np.empty(0, np.bool_)]
        self._listed: NDArray[np.int64] = np.zeros((len(config.k), num_items), np.int64)
        """In how many lists each item is among the best k."""

    def rank(self, scores: Tensor, events: HeldOutEvents) -> "RankedEvents":
        """Return n events ranked by the scores (n, items) of items 1, 2, ... on any device, in float32. Threads may
        call it beside each other.
        """
        scores = scores.detach().float().clone()
        not_finite = int((~torch.isfinite(scores)).sum())
        rows, items = (torch.from_numpy(places).to(scores.device) for places in events.had_before())
        scores[rows, items - 1] = -torch.inf
        target = scores.gather(1, torch.from_numpy(events.targets).to(scores.device).unsqueeze(1) - 1)
        if self._config.ties == "pessimistic":
            rank = (scores >= target).sum(1)
        else:
            rank = (scores > target).sum(1) + 1
        best, is_candidate = _best(scores, min(max(self._config.k), scores.shape[1]))
        best = torch.where(is_candidate, best, -1)
        return RankedEvents(events, rank.cpu().numpy(), best.cpu().numpy(), scores.numel(), not_finite)

    def update(self, ranked: "RankedEvents") -> None:
        """Add events."""
        self._scores += ranked.scores
        self._not_finite += ranked.not_finite
        self._ranks.append(ranked.rank)
        self._persons.append(ranked.events.persons)
        self._lengths.append(ranked.events.lengths)
        self._is_new.append(ranked.events.is_new)
        for listed, k in zip(self._listed, self._config.k, strict=True):
            shown = ranked.best[:, :k]
            np.add.at(listed, shown[shown >= 0], 1)

    def add(self, other: "NextItemMetrics") -> None:
        """Add the events of another one."""
        self._scores += other._scores
        self._not_finite += other._not_finite
        self._ranks += other._ranks
        self._persons += other._persons
        self._lengths += other._lengths
        self._is_new += other._is_new
        self._listed += other._listed

    def compute(self) -> MetricValues:
        """Return the metrics by name (`hr@10`, ..., `coverage@10`, `top_share@10`), and the number of events as `rows`
        and as `groups`; None where there is no event.

        Raises UserError if a score is infinite or NaN.
        """
        events = len(np.concatenate(self._ranks))
        values: MetricValues = {
            name: None if found is None else found.value for name, found in self.estimates().items()
        }
        for listed, k in zip(self._listed, self._config.k, strict=True):
            values[f"coverage@{k}"] = float((listed > 0).mean()) if events else None
            values[f"top_share@{k}"] = float(listed.max()) / events if events else None
        return {**values, "rows": float(events), "groups": float(events)}

    def estimates(self) -> dict[str, Estimate | None]:
        """Return the metrics that are means over events with their standard errors; the events of a person are one
        piece of evidence. Raises UserError as `compute`.
        """
        require_finite(self._not_finite, self._scores)
        if len(np.concatenate(self._ranks)):
            return dict(self._measured(slice(None)))
        return dict.fromkeys(self._config.names)

    def slices(self) -> list[EventSlice]:
        """Measure apart the events by the length of their history, and those of new people, where there are some."""
        lengths = np.concatenate(self._lengths)
        parts = {"new people": np.concatenate(self._is_new)}
        for least, beyond in zip(_LENGTHS, (*_LENGTHS[1:], None), strict=True):
            name = (
                f"{least} or more" if beyond is None else str(least) if beyond == least + 1 else f"{least}-{beyond - 1}"
            )
            is_in = lengths >= least if beyond is None else (lengths >= least) & (lengths < beyond)
            parts[f"{name} earlier events"] = is_in
        return [EventSlice(name, int(rows.sum()), self._measured(rows)) for name, rows in parts.items() if rows.any()]

    def _measured(self, events: NDArray[np.bool_] | slice) -> dict[str, Estimate]:
        """Return the metrics of some events, at least one."""
        rank = np.concatenate(self._ranks)[events]
        _, person = np.unique(np.concatenate(self._persons)[events], return_inverse=True)
        one = np.ones(len(rank), np.int64)
        gains = [gain_at(k, metric, rank, one, one) for k, metric in self._config.cuts]
        sums = SumsOfRows(("events", *self._config.names))
        sums.update(torch.from_numpy(np.stack([one.astype(np.float64), *gains])), torch.from_numpy(person))
        found = {name: sums.ratio(name, "events") for name in self._config.names}
        return {name: estimate for name, estimate in found.items() if estimate is not None}


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the places (n, k) of the highest scores of each row, equal ones by place, and whether these are candidates
    (n, k): their scores are finite.
    """
    values, best = scores.topk(k)
    # Where more have the k-th score than there is room for, their places decide, and not the algorithm.
    worst = values[:, -1:]
    tied = ((scores >= worst).sum(1) > k) & torch.isfinite(worst.squeeze(1))
    best[tied] = scores[tied].argsort(dim=1, descending=True, stable=True)[:, :k]
    best = best.sort(1).values
    values = scores.gather(1, best)
    order = values.argsort(dim=1, descending=True, stable=True)
    return best.gather(1, order), torch.isfinite(values.gather(1, order))

"""Exact metrics of ranked lists, one list a group (the candidates of a user or a request), in bounded memory.

A group's rows are ranked by descending score; ranks count from 1. With P > 0 positives at ranks r_1 < ... < r_P:

- `hr@k` (hit ratio; He et al. 2017, "Neural Collaborative Filtering", section 4.1): 1 if r_1 <= k, else 0.
- `recall@k` (as in He et al. 2020, "LightGCN"): share of the P positives with r_j <= k.
- `ndcg@k` (Jarvelin & Kekalainen 2002, "Cumulated gain-based evaluation of IR techniques", gain 1, base 2): sum of
  1 / log2(r_j + 1) over r_j <= k, divided by its largest possible value, that of ranks 1 ... min(P, k).
- `mrr@k` (mean reciprocal rank; Voorhees 1999, "The TREC-8 question answering track report"): 1 / r_1 if r_1 <= k,
  else 0.
- `map@k` (mean average precision, cut as by Kaggle): sum of j / r_j over r_j <= k, divided by min(P, k). j / r_j is
  the precision at r_j; with one positive it is 1 / r_1.

Each is averaged over the groups that have a positive, each of which counts once; `groups` is how many these are.

- `gauc` (Zhu et al. 2017, "Optimized cost per click in Taobao display advertising"), not cut: the AUC within a group,
  averaged over the groups that have both labels, each by its number of rows. A tie counts one half.

Rows count once whatever their weight, and not at all with weight 0. Ties among negatives, and among positives, change
nothing; `RankingConfig.ties` says how a positive stands to negatives of its own score. Where rows have items, a list
counts an item once, as in NVIDIA's NCF: a negative that repeats another one, or the positive, is left out.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.config.evaluate import RankingConfig
from rayrec.metrics.estimates import Estimate, MetricValues, SumsOfRows
from rayrec.models.common.batch import group_numbers

_log = logging.getLogger(__name__)

# Rows of unfinished groups that may gather before they are cut to what can still matter.
_SHORTEN_BEYOND = 1 << 20


@dataclass(frozen=True)
class RankedRows:
    """n rows of any groups in any order."""

    group: NDArray[np.int64]
    score: NDArray[np.float64]
    positive: NDArray[np.bool_]
    item: NDArray[np.int64]
    """The id of each row's item if a list counts an item once, else 0. The id 0, also that of all unknown items,
    stands for an item like no other."""

    def __len__(self) -> int:
        return len(self.group)

    @classmethod
    def concat(cls, several: "list[RankedRows]") -> "RankedRows":
        return cls(
            np.concatenate([np.empty(0, np.int64), *(rows.group for rows in several)]),
            np.concatenate([np.empty(0, np.float64), *(rows.score for rows in several)]),
            np.concatenate([np.empty(0, np.bool_), *(rows.positive for rows in several)]),
            np.concatenate([np.empty(0, np.int64), *(rows.item for rows in several)]),
        )

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "RankedRows":
        return RankedRows(self.group[rows], self.score[rows], self.positive[rows], self.item[rows])

    def distinct(self) -> "RankedRows":
        """Return the rows that remain when each group has every item once: its positive row, or else one of its
        rows.
        """
        if not self.item.any():
            return self
        order = np.lexsort((~self.positive, self.item, self.group))
        group, item = self.group[order], self.item[order]
        repeats = np.zeros(len(order), np.bool_)
        repeats[1:] = (group[1:] == group[:-1]) & (item[1:] == item[:-1]) & (item[1:] != 0)
        kept = np.ones(len(order), np.bool_)
        kept[order[repeats]] = False
        return self.take(kept)


class RankingMetrics:
    """Accumulator of rows; `add` and `rayrec.metrics.binary` merge those of several processes.

    An `update` must hold consecutive rows of data whose groups are contiguous: then only its first and its last group
    can continue elsewhere. Those wait, cut to their positives and their best negatives, for the end; the others are
    counted at once. Memory: 8 bytes a group (to find one that comes twice), and the waiting groups' rows. How the data
    is cut into updates and ranks changes nothing beyond float64 rounding.
    """

    def __init__(self, config: RankingConfig) -> None:
        self._config = config
        self._rows = self._not_finite = 0
        self._groups = 0
        """Groups with a positive that were counted."""
        self._sums: NDArray[np.float64] = np.zeros((2, len(config.cuts)))
        """Sums over these groups of each metric, and of its square."""
        self._finished: list[NDArray[np.int64]] = []
        """Ids of the groups that were counted, and of those without a positive."""
        self._open: list[RankedRows] = []
        self._shorten_at = _SHORTEN_BEYOND
        self._aucs = GroupAucs() if "gauc" in config.metrics else None

    def update(
        self, scores: Tensor, labels: Tensor, groups: Tensor, weights: Tensor, items: Tensor | None = None
    ) -> None:
        """Add rows: (B,) scores (ranked in float64), labels 0 or 1, group ids, weights >= 0, on any device.

        `items`: (B,) item ids, if a list counts each item once.
        """
        counted = weights.detach().reshape(-1) > 0
        columns = (scores.double(), labels > 0.5, groups.long(), torch.zeros_like(groups) if items is None else items)
        score, positive, group, item = (column.detach().reshape(-1)[counted] for column in columns)
        if not len(score):
            return
        self._rows += len(score)
        self._not_finite += int((~torch.isfinite(score)).sum())
        # Groups are runs of rows; the first and the last may continue in other updates, and wait.
        run = group_numbers(group)
        last = int(run[-1])
        at_edge = (run == 0) | (run == last)
        if self._aucs is not None:
            self._aucs.update(
                RankedRows(*(column.cpu().numpy() for column in (group, score, positive, item.long()))),
                at_edge.cpu().numpy(),
            )
        # Inside, only what stands above a positive of its group can matter.
        worst = score.new_full((last + 1,), torch.inf)
        worst.scatter_reduce_(0, run, torch.where(positive, score, torch.inf), "amin")
        kept = at_edge | (score >= worst[run])
        starts = torch.cat([run.new_ones(1, dtype=torch.bool), run.diff() > 0])
        self._finished.append(group[starts & ~at_edge].cpu().numpy())
        # The others are counted now.
        rows = RankedRows(*(column[kept].cpu().numpy() for column in (group, score, positive, item.long())))
        edge = at_edge[kept].cpu().numpy()
        self._count(rows.take(~edge))
        self._open.append(self._shortened(rows.take(edge)))
        self._bound_memory()

    def add(self, other: "RankingMetrics") -> None:
        """Add the rows of another one, which is used up."""
        self._rows += other._rows
        self._not_finite += other._not_finite
        self._groups += other._groups
        self._sums += other._sums
        self._finished += other._finished
        self._open += other._open
        if self._aucs is not None and other._aucs is not None:
            self._aucs.add(other._aucs)
        self._bound_memory()

    def compute(self) -> MetricValues:
        """Return the metrics by name (`hr@10`, ...), and `groups`; None, with a warning, where no group has a positive.

        All rows must have been added. Raises UserError if a score of a row that counts is infinite or NaN, or a
        group's rows are not next to each other.
        """
        values = {name: None if found is None else found.value for name, found in self.estimates().items()}
        if not self._groups:
            _log.warning("no group has a positive: %s undefined", ", ".join(self._config.names))
        return {**values, "groups": float(self._groups)}

    def estimates(self) -> dict[str, Estimate | None]:
        """Return the metrics with their standard errors over groups. Raises UserError as `compute`."""
        require_finite(self._not_finite, self._rows)
        # Nothing goes on elsewhere: the groups that have waited are whole now.
        waiting = RankedRows.concat(self._open)
        self._count(waiting)
        self._finished.append(np.unique(waiting.group))
        self._open = []
        ids = np.sort(np.concatenate(self._finished))
        repeated = ids[1:][ids[1:] == ids[:-1]]
        if len(repeated):
            raise UserError(
                f"evaluate.ranking: the rows of group {repeated[0]} are not next to each other in the split; "
                "preprocess so that groups stay together"
            )
        of_groups = {} if self._aucs is None else {"gauc": self._aucs.estimate()}
        if not self._groups:
            return {**dict.fromkeys(self._config.names), **of_groups}
        means, squares = self._sums / self._groups
        errors = np.sqrt(np.maximum(squares - means**2, 0.0) / self._groups)
        found = zip(self._config.names, means.tolist(), errors.tolist(), strict=False)  # `gauc` comes last
        return {**{name: Estimate(mean, error) for name, mean, error in found}, **of_groups}

    def _bound_memory(self) -> None:
        """Cut the rows of the groups that may go on elsewhere to those that can matter, if they are many."""
        if sum(map(len, self._open)) > self._shorten_at:
            self._open = [self._shortened(RankedRows.concat(self._open))]
            self._shorten_at = max(_SHORTEN_BEYOND, 2 * len(self._open[0]))

    def _shortened(self, rows: RankedRows) -> RankedRows:
        """Return the rows without the negatives that stand below as many others of their group as any metric
        looks at.
        """
        rows = rows.distinct()
        order = np.lexsort((-rows.score, rows.positive, rows.group))
        rows = rows.take(order)
        negatives = np.cumsum(~rows.positive)
        first = _starts(rows.group)
        # Negatives come first within a group, so this counts them from 1 in each.
        place: NDArray[np.int64] = negatives - (negatives - ~rows.positive)[first][_run_of(first)]
        if rows.item.any():
            # Some of these may turn out to repeat a positive of another batch, which has the same score then. So that
            # no equal of that score is missing, rows of one score share the best place among them.
            first |= _starts(rows.score)
            place = place[first][_run_of(first)]
        return rows.take(rows.positive | (place <= max(self._config.k)))

    def _count(self, rows: RankedRows) -> None:
        """Count whole groups."""
        rows = rows.distinct()
        by_label = rows.positive if self._config.ties == "pessimistic" else ~rows.positive
        rows = rows.take(np.lexsort((by_label, -rows.score, rows.group)))
        first = _starts(rows.group)
        run = _run_of(first)
        is_positive = rows.positive
        rank = (np.arange(len(rows)) - np.flatnonzero(first)[run] + 1)[is_positive]
        positives = np.bincount(run[is_positive], minlength=run[-1] + 1 if len(run) else 0)
        with_positive = positives > 0
        total = positives[with_positive]
        # Of each positive: its group among those that have one, and its number within it.
        group = (np.cumsum(with_positive) - 1)[run[is_positive]]
        number = np.arange(len(rank)) - (np.cumsum(total) - total)[group] + 1
        self._groups += len(total)
        for column, (k, metric) in enumerate(self._config.cuts):
            gain = gain_at(k, metric, rank, number, total[group])
            of_group = np.bincount(group, weights=gain, minlength=len(total))
            of_group = np.minimum(of_group, 1.0) if metric == "hr" else of_group
            self._sums[:, column] += of_group.sum(), (of_group**2).sum()


class GroupAucs:
    """The AUC within groups. Rows of groups that may go on elsewhere wait, all of them."""

    def __init__(self) -> None:
        self._sums = SumsOfRows(("auc by rows", "rows"))
        self._waiting: list[RankedRows] = []

    def update(self, rows: RankedRows, at_edge: NDArray[np.bool_]) -> None:
        """Add rows; those `at_edge` are of groups that may go on in other updates."""
        self._count(rows.take(~at_edge))
        self._waiting.append(rows.take(at_edge))

    def add(self, other: "GroupAucs") -> None:
        """Add the rows of another one."""
        self._sums.add(other._sums)
        self._waiting += other._waiting

    def estimate(self) -> Estimate | None:
        """Return the mean; None if no group has both labels. All rows must have been added."""
        self._count(RankedRows.concat(self._waiting))
        self._waiting = []
        return self._sums.ratio("auc by rows", "rows")

    def _count(self, rows: RankedRows) -> None:
        """Count whole groups."""
        rows = rows.distinct()
        rows = rows.take(np.lexsort((rows.score, rows.group)))
        first = _starts(rows.group)
        group = _run_of(first)
        tie = _run_of(first | _starts(rows.score))
        # Of each run of ties: its labels, and the negatives below it in its group.
        positives, negatives = (np.bincount(tie, weights=label) for label in (rows.positive, ~rows.positive))
        of_tie = group[_starts(tie)]
        below = np.cumsum(negatives) - negatives
        below -= below[_starts(of_tie)][of_tie]
        total_positives, total_negatives = (np.bincount(of_tie, weights=count) for count in (positives, negatives))
        won = np.bincount(of_tie, weights=positives * (below + negatives / 2))
        both = (total_positives > 0) & (total_negatives > 0)
        size = (total_positives + total_negatives)[both]
        auc = won[both] / (total_positives * total_negatives)[both]
        self._sums.update(torch.from_numpy(np.stack([auc * size, size])))


def gain_at(
    k: int, metric: str, rank: NDArray[np.int64], number: NDArray[np.int64], positives: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return (n,) what each of n positives adds to its group's value, cut at `k`; of `hr` that is 1 at most.

    Args:
        rank: (n,) the rank in its group.
        number: (n,) which positive of its group it is, from 1, by rank.
        positives: (n,) how many its group has.
    """
    match metric:
        case "hr":
            gain = np.ones(len(rank))
        case "recall":
            gain = 1.0 / positives
        case "ndcg":
            ideal = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])
            gain = 1.0 / np.log2(rank + 1) / ideal[np.minimum(positives, k)]
        case "mrr":
            gain = (number == 1) / rank
        case _:
            assert metric == "map"
            gain = number / rank / np.minimum(positives, k)
    return gain * (rank <= k)


def require_finite(not_finite: int, scores: int) -> None:
    """Raise UserError if scores that are ranked were infinite or NaN."""
    if not_finite:
        raise UserError(
            f"evaluation: {not_finite} of {scores} scores are infinite or NaN: the model has diverged; "
            "lower the learning rates (train.embedding_optimizer.lr, train.dense_optimizer.lr)"
        )


def _starts(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each of n values, sorted so that equal ones are adjacent, is the first of its kind, (n,)."""
    first = np.ones(len(values), np.bool_)
    first[1:] = values[1:] != values[:-1]
    return first


def _run_of(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Index of each row's group, from 0, among those that begin at `first`."""
    return np.cumsum(first) - 1

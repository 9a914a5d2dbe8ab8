"""How a model is evaluated, and the names of metrics."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, WithJsonSchema

from rayrec.config.base import Config

InferencePrecision = Literal["auto", "fp32", "bf16", "fp16"]
"""Arithmetic of the dense network where a model scores; `auto` is what the hardware does well."""
_HIGHER_IS_BETTER: dict[str, bool] = {"auc": True, "log_loss": False, "normalized_entropy": False}
_RANKING = re.compile(r"(hr|ndcg|recall|map)@[1-9][0-9]*")


def ranking_metric(metric: str, k: int) -> str:
    """The name of a ranking metric cut at rank k."""
    return f"{metric}@{k}"


def is_ranking_metric(name: str) -> bool:
    """Whether `name` is a ranking metric with its cut, such as `ndcg@10`."""
    return _RANKING.fullmatch(name) is not None


def higher_is_better(name: str) -> bool:
    """Whether higher values of a metric are better: true for all but losses."""
    return is_ranking_metric(name) or _HIGHER_IS_BETTER[name]


def _known(name: str) -> str:
    if name not in _HIGHER_IS_BETTER and not is_ranking_metric(name):
        raise ValueError(f"no such metric; use {', '.join(_HIGHER_IS_BETTER)}, or one such as hr@10, ndcg@10, map@12")
    return name


MetricName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema(
        {"anyOf": [{"enum": list(_HIGHER_IS_BETTER)}, {"type": "string", "pattern": f"^{_RANKING.pattern}$"}]}
    ),
]
"""A metric that training can choose checkpoints by or stop at."""


class RankingConfig(Config):
    """Metrics of ranked lists, one list a group (a user, a display): see `rayrec.evaluation.ranking`."""

    k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10,)
    """Ranks at which the lists are cut."""
    metrics: Annotated[tuple[Literal["hr", "ndcg", "recall", "map"], ...], Field(min_length=1)] = ("hr", "ndcg")
    """Hit rate, NDCG, recall and mean average precision, each at every `k`."""
    ties: Literal["pessimistic", "optimistic"] = "pessimistic"
    """The place of a positive among negatives of the same score: behind them, so that a constant model gets 0, or
    before them. Lists of users and items count an item once: a negative that repeats another is left out."""
    candidates: Literal["given", "all"] = "given"
    """`given`: the split's rows, by its group column. `all`: for each user of the split every item that the user has no
    positive row of in `train`; needs a dataset whose only features are a user and an item."""

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that are measured, such as `hr@10`."""
        return tuple(ranking_metric(metric, k) for k in self.k for metric in self.metrics)


class EvaluateConfig(Config):
    """How metrics are computed, in training and by `rayrec evaluate`."""

    global_batch_size: PositiveInt = 65_536
    """Rows of one step over all workers."""
    exact_auc_rows: PositiveInt = 100_000_000
    """Up to this many rows AUC is exact (all scores sorted); beyond, from a histogram with a stated error bound."""
    auc_bins: PositiveInt = Field(1_048_576, ge=2)
    """Bins of that histogram."""
    ranking: RankingConfig | None = None
    """Also measure ranked lists; needs a dataset with a group column, or `candidates: all`."""

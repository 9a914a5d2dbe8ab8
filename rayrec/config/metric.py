"""Names of metrics, and in which direction each is better."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator

RankingMetric = Literal["hr", "ndcg", "recall", "map"]

_HIGHER_IS_BETTER: dict[str, bool] = {"auc": True, "log_loss": False, "normalized_entropy": False}
_RANKING = re.compile(r"(hr|ndcg|recall|map)@[1-9]\d*")


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


MetricName = Annotated[str, AfterValidator(_known)]
"""A metric that training can choose checkpoints by or stop at."""

"""How a model is evaluated."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from rayrec.config.base import Config
from rayrec.config.metric import RankingMetric, ranking_metric


class RankingConfig(Config):
    """Metrics of ranked lists, one list a group (a user, a display): see `rayrec.evaluation.ranking`."""

    k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10,)
    """Ranks at which the lists are cut."""
    metrics: Annotated[tuple[RankingMetric, ...], Field(min_length=1)] = ("hr", "ndcg")
    ties: Literal["pessimistic", "optimistic"] = "pessimistic"
    """Where a positive stands among negatives of the same score: behind them, so that a constant model gets 0, or
    before them, as in the published NCF, whose mask of repeated candidates decides ties so."""
    candidates: Literal["given", "all"] = "given"
    """`given`: the split's rows, by its group column. `all`: for each user of the split every item that the user has no
    positive row of in `train`; needs a dataset whose only features are a user and an item."""

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that are measured, such as `hr@10`."""
        return tuple(ranking_metric(metric, k) for k in self.k for metric in self.metrics)


class EvaluateConfig(Config):
    global_batch_size: PositiveInt = 65_536
    exact_auc_rows: PositiveInt = 100_000_000
    """Up to this many rows AUC is exact (all scores sorted); beyond, from a histogram with a stated error bound."""
    auc_bins: PositiveInt = Field(1_048_576, ge=2)
    ranking: RankingConfig | None = None
    """Also measure ranked lists; needs a dataset with a group column, or `candidates: all`."""

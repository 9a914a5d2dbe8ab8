"""The sections `evaluate` and `publish` of a recipe: what is measured, and when a model is good enough to serve."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    WithJsonSchema,
    model_validator,
)

from rayrec.config.base import Config

InferencePrecision = Literal["auto", "fp32", "bf16", "fp16"]
"""Arithmetic of the dense network where a model scores; `auto` is what the hardware does well."""


class BinaryMetric(NamedTuple):
    """What rayrec knows of a metric of labels 0 and 1; `rayrec/metrics/binary.py` computes it."""

    title: str
    """Its name on pages."""
    higher_is_better: bool | None
    """None: neither, so training does not choose checkpoints by it."""
    of_label_rate: bool
    """Whether it compares scores with the rate of positives, which drawn negatives change."""
    needs_both_labels: bool
    """Whether it is undefined where all labels are the same."""


BINARY_METRICS = {
    "auc": BinaryMetric("AUC", True, of_label_rate=False, needs_both_labels=True),
    "log_loss": BinaryMetric("log loss", False, of_label_rate=True, needs_both_labels=False),
    "normalized_entropy": BinaryMetric("normalized entropy", False, of_label_rate=True, needs_both_labels=True),
    "calibration": BinaryMetric("calibration", None, of_label_rate=True, needs_both_labels=False),
}
"""Metrics by name, in the order in which they are shown. Ranking metrics, such as `ndcg@10`, are named by their cut."""
MAIN_METRICS = ("auc", "log_loss")
"""What models, runs and features are compared by."""
_CHOSEN_BY = [name for name, metric in BINARY_METRICS.items() if metric.higher_is_better is not None]
_RANKING = re.compile(r"((hr|ndcg|recall|mrr|map)@[1-9][0-9]*|gauc)")
_Value = TypeVar("_Value")


def ranking_metric(metric: str, k: int) -> str:
    """Return the name of a ranking metric cut at rank k."""
    return f"{metric}@{k}"


def is_ranking_metric(name: str) -> bool:
    """Tell whether `name` is a ranking metric, with its cut such as `ndcg@10` or without such as `gauc`."""
    return _RANKING.fullmatch(name) is not None


def shown_metrics(metrics: Mapping[str, _Value], *, drawn_negatives: bool) -> dict[str, _Value]:
    """Return the metrics of a split that people are shown.

    Where negatives are drawn, their number decides how likely a positive is, so that scores are no calibrated
    probabilities: ranking metrics come first, and those that compare scores with label rates are left out.
    """
    if not drawn_negatives:
        return dict(metrics)
    names = [name for name in metrics if name not in BINARY_METRICS or not BINARY_METRICS[name].of_label_rate]
    return {name: metrics[name] for name in sorted(names, key=lambda name: not is_ranking_metric(name))}


def metric_title(name: str) -> str:
    """Return the name of a metric for people: `log loss` of `log_loss`, and `ndcg@10` as it is."""
    return BINARY_METRICS[name].title if name in BINARY_METRICS else name


def higher_is_better(name: str) -> bool:
    """Tell whether higher values of a metric are better: true for all but losses."""
    return is_ranking_metric(name) or BINARY_METRICS[name].higher_is_better is True


def _known(name: str) -> str:
    if name not in _CHOSEN_BY and not is_ranking_metric(name):
        raise ValueError(f"no such metric; use {', '.join(_CHOSEN_BY)}, or one such as hr@10, ndcg@10, map@12")
    return name


MetricName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": _CHOSEN_BY},
                {"type": "string", "pattern": f"^{_RANKING.pattern}$", "examples": ["hr@10"]},
            ]
        }
    ),
]
"""A metric that training can choose checkpoints by or stop at."""


class RankingConfig(Config):
    """Metrics of ranked lists, one list for each group (a user, a display)."""

    k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10,)
    """Ranks at which lists are cut."""
    metrics: Annotated[tuple[Literal["hr", "ndcg", "recall", "mrr", "map", "gauc"], ...], Field(min_length=1)] = (
        "hr",
        "ndcg",
    )
    """Hit rate, NDCG, recall, mean reciprocal rank, mean average precision, at every `k`; `gauc`: the AUC within groups
    that have both labels, averaged by their rows.
    """
    ties: Literal["pessimistic", "optimistic"] = "pessimistic"
    """Rank of a positive among negatives with the same score: last or first."""
    candidates: Literal["given", "all", "next"] = "given"
    """`given`: the split's rows by group. `all`: for each user, every item without a positive row in `train`. `next`:
    for each held-out row, every item that its person did not have before it. The last two need a dataset of users and
    items alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the metrics that are measured, such as `hr@10`: those of `cuts`, then `gauc`."""
        cuts = (ranking_metric(metric, k) for k, metric in self.cuts)
        return (*cuts, *(metric for metric in self.metrics if metric == "gauc"))

    @property
    def cuts(self) -> tuple[tuple[int, str], ...]:
        """Return the rank and the metric of those that are cut."""
        return tuple((k, metric) for k in self.k for metric in self.metrics if metric != "gauc")

    @model_validator(mode="after")
    def _ranks_rows(self) -> "RankingConfig":
        if self.candidates == "next" and "gauc" in self.metrics:
            raise ValueError(
                "metrics: 'gauc' is of rows with both labels, which candidates 'next' do not have; leave it out"
            )
        return self


class EvaluateConfig(Config):
    """How metrics are computed, in training and by `rayrec evaluate`."""

    global_batch_size: PositiveInt = 65_536
    """Rows of a step over all workers."""
    exact_auc_rows: PositiveInt = 100_000_000
    """Most rows for exact AUC; beyond, AUC comes from a histogram, with its error bound."""
    auc_bins: PositiveInt = Field(1_048_576, ge=2)
    """Bins of that histogram."""
    baselines: dict[str, dict[MetricName, float]] = {}
    """Metrics of simpler models by name, such as `{logistic regression: {auc: 0.741}}`, to show beside the model's."""
    ranking: RankingConfig | None = None
    """Also measure ranked lists; needs a group column, or `candidates: all`."""

    @property
    def next_item_ranking(self) -> RankingConfig | None:
        """Return how held-out rows are ranked that are measured by the rank of their item, and have no labels to
        compare; None where they are measured by labels.
        """
        return self.ranking if self.ranking is not None and self.ranking.candidates == "next" else None


class PublishConfig(Config):
    """Conditions for publishing the model of a new day, measured on held-out rows, and how it is written."""

    max_loss_increase: NonNegativeFloat = 0.01
    """Largest relative increase of log loss over the serving model's, beyond two standard errors. The first model, of
    `rayrec run --output`, is compared with the label rate of `train` for every row.
    """
    max_auc_loss: NonNegativeFloat = 0.05
    """Largest decrease of the AUC on held-out rows of the day before, beyond two standard errors."""
    min_auc: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Least AUC, within two standard errors: below 0.5, which is chance, labels are swapped or wrong."""
    min_rows: NonNegativeInt = 20
    """Least number of held-out rows, if the day before held some out."""
    min_positives: NonNegativeInt = 1
    """Least number of held-out rows of label 1, and of label 0."""
    max_rate_change: Annotated[float, Field(ge=1)] | None = 4.0
    """Largest factor by which the odds of label 1 may differ from those of the day before, beyond two standard errors.
    Not for models of interactions. `null`: no check.
    """
    max_miscalibration: NonNegativeFloat = 0.25
    """Largest relative difference between predicted and actual positives, beyond two standard errors. Not for models
    of interactions.
    """
    max_drift: NonNegativeFloat | None = 5.0
    """Largest stability index of a feature against the day before, beyond chance. Weekdays, days and months are
    compared in their missing values only. `null`: no check.
    """
    full_every: PositiveInt = 20
    """Interval, in versions, at which one is written in full instead of as a delta."""
    keep_days: PositiveInt = 30
    """Number of latest days whose datasets, runs and versions are kept."""

"""Features of a table: what is fitted to the rows of `train`, and the schema that comes of it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.preprocess import RowsPreprocessConfig
from rayrec.config.table import BucketsRule, CategoricalRule, CrossRule, ListRule, TimestampRule, VectorRule
from rayrec.config.transforms import (
    Buckets,
    CategoricalTransform,
    Cross,
    Hash,
    HashIds,
    HashUnlisted,
    NumericTransform,
    TimePart,
    Vocabulary,
)
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, VectorFeature
from rayrec.features.text_forms import in_form
from rayrec.preprocessing.numbers import Number, Summaries, Summary, UnfittedNumber, fit_numbers, summarize
from rayrec.preprocessing.planned_columns import ColumnPlan, PlannedFeature
from rayrec.preprocessing.segments import ReadRows, Segment
from rayrec.preprocessing.vocabularies import GrowthRules, HeldOut, KnownValues, Listing, fit_vocabularies
from rayrec.preprocessing.workspace import Stages, Workspace

_MOST_ROWS = 2**40


@dataclass(frozen=True)
class Fits:
    """Fitted transforms and vocabularies, by feature."""

    numbers: Mapping[str, tuple[NumericTransform, ...]]
    vocabularies: Mapping[str, Vocabulary]
    values: Summaries
    """The summaries of numbers that become categories: buckets and given ids."""
    earlier: Mapping[str, Feature] = field(default_factory=dict)
    """The features of the dataset that is extended; what was fitted to its numbers stays."""


def fit_features(
    workspace: Workspace,
    stages: Stages,
    read: ReadRows,
    train: Sequence[Segment],
    plan: ColumnPlan,
    config: RowsPreprocessConfig,
    growth: GrowthRules,
    held_out: HeldOut,
) -> tuple[tuple[Feature, ...], KnownValues]:
    """Return the features of a schema, fitted to the rows of `train`, and how many held-out rows have a value that
    `train` has; vocabularies are written into the dataset folder.

    Vocabularies, given ids and their tables grow from those of the parent, if there is one, whose other features stay
    as they are. Numbers and vocabularies are stages of their own. Raises UserError if the label is constant, a
    cardinality is too small, or no categorical feature has a value.
    """
    # A constant label, and the range of what becomes ids or buckets, show in one pass over the values.
    parent = growth.parent
    earlier = {} if parent is None else {feature.name: feature for feature in parent.schema.features}
    looked_at = [Number(plan.label, (plan.label,))]
    looked_at += [Number(f.name, f.inputs[:1]) for f in plan.features if _needs_values(f, is_fitted=f.name in earlier)]
    values = summarize(workspace, "summarize numbers", read, train, looked_at)
    label = values[plan.label]
    if parent is None and label.least == label.most:
        raise UserError(
            f"source.label: column '{plan.label}' is {label.least:g} in all {label.rows:,} rows of train, so there is "
            "nothing to learn; give rows of both kinds, or change preprocess.split"
        )
    # In a dataset that extends another one, transforms of numbers stay as they were fitted.
    numbers = [UnfittedNumber(f.name, f.inputs, f.steps) for f in plan.features if f.steps is not None]
    fitted = {name: feature.transforms for name, feature in earlier.items() if isinstance(feature, NumericFeature)}
    if parent is None:
        fitted = stages.run(
            "numbers",
            dict[str, tuple[NumericTransform, ...]],
            lambda files: fit_numbers(workspace.within(files), read, train, numbers),
        )
    past = {name for history, _ in plan.histories for name in history.columns}
    listed = listings(plan.features, plan.columns, config, past)
    vocabularies, known = fit_vocabularies(workspace, stages, read, train, listed, growth, held_out)
    features = build_features(plan.features, config, Fits(fitted, vocabularies, values, earlier))
    categorical = [feature for feature in features if isinstance(feature, CategoricalFeature)]
    if categorical and all(feature.cardinality == 1 for feature in categorical):
        raise UserError(
            f"preprocess.frequency_limit: no value of a categorical column occurs {config.frequency_limit} times in "
            "train, so none would be listed; lower it, or give the rules a min_count"
        )
    return features, known


def listings(
    features: Sequence[PlannedFeature],
    raw: Sequence[RawColumn],
    config: RowsPreprocessConfig,
    past: Collection[str] = (),
) -> dict[str, Listing]:
    """Return the vocabularies to fit, by their feature; the columns of features that share one are added, without those
    that histories give (`past`).

    Values that a rule lists are spelled in the form of their column, one of `raw`.
    """
    columns: dict[str, tuple[str, ...]] = {}
    for feature in features:
        if feature.shares and feature.inputs[0] in past:
            continue  # the values of earlier rows, which count in these
        owner = feature.shares or feature.name
        columns[owner] = (*columns.get(owner, ()), feature.inputs[0])
    forms = {column.name: column.form for column in raw}

    def given(feature: PlannedFeature, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if values is None:
            return None
        texts = in_form(pa.array(values, pa.string()), forms[feature.inputs[0]])
        return tuple(dict.fromkeys(texts.to_pylist()))

    return {
        feature.name: Listing(
            tuple(dict.fromkeys(columns[feature.name])),
            config.frequency_limit if feature.rule.min_count is None else feature.rule.min_count,
            feature.rule.max_size,
            given(feature, feature.rule.values),
        )
        for feature in features
        if isinstance(feature.rule, (CategoricalRule, ListRule)) and feature.rule.has_vocabulary
    }


def build_features(features: Sequence[PlannedFeature], config: RowsPreprocessConfig, fits: Fits) -> tuple[Feature, ...]:
    """Return the features of a schema. Raises UserError if a cardinality is too small."""
    by_name = {feature.name: feature for feature in features}
    ranges: dict[str, list[Summary]] = {}
    for feature in features:
        if feature.name in fits.values:
            ranges.setdefault(feature.shares or feature.name, []).append(fits.values[feature.name])
    return tuple(
        _feature(feature, by_name[feature.shares or feature.name], config, fits, ranges) for feature in features
    )


def _feature(
    feature: PlannedFeature,
    owner: PlannedFeature,
    config: RowsPreprocessConfig,
    fits: Fits,
    ranges: Mapping[str, Sequence[Summary]],
) -> Feature:
    """Return a feature of the schema; `owner`: the one whose table it reads, perhaps itself."""
    name, rule = feature.name, feature.rule
    inputs = () if feature.inputs == (name,) else feature.inputs
    if feature.steps is not None:
        return NumericFeature(name=name, inputs=inputs, transforms=fits.numbers[name])
    if isinstance(rule, VectorRule):
        return VectorFeature(name=name, inputs=inputs, size=rule.size, normalize=rule.normalize)
    transforms, cardinality = _transforms(owner, config, fits, ranges.get(owner.name, ()))
    kind = MultiHotFeature if isinstance(rule, ListRule) else CategoricalFeature
    lists = {}
    if isinstance(rule, ListRule):
        lists = {"hotness": rule.max_length, "pooling": rule.pooling, "keep": rule.keep}
    table = None if owner is feature else owner.name
    return kind(name=name, inputs=inputs, transforms=transforms, cardinality=cardinality, table=table, **lists)


def _transforms(
    feature: PlannedFeature, config: RowsPreprocessConfig, fits: Fits, ranges: Sequence[Summary]
) -> tuple[tuple[CategoricalTransform, ...], int]:
    """Return how values become ids, and the rows of the table."""
    earlier = fits.earlier.get(feature.name)
    match feature.rule:
        case CrossRule(buckets=buckets):
            return (Cross(buckets=buckets),), buckets
        case TimestampRule(zone=zone):
            assert feature.part not in ("", "age")
            part = TimePart(part=feature.part, zone=zone)
            return (part,), part.cardinality
        case BucketsRule(boundaries=boundaries, quantiles=quantiles):
            if isinstance(earlier, CategoricalFeature):
                return earlier.transforms, earlier.cardinality
            if boundaries is None:
                assert quantiles is not None
                shares = [Fraction(i, quantiles) for i in range(1, quantiles)]
                boundaries = tuple(sorted({value for summary in ranges for value in summary.quantiles(shares)}))
            return (Buckets(boundaries=boundaries),), len(boundaries) + 2
        case CategoricalRule() | ListRule() as rule:
            if rule.hash_buckets is not None:
                return (Hash(buckets=rule.hash_buckets, of="strings"),), rule.hash_buckets
            if rule.cardinality is not None:
                before = earlier.cardinality if isinstance(earlier, CategoricalFeature) else 1
                return (), max(before, _cardinality(feature, rule.cardinality, ranges))
            vocabulary = fits.vocabularies[feature.name]
            transforms: tuple[CategoricalTransform, ...] = (vocabulary,)
            cardinality = vocabulary.size + 1
            if rule.unlisted_buckets is not None:
                transforms += (HashUnlisted(buckets=rule.unlisted_buckets),)
                cardinality += rule.unlisted_buckets
            if config.max_table_size is not None and cardinality > config.max_table_size:
                transforms += (HashIds(buckets=config.max_table_size),)
                cardinality = config.max_table_size
            return transforms, cardinality
    raise AssertionError(feature.rule)


def _cardinality(feature: PlannedFeature, given: int | Literal["auto"], ranges: Sequence[Summary]) -> int:
    """Return the rows of a table of given ids. Raises UserError if ids of `train` lie outside of it."""
    least = min((int(summary.least) for summary in ranges), default=0)
    most = max((int(summary.most) for summary in ranges), default=0)
    where = f"{feature.where}.cardinality: ids of '{feature.name}'"
    if least < 0:
        raise UserError(
            f"{where} must be 0 or above, but train has {least}; leave out cardinality to read them as texts"
        )
    if given == "auto":
        if most >= _MOST_ROWS:
            raise UserError(
                f"{where} go up to {most:,} in train, too many for a table; leave out "
                "cardinality to read them as texts, or set hash_buckets"
            )
        return most + 1
    if most >= given:
        raise UserError(f"{where} go up to {most:,} in train, so {given:,} is too small; give {most + 1:,} or more")
    return given


def _needs_values(feature: PlannedFeature, *, is_fitted: bool) -> bool:
    """Tell whether the values that there are decide on a category's ids."""
    rule = feature.rule
    if isinstance(rule, BucketsRule):
        return rule.quantiles is not None and not is_fitted
    return feature.has_ids

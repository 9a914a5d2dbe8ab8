"""Check that a run can start from another one, on the driver before any worker starts."""

from collections.abc import Iterator

from rayrec.common.errors import ConfigError, UserError, did_you_mean
from rayrec.common.text import shell_line
from rayrec.config import TrainConfig
from rayrec.config.optimizers import MAIN_PART
from rayrec.features.id_meanings import ListedIds, difference, keeps_ids
from rayrec.features.schema import CategoricalFeature
from rayrec.ingest.dataset import Dataset
from rayrec.models.common.ranking import RankingModel
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.run.folder import Origin, RunFolder

_NEW_RUN = "train a new run, without --warm-start"


def require_compatible(run: RunFolder, origin: Origin, recipe: Recipe, dataset: Dataset) -> None:
    """Raise ConfigError, naming feature or field and the fix, unless `recipe` on `dataset` can go on from `run`.

    The dataset's vocabularies are on this node.
    """
    before, now = run.recipe, recipe
    if before.model.kind != now.model.kind:
        raise ConfigError(f"model.kind is '{now.model.kind}' and was '{before.model.kind}' in {origin.run}; {_NEW_RUN}")
    old, new = build_model(before.model, run.schema, "meta"), build_model(now.model, dataset.schema, "meta")
    misfit = _first_other_shape(old, new)
    reset = _without_rows(origin, old, new)
    for name, problem in _problems(old, new, dataset, reset, origin):
        table = any(feature.name == name for model in (new, old) for feature in model.schema.categorical)
        fix = f"give --reset {shell_line([name])} to begin with a new table" if table and misfit is None else _NEW_RUN
        raise ConfigError(f"feature '{name}' {problem}; {fix}")
    if misfit is not None:
        raise ConfigError(f"model: {misfit} in {origin.run}; keep its features and model section, or {_NEW_RUN}")
    _require_same_order(old, new, origin)
    _require_same_moments(before.train, now.train, origin)
    _require_vocabularies(old, new, dataset, reset, run, origin)


def _first_other_shape(old: RankingModel, new: RankingModel) -> str | None:
    """Return a parameter of the dense networks that has another shape; None if all have the same."""
    before, now = (
        {name: tuple(value.shape) for name, value in model.dense_network.state_dict().items()} for model in (old, new)
    )
    for name in (*now, *before):
        if before.get(name) != now.get(name):
            shapes = [shapes.get(name, "absent") for shapes in (now, before)]
            return f"parameter dense_network.{name} is {shapes[0]} and was {shapes[1]}"
    return None


def _without_rows(origin: Origin, old: RankingModel, new: RankingModel) -> set[str]:
    """Return the features that read a table of which nothing is taken over."""
    known = sorted({feature.name for model in (old, new) for feature in model.schema.categorical})
    for name in origin.reset:
        if name not in known:
            raise ConfigError(f"--reset: no feature '{name}' has a table; {did_you_mean(name, known, 'use')}")
    reset = set(origin.reset)
    return reset.union(*(table.features for table in new.tables if not reset.isdisjoint(table.features)))


def _problems(
    old: RankingModel, new: RankingModel, dataset: Dataset, reset: set[str], origin: Origin
) -> Iterator[tuple[str, str]]:
    """Yield the features with which the model cannot go on, and why, in words that follow the name."""
    before, now = ({feature.name: feature for feature in model.schema.features} for model in (old, new))
    for name in before:
        if name not in now and name not in reset:
            yield name, f"of {origin.run} is missing in {dataset.folder}"
    for name, feature in now.items():
        was = before.get(name)
        if name in reset:
            continue
        if was is None:
            yield name, f"is not in {origin.run}"
        elif changed := difference(was, feature):
            yield name, f"{changed} in {origin.run}"
        elif isinstance(was, CategoricalFeature) and isinstance(feature, CategoricalFeature):
            if was.embedding_dim != feature.embedding_dim:
                yield name, f"has embedding_dim {feature.embedding_dim} and had {was.embedding_dim} in {origin.run}"
            for crossed in feature.inputs if feature.reads is None else ():
                if not _keeps_ids(crossed, old, new, dataset):
                    yield name, f"crosses '{crossed}', whose ids differ in {origin.run}"


def _require_same_order(old: RankingModel, new: RankingModel, origin: Origin) -> None:
    """Raise ConfigError where features have changed places, by which the dense network tells them apart."""
    before, now = ([feature.name for feature in model.schema.features] for model in (old, new))
    common = set(before) & set(now)
    places = ([name for name in names if name in common] for names in (before, now))
    for was_here, is_here in zip(*places, strict=True):
        if was_here != is_here:
            raise ConfigError(
                f"feature '{is_here}' is at the place of '{was_here}' in {origin.run}; keep the order of the features, "
                f"or {_NEW_RUN}"
            )


def _keeps_ids(name: str, old: RankingModel, new: RankingModel, dataset: Dataset) -> bool:
    was, feature = (next((f for f in m.schema.categorical if f.name == name), None) for m in (old, new))
    if was is None or feature is None or difference(was, feature) is not None:
        return False
    return keeps_ids(was, feature, dataset.folder)


def _require_same_moments(before: TrainConfig, now: TrainConfig, origin: Origin) -> None:
    """Raise ConfigError where an optimizer needs state that the run does not have."""
    old, new = _moments(before), _moments(now)
    for field in (*new, *old):
        if old.get(field) != new.get(field):
            values = [values.get(field, "absent") for values in (new, old)]
            raise ConfigError(
                f"train.{field} is {values[0]} and was {values[1]} in {origin.run}, so its optimizer state does "
                f"not fit; set it back, or {_NEW_RUN}"
            )
    thawed = sorted(set(before.freeze) - set(now.freeze))
    if thawed:
        raise ConfigError(
            f"train.freeze: '{thawed[0]}' was frozen in {origin.run}, which has no optimizer state for it; freeze it, "
            f"or {_NEW_RUN}"
        )


def _moments(train: TrainConfig) -> dict[str, str]:
    """Return what decides which state the optimizers keep, by fields of `train`."""
    found: dict[str, str] = {}
    for name, part in train.by_part.items():
        field = "" if name == MAIN_PART else f"parts.{name}."
        found[f"{field}embedding_optimizer.kind"] = part.embedding_optimizer.kind
        found[f"{field}dense_optimizer.kind"] = part.dense_optimizer.kind
        found[f"{field}dense_optimizer.momentum"] = "above 0" if part.dense_optimizer.momentum else "0"
    if any(part.embedding_optimizer.kind == "adam" for part in train.by_part.values()):
        # Under Adam these tables are updated by another rule.
        found["sharding"] = "data_parallel" if train.has_dense_adam_tables else "not data_parallel"
    return found


def _require_vocabularies(
    old: RankingModel, new: RankingModel, dataset: Dataset, reset: set[str], run: RunFolder, origin: Origin
) -> None:
    """Raise ConfigError where values must be looked up in the run's own dataset, and it is not there any more."""
    before = {feature.name: feature for feature in old.schema.categorical}
    for feature in new.schema.categorical:
        if feature.name in reset:
            continue
        was, listed = ListedIds.of(before[feature.name]), ListedIds.of(feature)
        if was is None or listed is None or listed.added_after(was, dataset.folder) is not None:
            continue
        needed = f"feature '{feature.name}': its vocabulary does not begin with that of {origin.run}, whose dataset"
        fix = f"give --reset {shell_line([feature.name])} to begin with a new table"
        try:
            Dataset.open(run.dataset_folder)
        except UserError as error:
            raise ConfigError(f"{needed} cannot be read ({error}); restore it, or {fix}") from None
        if not run.was_trained_on(run.dataset_folder):
            raise ConfigError(f"{needed} has changed ({run.dataset_folder}); restore it, or {fix}")

"""Checks on the driver before any worker starts, so that mistakes show at once."""

from typing import TYPE_CHECKING, Literal

from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.config import TrainConfig
from rayrec.config.evaluate import BINARY_METRICS
from rayrec.config.train import DeviceName, EarlyStopConfig
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    from rayrec.models.common.ranking import RankingModel


def resolve_device(wanted: Literal["auto", "cpu", "cuda"], *, gpus: float) -> DeviceName:
    """`auto` is cuda if the cluster has GPUs. Raises ConfigError where cuda is asked for and there is no GPU."""
    if wanted == "cuda" and gpus < 1:
        raise ConfigError(
            "train.device: 'cuda' needs a GPU, but none was found; set it to cpu or auto "
            "(`rayrec doctor` checks GPU and driver)"
        )
    if wanted == "auto":
        return "cuda" if gpus >= 1 else "cpu"
    return wanted


def require_trainable(recipe: Recipe, dataset: Dataset, device: DeviceName | None = None) -> None:
    """Raise ConfigError where the recipe cannot train on the dataset with workers on `device`, if that is known yet."""
    train = recipe.train
    # The usual names may be those of defaults.
    if (name := train.evaluation_split) not in {*dataset.manifest.splits, "validation", "test"}:
        hint = did_you_mean(name, dataset.evaluation_splits, "it has")
        raise ConfigError(f"train.evaluation_split: {dataset.folder} has no split '{name}'; {hint}")
    if train.early_stop is not None:
        _require_reachable(train.early_stop, dataset, dataset.split_to_judge(name))
    require_evaluable(recipe, dataset)
    if train.negatives is not None:
        _require_interactions(dataset)
    if recipe.model.scores_next_items and (split := dataset.split("train")).positives != split.rows:
        raise ConfigError(
            f"model.kind: {split.rows - round(split.positives)} rows of split 'train' have a label of 0, and "
            f"'{recipe.model.kind}' takes every row for a choice; preprocess with source.choices"
        )
    if train.loss.listwise:
        _require_whole_groups(dataset)
    _require_batches(train, dataset)
    # FBGEMM fuses Adam into the tables' backward pass on a GPU alone.
    for name, part in train.by_part.items() if device == "cpu" else ():
        kind, field = part.embedding_optimizer.kind, "train" if part is train else f"train.parts.{name}"
        if kind == "adam" and not train.has_dense_adam_tables:
            raise ConfigError(
                f"{field}.embedding_optimizer.kind: 'adam' on a CPU needs train.sharding.default: data_parallel; "
                "or use sgd, adagrad or rowwise_adagrad"
            )
    # Only these can be wrong; to know the tables takes seconds, in which torch is imported.
    if train.sharding.tables or train.sharding.default in ("column_wise", "grid_shard"):
        from rayrec.models.registry import build_model
        from rayrec.training.parallel.sharding_plan import require_shardings

        require_shardings(build_model(recipe.model, dataset.schema, device="meta").tables, train)


def _require_batches(train: TrainConfig, dataset: Dataset) -> None:
    """Raise ConfigError where the rows to train on fill no batch."""
    rows = dataset.split("train").rows
    if train.steps_per_epoch(rows) == 0:
        unit = "rows" if train.negatives is None else "samples"
        raise ConfigError(
            f"train.global_batch_size: {train.samples_per_epoch(rows):,} {unit} of split 'train' fill no batch "
            f"of {train.global_batch_size:,}; lower it, or set train.ingest.drop_last=false"
        )


def require_parts(train: TrainConfig, model: "RankingModel") -> None:
    """Raise ConfigError where `train.parts` or `train.freeze` names what the model, on any device, does not have."""
    for name in train.parts:
        if name not in model.parts:
            known = f"it has {', '.join(model.parts)}" if model.parts else "all of it is trained as one"
            raise ConfigError(f"train.parts.{name}: the model has no such part; {known}")
    if set(train.freeze) - {"embeddings"}:
        from rayrec.training.parallel.parallel_model import frozen_parameters

        frozen_parameters(model.dense_network, train.freeze)


def require_evaluable(recipe: Recipe, dataset: Dataset) -> None:
    """Raise ConfigError where the dataset lacks what the recipe's ranking metrics are measured over."""
    ranking, schema = recipe.evaluate.ranking, dataset.schema
    if ranking is None:
        return
    if ranking.candidates == "given" and schema.group is None:
        raise ConfigError(
            "evaluate.ranking: the dataset has no group column, so it has no lists to rank; "
            "set evaluate.ranking=null, or give a dataset with groups"
        )
    held_out = [dataset.split(name) for name in dataset.evaluation_splits]
    if ranking.candidates == "given" and schema.interactions and any(of.positives == of.rows for of in held_out):
        raise ConfigError(
            "evaluate.ranking.candidates: 'given' ranks drawn negatives, and the held-out rows of the dataset have "
            "none; use 'next'"
        )
    if ranking.candidates == "next" and not recipe.model.needs_interactions:
        raise ConfigError(
            f"evaluate.ranking.candidates: 'next' needs a model of users and items alone, and model.kind is "
            f"'{recipe.model.kind}'; use 'all'"
        )
    if ranking.candidates != "given" and (schema.interactions is None or len(schema.features) != 2):
        raise ConfigError(
            f"evaluate.ranking.candidates: '{ranking.candidates}' needs a dataset whose only features are a user and "
            "an item (interactions), as others are unknown for unseen pairs; use 'given'"
        )


def _require_whole_groups(dataset: Dataset) -> None:
    """Raise ConfigError unless batches of `train` can hold whole groups."""
    if dataset.schema.group is None:
        raise ConfigError(
            "train.loss.listwise: the dataset has no group column, so it has no lists of rows; set it to 0, or give a "
            "dataset of displays"
        )
    if dataset.split("train").longest_group is None:
        raise ConfigError(
            f"train.loss.listwise: the rows of a group are not kept together in 'train' of {dataset.folder}; set it to "
            "0, or run `rayrec preprocess` again"
        )


def _require_interactions(dataset: Dataset) -> None:
    """Raise ConfigError unless the rows of `train` are what negatives can be drawn for."""
    schema, train = dataset.schema, dataset.split("train")
    if schema.interactions is None:
        raise ConfigError(
            f"train.negatives: {dataset.folder} is not a dataset of interactions (its schema names no user and item); "
            "unset it, or preprocess with a source of interactions"
        )
    others = {f.name for f in schema.features} - {schema.interactions.user, schema.interactions.item}
    if schema.weight is not None:
        others.add(schema.weight)
    if others:
        raise ConfigError(
            f"train.negatives: a drawn pair of user and item has no '{min(others)}'; "
            "preprocess without that column, or unset train.negatives"
        )
    if train.positives != train.rows:
        raise ConfigError(
            f"train.negatives: {train.rows - round(train.positives)} rows of split 'train' have a label of 0; "
            "every row must be a positive: unset train.negatives to train on the rows as they are"
        )


def _require_reachable(stop: EarlyStopConfig, dataset: Dataset, name: str | None) -> None:
    """Raise ConfigError where there is no split to measure the target on, or its metric is undefined there, as all of
    its labels are the same.
    """
    if name is None:
        raise ConfigError(f"train.early_stop: {dataset.folder} has no held-out split with labels to evaluate on")
    split = dataset.split(name)
    metric = BINARY_METRICS.get(stop.metric)
    if metric is not None and metric.needs_both_labels and split.positives in (0, split.rows):
        raise ConfigError(
            f"train.early_stop.metric: every label of split '{name}' of {dataset.folder} is "
            f"{split.positives / split.rows:.0f}, so '{stop.metric}' is undefined on it; use log_loss, or another "
            "train.evaluation_split"
        )

"""What is known to be wrong before any worker starts: checked on the driver, so that the answer comes at once."""

from rayrec.common.errors import ConfigError
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe
from rayrec.training.device import DeviceName


def require_trainable(recipe: Recipe, dataset: Dataset, device: DeviceName) -> None:
    """Raise ConfigError where the recipe cannot train on the dataset with workers on `device`."""
    evaluation_split(recipe, dataset)
    require_evaluable(recipe, dataset)
    if recipe.train.negatives is not None:
        _require_interactions(dataset)
    if recipe.train.loss.listwise:
        _require_whole_groups(dataset)
    # FBGEMM fuses Adam and LAMB into the tables' backward pass on a GPU alone.
    kind = recipe.train.embedding_optimizer.kind
    if device == "cpu" and kind == "adam" and not recipe.train.has_dense_adam_tables:
        raise ConfigError(
            "train.embedding_optimizer.kind: 'adam' on a CPU needs train.sharding.default: data_parallel; "
            "or use sgd, adagrad or rowwise_adagrad"
        )
    if device == "cpu" and kind == "lamb":
        raise ConfigError(
            "train.embedding_optimizer.kind: 'lamb' needs a GPU; on a CPU use sgd, adagrad or rowwise_adagrad"
        )
    if set(recipe.train.freeze) - {"embeddings"}:
        # Only now: importing torch takes seconds.
        from rayrec.models.registry import build_model
        from rayrec.training.freeze import frozen_parameters

        frozen_parameters(build_model(recipe.model, dataset.schema, device="meta").dense_network, recipe.train.freeze)


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
    if ranking.candidates == "all" and (schema.interactions is None or len(schema.features) != 2):
        raise ConfigError(
            "evaluate.ranking.candidates: 'all' needs a dataset whose only features are a user and an item "
            "(interactions), as others are unknown for unseen pairs; use 'given'"
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
            f"train.negatives: {dataset.folder} is no dataset of interactions (its schema names no user and item); "
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


def evaluation_split(recipe: Recipe, dataset: Dataset) -> str | None:
    """The split that training evaluates on: the recipe's, else `test`, else none.

    Raises ConfigError where the recipe stops at a target and there is no split to measure it on.
    """
    for candidate in (recipe.train.evaluation_split, "test"):
        if candidate in dataset.evaluation_splits:
            return candidate
    if recipe.train.early_stop is not None:
        raise ConfigError("train.early_stop: the dataset has no validation or test split to evaluate on")
    return None

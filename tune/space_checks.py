"""What is refused before the first trial: a space that cannot be varied, or trials that could not be compared."""

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from rayrec.common.errors import ConfigError
from rayrec.config import TrainConfig
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe, RecipeContent
from rayrec.training.run.preflight import require_trainable
from tune.space import Scalar, Scheduler, Search, Space, trial_recipe

_MOST_COMBINATIONS = 400
_MOST_POINTS = 10_000
# Each training step reads these keys anew, so they can change while a model is trained.
_CHANGEABLE = re.compile(
    r"train\.(parts\.\w+\.)?((embedding|dense)_optimizer\.lr|schedule\..+|embedding_l2)|model\.dropout"
)


def searchable_space(space: Space, search: Search, trials: int) -> Space:
    """Return the part of a space that a search can vary. Raises ConfigError if there is none, or too few trials."""
    if search == "grid":
        points = sum(1 for _ in itertools.islice(space.grid(), _MOST_POINTS))
        if points > trials:
            count = f"{points} points" if points < _MOST_POINTS else f"{_MOST_POINTS} points or more"
            raise ConfigError(
                f"--trials {trials}: the grid of {space.origin} has {count} (choices, and the ends and the middle of "
                "ranges); give as many --trials, or a smaller space"
            )
    if search != "pbt":
        return space
    movable = {
        name: parameter
        for name, parameter in space.parameters.items()
        if all(_CHANGEABLE.fullmatch(key) for key in parameter.keys(name)) and not parameter.when
    }
    if not movable:
        raise ConfigError(
            f"{space.origin}: population based training changes values during a training, and none of these can be "
            f"({', '.join(space.names)}); search learning rates, the schedule, dropout or embedding_l2"
        )
    return replace(space, parameters=movable)


def require_decisions(search: Search, scheduler: Scheduler, trials: int, train: TrainConfig) -> None:
    """Raise ConfigError if trials have too few evaluations to compare, or there are too few trials to compare."""
    if train.evaluate_every_steps is not None:
        raise ConfigError(
            "train.evaluate_every_steps: trials are compared after the same parts of an epoch; set it to null, and "
            "train.evaluations_per_epoch instead"
        )
    if train.evaluations_per_epoch == 0:
        raise ConfigError(
            "train.evaluations_per_epoch: trials are compared by their evaluations, but this is 0; add "
            "--set train.evaluations_per_epoch=1"
        )
    evaluations = train.most_evaluations
    if scheduler == "asha" and evaluations < 2:
        raise ConfigError(
            "--scheduler asha: a trial has only one evaluation, so it cannot be stopped early; "
            "add --set train.evaluations_per_epoch=4"
        )
    if search == "pbt" and scheduler != "none":
        raise ConfigError(f"--scheduler {scheduler}: population based training is a scheduler itself; leave it out")
    if search == "pbt" and (evaluations < 2 or trials < 3):
        raise ConfigError(
            "--search pbt: needs at least two trials that exchange checkpoints at evaluations, beside the given "
            "recipe's; give --trials 5 and --set train.evaluations_per_epoch=4"
        )


def require_comparable(space: Space, recipe: RecipeContent, dataset: Dataset) -> None:
    """Raise ConfigError if a trial cannot train on the dataset, or no evaluation tells trials apart."""
    base = recipe.resolve()
    dataset.require_source(base)
    name = base.train.evaluation_split
    if name not in dataset.evaluation_splits:
        raise ConfigError(
            f"train.evaluation_split: {dataset.folder} has no rows in split '{name}' to choose by; preprocess it with "
            "one, or choose by another with --set train.evaluation_split=test"
        )
    split = dataset.split(name)
    if split.positives in (0, split.rows) and not base.source.gives_interactions:
        raise ConfigError(
            f"train.evaluation_split: every label of split '{name}' of {dataset.folder} is "
            f"{split.positives / split.rows:.0f}, so trials cannot be compared; preprocess it with another split"
        )

    check_space(space, recipe, lambda trial: require_trainable(trial, dataset))


def check_space(space: Space, recipe: RecipeContent, also: Callable[[Recipe], None] = lambda recipe: None) -> None:
    """Raise ConfigError, naming the values, on the first combination that is not a valid recipe or that `also` refuses.

    All combinations of choices and of the ends and middles of ranges are tried if they are few; otherwise some of them,
    each value at least once.
    """
    for assignment in combinations(space):
        trial_recipe(space, recipe, assignment, also)


def combinations(space: Space) -> Iterator[dict[str, Scalar]]:
    """Yield the assignments that together contain every choice and the ends and middle of every range."""
    sizes = [len(parameter.representatives()) for parameter in space.parameters.values()]
    if math.prod(sizes) <= _MOST_COMBINATIONS:
        yield from space.grid()
        return
    chance = random.Random(0)
    for index in range(max(sizes)):
        yield space.draw(lambda name, p: p.representatives()[index % len(p.representatives())])  # noqa: B023
    for _ in range(_MOST_COMBINATIONS - max(sizes)):
        yield space.draw(lambda name, p: chance.choice(p.representatives()))

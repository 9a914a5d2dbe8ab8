"""Search spaces: YAML files that say which keys of a recipe are searched, and over which values.

    train.dense_optimizer.lr: {loguniform: [1.0e-4, 0.1]}
    train.schedule.warmup_steps: {integer: [0, 200]}
    train.dense_optimizer.kind: {choice: [adam, sgd]}
    train.dense_optimizer.momentum: {uniform: [0, 0.95], when: {train.dense_optimizer.kind: sgd}}
    size:                                      # named choices set several keys at once
      choice:
        small: {model.embedding_dim: 8, model.bottom_mlp: [32, 8]}
        large: {model.embedding_dim: 16, model.bottom_mlp: [64, 16]}

A trial's assignment has a value for every parameter whose `when` holds, by the parameter's name. Values are numbers,
booleans and strings; any other choice (a list, a mapping) is represented by its JSON.

Before the first trial a space is refused that cannot be varied, and trials that could not be compared.
"""

import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from rayrec.common.errors import ConfigError
from rayrec.common.plugins import MODELS
from rayrec.config import Config, TrainConfig
from rayrec.config.validation import describe_validation_error, is_yaml_file, parse_mapping, read_text
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe, RecipeContent
from rayrec.training.run.preflight import require_trainable

Search = Literal["random", "grid", "optuna", "pbt"]
Scheduler = Literal["none", "asha"]
Scalar = bool | int | float | str
Assignment = Mapping[str, Scalar]
"""The values of a trial, by the parameter's name."""
_SECTIONS = ("model", "train")
# These keys decide how many trials run at once, and how trials are compared.
_FIXED = {
    "train.workers", "train.device", "train.evaluation_split", "train.evaluations_per_epoch",
    "train.evaluate_every_steps", "train.evaluate_after_epochs",
}  # fmt: skip
_SHIPPED = "search_space"
"""The file beside a model that holds its search space, without its suffix."""
_MOST_COMBINATIONS = 400
_MOST_POINTS = 10_000
# Each training step reads these keys anew, so they can change while a model is trained.
_CHANGEABLE = re.compile(
    r"train\.(parts\.\w+\.)?((embedding|dense)_optimizer\.lr|schedule\..+|embedding_l2)|model\.dropout"
)


def _as_tuple(values: Any) -> Any:
    return values if isinstance(values, list | tuple) else (values,)


class Parameter(Config):
    """One searched parameter, of exactly one of four kinds: choice, uniform, loguniform or integer."""

    choice: Annotated[tuple[Any, ...], Field(min_length=1)] | dict[str, dict[str, Any]] | None = None
    """Values to choose from, or named choices that each set several keys."""
    uniform: tuple[float, float] | None = None
    loguniform: tuple[float, float] | None = None
    integer: tuple[int, int] | None = None
    """A range that includes both ends."""
    when: dict[str, Annotated[tuple[Scalar, ...], BeforeValidator(_as_tuple)]] = {}
    """Searched only if each of these parameters, which come before it, has the value or one of the values."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> "Parameter":
        kinds = {name: getattr(self, name) for name in ("choice", "uniform", "loguniform", "integer")}
        given = [name for name, value in kinds.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(kinds)}; there are {', '.join(given) or 'none'}")
        bounds = self.bounds
        if bounds is not None and not bounds[0] < bounds[1]:
            raise ValueError(f"{given[0]}: the first value must be less than the second")
        if self.loguniform is not None and self.loguniform[0] <= 0:
            raise ValueError("loguniform: values must be above 0")
        return self

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Return both ends of a range; None for a choice."""
        return self.uniform or self.loguniform or self.integer

    @property
    def labels(self) -> tuple[Scalar, ...]:
        """Return the values of a choice as they stand in assignments; empty for a range."""
        return tuple(self._choices())

    def _choices(self) -> Mapping[Any, Any]:
        """Return the meaning of each value of a choice."""
        if isinstance(self.choice, dict):
            return self.choice
        return {v if isinstance(v, bool | int | float | str) else json.dumps(v): v for v in self.choice or ()}

    def overrides(self, name: str, value: Scalar) -> dict[str, Any]:
        """Return what the value means: values by key of a recipe."""
        if self.choice is None:
            return {name: value}
        meaning = self._choices()[value]
        return dict(meaning) if isinstance(self.choice, dict) else {name: meaning}

    def keys(self, name: str) -> set[str]:
        """Return the keys of a recipe that the parameter sets."""
        return {key for label in self.labels for key in self.overrides(name, label)} or {name}

    def contains(self, value: Scalar) -> bool:
        """Return whether a value can be drawn."""
        if self.bounds is None:
            return value in self.labels
        return not isinstance(value, bool | str) and self.bounds[0] <= value <= self.bounds[1]

    def representatives(self) -> tuple[Scalar, ...]:
        """Return all values of a choice, or the ends and the middle of a range."""
        if self.integer is not None:
            low, high = self.integer
            return tuple(dict.fromkeys((low, (low + high) // 2, high)))
        if self.loguniform is not None:
            low_, high_ = self.loguniform
            return (low_, (low_ * high_) ** 0.5, high_)
        if self.uniform is not None:
            return (self.uniform[0], sum(self.uniform) / 2, self.uniform[1])
        return self.labels


@dataclass(frozen=True)
class Space:
    """The parameters of a search, in the order in which values are drawn."""

    origin: str
    parameters: dict[str, Parameter]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.parameters)

    @property
    def keys(self) -> set[str]:
        """Return all keys of a recipe that are searched."""
        return {key for name, parameter in self.parameters.items() for key in parameter.keys(name)}

    def draw(self, pick: Callable[[str, Parameter], Scalar]) -> dict[str, Scalar]:
        """Return an assignment of the parameters whose `when` holds, with values that `pick` chooses one after the
        other.
        """
        drawn: dict[str, Scalar] = {}
        for name, parameter in self.parameters.items():
            if all(other in drawn and drawn[other] in values for other, values in parameter.when.items()):
                drawn[name] = pick(name, parameter)
        return drawn

    def overrides(self, assignment: Assignment) -> dict[str, Any]:
        """Return what an assignment means: values by key of a recipe."""
        return {
            key: value
            for name, chosen in assignment.items()
            for key, value in self.parameters[name].overrides(name, chosen).items()
        }

    def contains(self, assignment: Assignment) -> bool:
        """Return whether the search could draw an assignment."""
        drawn = self.draw(lambda name, parameter: assignment.get(name, ""))
        return drawn.keys() == assignment.keys() and all(self.parameters[n].contains(v) for n, v in drawn.items())

    def grid(self) -> Iterator[dict[str, Scalar]]:
        """Yield every assignment of the parameters' representatives, each once."""
        seen = set()
        for values in itertools.product(*(p.representatives() for p in self.parameters.values())):
            point = dict(zip(self.parameters, values, strict=True))
            assignment = self.draw(lambda name, parameter: point[name])  # noqa: B023 - called at once
            if (key := tuple(assignment.items())) not in seen:
                seen.add(key)
                yield assignment


def load_space(space: str | None, model_kind: str) -> Space:
    """Return the space in a YAML file, or the one that is shipped for a kind of model.

    Raises ConfigError naming the file and the parameter.
    """
    if space is not None:
        if not is_yaml_file(space):
            raise ConfigError(f"--space {space}: a search space is a file whose name ends in .yaml")
        return parse_space(space, read_text(Path(space), "search space"))
    shipped = MODELS.texts(model_kind, ".yaml")
    if _SHIPPED not in shipped:
        raise ConfigError(f"no search space is shipped for models of kind '{model_kind}'; give --space FILE")
    return parse_space(f"{_SHIPPED}.yaml of '{model_kind}'", shipped[_SHIPPED])


def parse_space(origin: str, text: str) -> Space:
    """Return the space in a YAML text. Raises ConfigError."""
    content = parse_mapping(
        origin, text, "a search space is a mapping of keys of a recipe (train.dense_optimizer.lr: ...)"
    )
    if not content:
        raise ConfigError(f"{origin}: empty; there is nothing to search")
    parameters: dict[str, Parameter] = {}
    for name, value in content.items():
        try:
            parameter = Parameter.model_validate(value)
        except ValidationError as error:
            raise ConfigError(f"{origin}: {name}: {describe_validation_error(error, Parameter)}") from None
        # Conditions name choices that are drawn before.
        for other, values in parameter.when.items():
            if other not in parameters:
                raise ConfigError(f"{origin}: {name}: when: '{other}' is not a parameter that comes before it")
            if unknown := [value for value in values if value not in parameters[other].labels]:
                raise ConfigError(f"{origin}: {name}: when: '{other}' is never {unknown[0]!r}; name one of its choices")
        # Keys are those in which trials may differ.
        for key in sorted(parameter.keys(str(name))):
            if key.partition(".")[0] not in _SECTIONS:
                raise ConfigError(
                    f"{origin}: {key}: cannot be searched: trials share one dataset, so only keys of "
                    f"{' and '.join(_SECTIONS)} can; a name for choices that set several keys needs "
                    "`choice: {name: {key: value}}`"
                )
            if key in _FIXED:
                raise ConfigError(f"{origin}: {key}: cannot be searched: it is the same for all trials; use --set")
        parameters[str(name)] = parameter
    return Space(origin, parameters)


def trial_recipe(
    space: Space,
    recipe: RecipeContent,
    assignment: Assignment,
    also: Callable[[Recipe], None] = lambda recipe: None,
) -> Recipe:
    """Return the recipe with a trial's values. Raises ConfigError that names the space and the values."""
    try:
        resolved = recipe.with_values(space.overrides(assignment)).resolve()
        also(resolved)
    except ConfigError as error:
        values = ", ".join(f"{name}={value}" for name, value in assignment.items())
        raise ConfigError(f"{space.origin}: with {values}: {error}") from None
    return resolved


def own_assignment(space: Space, recipe: RecipeContent) -> dict[str, Scalar]:
    """Return the recipe's own values of the parameters, whether or not the space contains them.

    Left out are named choices that all differ from the recipe, and keys that it does not have.
    """
    resolved = recipe.resolve().model_dump(mode="json")

    def pick(name: str, parameter: Parameter) -> Any:
        for label in parameter.labels:
            if all(_value(resolved, key) == value for key, value in parameter.overrides(name, label).items()):
                return label
        value = None if isinstance(parameter.choice, dict) else _value(resolved, name)
        return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)

    return {name: value for name, value in space.draw(pick).items() if value is not None}


def _value(content: Any, key: str) -> Any:
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def searchable_space(space: Space, search: Search, trials: int) -> Space:
    """Return the part of a space that a search can vary. Raises ConfigError if it is empty, or trials are too few."""
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

"""Wrong combinations of a search space are found before the first trial starts."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from rayrec.common.errors import ConfigError
from rayrec.config import Recipe, RecipeContent
from tune.space import Assignment, Parameter, Scalar, Space

_MOST_COMBINATIONS = 400


def check_space(space: Space, recipe: RecipeContent, also: Callable[[Recipe], None] = lambda recipe: None) -> None:
    """Raise ConfigError on the first combination of values that makes no recipe, or that `also` refuses, naming it.

    All combinations of choices and ends of ranges are tried where they are few; else some of them, each value at least
    once.
    """
    for assignment in combinations(space):
        resolved = trial_recipe(space, recipe, assignment)
        try:
            also(resolved)
        except ConfigError as error:
            raise _with_values(space, assignment, error) from None


def trial_recipe(space: Space, recipe: RecipeContent, assignment: Assignment) -> Recipe:
    """The recipe with a trial's values. Raises ConfigError naming the space and the values."""
    try:
        return recipe.with_values(space.overrides(assignment)).resolve()
    except ConfigError as error:
        raise _with_values(space, assignment, error) from None


def _with_values(space: Space, assignment: Assignment, error: ConfigError) -> ConfigError:
    values = ", ".join(f"{name}={value}" for name, value in assignment.items())
    return ConfigError(f"{space.origin}: with {values}: {error}")


def default_assignment(space: Space, recipe: RecipeContent) -> dict[str, Scalar] | None:
    """The assignment that is the recipe as it stands; None where the space does not contain it."""
    resolved = recipe.resolve().model_dump(mode="json")

    def pick(name: str, parameter: Parameter) -> Scalar:
        bounds = parameter.bounds
        if bounds is not None:
            value = _value(resolved, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
                raise LookupError
            return value
        for label in parameter.labels:
            if all(_value(resolved, key) == value for key, value in parameter.overrides(name, label).items()):
                return label
        raise LookupError

    try:
        return space.draw(pick)
    except LookupError:
        return None


def combinations(space: Space) -> Iterator[dict[str, Scalar]]:
    """Assignments that between them have every choice and every end of a range."""
    count = 1
    for parameter in space.parameters.values():
        count *= len(parameter.representatives())
    if count <= _MOST_COMBINATIONS:
        yield from space.grid()
        return
    chance = random.Random(0)
    longest = max(len(parameter.representatives()) for parameter in space.parameters.values())
    for index in itertools.islice(itertools.count(), max(_MOST_COMBINATIONS, longest)):
        if index < longest:
            yield space.draw(lambda name, p: p.representatives()[index % len(p.representatives())])  # noqa: B023
        else:
            yield space.draw(lambda name, p: chance.choice(p.representatives()))


def _value(content: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(content, dict) or part not in content:
            raise LookupError
        content = content[part]
    return content

"""What the requests of the commands share: a recipe with overrides, and the short options for the training section."""

from typing import Literal

from pydantic import PositiveInt

from rayrec.config import Config, Recipe, load_recipe


class RecipeRequest(Config):
    """A command that takes a recipe."""

    recipe: str
    """Name of a shipped recipe, or path of a YAML file."""
    set: tuple[str, ...] = ()
    """Overrides, each `section.key=value`."""

    def load_recipe(self) -> Recipe:
        """The recipe with overrides applied. Raises ConfigError."""
        return load_recipe(self.recipe, self.set)


class TrainingRecipeRequest(RecipeRequest):
    """A command whose recipe's `train` section has short options; they win over `set`."""

    workers: PositiveInt | None = None
    """Short for --set train.workers=N."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Short for --set train.device=..."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] | None = None
    """Short for --set train.precision=..."""

    def load_recipe(self) -> Recipe:
        given = {"workers": self.workers, "device": self.device, "precision": self.precision}
        short = [f"train.{key}={value}" for key, value in given.items() if value is not None]
        return load_recipe(self.recipe, (*self.set, *short))

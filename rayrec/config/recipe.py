"""A recipe: one YAML file that describes a whole run, from source to serving.

Precedence: the models' defaults, then the recipe's file, then `section.key=value` overrides.
"""

import contextlib
import copy
import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from rayrec.common.errors import ConfigError
from rayrec.config.base import Config
from rayrec.config.evaluate import EvaluateConfig
from rayrec.config.metric import is_ranking_metric
from rayrec.config.model import DLRMConfig, ModelConfig, NeuMFConfig, WideDeepConfig
from rayrec.config.preprocess import DisplayPreprocessConfig, InteractionPreprocessConfig, PreprocessConfig
from rayrec.config.serve import ServeConfig
from rayrec.config.source import DISPLAY_SOURCES, INTERACTION_SOURCES, CriteoSourceConfig, SourceConfig
from rayrec.config.train import TrainConfig
from rayrec.config.yaml_file import is_yaml_file, parse_mapping, read_text

_TAGS = ("kind", "op")
"""Keys that tell apart the members of a union."""
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
"""Of a URI: it must not be shown again."""


class Recipe(Config):
    """Everything that a command needs to know besides the paths."""

    name: str
    description: str = ""
    source: SourceConfig = CriteoSourceConfig()
    preprocess: Annotated[
        PreprocessConfig | InteractionPreprocessConfig | DisplayPreprocessConfig, Field(discriminator="kind")
    ] = PreprocessConfig()
    model: ModelConfig = DLRMConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    serve: ServeConfig = ServeConfig()

    @model_validator(mode="before")
    @classmethod
    def _preprocess_as_the_source(cls, content: Any) -> Any:
        """The kind of `preprocess` follows from the source where it is not said."""
        if not isinstance(content, dict):
            return content
        source, preprocess = content.get("source"), content.get("preprocess", {})
        kind = source.get("kind") if isinstance(source, dict) else getattr(source, "kind", None)
        if not isinstance(preprocess, dict) or "kind" in preprocess:
            return content
        return {**content, "preprocess": {"kind": _preprocess_kind(kind), **preprocess}}

    @model_validator(mode="after")
    def _preprocess_fits_the_source(self) -> "Recipe":
        kind = _preprocess_kind(self.source.kind)
        if self.preprocess.kind != kind:
            raise ValueError(
                f"preprocess.kind: '{self.preprocess.kind}' does not suit source.kind '{self.source.kind}', whose is "
                f"'{kind}'; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _sections_fit(self) -> "Recipe":
        measured = self.evaluate.ranking.names if self.evaluate.ranking is not None else ()
        stop = self.train.early_stop
        chosen = {
            "early_stop.metric": stop.metric if stop else None,
            "checkpoint.keep_best": self.train.checkpoint.keep_best,
        }
        for field, name in chosen.items():
            if name is not None and is_ranking_metric(name) and name not in measured:
                known = ", ".join(measured) or "no metric"
                raise ValueError(f"train.{field}: '{name}' is not measured; evaluate.ranking gives {known}")
        if self.train.initial_weights is not None:
            model = self.model
            if not (isinstance(model, NeuMFConfig) and set(model.parts) == {"gmf", "mlp"}):
                raise ValueError("train.initial_weights: only a model of kind 'neumf' with both parts is made from two")
        if not isinstance(self.model, WideDeepConfig):
            default = TrainConfig()
            for field in ("wide_optimizer", "wide_schedule"):
                if getattr(self.train, field) != getattr(default, field):
                    raise ValueError(f"train.{field}: only a model of kind 'wide_deep' has one")
        return self


def _preprocess_kind(source_kind: Any) -> str:
    if source_kind in DISPLAY_SOURCES:
        return "displays"
    return "interactions" if source_kind in INTERACTION_SOURCES else "rows"


def shipped_recipes() -> dict[str, str]:
    """Name -> YAML text of every recipe in the package."""
    folder = resources.files("rayrec.recipes")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text() for f in files}


def load_recipe(recipe: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Load a shipped recipe by name, or one from a YAML file, and apply `section.key=value` overrides.

    Raises ConfigError naming the recipe, the key and the nearest known name.
    """
    return read_recipe(recipe, overrides).resolve()


@dataclass(frozen=True)
class RecipeContent:
    """What a recipe says, before defaults are filled in and anything but its form is checked."""

    origin: str
    """The recipe's name or file."""
    content: dict[str, Any]

    def with_values(self, values: Mapping[str, Any]) -> "RecipeContent":
        """The same with `values` by dotted key in place of its own. Raises ConfigError."""
        content = copy.deepcopy(self.content)
        for key, value in values.items():
            _put(content, key, value, f"{self.origin}: {key}")
        return RecipeContent(self.origin, content)

    def resolve(self) -> Recipe:
        """The recipe. Raises ConfigError naming it and the key."""
        try:
            return Recipe.model_validate(self.content)
        except ValidationError as error:
            raise ConfigError(f"{self.origin}: {describe_validation_error(error, Recipe)}") from None


def read_recipe(recipe: str | Path, overrides: Iterable[str] = ()) -> RecipeContent:
    """As `load_recipe`, but not resolved yet."""
    origin, text = _read(recipe)
    content = parse_mapping(origin, text, "a recipe is a mapping of sections (model:, train:, ...)")
    for override in overrides:
        _apply_override(content, override)
    content.setdefault("name", Path(origin).stem)
    return RecipeContent(origin, content)


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML; `load_recipe` of it gives an equal one."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def describe_validation_error(error: ValidationError, root: type[BaseModel]) -> str:
    """One line on the first problem of `error`, with the nearest known key where one is unknown."""
    first = error.errors()[0]
    location, _ = _locate(root, first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        *parents, key = first["loc"]
        _, configs = _locate(root, parents)
        known = sorted({name for c in configs for name in c.model_fields})
        nearest = difflib.get_close_matches(str(key), known, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(known)}"
        return f"unknown key '{location}'; {hint}{more}"
    if first["type"] == "union_tag_not_found":
        return f"{location}: say which kind it is (key 'kind'){more}"
    if first["type"] == "json_invalid":
        return "damaged, not whole JSON; make it again"
    message = first["msg"].removeprefix("Value error, ")
    shown = (
        ""
        if isinstance(first["input"], (dict, BaseModel))
        else f" (got {_PASSWORD.sub('://...@', repr(first['input']))})"
    )
    return f"{location}: {message}{shown}{more}" if location else f"{message}{shown}{more}"


def _read(recipe: str | Path) -> tuple[str, str]:
    if is_yaml_file(recipe):
        return str(recipe), read_text(Path(recipe), "recipe")
    shipped = shipped_recipes()
    if str(recipe) not in shipped:
        nearest = difflib.get_close_matches(str(recipe), shipped, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"shipped: {', '.join(shipped)}."
        raise ConfigError(f"recipe '{recipe}': not shipped; {hint} A recipe file's name ends in .yaml")
    return str(recipe), shipped[str(recipe)]


def _apply_override(content: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {override}: write it as section.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: '{text}' is not a YAML value") from None
    if isinstance(value, str):
        # YAML 1.1 reads 1e-3 as a string; a person who types it means the number.
        with contextlib.suppress(ValueError):
            value = float(value)
    _put(content, key, value, f"--set {override}")


def _put(content: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Set a dotted key; sections that are not there yet are made."""
    *sections, last = key.split(".")
    node = content
    for section in sections:
        child = node.get(section)
        if child is None:
            child = node[section] = {}
        if not isinstance(child, dict):
            raise ConfigError(f"{origin}: '{section}' is a value, not a section")
        node = child
    node[last] = value


def _locate(root: type[BaseModel], location: Iterable[int | str]) -> tuple[str, list[type[BaseModel]]]:
    """`location` as a person writes it, without pydantic's tags of unions, and the configs that may lie there."""
    path: list[str] = []
    configs = [root]
    for part in location:
        tagged = [c for c in configs if part in {c.model_fields[t].default for t in _TAGS if t in c.model_fields}]
        if tagged:
            configs = tagged
            continue
        path.append(str(part))
        inner = [m for c in configs if part in c.model_fields for m in _configs_in(c.model_fields[part].annotation)]
        configs = inner or configs
    return ".".join(path), configs


def _configs_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in typing.get_args(annotation) for m in _configs_in(argument)]

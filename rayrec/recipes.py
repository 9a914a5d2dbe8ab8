"""A recipe: a YAML file with the settings of a pipeline, from raw files to serving; models ship theirs.

Precedence: the models' defaults, then the recipe's file, then `section.key=value` overrides.
"""

import copy
import functools
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.common.plugins import MODELS, SOURCES
from rayrec.config import (
    Config,
    EvaluateConfig,
    ModelConfig,
    PreprocessConfig,
    PublishConfig,
    RecommendConfig,
    ServeConfig,
    SourceConfig,
    TrainConfig,
)
from rayrec.config.evaluate import is_ranking_metric
from rayrec.config.sequences import ReadsSequences
from rayrec.config.table import HistoryConfig, TakeLast
from rayrec.config.validation import (
    describe_validation_error,
    dump_yaml,
    is_yaml_file,
    parse_mapping,
    parse_yaml,
    read_text,
)
from rayrec.store.files import write_atomically, write_json

JsonSchema = dict[str, Any]
CONFIG_FILE = "config.yaml"
"""The file of a run folder and of a model folder that has the recipe with every default filled in."""
SCHEMA_FILE = "rayrec-recipe.schema.json"
"""The JSON Schema of recipes, beside the recipes that a command writes and in this package for the shipped ones."""
SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
"""The first line of a written recipe: editors complete and check it by that file. A recipe works without the file."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

if TYPE_CHECKING:
    Source = SourceConfig
    Preprocess = PreprocessConfig
    Model = ModelConfig
else:

    def _one_of(classes: Iterable[type[Config]]) -> Any:
        return Annotated[functools.reduce(operator.or_, classes), Field(discriminator="kind")]

    Source = _one_of(SOURCES.configs.values())
    Preprocess = _one_of({source.preprocess: None for source in SOURCES.configs.values()})
    Model = _one_of(MODELS.configs.values())


class Recipe(Config):
    """The settings of a pipeline, from raw files to serving."""

    name: str
    """Name that runs are listed under; by default that of the file."""
    description: str = ""
    """Purpose in a line, which `rayrec recipes` shows."""
    source: Source
    """The raw files and their columns."""
    preprocess: Preprocess = Field(default_factory=PreprocessConfig, validate_default=False)
    """How raw files become a dataset. The kind follows from the source and may be left out."""
    model: Model
    """The network and its tables."""
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    serve: ServeConfig = ServeConfig()
    publish: PublishConfig = PublishConfig()

    @property
    def unneeded_columns(self) -> tuple[str, ...]:
        """Return raw columns, or patterns, that scoring does not need: label, roles, the split's, ignored ones."""
        column = getattr(getattr(self.preprocess, "split", None), "column", None)
        return (*self.source.unneeded_columns, *([] if column is None else [column]))

    @model_validator(mode="before")
    @classmethod
    def _preprocess_as_the_source(cls, content: Any) -> Any:
        # Each source has a kind of preprocessing, so a recipe need not name it. What is wrong here, validation says.
        if not isinstance(content, dict):
            return content
        source, preprocess = content.get("source"), content.get("preprocess", {})
        kind = source.get("kind") if isinstance(source, dict) else getattr(source, "kind", None)
        if not isinstance(preprocess, dict) or "kind" in preprocess or kind not in SOURCES.packages:
            return content
        return {**content, "preprocess": {"kind": _preprocess_kind(SOURCES.configs[kind]), **preprocess}}

    @model_validator(mode="before")
    @classmethod
    def _train_as_the_model(cls, content: Any) -> Any:
        # The model's defaults lie below what is given: pydantic knows only those of the classes.
        model = content.get("model") if isinstance(content, dict) else None
        kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", None)
        given = content.get("train", {}) if isinstance(content, dict) else None
        if kind not in MODELS.packages or not isinstance(given, dict):
            return content
        return {**content, "train": _with_defaults(given, MODELS.configs[kind].train_defaults)}

    @model_validator(mode="before")
    @classmethod
    def _measured_as_next_items(cls, content: Any) -> Any:
        # What a model of next items is measured by, below what is given.
        model = content.get("model") if isinstance(content, dict) else None
        kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", None)
        if kind in MODELS.packages and MODELS.configs[kind].scores_next_items:
            content = _with_default(content, ("evaluate", "ranking", "candidates"), "next")
            content = _with_default(content, ("train", "checkpoint", "keep_best"), "ndcg@10")
        return content

    @model_validator(mode="after")
    def _sections_fit(self) -> "Recipe":
        kind = _preprocess_kind(type(self.source))
        if self.preprocess.kind != kind:
            raise ValueError(
                f"preprocess.kind: '{self.preprocess.kind}' does not suit source.kind '{self.source.kind}', which "
                f"needs '{kind}'; leave preprocess.kind out"
            )
        if self.model.needs_interactions and not self.source.gives_interactions:
            sources = [name for name, config in SOURCES.configs.items() if config.gives_interactions]
            models = [name for name, config in MODELS.configs.items() if not config.needs_interactions]
            raise ValueError(
                f"model.kind: '{self.model.kind}' needs a user and an item, which source.kind "
                f"'{self.source.kind}' does not have; use {', '.join(models)}, or source.kind {', '.join(sources)}"
            )
        if self.serve.recommend != RecommendConfig() and not self.source.gives_interactions:
            raise ValueError(
                f"serve.recommend: a model of source.kind '{self.source.kind}' recommends nothing; set it for the one "
                "that does"
            )
        _require_loss_of(self.model, self.train)
        if isinstance(self.model, ReadsSequences):
            _require_lists(self.model, getattr(self.source, "histories", {}))
        # Training chooses by metrics that it measures.
        measured = self.evaluate.ranking.names if self.evaluate.ranking is not None else ()
        stop = self.train.early_stop
        chosen = {
            "early_stop.metric": stop.metric if stop else None,
            "checkpoint.keep_best": self.train.checkpoint.keep_best,
        }
        if self.model.scores_next_items and getattr(self.evaluate.ranking, "candidates", None) != "next":
            raise ValueError(
                f"evaluate.ranking.candidates: must be 'next', as '{self.model.kind}' scores next items and no rows"
            )
        for field, name in chosen.items():
            is_unmeasured = name not in measured and (self.model.scores_next_items or is_ranking_metric(name or ""))
            if name is not None and is_unmeasured:
                known = ", ".join(measured) or "no metric"
                raise ValueError(
                    f"train.{field}: '{name}' is not measured; evaluate.ranking gives {known}, so add it there"
                )
        return self


def _require_loss_of(model: ModelConfig, train: TrainConfig) -> None:
    """Raise ValueError where a setting of the loss, or of what it compares, is for models of another kind."""
    if not model.scores_next_items:
        if train.loss.candidates is not None:
            raise ValueError(f"train.loss.candidates: '{model.kind}' scores rows, not next items; leave it out")
        return
    others = {"negatives": train.negatives, "recency": train.recency, "loss.listwise": train.loss.listwise or None}
    for field, value in others.items():
        if value is not None:
            raise ValueError(f"train.{field}: '{model.kind}' scores next items, not rows; leave it out")


def _require_lists(model: ReadsSequences, histories: Mapping[str, HistoryConfig]) -> None:
    """Raise ValueError where a history that the model reads is not there, or has no lists of one length."""
    for name in model.sequences:
        where, history = f"model.sequences.{name}", histories.get(name)
        if history is None:
            hint = did_you_mean(name, histories, "it has") if histories else "it has none"
            raise ValueError(f"{where}: source.histories has no '{name}'; {hint}")
        lengths = {take.length for take in history.take if isinstance(take, TakeLast)}
        if not lengths:
            raise ValueError(f"{where}: takes no list of the history; add {{op: last, column: ...}} to its `take`")
        if len(lengths) > 1:
            raise ValueError(f"{where}: needs lists of one length; give all of the history's `take` the same `length`")


def _with_default(content: Any, path: Sequence[str], value: Any) -> Any:
    """Return nested mappings with a value at `path` where none is given; what is no mapping stays as it is."""
    if not isinstance(content, dict):
        return content
    key, *rest = path
    return {**content, key: _with_default(content.get(key, {}), rest, value) if rest else content.get(key, value)}


_OPTIMIZERS = ("embedding_optimizer", "dense_optimizer")


def _with_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `train` with the defaults of a model.

    An optimizer that lacks its kind or rate has the model's settings beside what is given; one of another kind than the
    model's must have a rate. The optimizers of the model's parts and its schedule are left out where a kind is given,
    its sharding where that of the tables is another one.
    """
    own_optimizers = {name: given[name] for name in _OPTIMIZERS if isinstance(given.get(name), dict)}
    left_out = {"parts", "schedule"} if any("kind" in own for own in own_optimizers.values()) else set()
    for_tables = defaults.get("embedding_optimizer", {}).get("kind")
    if own_optimizers.get("embedding_optimizer", {}).get("kind", for_tables) != for_tables:
        left_out.add("sharding")
    filled = {**{name: value for name, value in defaults.items() if name not in left_out}, **given}
    for name, own in own_optimizers.items():
        default = defaults.get(name)
        if default is None or {"kind", "lr"} <= own.keys():
            continue
        if own.get("kind", default["kind"]) == default["kind"]:
            filled[name] = {**default, **own}
        else:
            raise ValueError(
                f"train.{name}.lr: missing; the model's default is for '{default['kind']}', so give a rate for "
                f"'{own['kind']}'"
            )
    return filled


def _preprocess_kind(source: type[SourceConfig]) -> str:
    kind: str = source.preprocess.model_fields["kind"].default
    return kind


def shipped_recipes() -> dict[str, str]:
    """Return the YAML text of every shipped recipe, by name."""
    return {name: text for kind in MODELS.packages for name, text in MODELS.texts(kind, ".yaml", "recipes").items()}


def recipe_schema() -> JsonSchema:
    """Return the JSON Schema of a recipe, with the sources and models that are installed."""
    schema = json_schema(Recipe)
    # The reader fills in the name.
    schema["required"].remove("name")
    # The kind of `preprocess` may be left out, as it follows from the source.
    rules: list[JsonSchema] = schema["properties"]["preprocess"].pop("allOf")
    sections = {rule["if"]["properties"]["kind"]["const"]: rule["then"] for rule in rules}
    by_source = {
        kind: {"properties": {"preprocess": sections[_preprocess_kind(config)]}}
        for kind, config in SOURCES.configs.items()
    }
    del schema["properties"]["preprocess"]["required"]
    by_model = {
        kind: {
            "properties": {
                "train": {"properties": {key: {"default": value} for key, value in config.train_defaults.items()}}
            }
        }
        for kind, config in MODELS.configs.items()
        if config.train_defaults
    }
    rules = chosen_by("kind", by_source, within="source") + chosen_by("kind", by_model, within="model")
    return {**schema, "allOf": rules}


def json_schema(config: type[BaseModel]) -> JsonSchema:
    """Return the schema of what a person writes for `config`: draft 2020-12, with a union decided by its tag.

    pydantic describes a union as `oneOf`; of a mistake in one member, validators then report all members.
    """
    return {"$schema": _DIALECT, **_for_editors(config.model_json_schema())}


def chosen_by(tag: str, members: dict[str, JsonSchema], within: str | None = None) -> list[JsonSchema]:
    """Return a condition for each value of `tag`, a key of the object or of its section `within`."""

    def has(value: str) -> JsonSchema:
        condition: JsonSchema = {"required": [tag], "properties": {tag: {"const": value}}}
        return condition if within is None else {"required": [within], "properties": {within: condition}}

    return [{"if": has(value), "then": schema} for value, schema in members.items()]


def _for_editors(node: Any) -> Any:
    """Return a part of pydantic's schema without its titles, with unions by tag as conditions."""
    if isinstance(node, list):
        return [_for_editors(item) for item in node]
    if not isinstance(node, dict):
        return node
    found: JsonSchema = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):  # names of keys, of which one may be `title`
            found[key] = {name: _for_editors(inner) for name, inner in value.items()}
        elif key == "description":
            found[key] = " ".join(value.split())
        elif key in ("default", "const", "enum", "examples"):
            found[key] = value
        elif key != "title":
            found[key] = _for_editors(value)
    # An editor inserts a default when it completes a key: of a section that would be all of its keys.
    if isinstance(found.get("default"), dict):
        del found["default"]
    if "discriminator" in found:
        tag, members = found["discriminator"]["propertyName"], found["discriminator"]["mapping"]
        del found["discriminator"], found["oneOf"]
        found |= {"type": "object", "required": [tag], "properties": {tag: {"enum": list(members)}}}
        found["allOf"] = chosen_by(tag, {value: {"$ref": place} for value, place in members.items()})
    return found


def write_recipe_file(path: Path, text: str) -> None:
    """Write a recipe, and beside it the JSON Schema that its first line names for editors."""
    write_atomically(path, SCHEMA_LINE + text)
    write_json(path.with_name(SCHEMA_FILE), recipe_schema())


def load_recipe(recipe: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Load a shipped recipe by name, or one from a YAML file, and apply `section.key=value` overrides.

    Raises ConfigError naming the recipe or `--set`, the key and the nearest known name.
    """
    return read_recipe(recipe, overrides).resolve()


@dataclass(frozen=True)
class RecipeContent:
    """The content of a recipe before defaults are filled in; only its form is checked."""

    origin: str
    """The recipe's name or file."""
    content: dict[str, Any]
    set: tuple[str, ...] = ()
    """The dotted keys that `--set` has set."""

    def with_values(self, values: Mapping[str, Any]) -> "RecipeContent":
        """Return the same content with `values`, given by dotted key, in place of its own. Raises ConfigError."""
        content = copy.deepcopy(self.content)
        for key, value in values.items():
            _put(content, key, value, f"{self.origin}: {key}")
        return replace(self, content=content)

    def resolve(self) -> Recipe:
        """Return the recipe. Raises ConfigError naming the key, and the recipe or `--set`, whichever it is from."""
        try:
            return Recipe.model_validate(self.content)
        except ValidationError as error:
            problem = describe_validation_error(error, Recipe)
            # A problem begins with its key, or names it as an unknown one.
            key = next((k for k in self.set if re.match(rf"(unknown key ')?{re.escape(k)}\b", problem)), None)
            if key is None:
                raise ConfigError(f"{self.origin}: {problem}") from None
            raise ConfigError(f"--set {'' if problem.startswith(key) else f'{key}: '}{problem}") from None


def read_recipe(recipe: str | Path, overrides: Iterable[str] = ()) -> RecipeContent:
    """Load a recipe as `load_recipe` does, but do not resolve it yet."""
    origin = str(recipe)
    if is_yaml_file(recipe):
        text = read_text(recipe if isinstance(recipe, Path) else Path(recipe), "recipe")
    else:
        shipped = shipped_recipes()
        if origin not in shipped:
            hint = did_you_mean(origin, shipped, "shipped:")
            raise ConfigError(f"recipe '{origin}': not shipped; {hint} (a recipe file's name ends in .yaml)")
        text = shipped[origin]
    content = parse_mapping(origin, text, "a recipe is a mapping of sections (model:, train:, ...)")
    given = tuple(overrides)
    for override in given:
        _apply_override(content, override)
    content.setdefault("name", Path(origin).stem)
    return RecipeContent(origin, content, tuple(override.partition("=")[0] for override in given))


def dump_recipe(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML; `load_recipe` of it gives an equal one."""
    return dump_yaml(recipe.model_dump(mode="json"))


def differences(before: Any, now: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the key and both values wherever two JSON values, such as dumped recipes, differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from differences(before.get(name), now.get(name), (*key, name))
    elif before != now:
        yield key, before, now


def differing_values(configs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], list[Any]]:
    """Return, by key, the value of each JSON value, such as a dumped recipe, where one differs from the first.

    What one does not have is None, as the settings of a model of another kind.
    """

    def value(config: Any, key: tuple[str, ...]) -> Any:
        for name in key:
            config = config.get(name) if isinstance(config, Mapping) else None
        return config

    keys = dict.fromkeys(key for other in configs[1:] for key, _, _ in differences(configs[0], other))
    return {key: [value(config, key) for config in configs] for key in keys}


def value_texts(values: Sequence[Any]) -> list[str]:
    """Return JSON values that a key has in several recipes, as a person would write them.

    Of lists, such as source.features, the items that all have are counted, and the others are written.
    """
    if not all(isinstance(value, list) for value in values):
        return [_value_text(value) for value in values]
    shared = [item for item in values[0] if all(item in value for value in values)]
    if not shared:
        return [_value_text(value) for value in values]
    others = [[_value_text(item) for item in value if item not in shared] for value in values]
    return [" + ".join([f"{len(shared)} shared", *texts]) for texts in others]


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(_without_nulls(value))


def _without_nulls(value: Any) -> Any:
    """Return a JSON value without the keys that are null, as a recipe leaves them out."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _apply_override(content: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {override}: write it as section.key=value")
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        problem = f"'{text}' is not a YAML value"
        if isinstance(error, yaml.constructor.ConstructorError):
            problem = str(error.problem)
        raise ConfigError(f"--set {override}: {problem}") from None
    _put(content, key, value, f"--set {override}")


def _put(content: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Set a dotted key; missing sections are made."""
    *sections, last = key.split(".")
    node = content
    for section in sections:
        child = node.get(section)
        if child is None:
            child = node[section] = {}
        if not isinstance(child, dict):
            if isinstance(child, list):
                raise ConfigError(
                    f"{origin}: '{section}' is a list, which is set as a whole; or edit the recipe's file"
                )
            raise ConfigError(f"{origin}: '{section}' is a value, not a section")
        node = child
    node[last] = value

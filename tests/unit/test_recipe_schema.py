"""The JSON Schema of recipes: what rayrec accepts it accepts, and a person's mistakes it does not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from jobs.inspect import InspectRequest
from jobs.inspect import run as inspect
from jobs.recipes import RecipesRequest
from jobs.recipes import run as recipes
from rayrec.common.errors import ConfigError
from rayrec.common.plugins import MODELS, SOURCES
from rayrec.common.progress import SilentProgress
from rayrec.config.table import NumericStep
from rayrec.config.validation import parse_yaml
from rayrec.recipes import SCHEMA_FILE, load_recipe, recipe_schema, shipped_recipes
from tests import recipe_reference

SCHEMA = Draft202012Validator(recipe_schema())
RECIPE: dict[str, Any] = {
    "source": {"kind": "table", "label": "click", "features": [{"kind": "categorical", "columns": "*"}]},
    "preprocess": {"seed": 3},
    "model": {"kind": "dlrm", "embedding_dim": 8, "bottom_mlp": [8]},
}


def test_every_step_of_numbers_may_be_given_by_its_name() -> None:
    by_name, with_settings = TypeAdapter(NumericStep).json_schema()["anyOf"]
    assert sorted(by_name["enum"]) == sorted(with_settings["discriminator"]["mapping"])


def mistakes(recipe: Any) -> list[str]:
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in SCHEMA.iter_errors(recipe)]


def test_it_is_a_schema_of_the_installed_kinds() -> None:
    Draft202012Validator.check_schema(recipe_schema())
    keys = recipe_schema()["properties"]
    assert keys["source"]["properties"]["kind"]["enum"] == list(SOURCES.packages)
    assert keys["model"]["properties"]["kind"]["enum"] == list(MODELS.packages)


def test_the_shipped_file_is_that_of_the_shipped_kinds() -> None:
    # `python -m tests.recipe_reference` writes it.
    assert json.loads(recipe_reference.SCHEMA.read_text()) == recipe_schema()


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_name_it_and_suit_it(name: str) -> None:
    text = shipped_recipes()[name]
    (package,) = (Path(MODELS.load(k, "config").__file__).parent for k in MODELS.packages if _ships(k, name))
    first = text.partition("\n")[0]
    assert (package / "recipes" / first.removeprefix("# yaml-language-server: $schema=")).is_file()
    assert mistakes(parse_yaml(text)) == []
    assert mistakes(load_recipe(name).model_dump(mode="json")) == []


def _ships(kind: str, name: str) -> bool:
    return name in MODELS.texts(kind, ".yaml", "recipes")


def test_written_recipes_lie_beside_the_schema_that_they_name(tmp_path: Path) -> None:
    table = tmp_path / "clicks.csv"
    rows = (f"{i % 3 == 0:d},{i % 7},{i * 0.5},2026-01-{1 + i % 28:02d}" for i in range(300))
    table.write_text("\n".join(["click,shop,price,day", *rows]))
    inspect(InspectRequest(path=str(table), output=tmp_path / "inspected" / "ads.yaml"), SilentProgress())
    recipes(RecipesRequest(name="neumf-ml-1m", output=tmp_path / "resolved" / "mine.yaml"), SilentProgress())
    for path in (tmp_path / "inspected" / "ads.yaml", tmp_path / "resolved" / "mine.yaml"):
        assert path.read_text().startswith(f"# yaml-language-server: $schema={SCHEMA_FILE}\n")
        assert json.loads((path.parent / SCHEMA_FILE).read_text()) == recipe_schema()
        assert mistakes(parse_yaml(path.read_text())) == []
        load_recipe(path)


@pytest.mark.parametrize(
    "keys",
    [
        {"preprocess": {"split": {"kind": "time", "test": "1d"}}},
        {"preprocess": {"kind": "rows", "split": {"kind": "hash", "test": 0.2}}},
        {"source.label": {"column": "rating", "equals": [1, "yes", True]}},
        {"source.features": [{"kind": "numeric", "columns": ["a"], "transforms": ["log", {"op": "clip", "max": 3}]}]},
        {"source.features": [{"kind": "categorical", "columns": "a", "values": [1, 2], "unlisted_buckets": 3}]},
        {"train": {"checkpoint": {"keep_best": "map@12"}, "loss_scale": 4, "compile": "auto"}},
    ],
)
def test_what_rayrec_accepts(keys: Mapping[str, Any], tmp_path: Path) -> None:
    recipe = _with(keys)
    assert mistakes(recipe) == []
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe))
    if "checkpoint" not in str(keys):  # the metric needs a section `evaluate`, which no schema can say
        load_recipe(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"trian": {}}, ": "),
        ({"train": {"ephocs": 2}}, "train: "),
        ({"train": {"epochs": "many"}}, "train.epochs: "),
        ({"train": {"epochs": 0}}, "train.epochs: "),
        ({"train": {"device": "tpu"}}, "train.device: "),
        ({"train": {"checkpoint": {"keep_best": "hits@10"}}}, "train.checkpoint.keep_best: "),
        ({"train": {"embedding_optimizer": {"kind": "adamm"}}}, "train.embedding_optimizer.kind: "),
        ({"model.kind": "dlmr"}, "model.kind: "),
        ({"model.cross_rank": 4}, "model: "),
        ({"source.features": [{"kind": "number", "columns": "a"}]}, "source.features.0.kind: "),
        ({"source.features": [{"kind": "cross", "of": ["a"]}]}, "source.features.0.of: "),
        ({"source.features": [{"columns": "a"}]}, "source.features.0: "),
        (
            {"source.features": [{"kind": "numeric", "columns": "a", "transforms": ["logg"]}]},
            "source.features.0.transf",
        ),
        ({"preprocess": {"split": {"kind": "time", "test": "1 day"}}}, "preprocess.split.test: "),
        ({"preprocess": {"feature_set": "full"}}, "preprocess: "),
        ({"preprocess": {"kind": "displays"}}, "preprocess.kind: "),
        ({"source": None}, "source: "),
    ],
)
def test_mistakes_have_their_place(keys: Mapping[str, Any], place: str) -> None:
    found = mistakes(_with(keys))
    assert found
    assert all(mistake.startswith(place) for mistake in found)


@pytest.mark.parametrize(
    "given",
    [{"schema_": True, "name": "dlrm-criteo"}, {"name": "dlrm-criteo", "output": "a.txt"}, {"output": "a.json"}],
)
def test_options_that_exclude_each_other(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RecipesRequest(**given).check()


def _with(keys: Mapping[str, Any]) -> dict[str, Any]:
    recipe = json.loads(json.dumps(RECIPE))
    for key, value in keys.items():
        section, _, name = key.partition(".")
        if name:
            recipe[section][name] = value
        else:
            recipe[section] = value
    return recipe

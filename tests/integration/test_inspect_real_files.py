"""What `rayrec inspect` makes of real files: the kinds that a person would choose, and a recipe that loads."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.command.runner import run_command
from jobs.inspect import COMMAND
from rayrec.config.table import TableSourceConfig
from rayrec.inspection.table.inspected_table import InspectedTable, inspect_table
from rayrec.models.registry import build_model
from rayrec.preprocessing.column_plan import plan_columns
from rayrec.recipes import Recipe, load_recipe
from tests.builders import make_schema

CATEGORIES = [f"c{i}" for i in range(15, 41)]
COUNTS = [f"c{i}" for i in range(2, 15)]


@pytest.fixture
def inspected(shared_data: Path, tmp_path: Path) -> Any:
    def inspected(path: str, label: str | None = None, model: str = "wide_deep") -> tuple[InspectedTable, Recipe]:
        found = inspect_table([str(shared_data / path)], label, model, 100_000, f"rayrec inspect {path}")
        (tmp_path / "mine.yaml").write_text(found.recipe)
        recipe = load_recipe(tmp_path / "mine.yaml")
        assert isinstance(recipe.source, TableSourceConfig)
        plan_columns(recipe.source, recipe.preprocess.split, found.sample.rows.column_names, {})
        return found, recipe

    return inspected


def kinds(found: InspectedTable) -> dict[str, str]:
    return {d.column.name: d.kind for d in found.decisions}


def test_avazu(inspected: Any) -> None:
    found, recipe = inspected("avazu-9k/train.csv.gz")
    categories = {name for name, kind in kinds(found).items() if kind == "categorical"}
    assert categories == set(found.sample.rows.column_names) - {"id", "click", "hour"}
    assert recipe.source.label == "click"
    assert recipe.source.ignore == ("id", "hour")  # a row id; all rows are of one hour
    assert recipe.preprocess.split.kind == "hash"
    (warning,) = found.warnings
    assert warning.startswith("banner_pos: ")


def test_avazu_without_a_header(inspected: Any) -> None:
    found, recipe = inspected("avazu-9k/dev.csv", label="c2")
    assert recipe.source.header == tuple(f"c{i}" for i in range(1, 25))
    assert kinds(found)["c1"] == "ignored"
    assert kinds(found)["c6"] == "categorical"


def test_ml_100k(inspected: Any) -> None:
    found, recipe = inspected("ml-100k/u.data.gz", label="c3>=4")
    assert kinds(found) == {"c1": "categorical", "c2": "categorical", "c3": "label", "c4": "timestamp"}
    assert recipe.source.label.at_least == 4
    assert recipe.source.time.format == "s"
    assert recipe.preprocess.split.kind == "time"
    assert {history.by for history in recipe.source.histories.values()} == {("c1",), ("c2",)}
    assert "'c1' of 85.8% of its rows" in found.new_values and "the past of 'c1' tells of them" in found.new_values


def test_ml_latest_small(inspected: Any) -> None:
    found, recipe = inspected("ml-latest-small/ratings.csv.gz", label="rating>=4")
    assert kinds(found) == {
        "userId": "categorical", "movieId": "categorical", "rating": "label", "timestamp": "timestamp"
    }  # fmt: skip
    assert recipe.source.time.column == "timestamp"
    assert recipe.source.features[2].derive == ("hour", "weekday")
    assert recipe.source.histories["userId"].by == ("userId",)
    assert found.histories[0].auc > found.histories[0].without + 0.1


def test_ml_100k_items_have_lists(inspected: Any) -> None:
    found, _ = inspected("ml-100k/ml-100k.item", label="release_year:token>=1990")
    assert kinds(found)["class:token_seq"] == "list"
    assert kinds(found)["item_id:token"] == "ignored"


def test_criteo_8k(inspected: Any) -> None:
    found, recipe = inspected("criteo-kaggle-8k/train.tsv.gz", label="c1")
    assert recipe.source.header == tuple(f"c{i}" for i in range(1, 41))
    assert kinds(found) == {
        "c1": "label",
        **dict.fromkeys(COUNTS, "numeric"),
        **dict.fromkeys(CATEGORIES, "categorical"),
    }
    # Many numbers are missing, which a range of its own tells.
    assert "c2_range" in {rule.name for rule in recipe.source.features if rule.kind == "buckets"}


def test_criteo_200(inspected: Any) -> None:
    found, recipe = inspected("criteo-kaggle-200/criteo_sample.txt")
    assert recipe.source.label == "label" and recipe.source.header is None
    by_kind = kinds(found)
    assert {by_kind[f"C{i}"] for i in range(1, 27)} == {"categorical"}
    # Of 200 rows, little tells a number with few values from a category.
    assert sum(by_kind[f"I{i}"] == "numeric" for i in range(1, 14)) >= 11


def test_outbrain(inspected: Any) -> None:
    found, recipe = inspected("outbrain-10k/sample_train_dat.csv")
    source = recipe.source
    assert (source.label, source.group, source.candidate, source.time) == (
        "clicked", "display_id", "ad_id", "timestamp_view"
    )  # fmt: skip
    features = {name for name, kind in kinds(found).items() if kind == "categorical"}
    assert features == {"uuid", "ad_id", "document_id", "platform", "geo_location"}
    assert source.ignore == ("day",)
    assert not source.histories  # of two minutes
    assert recipe.evaluate.ranking.metrics == ("map", "ndcg")


@pytest.mark.parametrize("model", ["wide_deep", "dcnv2", "dlrm"])
@pytest.mark.parametrize("rows", [1_000, 100_000, 10_000_000])
def test_models_can_begin_so(model: str, rows: int) -> None:
    """The sections that a model's package has for tables of so many rows are valid, and the model can be built."""
    import yaml

    from rayrec.inspection.table.recipe_text import starting_point
    from rayrec.sources.criteo.config import CONFIG

    sections = yaml.safe_load(starting_point(model, rows, features=12, values=40))
    recipe = Recipe.model_validate({"name": "x", "source": CONFIG(), **sections})
    assert recipe.train.ingest.in_memory == (rows < 10_000_000)
    if (model, rows) == ("wide_deep", 1_000):
        assert recipe.train.embedding_optimizer.weight_decay == 12 / (3 * rows)
    assert build_model(recipe.model, make_schema(multi_hot=1), device="meta").tables


def test_the_command_writes_a_recipe_once(shared_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, recipe = shared_data / "avazu-9k" / "train.csv.gz", tmp_path / "mine.yaml"
    assert run_command(COMMAND, {"path": [str(path)], "output": str(recipe)}) == 0
    shown = capfd.readouterr().out
    assert f"rayrec run {recipe} --input {path} --output out" in shown
    assert "device_conn_type" in shown and "a row id" in shown
    assert load_recipe(recipe).name == "mine"
    assert run_command(COMMAND, {"path": [str(path)], "output": str(recipe)}) == 1
    assert "exists" in capfd.readouterr().err


def test_the_recipe_alone_goes_to_stdout(shared_data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = shared_data / "criteo-kaggle-200" / "criteo_sample.txt"
    assert run_command(COMMAND, {"path": [str(path)]}) == 0
    out, err = capfd.readouterr()
    assert out.startswith("# Written by `rayrec inspect ")
    assert "AUC alone" in err


def test_neither_torch_nor_ray_nor_spark_is_needed(shared_data: Path) -> None:
    path = shared_data / "criteo-kaggle-200" / "criteo_sample.txt"
    code = (
        "import sys; from jobs.inspect import *; run(InspectRequest(path=sys.argv[1]), Progress());"
        "import rayrec.inspection.drift;"
        "print([m for m in ('torch', 'ray', 'pyspark', 'torchrec', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stderr

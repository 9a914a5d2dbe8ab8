"""The model card speaks of the label by its name, in tables, and sets simpler models beside the metrics."""

from pathlib import Path
from typing import Any

import pytest

from rayrec.inference.model_card import model_card
from rayrec.recipes import RecipeContent, load_recipe
from tests.builders import make_dataset

METRICS: dict[str, dict[str, float | None]] = {
    "test": {"auc": 0.76543, "log_loss": 0.4321, "rows": 12_345.0, "calibration": None}
}
BASELINES = {"test": {"base rate": {"auc": 0.5, "log_loss": 0.54321}, "logistic regression": {"auc": 0.7011}}}


def card(tmp_path: Path, label: Any, **options: Any) -> str:
    dataset = make_dataset(tmp_path / "data", {"train": 200, "test": 50}, numeric=2, categorical=2)
    source = {
        "kind": "table", "label": label,
        "features": [{"columns": "I*", "kind": "numeric"}, {"columns": "C*", "kind": "categorical"}],
    }  # fmt: skip
    model = {"kind": "wide_deep", "embedding_dim": 8, "mlp": [16, 8]}
    content = {"name": "flights", "source": source, "preprocess": {"split": {"kind": "hash"}}, "model": model}
    recipe = RecipeContent("a test", content).resolve()
    return model_card(recipe, dataset.schema, [], dataset, METRICS, "step-00000010", **options)


@pytest.mark.parametrize(
    ("label", "outcome"),
    [
        ("label", "the probability that `label` is 1"),
        ({"column": "rating", "at_least": 4}, "the probability that `rating` is at least 4"),
        ({"column": "state", "equals": ["paid", "sent"]}, "the probability that `state` is paid or sent"),
        ({"column": "a`b|", "equals": ["<b>\n"]}, r"the probability that a\`b\| is \<b\>\\n"),
    ],
)
def test_it_speaks_of_the_label(tmp_path: Path, label: Any, outcome: str) -> None:
    text = card(tmp_path, label)
    assert outcome in text
    assert "click" not in text


def test_a_model_of_next_items_speaks_of_them(tmp_path: Path) -> None:
    recipe, dataset = load_recipe("sasrec-debug"), make_dataset(tmp_path / "data", {"train": 200})
    text = model_card(recipe, dataset.schema, [], dataset, {}, "step-00000010")
    assert (
        "A `sasrec` model. From the items that somebody has, in order of time, it predicts which one is next." in text
    )
    assert "`rayrec predict --top-k`" in text and "add up to one" in text and "row of raw features" not in text


def test_settings_are_tables_and_measures_have_three_digits(tmp_path: Path) -> None:
    text = card(tmp_path, "label")
    assert "{" not in text and "null" not in text
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["mlp", "16, 8"] in lines and ["C1", "categorical", "C1", "11"] in lines
    assert ["test", "this model", "0.765", "0.432", "12,345", "undefined"] in lines
    assert {len(line) for line in text.splitlines() if line.startswith("| test") and "this model" in line} == {
        len(line) for line in text.splitlines() if line.startswith("| split") and "auc" in line
    }, "the columns of a table are aligned"


def test_simpler_models_stand_below_the_model(tmp_path: Path) -> None:
    lines = [line for line in card(tmp_path, "label", baselines=BASELINES).splitlines() if line.startswith("| test")]
    assert [line.split("|")[2].strip() for line in lines[-3:]] == ["this model", "base rate", "logistic regression"]
    assert "0.500" in lines[-2] and "0.543" in lines[-2] and "0.701" in lines[-1]

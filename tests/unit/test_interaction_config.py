"""Recipes of sources whose rows are interactions: what follows from the source, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import ConfigError
from rayrec.config import RowsPreprocessConfig
from rayrec.recipes import dump_recipe, load_recipe
from rayrec.sources.interactions.config import (
    InteractionFilesSplitConfig,
    InteractionPreprocessConfig,
    InteractionSourceConfig,
    LeaveOneOutSplitConfig,
)
from tests.builders import make_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("source: {kind: interactions}\nmodel: {kind: neumf}\n")
    return path


def test_the_source_decides_the_kind_of_preprocessing(recipe: Path, tmp_path: Path) -> None:
    loaded = load_recipe(recipe)
    assert loaded.preprocess == InteractionPreprocessConfig()
    assert loaded.preprocess.split == LeaveOneOutSplitConfig(min_interactions=20, validation=False, negatives=100)
    assert isinstance(make_recipe().preprocess, RowsPreprocessConfig)
    (tmp_path / "resolved.yaml").write_text(dump_recipe(loaded))
    assert load_recipe(tmp_path / "resolved.yaml") == loaded


def test_recipes_of_earlier_datasets_say_the_form_of_files_in_one_word() -> None:
    forms = {"auto": {}, "csv": {}, "double_colon": {"separator": "::"}, "parquet": {"format": "parquet"}}
    for layout, form in forms.items():
        found = InteractionSourceConfig.model_validate({"kind": "interactions", "layout": layout})
        assert found.model_dump(exclude_defaults=True) == form


@pytest.mark.parametrize(
    ("override", "split"),
    [
        ("preprocess.split={kind: files, validation: true}", InteractionFilesSplitConfig(validation=True)),
        (
            "preprocess.split={kind: leave_one_out, min_interactions: 0, sampling: with_replacement}",
            LeaveOneOutSplitConfig(min_interactions=0, sampling="with_replacement"),
        ),
    ],
)
def test_splits(recipe: Path, override: str, split: Any) -> None:
    assert load_recipe(recipe, [override]).preprocess.split == split


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["preprocess.numeric_log=false"],
            "unknown key 'preprocess.numeric_log'; known keys: expire_after, kind,",
        ),
        (
            ["preprocess.split={kind: files, min_interactions: 5}"],
            "unknown key 'preprocess.split.min_interactions'; known keys: kind, negatives, sampling, validation",
        ),
        (
            ["preprocess.split={kind: leave_one_out, negatives: 0}"],
            "preprocess.split.negatives: must be above 0 (got 0)",
        ),
        (["preprocess.kind=rows"], "preprocess.kind: 'rows' does not suit source.kind 'interactions', which needs"),
        (
            ["source.kind=criteo", "preprocess.split={kind: leave_one_out}"],
            "preprocess.split.kind: no such kind 'leave_one_out'; use ",
        ),
        (
            ["source.kind=criteo", "preprocess.split={kind: files, negatives: 5}"],
            "unknown key 'preprocess.split.negatives'; known keys: kind",
        ),
        (["source.format=tsv"], "source.format: must be 'auto', 'delimited', 'json_lines' or 'parquet' (got 'tsv')"),
    ],
)
def test_refused(recipe: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_recipe(recipe, overrides)
    assert "\n" not in str(caught.value)

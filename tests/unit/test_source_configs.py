"""Recipes of sources whose rows are interactions or displays: what follows from the source, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import ConfigError
from rayrec.config import RowsPreprocessConfig
from rayrec.recipes import Recipe, dump_recipe, load_recipe
from rayrec.sources.interactions.config import (
    InteractionFilesSplitConfig,
    InteractionPreprocessConfig,
    InteractionSourceConfig,
    LeaveOneOutSplitConfig,
)
from rayrec.sources.outbrain.config import DisplayPreprocessConfig, DisplaySplitConfig, RatesConfig
from rayrec.sources.outbrain.display_job import DisplayJob, find_tables
from rayrec.sources.outbrain.tables import OutbrainTable

MODELS = {"criteo": "dlrm", "interactions": "neumf", "outbrain": "wide_deep"}


def recipe_of(kind: str, folder: Path, *overrides: str) -> Recipe:
    path = folder / "mine.yaml"
    path.write_text(f"source: {{kind: {kind}}}\nmodel: {{kind: {MODELS[kind]}}}\n")
    return load_recipe(path, overrides)


DECIDED: list[tuple[str, tuple[str, ...], Any]] = [
    ("criteo", (), RowsPreprocessConfig()),
    ("interactions", (), InteractionPreprocessConfig()),
    (
        "interactions",
        ("preprocess.split={kind: files, validation: true}",),
        InteractionPreprocessConfig(split=InteractionFilesSplitConfig(validation=True)),
    ),
    (
        "interactions",
        ("preprocess.split={kind: leave_one_out, min_interactions: 0, sampling: with_replacement}",),
        InteractionPreprocessConfig(split=LeaveOneOutSplitConfig(min_interactions=0, sampling="with_replacement")),
    ),
    ("outbrain", (), DisplayPreprocessConfig()),
    (
        "outbrain",
        (
            "preprocess.feature_set=lean",
            "preprocess.split={held_out_from_day: 3, held_out_share: 0.5}",
            "preprocess.rates.smoothing=0",
        ),
        DisplayPreprocessConfig(
            feature_set="lean",
            split=DisplaySplitConfig(held_out_from_day=3, held_out_share=0.5),
            rates=RatesConfig(smoothing=0.0),
        ),
    ),
]


@pytest.mark.parametrize(("kind", "overrides", "expected"), DECIDED)
def test_the_source_decides_the_kind_of_preprocessing(
    tmp_path: Path, kind: str, overrides: tuple[str, ...], expected: Any
) -> None:
    loaded = recipe_of(kind, tmp_path, *overrides)
    assert loaded.preprocess == expected
    (tmp_path / "resolved.yaml").write_text(dump_recipe(loaded))
    assert load_recipe(tmp_path / "resolved.yaml") == loaded


def test_recipes_of_earlier_datasets_say_the_form_of_files_in_one_word() -> None:
    forms = {"auto": {}, "csv": {}, "double_colon": {"separator": "::"}, "parquet": {"format": "parquet"}}
    for layout, form in forms.items():
        found = InteractionSourceConfig.model_validate({"kind": "interactions", "layout": layout})
        assert found.model_dump(exclude_defaults=True) == form


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        ("interactions", "preprocess.numeric_log=false", "unknown key 'preprocess.numeric_log'; known keys: expire"),
        (
            "interactions",
            "preprocess.split={kind: files, min_interactions: 5}",
            "unknown key 'preprocess.split.min_interactions'; known keys: kind, negatives, sampling, validation",
        ),
        (
            "interactions",
            "preprocess.kind=rows",
            "preprocess.kind: 'rows' does not suit source.kind 'interactions', which needs",
        ),
        (
            "criteo",
            "preprocess.split={kind: leave_one_out}",
            "preprocess.split.kind: no such kind 'leave_one_out'; use ",
        ),
        ("criteo", "preprocess.split={kind: files, negatives: 5}", "unknown key 'preprocess.split.negatives'; known k"),
        ("outbrain", "preprocess.frequency_limit=3", "unknown key 'preprocess.frequency_limit'; known keys: feature_"),
        ("outbrain", "preprocess.split={kind: hash}", "preprocess.split.kind: must be 'displays' (got 'hash')"),
        (
            "outbrain",
            "preprocess.kind=rows",
            "preprocess.kind: 'rows' does not suit source.kind 'outbrain', which needs 'displays'",
        ),
    ],
)
def test_settings_of_other_sources_are_refused(tmp_path: Path, kind: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe_of(kind, tmp_path, override)


@pytest.mark.parametrize(
    ("feature_set", "unread"), [("full", set[OutbrainTable]()), ("lean", {OutbrainTable.PAGE_VIEWS})]
)
def test_the_features_decide_which_tables_are_read(
    feature_set: Any, unread: set[OutbrainTable], tmp_path: Path
) -> None:
    for table in OutbrainTable:
        header = ",".join(column.name for column in table.layout.columns)
        (tmp_path / f"{table.value}.csv").write_text(f"{header}\n")
    config, inputs = DisplayPreprocessConfig(feature_set=feature_set), {None: [str(tmp_path)]}
    assert set(find_tables(config, inputs)) == set(OutbrainTable) - unread
    (tmp_path / "clicks_test.csv").unlink()
    assert len(DisplayJob(config, inputs).files) == len(OutbrainTable) - len(unread) - 1

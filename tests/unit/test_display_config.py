"""The settings of displays follow from the source; what means nothing for it is refused; which tables are read."""

import re
from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.recipes import load_recipe
from rayrec.sources.outbrain.config import DisplayPreprocessConfig, DisplaySplitConfig, RatesConfig
from rayrec.sources.outbrain.display_job import DisplayJob, find_tables
from rayrec.sources.outbrain.tables import OutbrainTable


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("source: {kind: outbrain}\nmodel: {kind: wide_deep}\n")
    return path


def test_the_source_decides_the_kind_of_preprocessing(recipe: Path) -> None:
    assert load_recipe(recipe).preprocess == DisplayPreprocessConfig()
    overrides = [
        "preprocess.feature_set=lean",
        "preprocess.split={held_out_from_day: 3, held_out_share: 0.5}",
        "preprocess.rates.smoothing=0",
    ]
    assert load_recipe(recipe, overrides).preprocess == DisplayPreprocessConfig(
        feature_set="lean",
        split=DisplaySplitConfig(held_out_from_day=3, held_out_share=0.5),
        rates=RatesConfig(smoothing=0.0),
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("preprocess.frequency_limit=3", "unknown key 'preprocess.frequency_limit'; known keys: feature_set, kind,"),
        ("preprocess.feature_set=54", "preprocess.feature_set: must be 'full' or 'lean' (got 54)"),
        ("preprocess.split={kind: hash}", "preprocess.split.kind: must be 'displays' (got 'hash')"),
        ("preprocess.split.held_out_share=1", "preprocess.split.held_out_share: must be below 1 (got 1)"),
        ("preprocess.rates.folds=1", "preprocess.rates.folds: must be 2 or more (got 1)"),
        ("preprocess.rates.smothing=1", "unknown key 'preprocess.rates.smothing'; did you mean 'smoothing'?"),
        (
            "preprocess.kind=rows",
            "preprocess.kind: 'rows' does not suit source.kind 'outbrain', which needs 'displays'",
        ),
    ],
)
def test_settings_of_other_sources_are_refused(override: str, message: str, recipe: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_recipe(recipe, [override])


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return all tables, of headers alone."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for table in OutbrainTable:
        header = ",".join(column.name for column in table.layout.columns)
        (folder / f"{table.value}.csv").write_text(f"{header}\n")
    return folder


@pytest.mark.parametrize(
    ("feature_set", "unread"), [("full", set[OutbrainTable]()), ("lean", {OutbrainTable.PAGE_VIEWS})]
)
def test_tables_that_are_read(feature_set: Any, unread: set[OutbrainTable], raw: Path) -> None:
    config = DisplayPreprocessConfig(feature_set=feature_set)
    assert set(find_tables(config, {None: [str(raw)]})) == set(OutbrainTable) - unread
    (raw / "clicks_test.csv").unlink()
    assert set(find_tables(config, {None: [str(raw)]})) == set(OutbrainTable) - unread - {OutbrainTable.CLICKS_TEST}
    assert len(DisplayJob(config, {None: [str(raw)]}).files) == len(OutbrainTable) - len(unread) - 1


@pytest.mark.parametrize(
    ("feature_set", "absent", "needed"),
    [("full", "page_views", True), ("lean", "page_views", False), ("lean", "events", True)],
)
def test_tables_that_are_missing(feature_set: Any, absent: str, needed: bool, raw: Path) -> None:
    (raw / f"{absent}.csv").unlink()
    config = DisplayPreprocessConfig(feature_set=feature_set)
    if needed:
        with pytest.raises(UserError, match=rf"no {absent}\.csv"):
            find_tables(config, {None: [str(raw)]})
    else:
        assert find_tables(config, {None: [str(raw)]})

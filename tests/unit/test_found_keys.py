"""Joins that find nothing are said or refused, with what the keys of both sides differ by."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from jobs.preprocess import result_of
from rayrec.common.errors import UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.lookups import Lookups
from rayrec.inference.raw_rows import RawRows
from rayrec.inference.unknown_values import count_unknown
from rayrec.ingest.dataset import Dataset, FoundKeys
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.sources.registry import preprocessing
from tests.builders import make_recipe

ROWS, SHOPS = 400, 40
KEYS = {
    "zeros at the front": ("00{n}", "{n}"),
    "upper case": ("Shop{n}x", "shop{n}X"),
    "blanks": ("no {n}", "no\u00a0{n}"),
    "`.0` at the end": ("v{n}.0", "v{n}"),
    "quotes": ("'{n}'", "{n}"),
    "the difference of 1e5 and 100000, or true and 1": ("{n}e2", "{n}00"),
    "marks": ("s-{n}", "s_{n}"),
    "full-width": ("\uff53{n}", "s{n}"),
    "and": ("S-{n}", "s.{n}"),
}
"""How rows and the side table write a key."""


def _preprocess(
    folder: Path, shops: list[str], ids: list[str], kind: str = "csv", parent: Dataset | None = None, **table: Any
) -> Dataset:
    rows = pd.DataFrame({"click": [n % 3 == 0 for n in range(len(shops))], "shop": shops})
    rows["click"] = rows["click"].astype(int)
    side = pd.DataFrame({"id": ids, "size": range(len(ids))})
    for name, content in {"log": rows, "shops": side}.items():
        path = folder / f"{name}.{kind}"
        if kind == "csv":
            content.to_csv(path, index=False)
        elif kind == "jsonl":
            content.to_json(path, orient="records", lines=True)
        else:
            content.to_parquet(path)
    recipe = make_recipe(
        source={
            "kind": "table",
            "label": "click",
            "features": [{"kind": "categorical", "columns": "shop"}, {"kind": "numeric", "columns": "shops_size"}],
            "tables": {"shops": {"path": str(folder / f"shops.{kind}"), "key": "id", "on": "shop", **table}},
            "rates": [{"keys": ["shop"]}],
        },
        preprocess={"split": {"kind": "fraction", "test": 0.25}, "frequency_limit": 1},
    )
    output = folder / f"dataset-{len(list(folder.glob('dataset-*')))}"
    preprocessing(recipe, {None: [str(folder / f"log.{kind}")]}, output, parent).run(EmbeddedEngine(2))
    return Dataset.open(output)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("form", KEYS)
def test_a_table_that_no_row_finds_is_an_error_that_names_the_difference(tmp_path: Path, form: str, kind: str) -> None:
    ours, theirs = KEYS[form]
    numbers = [str(n) for n in range(11, 11 + SHOPS)]
    shops = [ours.format(n=n) for n in numbers]
    with pytest.raises(UserError) as error:
        _preprocess(tmp_path, shops * (ROWS // SHOPS), [theirs.format(n=n) for n in numbers], kind)
    text = str(error.value)
    assert "side table 'shops'" in text and f"0 of {ROWS} rows with shop find it" in text
    assert text.count(f"{shops[0]!a}") == 1 and f"{form}" in text and "100% would" in text and "least_found" in text


def test_shares_are_in_the_result_and_what_would_be_found_is_a_warning(tmp_path: Path) -> None:
    shops = [f"{n:03d}" for n in range(SHOPS)] * 8 + ["new-1", "new-2"] * 40
    dataset = _preprocess(tmp_path, shops, [f"{n:03d}" for n in range(20)] + [str(n) for n in range(20, SHOPS)])
    details = result_of(dataset.manifest, dataset.folder).details
    assert details["found_keys"] == {"shops": {"rows": 400, "found": 160}, "rate_shop": {"rows": 100, "found": 20}}
    (warning,) = (text for text in details["warnings"] if "side table" in text)
    assert "160 of 400" in warning and "without zeros at the front 80% would" in warning


def test_few_rows_may_be_known_if_the_recipe_says_so(tmp_path: Path) -> None:
    shops = [f"s{n}" for n in range(100)] * 4
    with pytest.raises(UserError, match="8 of 400"):
        _preprocess(tmp_path, shops, ["s1", "s2", "x"])
    dataset = _preprocess(tmp_path, shops, ["s1", "s2", "x"], least_found=0.01)
    assert dataset.manifest.found_keys["shops"] == FoundKeys(rows=400, found=8)


def test_a_day_whose_rows_find_nothing_is_refused(tmp_path: Path) -> None:
    shops = [str(n) for n in range(SHOPS)] * 10
    first = _preprocess(tmp_path, shops, shops[:SHOPS])
    with pytest.raises(UserError, match="without zeros at the front 100% would"):
        _preprocess(tmp_path, [f"00{shop}" for shop in shops], shops[:SHOPS], parent=first)


@pytest.mark.parametrize("given", [False, True])
def test_rows_to_score_whose_keys_are_not_found_are_counted(tmp_path: Path, given: bool) -> None:
    shops = [str(n) for n in range(SHOPS)] * 10
    dataset = _preprocess(tmp_path, shops, shops[:SHOPS])
    rows: list[dict[str, Any]] = [{"shop": f"00{n}"} for n in range(30)] + [{"shop": "7"}, {}]
    if given:
        rows = [{**row, "shops_size": 5, "rate_shop": 0.5} for row in rows]
    raw = RawRows(dataset.schema).from_rows(rows)
    lookups = Lookups(dataset.schema, dataset.folder)
    encoded = FeatureEncoder(dataset.schema, dataset.folder).encode(raw)
    for batch in (raw, pa.Table.from_batches([raw.slice(0, 10), raw.slice(10)])):
        found = count_unknown(dataset.schema, batch, encoded, lookups)
        counts = {name: (one.values, one.unknown) for name, one in found.items()}
        looked_up = {} if given else {"shop (shops)": (31, 30)}
        assert counts == {"shop": (31, 30), **looked_up}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("min_count", [1, 5])
def test_new_people_of_held_out_rows_are_counted_however_rare_values_are_listed(
    tmp_path: Path, kind: str, min_count: int
) -> None:
    # The last quarter is the test: of its 20 rows 12 are of new guests, 4 of one that train has once, 2 of none.
    guests = ["g1", "g2"] * 29 + ["seldom", ""] + ["new-1"] * 5 + ["new-2"] * 7 + ["seldom"] * 4 + ["", "", "g1", "g2"]
    rows = pd.DataFrame({"guest": guests, "click": [0, 1] * 40})
    match kind:
        case "csv":
            rows.to_csv(tmp_path / "stays.csv", index=False)
        case "jsonl":
            rows.to_json(tmp_path / "stays.jsonl", orient="records", lines=True)
        case _:
            rows.to_parquet(tmp_path / "stays.parquet")
    feature = {"columns": "guest", "kind": "categorical", "min_count": min_count}
    recipe = make_recipe(
        source={"kind": "table", "label": "click", "features": [feature]},
        preprocess={"split": {"kind": "fraction", "test": 0.25}},
    )
    job = preprocessing(recipe, {None: [str(tmp_path / f"stays.{kind}")]}, tmp_path / "stays")
    manifest = job.run(EmbeddedEngine(2))
    details = result_of(manifest, tmp_path / "stays").details
    assert details["known_values"] == {"test": {"guest": {"rows": 18, "found": 6}}}
    (note,) = (text for text in details["notes"] if "guest" in text)
    assert "'test'" in note and "66.7%" in note

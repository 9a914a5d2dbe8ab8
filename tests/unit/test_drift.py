"""`rayrec inspect --against`: new files beside a dataset whose rows are drawn from the same or another truth."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest

from jobs.command.runner import run_command
from jobs.inspect import COMMAND
from rayrec.common.errors import UserError
from rayrec.config.transforms import Fill, HashUnlisted, Standardize, TimePart, Vocabulary
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature, Schema
from rayrec.features.transforms import with_weights
from rayrec.inference.examples import unknown_counts
from rayrec.ingest.dataset import Dataset
from rayrec.inspection.drift import Drift, _feature_drift, compare
from rayrec.metrics.estimates import stability_index
from rayrec.sources.table.config import CONFIG as TABLE
from tests.builders import make_dataset, make_recipe, write_dataset
from tests.vocabularies import write_vocabulary

ROWS = 4_000
SHOPS, TAGS = [f"shop-{i}" for i in range(30)], ["a", "b", "c", "d"]
COLUMNS = (
    RawColumn(name="price", type="number"),
    RawColumn(name="shop", type="text"),
    RawColumn(name="tags", type="texts", separator="|"),
)


def rows_of(seed: int, rows: int = ROWS) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, 31)
    tags = zip(rng.choice(TAGS, (rows, 2), p=[0.4, 0.3, 0.2, 0.1]), rng.integers(0, 3, rows), strict=True)
    return {
        "price": [f"{v:.3f}" for v in rng.lognormal(size=rows)],
        "shop": rng.choice(SHOPS, rows, p=shares / shares.sum()).tolist(),
        "tags": ["|".join(two[:count]) for two, count in tags],
        "click": [str(int(v)) for v in rng.random(rows) < 0.2],
    }


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of `rows_of(0)`; the rarest ten shops are not listed."""
    folder = tmp_path_factory.mktemp("drift") / "dataset"
    (folder / "vocabulary").mkdir(parents=True)
    shop, tags = (Vocabulary(file=f"vocabulary/{n}.parquet", size=s) for n, s in (("shop", 20), ("tags", 4)))
    write_vocabulary(folder / shop.file, SHOPS[:20], range(20, 0, -1))
    write_vocabulary(folder / tags.file, TAGS, range(4, 0, -1))
    schema = Schema(
        label="click",
        features=(
            NumericFeature(name="price", transforms=(Standardize(mean=1.0, deviation=2.0), Fill())),
            CategoricalFeature(name="shop", transforms=(shop, HashUnlisted(buckets=4)), cardinality=25),
            MultiHotFeature(name="tags", transforms=(tags,), cardinality=5, hotness=4),
        ),
        columns=COLUMNS,
    )
    content = rows_of(0)
    raw = [read_column(pa.array(content[c.name]), c)[0] for c in COLUMNS]
    encoded = FeatureEncoder(schema, folder).encode(pa.RecordBatch.from_arrays(raw, names=[c.name for c in COLUMNS]))
    table = pa.Table.from_batches([encoded]).append_column("click", pa.array(content["click"]).cast(pa.float32()))
    source = TABLE.model_validate({
        "kind": "table", "label": "click", "ignore": ["debug_*"],
        "features": [
            {"columns": "price", "kind": "numeric"},
            {"columns": "shop", "kind": "categorical"},
            {"columns": "tags", "kind": "list", "separator": "|"},
        ],
    })  # fmt: skip
    return write_dataset(folder, schema, {"train": table}, recipe=make_recipe(source=source))


Compare = Callable[[dict[str, list[str]]], Drift]


@pytest.fixture
def against(dataset: Dataset, tmp_path: Path) -> Compare:
    def against(columns: dict[str, list[str]]) -> Drift:
        csv.write_csv(pa.table(columns), tmp_path / "new.csv")
        return compare([str(tmp_path / "new.csv")], dataset, 100_000)

    return against


def drifted(drift: Drift) -> list[str]:
    return [feature.name for feature in drift.features if feature.has_drifted]


@pytest.mark.parametrize("rows", [50, 500, ROWS])
def test_rows_of_the_same_truth_have_not_drifted(against: Compare, rows: int) -> None:
    drift = against(rows_of(1, rows))
    assert drift.verdict is None
    assert [feature.name for feature in drift.features] == ["click", "price", "shop", "tags"]
    assert drift.rows == rows


def test_the_index_is_that_of_the_shares() -> None:
    index = stability_index(np.array([50.0, 50.0]), np.array([80.0, 20.0]))
    assert index == pytest.approx(0.3 * np.log(1.6) - 0.3 * np.log(0.4))


def test_numbers_drift(against: Compare) -> None:
    rows = rows_of(1)
    drift = against({**rows, "price": [str(3 * float(v)) for v in rows["price"]]})
    assert drifted(drift) == ["price"]
    assert drift.verdict is not None and drift.verdict.startswith("price (stability index ")


def test_new_values_drift_and_are_counted(against: Compare) -> None:
    rows = rows_of(1)
    drift = against({**rows, "shop": [f"new-{v}" if i % 2 else v for i, v in enumerate(rows["shop"])]})
    assert drifted(drift) == ["shop"]
    (shop,) = (feature for feature in drift.features if feature.name == "shop")
    known = np.mean([v in SHOPS[:20] for v in rows["shop"]])
    assert shop.unknown_share == pytest.approx(1 - known / 2, abs=0.02)
    assert shop.unknown_share_before == pytest.approx(1 - known, abs=0.02)


def test_lists_and_labels_drift(against: Compare) -> None:
    rows = rows_of(1)
    assert drifted(against({**rows, "tags": ["d" for _ in rows["tags"]]})) == ["tags"]
    assert drifted(against({**rows, "tags": ["" for _ in rows["tags"]]})) == ["tags"]
    assert drifted(against({**rows, "click": ["1" if i % 2 else "0" for i in range(ROWS)]})) == ["click"]


def test_another_weekday_is_no_drift() -> None:
    """A new day is not held back for its date, but an hour, and times that are missing, are compared."""
    monday, tuesday, missing = (pa.array(np.full(ROWS, id_, np.int32)) for id_ in (1, 2, 0))
    weekday, hour = (
        CategoricalFeature(name=part, transforms=(TimePart(part=part),), cardinality=rows)
        for part, rows in (("weekday", 8), ("hour", 25))
    )
    assert not _feature_drift(weekday, monday, tuesday).has_drifted
    assert _feature_drift(weekday, monday, missing).has_drifted and _feature_drift(hour, monday, tuesday).has_drifted


def test_weights_play_no_part_in_the_drift_of_lists() -> None:
    rng = np.random.default_rng(0)
    plain = MultiHotFeature(name="tags", cardinality=9, hotness=4)
    weighted = plain.model_copy(update={"inputs": ("tags", "shares")})
    ids = [rng.integers(0, high, 400).astype(np.int32) for high in (9, 5)]
    offsets = pa.array(np.arange(0, 401, 4), pa.int32())
    lists = [pa.ListArray.from_arrays(offsets, pa.array(part)) for part in ids]
    pairs = [pa.ListArray.from_arrays(offsets, with_weights(part, part.astype(np.float32))) for part in ids]
    drift = _feature_drift(plain, *lists)
    assert drift.index > 0.1 and _feature_drift(weighted, *pairs) == drift
    counts = [
        unknown_counts(Schema(label="y", features=(plain,)), pa.record_batch({"tags": column}))
        for column in (lists[0], pairs[0])
    ]
    assert counts[0] == counts[1] == {"tags": (int((ids[0] == 0).sum()), 400)}


def test_missing_columns_are_drift_and_new_ones_are_named(against: Compare) -> None:
    rows = rows_of(1)
    drift = against({**{k: v for k, v in rows.items() if k != "shop"}, "debug_x": rows["shop"], "extra": rows["shop"]})
    assert drift.verdict == "no column 'shop'"
    assert drift.new_columns == ("extra",)
    assert "shop" not in {feature.name for feature in drift.features}


def test_values_of_another_form_are_drift(against: Compare) -> None:
    rows = rows_of(1)
    drift = against({**rows, "price": ["1,5" if i % 20 == 0 else v for i, v in enumerate(rows["price"])]})
    assert drift.verdict == "'price' has 5.0% values that are not a number (such as '1,5')"


def test_files_without_a_label_are_compared(against: Compare) -> None:
    drift = against({name: values for name, values in rows_of(1).items() if name != "click"})
    assert drift.verdict is None
    assert drift.features[0].name == "price"


def test_files_with_few_labels_are_compared(against: Compare) -> None:
    rows = rows_of(1)
    drift = against({**rows, "click": [""] * ROWS})
    assert drift.verdict is None and drift.rows == ROWS
    assert drift.features[0].name == "price"
    drift = against({**rows, "click": [v if i % 10 else "maybe" for i, v in enumerate(rows["click"])]})
    assert drift.verdict == "'click' has 10.0% values that are not labels (such as 'maybe')"


def test_only_datasets_of_tables(tmp_path: Path) -> None:
    from rayrec.sources.interactions.config import CONFIG

    other = make_dataset(tmp_path / "other", 50, recipe=make_recipe(source=CONFIG()))
    with pytest.raises(UserError, match=r"made from source.kind 'interactions'; only tables can be compared"):
        compare([str(tmp_path)], other, 10)


def test_the_verdict_is_the_exit_code(dataset: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def code(columns: dict[str, list[str]], **flags: bool) -> int:
        csv.write_csv(pa.table(columns), tmp_path / "new.csv")
        values = {"path": [str(tmp_path / "new.csv")], "against": str(dataset.folder)}
        return run_command(COMMAND, values, **flags)

    rows = rows_of(1)
    assert code(rows) == 0
    shown = capfd.readouterr().out
    assert "nothing has drifted (4,000 rows; drifted: a stability index above 0.25 that chance" in shown
    assert shown.splitlines()[0].split()[:2] == ["feature", "kind"]
    assert code({**rows, "price": ["9.5"] * ROWS}, json_output=True) == 1
    result = json.loads(capfd.readouterr().out)
    assert result["status"] == "failed"
    assert result["error"].startswith("drifted: price (stability index ")
    assert [f["name"] for f in result["details"]["drift"]["features"] if f["has_drifted"]] == ["price"]

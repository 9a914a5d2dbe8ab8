"""Outbrain's tables -> dataset folder: cell by cell as the pandas reference; and what serves it."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.predict import PredictRequest, run
from rayrec.common.progress import SilentProgress
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing import segments
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.spark import SparkEngine
from rayrec.recipes import Recipe, dump_recipe
from rayrec.sources.outbrain.generator import generate
from rayrec.sources.registry import load_ranker, preprocessing
from tests import outbrain_reference as reference
from tests.builders import make_recipe
from tests.holding import Hold
from tests.model_folders import write_display_model
from tests.untidy_outbrain import make_untidy

ROWS = 2_500
ENGINE = EmbeddedEngine(2)
FEATURE_SETS = ("full", "lean")
SPLITS = {"train": "train", "validation": "validation", "submission": "test"}
"""Name in the dataset and in the reference."""
SETTINGS = {"seed": 3, "split": {"held_out_share": 0.25}, "rates": {"folds": 3, "smoothing": 7.0}}
REFERENCE_SETTINGS = {"seed": 3, "held_out_share": 0.25, "folds": 3, "smoothing": 7.0}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outbrain")
    generate(folder / "generated", ROWS, seed=3)
    make_untidy(folder / "generated", folder / "raw")
    return folder / "raw"


def recipe(feature_set: str, **settings: Any) -> Recipe:
    layout = {"rows_per_row_group": 128}
    preprocess_ = {"feature_set": feature_set, "layout": layout, **settings}
    return make_recipe(source={"kind": "outbrain"}, preprocess={"kind": "displays", **preprocess_})


@pytest.fixture(scope="module")
def datasets(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dataset]:
    """Return the dataset of a feature set, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("datasets")

    @cache
    def make(feature_set: str) -> Dataset:
        with pytest.MonkeyPatch.context() as patch:
            if feature_set == "full":  # cut into many tasks, whose number must not show
                patch.setattr("rayrec.preprocessing.lookups.ROWS_PER_RANGE", 900)
                patch.setattr(segments, "SEGMENT_ROWS", 1_200)
            preprocessing(recipe(feature_set, **SETTINGS), {None: [str(raw)]}, folder / feature_set).run(ENGINE)
        return Dataset.open(folder / feature_set)

    return make


@pytest.fixture(scope="module")
def tables(raw: Path) -> reference.Tables:
    """As the reference reads them, entities by the hash of their text, which is what orders them."""
    tables = reference.read_tables(raw)
    for row in tables["documents_entities"]:
        row["entity_id"] = signed(hash_text(row["entity_id"]))
    return tables


# --- the hashes of docs/outbrain.md a second time


def finalize(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def hash_text(text: str) -> int:
    data = text.encode()
    hashed = finalize(len(data))
    for start in range(0, len(data), 8):
        hashed = finalize(hashed ^ int.from_bytes(data[start : start + 8], "little"))
    return hashed


def hash_value(value: int | str) -> int:
    return hash_text(value) if isinstance(value, str) else finalize((value + 0x9E3779B97F4A7C15) % 2**64)


def signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def bucket(value: int | str | None, rows: int) -> int:
    return 0 if value is None else 1 + hash_value(value) % (rows - 1)


def of_pandas(value: Any) -> Any:
    """Return an id as it was before pandas made a float of it for the sake of missing ones."""
    return None if pd.isna(value) else int(value) if isinstance(value, float) else value


def encoded_by_hand(raw: pd.Series, feature: CategoricalFeature) -> list[Any]:
    if not feature.transforms:
        return [of_pandas(value) or 0 for value in raw]
    if isinstance(feature, MultiHotFeature):
        return [[bucket(value, feature.cardinality) for value in values] for values in raw]
    return [bucket(of_pandas(value), feature.cardinality) for value in raw]


# --- the comparison


def read_split(dataset: Dataset, split: str) -> pd.DataFrame:
    parts = dataset.manifest.splits[split].parts
    return pa.concat_tables([pq.read_table(dataset.folder / part.path) for part in parts]).to_pandas()


def keyed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `train` in an order that both sides can tell."""
    return frame.sort_values(["display_id", "candidate"], kind="stable").reset_index(drop=True)


def check_against_reference(dataset: Dataset, expected: reference.Reference) -> None:
    for split, info in dataset.manifest.splits.items():
        found, raw, numeric = read_split(dataset, split), *(f[SPLITS[split]] for f in (expected.raw, expected.numeric))
        assert len(found) == info.rows == len(raw)
        columns: dict[str, Any] = {
            "display_id": raw.index.get_level_values(0),
            "candidate": raw.index.get_level_values(1),
            "clicked": raw["clicked"].astype(np.float32) if "clicked" in raw else np.zeros(len(raw), np.float32),
        }
        for feature in dataset.schema.features:
            if isinstance(feature, NumericFeature):
                columns[feature.name] = numeric[feature.name].to_numpy().astype(np.float32)
            else:
                columns[feature.name] = encoded_by_hand(raw[feature.name], feature)
        by_hand = pd.DataFrame({n: pd.Series(list(v)) for n, v in columns.items()})
        if split == "train":
            assert found["display_id"].tolist() != sorted(found["display_id"])
            found, by_hand = keyed(found), keyed(by_hand)
        else:
            by_hand = by_hand.sort_values("display_id", kind="stable").reset_index(drop=True)
        for column in by_hand:
            where = f"{split}, {column}"
            if isinstance(by_hand[column].iloc[0], list):
                assert [list(values) for values in found[column]] == by_hand[column].tolist(), where
            else:
                # The arithmetic is float64 on both sides; sums are added in another order.
                np.testing.assert_allclose(found[column], by_hand[column], rtol=2e-6, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_equals_the_reference_cell_by_cell(
    feature_set: str, datasets: Callable[[str], Dataset], tables: reference.Tables
) -> None:
    dataset = datasets(feature_set)
    expected = reference.compute(tables, feature_set, **REFERENCE_SETTINGS)
    assert set(dataset.manifest.splits) == set(SPLITS)
    counts = {"full": (12 + 4, 3 + 3, 16 + 16), "lean": (13, 3, 13)}[feature_set]
    kinds = [type(feature) for feature in dataset.schema.features]
    assert tuple(kinds.count(kind) for kind in (CategoricalFeature, MultiHotFeature, NumericFeature)) == counts
    constant = [n for n in expected.numeric["train"] if expected.numeric["train"][n].nunique() < 3]
    assert not constant, "the tables are too small to tell"
    check_against_reference(dataset, expected)


def test_one_row_a_click_and_whole_displays(datasets: Callable[[str], Dataset], raw: Path) -> None:
    dataset = datasets("full")
    clicks = pd.read_csv(raw / "clicks_train.csv")
    rows = pd.concat([read_split(dataset, split) for split in ("train", "validation")])
    pd.testing.assert_frame_equal(
        rows[["display_id", "candidate"]].sort_values(["display_id", "candidate"]).reset_index(drop=True),
        clicks[["display_id", "ad_id"]]
        .sort_values(["display_id", "ad_id"])
        .reset_index(drop=True)
        .set_axis(["display_id", "candidate"], axis=1),
    )
    train = read_split(dataset, "train")
    starts = np.flatnonzero(np.diff(train["display_id"], prepend=-1))
    assert len(starts) == train["display_id"].nunique(), "rows of a display follow each other"
    assert train["display_id"].iloc[starts].tolist() != sorted(train["display_id"].unique())
    lengths = np.diff(starts, append=len(train))
    assert dataset.manifest.splits["train"].longest_group == lengths.max()
    parts = dataset.manifest.splits["train"].parts
    ends = np.cumsum([rows for part in parts for rows in part.row_groups])
    assert len(ends) > 5 and set(ends[:-1]) <= set(starts), "row groups end with displays"
    displays = {split: set(read_split(dataset, split)["display_id"]) for split in SPLITS}
    assert not displays["train"] & displays["validation"]
    types = pq.read_schema(dataset.folder / dataset.manifest.splits["train"].parts[0].path)
    assert [types.field(n).type for n in ("clicked", "display_id", "candidate")] == [
        pa.float32(), pa.int64(), pa.int64()
    ]  # fmt: skip
    lists = {f.name for f in dataset.schema.categorical if isinstance(f, MultiHotFeature)}
    for feature in dataset.schema.features:
        kind = types.field(feature.name).type
        kind = kind.value_type if feature.name in lists else kind
        assert kind == (pa.float32() if isinstance(feature, NumericFeature) else pa.int32())
    assert not list(dataset.folder.glob(".*")) and not list(dataset.folder.parent.glob(".*"))


# --- what serves it


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_ranked_ads_score_as_offline(
    feature_set: str, datasets: Callable[[str], Dataset], tables: reference.Tables, tmp_path: Path
) -> None:
    """Rows of `validation`, which see the statistics of all of train, as the ranker does."""
    dataset = datasets(feature_set)
    write_display_model(tmp_path / "model", dataset.schema, dataset.folder / STATISTICS_FOLDER)
    ranker = load_ranker(tmp_path / "model")
    rows = dataset_batch(dataset, "validation")
    offline = ranker.predictor.predict_encoded(rows)
    assert len(set(offline.tolist())) > 0.5 * len(offline)

    data = reference.Data(tables, reference.Settings(**REFERENCE_SETTINGS))
    clicks = reference._add_traffic(data) if feature_set == "full" else data.clicks
    ordered = sorted((c for c in clicks if c.split == "validation"), key=lambda click: click.display)
    assert [(c.display, c.ad) for c in ordered] == list(
        zip(rows["display_id"].to_pylist(), rows["candidate"].to_pylist(), strict=True)
    )
    contexts = [
        {**{n: c.event[n] for n in ranker.lookup.context.names if n in c.event}, "traffic_source": c.traffic}
        for c in ordered
    ]
    places_of: dict[str, list[int]] = defaultdict(list)
    for place, context in enumerate(contexts):
        places_of[repr(context)].append(place)
    online = np.empty(len(ordered), np.float32)
    for places in places_of.values():
        online[places] = ranker.scores(contexts[places[0]], [ordered[place].ad for place in places])
    np.testing.assert_allclose(online, offline, rtol=0, atol=1e-6)


def test_scores_of_the_rows_without_labels(datasets: Callable[[str], Dataset], tmp_path: Path) -> None:
    dataset = datasets("lean")
    write_display_model(tmp_path / "model", dataset.schema, dataset.folder / STATISTICS_FOLDER)
    request = PredictRequest(
        model=tmp_path / "model", input=str(dataset.folder), output=tmp_path / "scores", split="submission"
    )
    assert run(request, SilentProgress()).rows == dataset.manifest.splits["submission"].rows
    rows = dataset_batch(dataset, "submission")
    scores = pq.read_table(tmp_path / "scores/scores").to_pandas()
    assert list(scores) == ["row", "display_id", "candidate", "label", "score"]
    assert scores["display_id"].tolist() == rows["display_id"].to_pylist()
    assert scores["candidate"].tolist() == rows["candidate"].to_pylist()
    expected = load_ranker(tmp_path / "model").predictor.predict_encoded(rows)
    np.testing.assert_allclose(scores["score"], expected, rtol=0, atol=1e-6)


def dataset_batch(dataset: Dataset, split: str) -> pa.RecordBatch:
    parts = [pq.read_table(dataset.folder / part.path) for part in dataset.manifest.splits[split].parts]
    (batch,) = pa.concat_tables(parts).combine_chunks().to_batches()
    return batch


# --- a job that dies


@pytest.mark.minutes
def test_a_killed_job_goes_on_from_its_last_finished_stage(
    spark: Any, ray_cluster: str, raw: Path, datasets: Callable[[str], Dataset], tmp_path: Path
) -> None:
    """SIGKILL in the middle; what comes out in the end is what comes out at once, cut into other tasks."""
    whole, settings, work = recipe("full", **SETTINGS), tmp_path / "recipe.yaml", tmp_path / "work"
    settings.write_text(dump_recipe(whole))
    arguments = [settings, "--input", raw, "--output", work / "out"]
    # It waits as it is about to say that the features are done.
    hold = Hold(tmp_path / "hold", r"out\.unfinished-[^/]+/\.scratch/features\.json$")
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster, "PYTHONPATH": os.pathsep.join(sys.path)}
    with hold.held("jobs.preprocess", *arguments, environment=environment):
        marks = {path.stem: path for path in work.glob(".out.unfinished-*/.scratch/*.json")}
    done = {name: path.stat().st_mtime_ns for name, path in marks.items()}
    assert {"tables", "clicks", "documents", "rates", "users", "views", "profiles"} <= set(done)
    assert "features" not in done and not (work / "out").exists()

    messages = Messages()
    manifest = preprocessing(whole, {None: [str(raw)]}, work / "out").run(SparkEngine(spark), messages)
    assert {text.partition(":")[0] for text in messages.texts if text.endswith("already done")} >= set(done)
    assert not {"parse", "join clicks and events", "click-through rates", "users"} & set(messages.stages)
    assert [p.name for p in work.iterdir()] == ["out"]
    at_once = datasets("full")
    assert manifest.splits == at_once.manifest.splits
    assert Dataset.open(work / "out").schema == at_once.schema


class Messages(SilentProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.stages: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append(name)


# --- real rows


def test_real_rows(shared_data: Path, tmp_path: Path) -> None:
    """The public sample has clicks joined with events; all that it says nothing of is missing."""
    sample = pd.read_csv(shared_data / "outbrain-10k/sample_train_dat.csv", dtype=str, keep_default_na=False)
    times = pd.to_datetime(sample["timestamp_view"]).astype("datetime64[ms]").astype("int64")
    sample["timestamp"] = (times - reference.EPOCH).astype(str)
    sample["platform"] = sample["platform"].str.removesuffix(".0")
    raw = tmp_path / "raw"
    raw.mkdir()
    for name, columns in reference.COLUMNS.items():
        if name == "clicks_test":
            continue
        is_there = set(columns) <= set(sample)
        frame = sample[list(columns)] if is_there else pd.DataFrame(columns=columns)
        frame.drop_duplicates("display_id" if name == "events" else None).to_csv(raw / f"{name}.csv", index=False)
    preprocessing(recipe("lean"), {None: [str(raw)]}, tmp_path / "out").run(ENGINE)
    dataset = Dataset.open(tmp_path / "out")
    assert sum(split.rows for split in dataset.manifest.splits.values()) == len(sample) == 9_999
    expected = reference.compute(reference.read_tables(raw), "lean")
    check_against_reference(dataset, expected)

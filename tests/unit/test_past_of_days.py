"""The past of rows from day to day: a dataset that extends another tells rows of the events of all days."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from jobs.forget import ForgetRequest
from jobs.forget import run as run_forget
from jobs.verify import VerifyRequest
from jobs.verify import run as run_verify
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.features.histories import EVENTS, HistoryTable
from rayrec.features.lookup_table import LookupTable
from rayrec.features.lookups import KEY, Lookups, lookup_folder
from rayrec.features.raw_columns import STATISTICS_FOLDER, History
from rayrec.inference.examples import write_examples
from rayrec.inference.export import with_recent_past, write_statistics
from rayrec.inference.folder.delta import write_delta, write_whole
from rayrec.inference.folder.model_folder import ModelFolder, copy, new_model_folder
from rayrec.inference.predictor import Predictor
from rayrec.ingest.dataset import Dataset
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from rayrec.preprocessing import histories as histories_module
from rayrec.preprocessing import lookups as lookups_module
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.sources.registry import preprocessing
from rayrec.store.artifact import id_of
from tests.builders import make_recipe
from tests.model_folders import tables_of
from tests.unit.test_deltas import tree
from tests.unit.test_past import SOURCE, make_log

CONFIG = DLRMConfig(embedding_dim=8, bottom_mlp=(16, 8), top_mlp=(16,))


def preprocess(log: pd.DataFrame, folder: Path, parent: Dataset | None = None, **preprocess: Any) -> Dataset:
    """Return the dataset of a log, or of the next day's."""
    source = preprocess.pop("source", SOURCE)
    folder.mkdir(parents=True)
    log.to_csv(folder / "log.csv", index=False)
    settings = {"split": {"kind": "hash", "test": 0.2}, "frequency_limit": 1, **preprocess}
    recipe = make_recipe(source=source, preprocess=settings)
    job = preprocessing(recipe, {None: [str(folder / "log.csv")]}, folder / "dataset", parent)
    job.run(EmbeddedEngine(2))
    return Dataset.open(folder / "dataset")


def days_of(log: pd.DataFrame, folder: Path, days: int = 3, **settings: Any) -> list[Dataset]:
    """Return a dataset for each part of a log, which is in order of time, each extending the one before."""
    datasets: list[Dataset] = []
    for day, rows in enumerate(np.array_split(np.arange(len(log)), days)):
        parent = datasets[-1] if datasets else None
        datasets.append(preprocess(log.iloc[rows], folder / str(day), parent, **settings))
    return datasets


def completed(dataset: Dataset, log: pd.DataFrame) -> pd.DataFrame:
    """Return rows with what the dataset's look-ups tell them."""
    raw = pa.RecordBatch.from_pandas(log.assign(ts=pd.to_datetime(log.ts, unit="s", utc=True)), preserve_index=False)
    raw = raw.cast(pa.schema([f.with_type(pa.timestamp("us", "UTC")) if f.name == "ts" else f for f in raw.schema]))
    return Lookups(dataset.schema, dataset.folder).complete(raw).to_pandas()


def history_of(dataset: Dataset, name: str) -> tuple[History, HistoryTable]:
    (history,) = (lookup for lookup in dataset.schema.lookups if lookup.kind == "history" and lookup.name == name)
    return history, HistoryTable.open(lookup_folder(dataset.folder / STATISTICS_FOLDER, history))


def events_by_key(table: LookupTable) -> dict[str, dict[str, list[Any]]]:
    """Return the elements of each column of lists, by key."""
    found: dict[str, dict[str, list[Any]]] = {}
    for part in table.parts:
        for row in part.batch.to_pylist():
            assert row[KEY] not in found, "a key is in one row"
            found[row.pop(KEY)] = row
    return found


def exact_log(rows: int = 900) -> pd.DataFrame:
    """Return a log whose sums are exact in any order."""
    log = make_log(rows)
    return log.assign(price=np.round(log.price * 4) / 4)


@pytest.mark.parametrize("ranges", ["one", "many"])
def test_days_know_what_one_dataset_of_all_days_knows(
    ranges: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = exact_log()
    whole = preprocess(log, tmp_path / "whole")
    if ranges == "many":  # as many files and batches as large tables have
        monkeypatch.setattr(lookups_module, "ROWS_PER_RANGE", 200)
        monkeypatch.setattr(histories_module, "_EVENTS_PER_BATCH", 20)
    *_, last = days_of(log, tmp_path)
    pd.testing.assert_frame_equal(completed(last, log), completed(whole, log), check_exact=True)
    for lookup in last.schema.lookups:
        assert isinstance(lookup, History) and lookup.until == log.ts.max() * 1_000_000
        assert events_by_key(history_of(last, lookup.name)[1]) == events_by_key(history_of(whole, lookup.name)[1])


def test_earlier_events_keep_their_bits(tmp_path: Path) -> None:
    log = make_log(600)
    for before, now in pairwise(days_of(log, tmp_path)):
        old, new = (events_by_key(history_of(dataset, "user")[1]) for dataset in (before, now))
        assert any(len(new[key][EVENTS]) > len(events[EVENTS]) for key, events in old.items())
        for key, events in old.items():
            for column in (EVENTS, "value:item"):
                assert new[key][column][: len(events[column])] == events[column]
        rows = log[log.ts <= before.manifest.moment]
        pd.testing.assert_frame_equal(completed(now, rows), completed(before, rows), check_exact=True)


def test_a_late_event_counts_from_when_it_arrives(tmp_path: Path) -> None:
    log = make_log(400)
    first, second = log.iloc[:300], log.iloc[300:]
    late = second.assign(ts=first.ts.iloc[len(first) // 2])
    before = preprocess(first, tmp_path / "first")
    now = preprocess(late, tmp_path / "second", before)
    # What the first day's rows were told stays; whoever asks later is told of all.
    pd.testing.assert_frame_equal(completed(now, first), completed(before, first), check_exact=True)
    later = log.iloc[:50].assign(ts=int(first.ts.max()) + 100)
    told = completed(now, later)["user_count"]
    window = log.assign(ts=[*first.ts, *([first.ts.max()] * len(late))])
    since = int(first.ts.max()) + 100 - 30
    of_window = window[(window.ts < since) & (window.ts >= since - 3600)]
    assert told.tolist() == [(of_window.user == user).sum() for user in later.user]
    assert told.sum() > completed(before, later)["user_count"].sum()


def test_keys_expire(tmp_path: Path) -> None:
    log = make_log(300)
    gone = log.assign(user="gone").iloc[:20]
    days = [pd.concat([log, gone]), log.assign(ts=log.ts + 86_400), log.assign(ts=log.ts + 3 * 86_400)]
    before = preprocess(days[0], tmp_path / "0")
    found = []
    for day in (1, 2):
        before = preprocess(days[day], tmp_path / str(day), before, expire_after="2d")
        found.append("gone" in events_by_key(history_of(before, "user")[1]))
    assert found == [True, False]
    assert len(events_by_key(history_of(before, "user")[1])) == log.user.nunique()


def shop_source(path: Path) -> dict[str, Any]:
    history = {"by": "user", "path": str(path), "take": ["count", "age", {"op": "sum", "column": "paid"}]}
    return {**SOURCE, "histories": {"bought": {**history, "time": {"column": "at", "format": "s"}}}, "rates": []}


def write_events(path: Path, log: pd.DataFrame) -> None:
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame({"user": log.user, "at": log.ts, "paid": np.arange(len(log)) % 7}).to_csv(path, index=False)


def test_new_files_of_events_are_added(tmp_path: Path) -> None:
    log, events = exact_log(400), tmp_path / "events"
    days = [log.iloc[:200], log.iloc[200:300], log.iloc[300:]]
    source, dataset, counts = shop_source(events), None, list[float]()
    asked = log.iloc[:30].assign(ts=int(log.ts.max()) + 1)
    for day, rows in enumerate(days):
        if day < 2:  # the last day has no new events
            write_events(events / f"{day}.csv", rows)
        dataset = preprocess(rows, tmp_path / str(day), dataset, source=source)
        counts.append(completed(dataset, asked)["bought_count"].sum())
    users: Sequence[str] = asked.user.tolist()
    of_days = [sum((rows.user == user).sum() for user in users) for rows in days[:2]]
    assert counts == [of_days[0], sum(of_days), sum(of_days)]
    assert dataset is not None and history_of(dataset, "bought")[0].until == days[1].ts.max() * 1_000_000

    write_events(events / "1.csv", days[2])
    with pytest.raises(UserError, match=r"histories\.bought\.path: .*1\.csv has changed since .* write new events to"):
        preprocess(days[2].assign(ts=days[2].ts + 9), tmp_path / "3", dataset, source=source)


def test_a_dataset_without_the_history_is_not_extended(tmp_path: Path) -> None:
    log = make_log(200)
    before = preprocess(log, tmp_path / "0")
    old = before.schema.model_copy(update={"lookups": before.schema.lookups[1:]})
    parent = Dataset(before.folder, old, before.manifest, before.id)
    with pytest.raises(UserError, match=r"history 'user': .* has not its earlier events"):
        preprocess(log.assign(ts=log.ts + 86_400), tmp_path / "1", parent)


def test_a_key_is_forgotten(tmp_path: Path) -> None:
    log = make_log(600)
    days = days_of(log, tmp_path, 2)
    (tmp_path / "m").mkdir()
    for number, dataset in enumerate(days, start=1):
        whole = ModelFolder.open(write_model(dataset, tmp_path / f"whole/{number}"))
        if number == 1:
            copy(whole.folder, tmp_path / "m/1")
        else:
            write_delta(whole, ModelFolder.open(tmp_path / "m/1"), tmp_path / "m/2")
    ids = [id_of(folder) for folder in (days[-1].folder, tmp_path / "m/1", tmp_path / "m/2")]
    moment = days[-1].manifest.moment + 60
    rows = [{"ts": moment, "user": user, "item": item} for user in ("3", "4") for item in ("1", "2")]
    kept, strange = rows[2:], [{**row, "user": "nobody"} for row in rows[:2]]

    def past(model: ModelFolder, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lookups = Predictor(model)._encoder.lookups
        assert lookups is not None
        found = lookups.complete(Predictor(model).columns_of(rows)).to_pylist()
        return [{name: value for name, value in row.items() if name != "user"} for row in found]

    before = past(ModelFolder.open(tmp_path / "m/2"), kept)
    for folder in (days[-1].folder, tmp_path / "m"):
        result = run_forget(ForgetRequest(folder=folder, key="user=3"), SilentProgress())
        assert {one["lookup"] for one in result.details["removed"] if one["events"]} == {"user", "liked"}
        assert any("vocabularies" in text for text in result.details["left"])
    opened = ModelFolder.open(tmp_path / "m/2")
    assert past(opened, rows[:2]) == past(opened, strange)
    assert past(opened, kept) == before
    # Folders are what they were for all that was made of them, and whole.
    for folder, before_id in zip((days[-1].folder, tmp_path / "m/1", tmp_path / "m/2"), ids, strict=True):
        assert id_of(folder) == before_id
        run_verify(VerifyRequest(folder=folder), SilentProgress())
    # The next day goes on without it.
    next_day = preprocess(log.assign(ts=log.ts + 86_400).iloc[:90], tmp_path / "next", Dataset.open(days[-1].folder))
    events = events_by_key(history_of(next_day, "user")[1])
    assert len(events["3"][EVENTS]) == (log.user.iloc[:90] == "3").sum()
    assert len(events["4"][EVENTS]) == (log.user.iloc[:90] == "4").sum() + (log.user == "4").sum()


def test_what_cannot_be_forgotten_is_said(tmp_path: Path) -> None:
    dataset = preprocess(make_log(100), tmp_path / "0")
    with pytest.raises(ConfigError, match="--key price: no table is looked up by it; these are: item, user"):
        run_forget(ForgetRequest(folder=dataset.folder, key="price=3"), SilentProgress())
    with pytest.raises(UserError, match="no dataset or model in it"):
        run_forget(ForgetRequest(folder=tmp_path / "0/dataset/statistics", key="user=3"), SilentProgress())
    with pytest.raises(ConfigError, match="give COLUMN=VALUE"):
        ForgetRequest(folder=dataset.folder, key="user").check()


# ---- models of days


def write_model(dataset: Dataset, folder: Path) -> Path:
    """Write a model folder of random weights, with the look-ups of a dataset as export gives them."""
    network = build_model(CONFIG, with_recent_past(dataset.schema, dataset), seed=dataset.manifest.sequence)

    def fill_table(table: EmbeddingTable, weights: torch.Tensor) -> None:
        weights.copy_(tables_of(network)[table.name])

    with new_model_folder(
        folder,
        schema=network.schema,
        tables=network.tables,
        recipe=dataset.recipe.model_copy(update={"model": CONFIG}),
        metrics={},
        card="# A model of the tests\n",
        vocabularies_in=dataset.folder,
        dense=network.dense_network.state_dict(),
        fill_table=fill_table,
    ) as written:
        write_statistics(network.schema, dataset.folder / STATISTICS_FOLDER, written / STATISTICS_FOLDER)
        write_examples(Predictor(ModelFolder.open_unfinished(written)))
    return folder


def score(predictor: Predictor, rows: list[dict[str, Any]]) -> NDArray[np.float32]:
    return predictor.predict_encoded(predictor.encode(predictor.columns_of(rows)))


@pytest.mark.parametrize(
    ("days", "split"), [(4, {"kind": "hash", "test": 0.2}), (6, {"kind": "time", "test": 0.3})], ids=["all", "recent"]
)
def test_a_base_and_its_deltas_are_the_full_export(days: int, split: dict[str, Any], tmp_path: Path) -> None:
    log = make_log(200 * days).assign(price=lambda rows: rows.price * 1.1)
    log["user"] = np.where(np.arange(len(log)) < 200, "early", log.user)
    log["ts"] += np.arange(len(log)) // 200 * 86_400
    datasets = days_of(log, tmp_path, days, split=split, expire_after="2d")
    growths = []
    for day, dataset in enumerate(datasets, start=1):
        whole = ModelFolder.open(write_model(dataset, tmp_path / f"whole/{day}"))
        if day == 1:
            copy(whole.folder, tmp_path / "m/1")
            continue
        manifest = write_delta(whole, ModelFolder.open(tmp_path / f"m/{day - 1}"), tmp_path / f"m/{day}")
        growths.append(manifest.histories["user"])
        opened = ModelFolder.open(tmp_path / f"m/{day}")
        rows = log.assign(ts=dataset.manifest.moment + np.arange(len(log))).drop(columns="click").to_dict("records")
        expected, found = (score(Predictor(model), rows) for model in (whole, opened))
        np.testing.assert_array_equal(found, expected)
        write_whole(opened, tmp_path / f"again/{day}")
        assert tree(tmp_path / f"again/{day}") == tree(whole.folder)
    assert growths[-1].removed >= 1, "a key has expired"
    assert all(growth.changed or growth.added for growth in growths)

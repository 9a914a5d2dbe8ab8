"""What people are told of histories: what a server reaches whose histories are some time old, where they end too early,
and how rows fare by what is known of their keys.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.command.result import Result
from jobs.evaluate import EvaluateRequest
from jobs.evaluate import run as evaluate
from jobs.export import ExportRequest
from jobs.export import run as export
from jobs.predict import PredictRequest
from jobs.predict import run as predict
from jobs.report import ReportRequest
from jobs.report import run as report
from jobs.train import TrainRequest
from jobs.train import run as train
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.features.lookups import Lookups
from rayrec.inference.past import describe_stale, history_facts, known_until
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import dump_recipe
from tests.builders import make_recipe
from tests.training_runs import BASE
from tests.unit.test_past import SOURCE, completed, make_log

MINUTE = 60
SPLIT = {"kind": "time", "test": 0.3}


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Return rows of whose users the last ones are new."""
    log = make_log(900)
    log.loc[log.index[-60:], "user"] = [f"new {number % 6}" for number in range(60)]
    return log


@pytest.fixture(scope="module")
def dataset(log: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("stale") / "log"
    completed(log, folder, split=SPLIT)
    return Dataset.open(folder / "dataset")


@pytest.mark.parametrize("minutes", [7, 200])
def test_a_stale_history_lacks_the_newest_events_and_looks_back_no_further(
    log: pd.DataFrame, dataset: Dataset, minutes: int
) -> None:
    stale = minutes * MINUTE
    lookups = [one.model_copy(update={"staleness": stale * 1_000_000}) for one in dataset.schema.lookups]
    schema = dataset.schema.model_copy(update={"lookups": tuple(lookups)})
    times = pd.to_datetime(log["ts"], unit="s", utc=True)
    raw = pa.RecordBatch.from_pydict({"user": log["user"], "item": log["item"], "ts": pa.array(times)})
    found = Lookups(schema, dataset.folder).complete(raw).to_pandas()
    for row, given in zip(found[::8].itertuples(), log[::8].itertuples(), strict=True):
        # Of `user`: a delay of 30 s and a window of 1 h before what a server that is up to date knows.
        seen = log[(log.user == given.user) & (log.ts + 30 < given.ts - stale) & (log.ts >= given.ts - 30 - 3_600)]
        assert row.user_count == len(seen)
        assert row.user_sum_price == pytest.approx(seen.price.sum())
        # Of `daily`: the last full hour.
        known = min(given.ts // 3_600 * 3_600, given.ts - stale)
        assert row.daily_count == len(log[(log.item == given.item) & (log.ts < known)])


def test_histories_that_end_too_early_are_named(dataset: Dataset) -> None:
    until = known_until(dataset.schema)
    assert until is not None and until == dataset.manifest.times.last
    assert describe_stale(dataset.schema, until + 3_000) is None
    an_hour_later = describe_stale(dataset.schema, until + 3_601)
    assert an_hour_later is not None and an_hour_later.startswith("histories 'liked' and 'rate_item' end at 2023-11-1")
    assert an_hour_later.endswith(
        " UTC, 1h ago, but rows of train knew all that had happened; make the model of newer rows, or say in `known` "
        "how old it may be (docs/histories.md)"
    )
    # `daily` is known an hour at a time: one that lacks the last full hour is too old, whenever in this hour.
    full = until // 3_600 * 3_600 + 3_600
    daily = [history for history in dataset.schema.lookups if history.name == "daily"]
    schema = dataset.schema.model_copy(update={"lookups": tuple(daily)})
    assert describe_stale(schema, full + 3_599) is None
    text = describe_stale(schema, full + 3_600)
    assert (
        text is not None and text.startswith("history 'daily' ends at") and "knew all but the last 1h at most" in text
    )


@pytest.fixture(scope="module")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stale") / "run"
    recipe = make_recipe(source=SOURCE, preprocess={"split": SPLIT, "frequency_limit": 1}, **_MODEL)
    path = folder.with_suffix(".yaml")
    path.write_text(dump_recipe(recipe))
    train(TrainRequest(recipe=str(path), data=dataset.folder, output=folder, on="process"), SilentProgress())
    return folder


_MODEL: dict[str, Any] = {"model": BASE["model"], "train": {**BASE["train"], "epochs": 1}}


def _evaluate(run: Path, dataset: Dataset, **options: Any) -> dict[str, float | None]:
    request = EvaluateRequest(source=run, data=dataset.folder, on="process", **options)
    request.check()
    return evaluate(request, SilentProgress()).metrics["test"]


def test_metrics_at_no_staleness_are_those_of_the_dataset(run: Path, dataset: Dataset) -> None:
    assert _evaluate(run, dataset, staleness="0d") == _evaluate(run, dataset)
    stale, older = (_evaluate(run, dataset, staleness=staleness) for staleness in ("1h", "400d"))
    assert stale["rows"] == older["rows"] == dataset.split("test").rows
    assert len({metrics["log_loss"] for metrics in (stale, older, _evaluate(run, dataset))}) == 3


@pytest.fixture(scope="module")
def exported(run: Path) -> Result:
    return export(ExportRequest(run=run, output=run.parent / "model"), SilentProgress())


def test_an_export_warns_of_histories_that_ended_long_ago(exported: Result) -> None:
    (warning,) = exported.details["warnings"]
    assert warning.startswith("histories 'user', 'liked', 'daily' and 'rate_item' end at 2023-11-1")
    assert warning.endswith(" UTC; give rows times of then, or make the model of newer rows")


def test_rows_that_bring_wrong_events_are_set_aside(exported: Result, log: pd.DataFrame, tmp_path: Path) -> None:
    moment = int(log.ts.max())
    brought: list[list[dict[str, Any]] | None] = [
        None,
        [],
        [{"ts": moment, "click": 1}],
        [{"ts": moment, "click": 1}, {"ts": moment}],
        [{"ts": int(log.ts.min()), "click": 1}],
    ]
    row = {"user": "3", "item": "4", "price": 1.0, "ts": moment + 60}
    rows = [{**row, "user_events": events} for events in brought]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = PredictRequest(
        model=Path(exported.output),
        input=str(tmp_path / "rows.jsonl"),
        raw=True,
        output=tmp_path / "scores",
        on="process",
        max_rejected_fraction=0.5,
    )
    predict(request, SilentProgress())
    assert pq.read_table(tmp_path / "scores" / "scores")["line"].to_pylist() == [1, 2, 3]
    rejected = pq.read_table(tmp_path / "scores" / "rejected").select(["line", "reason"]).to_pylist()
    reason = "brings an event without a label, or one that the model knows"
    assert rejected == [{"line": line, "reason": reason} for line in (4, 5)]


def test_reports_divide_rows_by_what_is_known_of_their_keys(
    log: pd.DataFrame, run: Path, dataset: Dataset, tmp_path: Path
) -> None:
    report(ReportRequest(source=run, output=tmp_path / "report"), SilentProgress())
    figures = json.loads((tmp_path / "report" / "report.json").read_text())["held_out"]
    assert figures["of_keys"] == ["user in train", "item in train", "user_count", "liked_count", "daily_count"]
    rows = {(one["by"], one["value"]): one["rows"] for one in figures["slices"]}
    times = pd.to_datetime(log["ts"], unit="s", utc=True)
    raw = pa.RecordBatch.from_pydict({"user": log["user"], "item": log["item"], "ts": pa.array(times)})
    held_out = pd.concat([log, Lookups(dataset.schema, dataset.folder).complete(raw).to_pandas().user_count], axis=1)
    held_out = held_out[-dataset.split("test").rows :]
    is_new, is_past = held_out.user.str.startswith("new"), held_out.user_count > 0
    assert rows["user in train", "missing or not listed, no event before"] == (is_new & ~is_past).sum() > 0
    assert rows["user in train", "missing or not listed, with events before"] == (is_new & is_past).sum() > 0
    assert rows["user_count", "no event"] == (~is_past).sum()
    assert rows["user_count", "1 to 9 events"] == held_out.user_count.between(1, 9).sum()
    assert "By what is known of keys" in (tmp_path / "report" / "report.html").read_text()


def test_people_are_told_which_histories_there_are(exported: Result, dataset: Dataset, tmp_path: Path) -> None:
    facts = {fact["history"]: fact for fact in history_facts(dataset.schema)}
    assert facts["user"] | {"up to": ""} == {
        "history": "user",
        "by": "user",
        "gives": "user_count, user_age, user_rate, user_mean_price, user_sum_price, user_last_item",
        "window": "1h",
        "delay": "30s",
        "known": "at once",
        "up to": "",
    }
    assert facts["daily"]["known"] == "every 1h" and facts["liked"]["by"] == "user, item"
    card = (Path(exported.output) / "MODEL_CARD.md").read_text()
    assert "| daily     | item       | daily_count " in card
    report(ReportRequest(source=dataset.folder, output=tmp_path / "report"), SilentProgress())
    assert json.loads((tmp_path / "report" / "report.json").read_text())["histories"] == [*facts.values()]


def test_rows_without_a_past_are_counted_where_none_is_held_out(log: pd.DataFrame, tmp_path: Path) -> None:
    """As where `rayrec run` trains the exported model on all rows."""
    completed(log, tmp_path / "all", split={"kind": "fraction", "test": 0.0})
    manifest = Dataset.open(tmp_path / "all" / "dataset").manifest
    assert 0 < manifest.found_keys["liked"].share < 0.9 and not manifest.warnings
    strangers = log.assign(user=[f"{number}" for number in range(len(log))])
    completed(strangers, tmp_path / "strangers", split={"kind": "fraction", "test": 0.0})
    warnings = Dataset.open(tmp_path / "strangers" / "dataset").manifest.warnings
    assert [warning.partition(":")[0] for warning in warnings] == ["history 'user'", "history 'liked'"]


def test_the_raw_files_must_be_those_of_the_dataset(
    log: pd.DataFrame, run: Path, dataset: Dataset, tmp_path: Path
) -> None:
    path = Path(dataset.manifest.sources[0].path)
    before = path.read_bytes()
    try:
        path.write_bytes(before + before[-30:])
        with pytest.raises(UserError, match=r"log.csv: is not what .*dataset was made of"):
            _evaluate(run, dataset, staleness="1d")
    finally:
        path.write_bytes(before)
    without = {name: value for name, value in SOURCE.items() if name not in {"histories", "rates"}}
    completed(log, tmp_path / "plain", source=without, split=SPLIT)
    with pytest.raises(ConfigError, match="has no histories"):
        _evaluate(run, Dataset.open(tmp_path / "plain" / "dataset"), staleness="1d")
    assert np.isfinite(_evaluate(run, dataset)["log_loss"] or np.nan)

"""Days of a log whose recipe has histories: what happened on one day is known on the next, up to the server."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from pyarrow import fs

import rayrec
from benchmarks.preprocess_kills import files_of
from jobs.run import RunRequest, run
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.inference.folder.table_files import is_delta
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import Dataset
from tests.environments import environment_without_cluster
from tests.faulty_store import faulty_store
from tests.holding import Hold, run_module

DAY, FIRST, ROWS = 86_400, 1_700_006_400, 1_500
RECIPE = """\
name: clicks
source:
  kind: table
  label: click
  time: {column: ts, format: s}
  features:
  - {columns: [user, item], kind: categorical, min_count: 5}
  histories:
    user: {by: user, take: [count, age, rate, {op: last, column: item, length: 5}]}
    clicked: {by: user, where: {column: click, equals: "1"}, take: [count, age]}
  rates: [{keys: item}]
model: {kind: dlrm, embedding_dim: 8, bottom_mlp: [16, 8], top_mlp: [16], sequences: {user: {kind: din}}}
preprocess: {split: {kind: SPLIT, test: 0.2}}
train:
  global_batch_size: 128
  epochs: 5
  workers: 1
  device: cpu
  embedding_optimizer: {kind: rowwise_adagrad, lr: 0.05}
  dense_optimizer: {kind: adam, lr: 0.005}
  tracking: {tensorboard: false}
serve: {poll_seconds: 0.2}
"""


def log_of_day(day: int) -> list[str]:
    """Return the lines of a day: users who click or never do, and two who have been there twice, and clicked once."""
    rng = np.random.default_rng(day)
    seconds = FIRST + DAY * day + np.sort(rng.integers(0, DAY, ROWS))
    users, items = rng.integers(0, 40, ROWS), rng.integers(0, 15, ROWS)
    clicks = (rng.random(ROWS) < np.where(users % 2, 0.7, 0.1)).astype(int)
    rows = [*zip(seconds, users, items, clicks, strict=True)]
    rows += [(FIRST + DAY * day + 600, user, 3, int(day == 1 and user == "alice")) for user in ("alice", "bob")]
    return ["ts,user,item,click", *(",".join(map(str, row)) for row in rows)]


def take_in(output: Path, day: int, split: str = "hash", **others: Any) -> dict[str, Any]:
    """Take in a day by `rayrec run --continue`."""
    recipe, log = output.parent / "clicks.yaml", output.parent / f"day_{day}.csv"
    recipe.write_text(RECIPE.replace("SPLIT", split))
    log.write_text("\n".join(log_of_day(day)) + "\n")
    request = RunRequest(recipe=str(recipe), input=(str(log),), continue_=output, **others)
    return run(request, SilentProgress()).details


def score_both(address: str, version: str) -> list[float]:
    """Return the scores of two people at a moment of the third day, when a version answers."""
    rows = [{"user": user, "item": "3", "ts": FIRST + 2 * DAY + 60} for user in ("alice", "bob")]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = requests.post(f"{address}/v1/models/ctr:predict", json={"instances": rows}, timeout=60).json()
        if answer["version"] == version:
            return answer["predictions"]
        time.sleep(0.2)
    raise AssertionError(f"version {version} does not answer")


def test_a_click_of_a_day_moves_the_scores_of_the_next(ray_cluster: str, tmp_path: Path) -> None:
    output, port = tmp_path / "out", free_port()
    take_in(output, 0)
    request = ServeRequest(model=(f"ctr={output / 'models'}",), port=port)
    with serving(request, SilentProgress()):
        address = f"http://127.0.0.1:{port}"
        alice, bob = score_both(address, "1")
        assert alice == pytest.approx(bob, abs=1e-6), "they have the same past, and no ids of their own"
        take_in(output, 1)
        assert is_delta(output / "models/2")
        scores = score_both(address, "2")
    assert abs(scores[0] - scores[1]) > 1e-3, "she has clicked on the day before, and he has not"
    rows = [{"user": user, "item": "3", "ts": FIRST + 2 * DAY + 60} for user in ("alice", "bob")]
    np.testing.assert_array_equal(np.array(scores, np.float32), load_model(output / "models/2").predict(rows))


@pytest.fixture(scope="module")
def refitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of a recipe that holds out the latest rows, and then trains on all."""
    output = tmp_path_factory.mktemp("refitted") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        for day in range(3):
            take_in(output, day, "time", refit=True)
    return output


def test_days_are_judged_and_refitted_with_their_past(refitted: Path) -> None:
    gate = json.loads((refitted / "days/0002/gate.json").read_text())
    assert gate["faults"] == [], "what is known of the past grows from day to day, and is no drift"
    for place in (refitted / "days/0002/dataset", refitted / "days/0002/refit/dataset"):
        dataset = Dataset.open(place)
        assert {history.until for history in dataset.schema.histories} == {dataset.manifest.moment * 1_000_000}
        assert all(keys.share > 0.9 for name, keys in dataset.manifest.found_keys.items() if name == "user")
    rows = [{"user": str(user), "item": "3", "ts": FIRST + 3 * DAY + 60} for user in range(20)]
    scores = load_model(refitted / "models/3").predict(rows)
    assert scores[1::2].mean() > scores[::2].mean()


# ---- an extension, however it is made


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, the logs of two days, and the datasets of the days as threads make them undisturbed."""
    folder = tmp_path_factory.mktemp("extended")
    (folder / "clicks.yaml").write_text(RECIPE.replace("SPLIT", "hash"))
    for day in range(2):
        (folder / f"{day}.csv").write_text("\n".join(log_of_day(day)) + "\n")
        preprocess(folder, day, folder / str(day), folder / str(day - 1) if day else None)
    return folder


def words(folder: Path, day: int, output: object, parent: object = None) -> list[str]:
    """Return the arguments that preprocess a day."""
    given = ["clicks.yaml", "--input", f"{day}.csv", "--on", "process", "--output", str(output)]
    given += [] if parent is None else ["--extend", str(parent)]
    return [str(folder / word) if word.endswith((".yaml", ".csv")) else word for word in given]


def preprocess(folder: Path, day: int, output: Path, parent: Path | None = None) -> None:
    log = folder / f"{day}.csv"
    rayrec.preprocess(folder / "clicks.yaml", input=log, output=output, extend=parent, on="process", progress=False)


def statistics_of(dataset: Path) -> dict[str, str]:
    found = {path: sha for path, sha in files_of(dataset).items() if path.startswith(STATISTICS_FOLDER)}
    assert any(path.endswith(".means") for path in found) and any(path.endswith(".arrow") for path in found)
    return found


def test_an_extension_that_is_killed_goes_on(two_days: Path, tmp_path: Path) -> None:
    hold = Hold(tmp_path / "hold", r"\.scratch/\.history-clicked\.json\.")
    arguments = words(two_days, 1, tmp_path / "1", two_days / "0")
    with hold.held("jobs.preprocess", *arguments, environment=environment_without_cluster()):
        pass  # killed when the tables of a history are written, and not marked
    (left,) = tmp_path.glob(".1.unfinished-*/.scratch")
    assert (left / "history-user.json").exists() and not (left / "history-clicked.json").exists()
    preprocess(two_days, 1, tmp_path / "1", two_days / "0")
    assert files_of(tmp_path / "1") == files_of(two_days / "1")


def test_an_extension_at_a_uri_has_the_same_histories(two_days: Path, tmp_path: Path) -> None:
    with faulty_store() as store, store.endpoint() as endpoint:
        own = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_ENDPOINT_URL": endpoint.url}
        environment = {**environment_without_cluster(), **own, "RAYREC_CACHE": str(tmp_path / "cache")}
        for day in range(2):
            parent = f"s3://bucket/days/{day - 1}" if day else None
            arguments = words(two_days, day, f"s3://bucket/days/{day}", parent)
            run_module("jobs.preprocess", *arguments, environment=environment)
        fs.copy_files("days/1", str(tmp_path / "copied"), store.filesystem, fs.LocalFileSystem())
    assert statistics_of(tmp_path / "copied") == statistics_of(two_days / "1")

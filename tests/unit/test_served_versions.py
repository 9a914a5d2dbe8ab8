"""Versions of models: what is found in folders, what is loaded, when it answers, and what happens when it may not."""

import asyncio
import errno
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from rayrec.common.errors import UserError
from rayrec.config import ServeConfig
from rayrec.inference.examples import EXAMPLES_FILE, Examples
from rayrec.inference.folder.delta import write_delta
from rayrec.inference.folder.model_folder import ModelFolder, copy
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.predictor import load_model
from serve.admission import Admission, Call
from serve.folders import TrafficSplit, scan
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.models import RequestRows, ServedModel, ServedModels, ServedVersion, agreed, news
from serve.requests import RequestError
from serve.tokens import read_tokens
from serve.updates import Updates
from tests.model_days import ModelDays
from tests.model_folders import finish, make_model_folder, make_raw_rows

SEEDS = (1, 2, 3)
METRICS, MEMORY = ServingMetrics(), TableMemory(2**30)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folders 1, 2 and 3 of other weights."""
    base = tmp_path_factory.mktemp("made")
    for seed in SEEDS:
        make_model_folder(base / str(seed), seed=seed)
    return base


class Server:
    """The part of a replica that keeps models up to date, without Ray."""

    def __init__(self, folders: dict[str, Path], log_folder: Path, executor: ThreadPoolExecutor) -> None:
        self.models = ServedModels()
        self.loads: list[tuple[str, str]] = []
        self._executor = executor
        self.updates = Updates(folders, self._load, self.models, JsonLog("shadow", log_folder, "test"), METRICS)
        self.updates.load_all()

    def _load(self, name: str, version: str, folder: Path) -> ServedVersion:
        self.loads.append((name, version))
        return ServedVersion(name, version, folder, self._executor, ServeConfig(max_batch_size=4), METRICS, MEMORY)

    def poll(self, times: int = 2) -> None:
        """Twice by default: a folder is loaded when it looked the same in two polls."""
        for _ in range(times):
            self.updates.poll()

    def versions(self, name: str = "m") -> set[str]:
        return set(self.models.current[name].versions)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A model with version 1."""
    shutil.copytree(made / "1", tmp_path / "m" / "1")
    return tmp_path / "m"


def damage(folder: Path) -> None:
    """Weights other than those that were exported, as a bad copy or a wrong library would have them."""
    (table,) = (folder / "weights" / "tables").glob("C2.*")
    content = bytearray(table.read_bytes())
    content[-1000:] = bytes(1000)  # nearly all of its rows
    table.write_bytes(content)


def traffic(model: Path, content: str) -> None:
    (model / "serving.json").write_text(content)


def test_scan(made: Path, tmp_path: Path) -> None:
    for target in ("many/a", "many/b/1", "many/b/10", "many/b/9", "many/b/latest"):
        shutil.copytree(made / "1", tmp_path / target)
    (tmp_path / "many/empty").mkdir()
    os.rename(tmp_path / "many/b", os.fsencode(tmp_path) + b"/many/b\xff")
    found = scan({"x": tmp_path / "many/a", "y": tmp_path / "many/b\udcff", "ignored": tmp_path / "many"})
    assert {name: list(source.versions) for name, source in found.items()} == {
        "x": ["1"],
        "y": ["10", "9", "1"],
        "a": ["1"],
        "b\ufffd": ["10", "9", "1"],
    }
    with pytest.raises(UserError, match="'a' is used twice"):
        scan({"a": tmp_path / "many/a", "ignored": tmp_path / "many"})
    for nothing in ("many/empty", "nowhere"):
        with pytest.raises(UserError, match=f"{nothing}: neither a model folder nor"):
            scan({"x": tmp_path / nothing})


WRONG_TRAFFIC = {
    "not JSON": ("{", "not whole JSON"),
    "nobody answers": ('{"weights": {"1": 0}}', "so none would answer"),
    "below zero": ('{"weights": {"1": -1}}', "weights"),
    "unknown key": ('{"weights": {"1": 1}, "shadows": "2"}', "shadow"),
}


@pytest.mark.parametrize("case", WRONG_TRAFFIC)
def test_wrong_traffic_is_told_and_changes_nothing(
    model: Path, tmp_path: Path, executor: ThreadPoolExecutor, case: str
) -> None:
    content, message = WRONG_TRAFFIC[case]
    server = Server({"m": model}, tmp_path, executor)
    traffic(model, content)
    with pytest.raises(UserError, match=message):
        TrafficSplit.load(model)
    server.poll()
    assert server.versions() == {"1"}
    assert message in server.models.current["m"].states()["serving.json"]["reason"]
    assert str(tmp_path) not in json.dumps(server.models.current["m"].states())
    (model / "serving.json").unlink()
    server.poll()
    assert server.models.current["m"].states() == {"1": {"state": "ready", "traffic": 1.0}}


def test_a_new_version_answers_when_it_is_whole(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    server = Server({"m": model}, tmp_path, executor)
    shutil.copytree(made / "2", model / "2", ignore=shutil.ignore_patterns("dense*"))
    server.poll(1)
    assert server.loads == [("m", "1")], "a folder that has just changed is not read yet"
    server.poll(1)
    assert server.versions() == {"1"}
    assert "dense.safetensors: missing" in server.models.current["m"].states()["2"]["reason"]
    server.poll(3)
    assert server.loads == [("m", "1"), ("m", "2")], "what failed is tried again only when its files change"
    shutil.copy(made / "2/weights/dense.safetensors", model / "2/weights/dense.safetensors")
    server.poll()
    assert server.versions() == {"2"}
    expected = load_model(made / "2").predict([{}])
    assert server.models.model("m").version().predictor.predict([{}]) == pytest.approx(expected, abs=1e-6)
    shutil.rmtree(model / "2")
    server.poll()
    assert server.versions() == {"1"}, "removing the newest version goes back to the one before"


def test_a_version_that_fails_its_check_never_answers(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    server = Server({"m": model}, tmp_path, executor)
    before = server.models.current["m"].versions["1"]
    shutil.copytree(made / "2", model / "2")
    damage(model / "2")
    server.poll()
    assert server.models.current["m"].versions == {"1": before}
    described = server.models.current["m"].states()
    assert described["1"] == {"state": "ready", "traffic": 1.0}
    assert described["2"]["state"] == "failed"
    assert "self-check failed" in described["2"]["reason"]
    with pytest.raises(RequestError, match="no version '2' of model 'm', it failed to load; there are: 1"):
        server.models.model("m").version("2")


def test_a_server_does_not_start_with_nothing_that_answers(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    damage(model / "1")
    with pytest.raises(UserError, match=r"model 'm', 1: examples\.json: the self-check failed"):
        Server({"m": model}, tmp_path, executor)
    shutil.copytree(made / "2", model / "2")
    server = Server({"m": model}, tmp_path, executor)
    assert server.versions() == {"2"}


def test_traffic_is_split_by_weight(model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    shutil.copytree(made / "2", model / "2")
    shutil.copytree(made / "3", model / "3")
    traffic(model, '{"weights": {"1": 90, "2": 10}}')
    server = Server({"m": model}, tmp_path, executor)
    assert server.versions() == {"1", "2"}
    chosen = [server.models.model("m").version().version for _ in range(4_000)]
    assert chosen.count("1") + chosen.count("2") == 4_000
    # 8 standard deviations of a binomial.
    assert 0.1 - 0.04 < chosen.count("2") / 4_000 < 0.1 + 0.04
    assert server.models.model("m").version("2").version == "2"
    kept = server.models.current["m"].versions["2"]
    traffic(model, '{"weights": {"2": 1, "3": 0}}')
    server.poll()
    assert server.models.current["m"].versions["2"] is kept, "a version that stays is not loaded again"
    assert server.versions() == {"2", "3"}, "a version of weight 0 is loaded: it answers who names it"
    assert {server.models.model("m").version().version for _ in range(100)} == {"2"}
    traffic(model, '{"weights": {"3": 1, "4": 1}}')
    server.poll()
    assert server.versions() == {"2", "3"}
    assert "no such model folder" in server.models.current["m"].states()["4"]["reason"]


def test_a_shadow_is_compared_and_never_answers(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    shutil.copytree(made / "2", model / "2")
    traffic(model, '{"weights": {"1": 1}, "shadow": "2"}')
    server = Server({"m": model}, tmp_path / "logs", executor)
    served = server.models.model("m")
    assert {served.version().version for _ in range(50)} == {"1"}
    one, two = (load_model(made / version) for version in ("1", "2"))
    rows = make_raw_rows(one.schema, 20)
    columns = one.raw_rows.stacked(rows)

    async def ask() -> np.ndarray:
        scores = await served.score(served.version(), RequestRows(columns))
        while served.states()["2"]["shadow"]["requests"] == 0:
            await asyncio.sleep(0.01)
        return scores

    scores = asyncio.run(asyncio.wait_for(ask(), 20))
    np.testing.assert_allclose(scores, one.predict(rows), rtol=0, atol=1e-6)
    difference = np.abs(one.predict(rows) - two.predict(rows))
    summary = served.states()["2"]["shadow"]
    assert summary["mean_difference"] == pytest.approx(difference.mean(), abs=1e-6)
    assert summary["max_difference"] == pytest.approx(difference.max(), abs=1e-6)
    (line,) = (tmp_path / "logs/shadow-test.jsonl").read_text().splitlines()
    logged = json.loads(line)
    assert (logged["answered_by"], logged["shadow"], logged["rows"]) == ("1", "2", 20)
    assert logged["max_difference"] == pytest.approx(difference.max(), abs=1e-6)


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of a model, and 2, 3 and 4 as deltas."""
    folder = tmp_path_factory.mktemp("deltas")
    days = ModelDays(folder / "whole")
    copy(days.write("1"), folder / "m/1")
    for day in (2, 3, 4):
        days.pass_day()
        days.write(str(day))
        write_delta(days.open(str(day)), ModelFolder.open(folder / f"m/{day - 1}"), folder / f"m/{day}")
    return folder / "m"


def test_a_delta_answers_at_the_first_look(deltas: Path, tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    copy(deltas / "1", tmp_path / "m/1")
    server = Server({"m": tmp_path / "m"}, tmp_path, executor)
    for version in ("2", "3"):
        copy(deltas / version, tmp_path / f"m/{version}")
        server.poll(1)
        assert server.versions() == {version}
        expected = load_model(deltas / version).predict([{}])
        np.testing.assert_array_equal(server.models.model("m").version().predictor.predict([{}]), expected)
    shutil.rmtree(tmp_path / "m/3")
    server.poll()
    assert server.versions() == {"2"}


def test_a_delta_that_is_refused_leaves_the_version_before(
    deltas: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    copy(made / "1", tmp_path / "m/2")
    server = Server({"m": tmp_path / "m"}, tmp_path, executor)
    before = server.models.current["m"].versions["2"]
    copy(deltas / "4", tmp_path / "m/4")
    server.poll(3)
    assert server.models.current["m"].versions == {"2": before}
    described = server.models.current["m"].states()
    assert described["4"] == {
        "state": "failed",
        "reason": "4: needs version 1, a whole model, which is missing; copy it beside this one, or export in full",
    }
    assert server.loads == [("m", "2"), ("m", "4")], "it is tried again only when files change"
    copy(deltas / "1", tmp_path / "m/1")
    server.poll(1)
    assert server.versions() == {"4"}, "what a delta lacked was its base"
    copy(deltas / "3", tmp_path / "m/.coming")
    rows = tmp_path / "m/.coming/weights/rows.safetensors"
    content = rows.read_bytes()
    rows.write_bytes(content[:-1])
    os.rename(tmp_path / "m/.coming", tmp_path / "m/5")
    server.poll()
    assert server.versions() == {"4"}
    assert server.models.current["m"].states()["5"]["reason"].startswith("weights/rows.safetensors: has ")
    (tmp_path / "m/5/weights/rows.safetensors").write_bytes(content)
    server.poll(1)
    assert server.versions() == {"5"}
    assert "reason" not in server.models.current["m"].states()["5"]


def test_a_version_goes_on_without_those_that_it_was_made_of(
    deltas: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    shutil.copytree(deltas, tmp_path / "m")
    server = Server({"m": tmp_path / "m"}, tmp_path, executor)
    rows = [{"C1": "C1-day2-0", "M1": ["M1-day1-1"]}, {"C2": "C2-3"}]
    expected = load_model(deltas / "4").predict(rows)
    for version in ("1", "2", "3"):
        shutil.rmtree(tmp_path / "m" / version)
    server.poll(3)
    np.testing.assert_array_equal(server.models.model("m").version().predictor.predict(rows), expected)
    assert "needs version 1" in server.models.current["m"].states()["4"]["reason"]


class Told:
    """A gauge that remembers what it was set to."""

    def __init__(self) -> None:
        self.values: dict[str, float | None] = {}

    def set(self, value: float | None, tags: dict[str, str]) -> None:
        assert tags["model"] == "m"
        self.values[tags["version"]] = value


def test_every_look_reports_what_is_loaded(
    deltas: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(deltas, tmp_path / "m")
    copy(made / "1", tmp_path / "m/5")
    server = Server({"m": tmp_path / "m"}, tmp_path, executor)
    for content, loaded in (('{"weights": {"1": 1, "4": 1}}', {"1": 0, "4": 1}), ('{"weights": {"5": 1}}', {"5": 0})):
        traffic(tmp_path / "m", content)
        server.poll()
        for gauge in ("deltas", "data_time"):
            monkeypatch.setattr(METRICS, gauge, Told())
        server.poll(1)
        assert METRICS.deltas.values == loaded
        # Version 4 is that of the third day after the first; version 5 was made without an origin.
        times = {"1": 0.0, "4": 3000.0, "5": None}
        assert METRICS.data_time.values == {version: times[version] for version in loaded}


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines of the replica's log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ray.serve.rayrec")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_an_error_of_one_model_stays_its_own(
    made: Path, tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(made / "1", tmp_path / f"all/{name}/1")
    server = Server({"all": tmp_path / "all"}, tmp_path, executor)
    reported: list[str] = []
    broken = {"a": ValueError("no tag"), "c": KeyError("x")}
    for name, model in server.models.current.items():

        def report(name: str = name) -> None:
            reported.append(name)
            if name in broken:
                raise broken[name]

        monkeypatch.setattr(model.versions["1"].statistics, "report_facts", report)
    logged.clear()
    server.poll(3)
    assert reported == ["a", "b", "c"] * 3
    assert logged == [f"metrics of model '{name}' are not reported: {error}" for name, error in broken.items()]
    monkeypatch.setattr(server.updates, "_model", Mock(side_effect=[broken["c"], server.models.current["b"]] * 2))
    shutil.rmtree(tmp_path / "all/c")
    server.poll(2)
    assert set(server.models.current) == {"a", "b"}
    assert logged[2:] == ["model 'a' stays as it is: 'x'", "model 'c': removed"]


def test_names_in_every_script_have_metrics(made: Path, tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    """Ray's metrics themselves refuse what is not ASCII."""
    name = "Größe % 点击"
    shutil.copytree(made / "1", tmp_path / name / "1")
    server = Server({name: tmp_path / name}, tmp_path, executor)
    (version,) = server.models.current[name].versions.values()
    version.statistics._reference = Mock(unknown_share={"größe": 0.5})
    version.statistics.report_facts()
    asyncio.run(version.score(RequestRows(version.predictor.raw_rows.stacked([{}]))))
    version.statistics._ids["größe"], version.statistics._unknown["größe"] = (1, 2), 1
    version.statistics._report()
    call = Call("1", "", "POST", "/", None, 0, needs_token=False, model=name, version="1", method="predict")
    Admission(ServeConfig(), read_tokens(None, {}), METRICS).record(call)
    damage(tmp_path / name / "1")
    with pytest.raises(UserError, match="self-check failed"):
        Server({name: tmp_path / name}, tmp_path, executor)


def test_what_changes_is_told_and_counted(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch,
    logged: list[str],
) -> None:  # fmt: skip
    counters = {name: Mock() for name in ("switches", "failed_loads", "traffic")}
    for name, counter in counters.items():
        monkeypatch.setattr(METRICS, name, counter)
    server = Server({"m": model}, tmp_path, executor)
    for version in ("2", "3"):
        shutil.copytree(made / version, model / version)
    damage(model / "3")
    server.poll(4)
    traffic(model, '{"weights": {"1": 3, "2": 1}}')
    server.poll()
    traffic(model, "{")
    server.poll()
    told = [line.partition("/C2")[0].partition("json: ")[0] for line in logged]
    assert told == [
        "model 'm': version 1 answers",
        "model 'm': version 2 answers (was 1)",
        "model 'm': version 3 cannot be loaded: examples.",
        "model 'm': version 1 (75%), 2 (25%) answer (was 2)",
        "model 'm': serving.",
    ]
    assert logged[-1].endswith("; version 1 (75%), 2 (25%) keeps serving")
    assert [call.args for call in counters["switches"].inc.call_args_list] == [(1, {"model": "m"})] * 2
    assert [call.args for call in counters["failed_loads"].inc.call_args_list] == [(1, {"model": "m", "version": "3"})]
    shares = {call.args[1]["version"]: call.args[0] for call in counters["traffic"].set.call_args_list}
    assert shares == {"1": 0.75, "2": 0.25}


def test_unloaded_models_do_not_answer_until_they_are_loaded(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    shutil.copytree(made / "2", model / "2")
    one, other = (Server({"m": model}, tmp_path, executor) for _ in range(2))
    one.updates.unload("m")
    other.poll(1)
    later = Server({"m": model}, tmp_path, executor)
    for server in (one, other, later):
        assert server.models.current == {}
        with pytest.raises(RequestError, match="model 'm': unloaded; POST /v2/repository/models/m/load") as told:
            server.models.model("m")
        assert told.value.status == 404
        assert {(entry["version"], entry["state"]) for entry in server.updates.index()} == {
            ("1", "UNAVAILABLE"),
            ("2", "UNAVAILABLE"),
        }
    one.updates.load("m")
    other.poll(1)
    assert one.versions() == other.versions() == {"2"}
    assert not (model / "serving.json").exists()
    one.updates.load("m", "1")
    later.poll()
    assert one.versions() == later.versions() == {"1"}
    assert one.updates.index() == [
        {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": ""},
        {"name": "m", "version": "1", "state": "READY", "reason": ""},
    ]


def test_unloading_keeps_how_traffic_was_split(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    shutil.copytree(made / "2", model / "2")
    traffic(model, '{"weights": {"1": 9}, "shadow": "2"}')
    server = Server({"m": model}, tmp_path, executor)
    server.updates.unload("m")
    server.updates.load("m")
    assert TrafficSplit.load(model) == TrafficSplit(weights={"1": 9}, shadow="2")
    assert server.versions() == {"1", "2"}


def test_a_version_that_does_not_load_changes_nothing(
    model: Path, made: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    server = Server({"m": model}, tmp_path, executor)
    shutil.copytree(made / "2", model / "2")
    damage(model / "2")
    with pytest.raises(
        RequestError, match=r"model 'm', 2: examples.json: the self-check failed.*; nothing was changed"
    ):
        server.updates.load("m", "2")
    for name, version, message in (("m", "7", "no version '7' of model 'm'; there are: 2, 1"), ("n", None, "no model")):
        with pytest.raises(RequestError, match=message):
            server.updates.load(name, version)
    assert not (model / "serving.json").exists()
    assert server.versions() == {"1"}
    shutil.copytree(made / "3", model / "3")
    server.updates.load("m", "3")
    assert server.versions() == {"3"}, "who loads a version says that its files are whole"
    traffic(model, "[]")
    with pytest.raises(RequestError, match=r"^model 'm': serving.json: ") as told:
        server.updates.unload("m")
    assert told.value.status == 409


def test_a_folder_that_cannot_be_written_is_told(
    model: Path, tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server({"m": model}, tmp_path, executor)
    error = OSError(errno.EROFS, "Read-only file system", str(model / "serving.json"))
    monkeypatch.setattr(TrafficSplit, "save", Mock(side_effect=error))
    for change in (server.updates.unload, server.updates.load):
        with pytest.raises(RequestError, match=r"model 'm': .*Read-only file system: 'serving.json'") as told:
            change("m")
        assert told.value.status == 409
    assert server.versions() == {"1"}


def test_the_command_tells_what_all_replicas_agree_on() -> None:
    def model(weights: dict[str, float], **failed: str) -> dict[str, ServedModel]:
        return {"m": ServedModel("m", {}, weights, None, failed)}

    new, old, split = model({"3": 1.0}), model({"2": 1.0}), model({"2": 9.0, "3": 1.0})
    broken = model({"3": 1.0}, **{"4": "no weights"})
    looks: list[tuple[list[dict[str, ServedModel]], list[str]]] = [
        ([old, old], ["model 'm': version 2 answers"]),
        ([new, old], []),
        ([], []),
        ([new, new], ["model 'm': version 3 answers (was 2)"]),
        ([new, broken], ["model 'm': version 4 cannot be loaded: no weights; version 3 keeps serving"]),
        ([broken, broken], []),
        ([split, split], ["model 'm': version 2 (90%), 3 (10%) answer (was 3)"]),
        ([split, {}], []),
        ([model({}), model({})], ["model 'm': no version answers (was 2 (90%), 3 (10%))"]),
        ([{}, {}], ["model 'm': removed"]),
        ([old, {}], []),
    ]
    told: Mapping[str, ServedModel] = {}
    for replicas, lines in looks:
        models = agreed(told, replicas)
        assert news(told, models) == lines
        told = models


def test_the_command_tells_of_histories_that_end_too_early() -> None:
    def model(version: str, **stale: str) -> dict[str, ServedModel]:
        return {
            "m": ServedModel("m", {}, {version: 1.0}, stale={name.strip("v"): what for name, what in stale.items()})
        }

    old, new = model("1", v1="history 'user' ends long ago"), model("2")
    first = ["model 'm': version 1 answers", "model 'm': version 1: history 'user' ends long ago"]
    assert news({}, agreed({}, [old, old])) == first
    assert news(old, agreed(old, [old, old])) == []
    assert news(old, agreed(old, [new, new])) == ["model 'm': version 2 answers (was 1)"]


def test_models_come_and_go(made: Path, tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    shutil.copytree(made / "1", tmp_path / "all/a")
    server = Server({"all": tmp_path / "all"}, tmp_path, executor)
    shutil.copytree(made / "2", tmp_path / "all/b/7")
    shutil.copytree(made / "2", tmp_path / "all/broken/1")
    damage(tmp_path / "all/broken/1")
    server.poll()
    assert {name: set(model.versions) for name, model in server.models.current.items()} == {"a": {"1"}, "b": {"7"}}
    shutil.rmtree(tmp_path / "all/b")
    server.poll()
    assert set(server.models.current) == {"a"}
    os.rename(tmp_path / "all", tmp_path / "away")
    server.poll()
    assert set(server.models.current) == {"a"}, "folders that cannot be read leave everything as it is"


def test_a_folder_that_is_replaced_is_loaded_again(made: Path, tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    shutil.copytree(made / "1", tmp_path / "m")
    server = Server({"m": tmp_path / "m"}, tmp_path, executor)
    os.rename(tmp_path / "m", tmp_path / "old")
    shutil.copytree(made / "2", tmp_path / "m")
    server.poll()
    expected = load_model(made / "2").predict([{}])
    assert server.models.model("m").version().predictor.predict([{}]) == pytest.approx(expected, abs=1e-6)


WRONG_EXAMPLES = {
    "absent": (None, "missing; export the model again"),
    "not JSON": ("{", "not whole"),
    "no rows": ('{"instances": [], "scores": [], "tolerance": 1}', "0 instances with 0 scores"),
    "fewer scores": ('{"instances": [{}, {}], "scores": [0.5], "tolerance": 1}', "2 instances with 1 scores"),
    "other scores": ('{"instances": [{}], "scores": [2], "tolerance": 0.1}', "self-check failed: 1 of 1 scores differ"),
}


@pytest.mark.parametrize("case", WRONG_EXAMPLES)
def test_wrong_examples(made: Path, tmp_path: Path, case: str) -> None:
    content, message = WRONG_EXAMPLES[case]
    folder = tmp_path / "m"
    shutil.copytree(made / "1", folder)
    Examples.load(folder).check(load_model(folder))
    (folder / EXAMPLES_FILE).unlink()
    if content is not None:
        (folder / EXAMPLES_FILE).write_text(content)
    finish(folder)
    with pytest.raises(UserError, match=message):
        Examples.load(folder).check(load_model(folder))


def test_examples_reach_every_table_and_network(made: Path) -> None:
    """Otherwise a self-check could pass over weights that are wrong."""
    rows = json.loads((made / "1" / EXAMPLES_FILE).read_text())["instances"]
    schema = load_model(made / "1").schema
    for feature in schema.features:
        assert len({str(row.get(feature.name)) for row in rows}) > 5, feature.name

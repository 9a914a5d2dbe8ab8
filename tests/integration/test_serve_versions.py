"""Versions change under load: every request is answered, by the version that should."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import requests

from jobs.serve import ServeRequest, serving
from rayrec.common.errors import UserError
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.folder.delta import write_delta
from rayrec.inference.folder.model_folder import ModelFolder, copy
from rayrec.inference.predictor import load_model
from rayrec.recipes import dump_recipe, load_recipe
from tests.model_days import ModelDays, raw_rows
from tests.model_folders import make_model_folder, make_raw_rows

CLIENTS = 4


class Load:
    """Clients that ask all the time; every answer is compared with that of the version that it names."""

    def __init__(self, url: str, expected: dict[str, np.ndarray], rows: list[dict[str, object]]) -> None:
        self.answered: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._url, self._expected, self._rows = url, expected, rows
        self._stop = threading.Event()
        self._clients = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for client in self._clients:
            client.start()

    def _ask(self) -> None:
        with requests.Session() as session:
            while not self._stop.is_set():
                try:
                    answer = session.post(self._url, json={"instances": self._rows}, timeout=60)
                    content = answer.json()
                    version = content["version"]
                    np.testing.assert_allclose(content["predictions"], self._expected[version], rtol=0, atol=1e-6)
                    self.answered[version] += 1
                except Exception as error:
                    self.wrong.append(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        self._stop.set()
        for client in self._clients:
            client.join()


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_alone(load: Load, version: str, before: str) -> None:
    """Wait for 130 answers in a row of one version: the other replica follows a moment after the first."""

    def alone() -> bool:
        old, new = load.answered[before], load.answered[version]
        wait_until(lambda: load.answered[version] > new + 130)
        return load.answered[before] == old

    wait_until(alone)


def state_of(model: str, version: str) -> str | None:
    """As the replica that happens to answer sees it."""
    found = requests.get(model, timeout=60).json()["versions"].get(version)
    return found and found["state"]


def publish(made: Path, models: Path, version: str) -> None:
    """As a user should: copied beside, then renamed."""
    shutil.copytree(made / version, models / ".coming")
    (models / ".coming").rename(models / version)


def damage(folder: Path) -> None:
    """A tolerance that no score can meet."""
    examples = folder / "examples.json"
    examples.write_text(examples.read_text().replace('"tolerance": 1e-05', '"tolerance": -1.00'))


def test_a_server_of_a_model_that_fails_its_self_check_does_not_start(ray_cluster: str, tmp_path: Path) -> None:
    make_model_folder(tmp_path / "broken")
    damage(tmp_path / "broken")
    request = ServeRequest(model=(tmp_path / "broken",), port=free_port())
    message = r"^model 'broken', 1: examples\.json: the self-check failed"
    with pytest.raises(UserError, match=message), serving(request, SilentProgress()):
        pass


@pytest.mark.minutes
def test_versions_change_under_load(ray_cluster: str, tmp_path: Path) -> None:
    for version in ("1", "2", "3", "4"):
        folder = tmp_path / "made" / version
        make_model_folder(folder, seed=int(version))
        settings = ["serve.replicas=2", "serve.poll_seconds=0.2"]
        (folder / "config.yaml").write_text(dump_recipe(load_recipe(folder / "config.yaml", settings)))
    damage(tmp_path / "made/3")
    predictors = {version: load_model(tmp_path / "made" / version) for version in ("1", "2", "3", "4")}
    rows = make_raw_rows(predictors["1"].schema, 5)
    expected = {version: predictor.predict(rows) for version, predictor in predictors.items()}

    def add(version: str) -> None:
        publish(tmp_path / "made", tmp_path / "models/ctr", version)

    (tmp_path / "models/ctr").mkdir(parents=True)
    add("1")
    with serving(ServeRequest(model=(tmp_path / "models",), port=free_port()), SilentProgress()) as url:
        model = f"{url}/v1/models/ctr"
        load = Load(f"{model}:predict", expected, rows)
        try:
            wait_until(lambda: load.answered["1"] > 20)
            add("2")
            wait_until(lambda: load.answered["2"] > 20)
            wait_until_alone(load, "2", before="1")
            add("3")
            wait_until(lambda: state_of(model, "3") == "failed")
            answered = load.answered["2"]
            wait_until(lambda: load.answered["2"] > answered + 50)
            (tmp_path / "models/ctr/.new").write_text('{"weights": {"2": 1, "4": 1}}')
            add("4")
            (tmp_path / "models/ctr/.new").rename(tmp_path / "models/ctr/serving.json")
            wait_until(lambda: load.answered["4"] > 50)
            answered = load.answered["2"]
            wait_until(lambda: load.answered["2"] > answered + 20)
            named = requests.post(f"{model}/versions/4:predict", json={"instances": rows}, timeout=60)
            np.testing.assert_allclose(named.json()["predictions"], expected["4"], rtol=0, atol=1e-6)
        finally:
            load.stop()
        assert load.wrong == []
        assert set(load.answered) == {"1", "2", "4"}


@pytest.mark.minutes
def test_deltas_change_under_load(ray_cluster: str, tmp_path: Path) -> None:
    """Deltas of one whole version; the newest comes before it is whole, and without one of those between."""
    days = ModelDays(tmp_path / "whole", settings=["replicas=2", "poll_seconds=0.2"])
    made, models = tmp_path / "made", tmp_path / "models/ctr"
    models.mkdir(parents=True)
    copy(days.write("1"), made / "1")
    for day in ("2", "3", "4"):
        days.pass_day()
        days.write(day)
        write_delta(days.open(day), ModelFolder.open(made / str(int(day) - 1)), made / day)
    rows = raw_rows(days, 5)
    expected = {version: load_model(days.folder / version).predict(rows) for version in ("1", "2", "3", "4")}
    publish(made, models, "1")
    with serving(ServeRequest(model=(tmp_path / "models",), port=free_port()), SilentProgress()) as url:
        model = f"{url}/v1/models/ctr"
        load = Load(f"{model}:predict", expected, rows)
        try:
            wait_until(lambda: load.answered["1"] > 20)
            publish(made, models, "2")
            wait_until(lambda: load.answered["2"] > 20)
            shutil.copytree(made / "4", models / "4", ignore=shutil.ignore_patterns("dense*"))
            wait_until(lambda: state_of(model, "4") == "failed")
            answered = load.answered["2"]
            wait_until(lambda: load.answered["2"] > answered + 50)
            reason = requests.get(model, timeout=60).json()["versions"]["4"]["reason"]
            assert reason.startswith("weights/dense.safetensors: missing")
            shutil.copy(made / "4/weights/dense.safetensors", models / "4/weights/dense.safetensors")
            wait_until(lambda: load.answered["4"] > 50)
            wait_until_alone(load, "4", before="2")
        finally:
            load.stop()
    assert load.wrong == []
    assert set(load.answered) == {"1", "2", "4"}

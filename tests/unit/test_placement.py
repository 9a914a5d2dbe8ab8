"""Where a command runs: in its own process or on Ray, as it is asked, or by what the work needs."""

from types import SimpleNamespace
from typing import Any

import pytest

from jobs.command.placement import (
    PlacedRequest,
    place_preprocessing,
    place_scoring,
    place_training,
    ray_training,
    trial_training,
)
from rayrec.common.errors import ConfigError, SmallClusterError
from rayrec.config.execution import Execution
from rayrec.config.preprocess import SparkConfig
from rayrec.config.train import TrainConfig
from rayrec.ingest.dataset import DatasetManifest
from rayrec.store.artifact import id_of
from tests.builders import make_dataset
from tests.messages import Messages

NO_SPARK, SPARK = SparkConfig(), SparkConfig(executors=3)


def raw_files(*, suits_threads: bool = True) -> Any:
    return SimpleNamespace(suits_threads=suits_threads, bytes=3 * 2**20)


def preprocessing(job: Any, spark: SparkConfig = NO_SPARK) -> Any:
    return lambda request, to: place_preprocessing(request, job, spark, to)


def training(**config: Any) -> Any:
    return lambda request, to: place_training(request, TrainConfig(global_batch_size=60, **config), to)


def evaluation(workers: int | None, device: Any) -> Any:
    return lambda request, to: place_scoring("evaluate", request, to, rows=77, workers=workers, device=device)


def scoring(**work: int) -> Any:
    return lambda request, to: place_scoring("predict", request, to, **work)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


SMALL = {
    "preprocess": preprocessing(raw_files()),
    "train": training(),
    "train, elastic in nothing": training(workers=1, min_workers=None),
    "evaluate": evaluation(None, "auto"),
    "evaluate, one worker": evaluation(1, "cpu"),
    "predict, rows": scoring(rows=2**20),
    "predict, raw": scoring(raw_bytes=2**28),
    "predict, pairs": scoring(pairs=2**30),
    "predict, many rows of a small file": scoring(rows=2**22, raw_bytes=2**20),
    "predict, few rows of a large file": scoring(rows=10, raw_bytes=2**33),
}
LARGE = {
    "preprocess": preprocessing(raw_files(suits_threads=False)),
    "predict, rows": scoring(rows=2**20 + 1),
    "predict, raw": scoring(raw_bytes=2**28 + 1),
    "predict, pairs": scoring(pairs=2**30 + 1),
    "predict, many rows of a large file": scoring(rows=2**22, raw_bytes=2**33),
}
ONLY_RAY = {
    "spark is set": preprocessing(raw_files(), SPARK),
    "train, 3 workers": training(workers=3),
    "train, elastic": training(workers=2, min_workers=1),
    "evaluate, 2 workers": evaluation(2, "cpu"),
}


@pytest.mark.parametrize("place", SMALL.values(), ids=SMALL.keys())
def test_small_work_is_done_here_unless_ray_is_asked_for(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Messages()
    assert place(PlacedRequest(), said) == place(PlacedRequest(on="process"), said) == "process"
    assert all("in this process" in text and "--on ray for" in text for text in said.lines)
    assert place(PlacedRequest(on="ray"), said) == "ray" and "--on process" in said.lines[-1]
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    assert place(PlacedRequest(), said) == "ray"
    assert place(PlacedRequest(on="process"), said) == "process"


@pytest.mark.parametrize("place", LARGE.values(), ids=LARGE.keys())
def test_large_work_is_done_on_ray_unless_this_process_is_asked_for(place: Any) -> None:
    assert place(PlacedRequest(), Messages()) == "ray"
    assert place(PlacedRequest(on="process"), Messages()) == "process"


@pytest.mark.parametrize("place", ONLY_RAY.values(), ids=ONLY_RAY.keys())
def test_what_only_ray_can_do_is_refused_here(place: Any) -> None:
    said = Messages()
    assert place(PlacedRequest(), said) == place(PlacedRequest(on="ray"), said) == "ray"
    assert len(said.lines) == 2 and not any("--on process" in text for text in said.lines)
    with pytest.raises(ConfigError, match=r"--on process: .* needs (Spark on Ray|Ray Train|Ray Data)"):
        place(PlacedRequest(on="process"), said)


def test_a_gpu_is_for_ray_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for place in training(), evaluation(None, "auto"), training(device="cuda"):
        assert place(PlacedRequest(), Messages()) == "ray"
        with pytest.raises(ConfigError, match="a GPU"):
            place(PlacedRequest(on="process"), Messages())
    assert training(device="cpu")(PlacedRequest(), Messages()) == "process"


def test_a_dataset_is_the_same_however_it_was_made(tmp_path) -> None:
    folder = make_dataset(tmp_path / "data").folder
    before, manifest = id_of(folder), DatasetManifest.load(folder)
    manifest.model_copy(update={"execution": Execution(on="ray", engine="Spark on Ray", workers=8, cpus=4)}).save(
        folder
    )
    assert id_of(folder) == before
    manifest.model_copy(update={"rejected": {"too long": 1}}).save(folder)
    assert id_of(folder) != before


@pytest.mark.parametrize(
    ("gpus", "workers", "nodes", "asked", "reads"),
    [
        (0, 2, 1, False, "threads"),
        (1, 1, 1, False, "threads"),
        (4, 4, 1, False, "Ray Data"),
        (0, 1, 2, False, "Ray Data"),
        (0, 1, 1, True, "Ray Data"),
    ],
)
def test_what_reads_for_workers_of_ray_train(
    gpus: int, workers: int, nodes: int, asked: bool, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": float(gpus)})
    monkeypatch.setattr("rayrec.common.ray.session_size", lambda: (nodes, 8))
    found = ray_training(TrainConfig(global_batch_size=60, workers=workers), by_ray_data=asked)
    assert (found.on, found.engine, found.reads, found.workers) == ("ray", "Ray Train", reads, workers)
    assert found.device == ("cuda" if gpus else "cpu") and found.nodes == nodes


@pytest.mark.parametrize(("gpus", "workers", "place"), [(0, 1, "process"), (0, 2, "ray"), (1, 1, "ray")])
def test_a_trial_of_one_worker_on_a_cpu_trains_in_its_actor(
    gpus: int, workers: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": float(gpus)})
    assert trial_training(TrainConfig(global_batch_size=60, workers=workers)).on == place


@pytest.mark.parametrize(("resources", "unit"), [({"CPU": 3.0}, "CPU"), ({"CPU": 8.0, "GPU": 1.0}, "GPU")])
def test_too_few_cpus_or_gpus_are_said(resources: dict[str, float], unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: resources)
    with pytest.raises(SmallClusterError, match=f"each of 4 workers needs a {unit}, but Ray has"):
        ray_training(TrainConfig(global_batch_size=60, workers=4))

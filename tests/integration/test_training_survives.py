"""Training through Ray Train: dead workers, nodes that are taken away, a killed run, a user's mistake."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.local_cluster import kill_node, ray_head, ray_nodes
from rayrec.common.errors import ConfigError, UserError
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe, dump_recipe
from rayrec.training.run.folder import RunFolder, checkpoint_name, checkpoint_steps
from rayrec.training.run.history import read_history
from tests.builders import make_dataset
from tests.environments import environment_of_open_cluster, environment_without_cluster
from tests.holding import Held, Hold, run_module
from tests.ray_nodes import drain, node_of
from tests.training_runs import Case, losses, recipe, require_same_bits, run_cases, train_on_ray

STEPS = 400


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("survives") / "data"
    return make_dataset(folder, {"train": 20_000, "test": 500}, numeric=3, categorical=4, seed=3)


def _recipe(**train_section: object) -> Recipe:
    """Streams through Ray Data; Adagrad, so that the optimizers' state matters."""
    return recipe(
        **{
            "workers": 2,
            "max_steps": STEPS,
            "epochs": 2,
            "ingest": {"in_memory": False, "read_streams": 4},
            "embedding_optimizer": {"kind": "adagrad", "lr": 0.05},
            "dense_optimizer": {"kind": "adam", "lr": 0.01},
            "checkpoint": {"every_steps": 50, "every_minutes": None},
            "sharding": {"tables": {"C3": "row_wise"}, "memory_per_worker": "1GB"},
            **train_section,
        }
    )


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with nothing in its way: without Ray, from memory."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    run_cases(2, dataset.folder, [Case(run, _recipe(ingest={"in_memory": True, "read_streams": 4}))])
    return run


def _arguments(folder: Path, dataset: Dataset, of: Recipe | None = None) -> list[str]:
    """Those of `jobs.train` for a run in a folder."""
    config = folder / "recipe.yaml"
    config.write_text(dump_recipe(of or _recipe()))
    return [str(config), "--data", str(dataset.folder), "--output", str(folder / "run")]


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    """Both workers wait at it as they begin to write their third checkpoint."""
    return Hold(tmp_path / "hold", checkpoint_name(150))


def test_a_killed_worker_restarts_the_run(
    ray_cluster: str, undisturbed: Path, dataset: Dataset, hold: Hold, tmp_path: Path
) -> None:
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster}
    with hold.held("jobs.train", *_arguments(tmp_path, dataset), environment=environment, count=2) as held:
        os.kill(list(hold.waiting())[-1], signal.SIGKILL)
        hold.end()
        held.wait()
    run = tmp_path / "run"
    assert [r["step"] for r in read_history(run / "history.jsonl") if r["event"] == "epoch"][1] == 100
    require_same_bits(run, undisturbed, STEPS)


def test_a_killed_run_resumes(undisturbed: Path, dataset: Dataset, hold: Hold, tmp_path: Path) -> None:
    """Everything is killed at once: driver, Ray, workers. A rerun with --resume continues."""
    arguments = _arguments(tmp_path, dataset)
    # A Ray of its own: it must not attach to that of the tests, which lives on.
    environment = environment_without_cluster()
    with hold.held("jobs.train", *arguments, environment=environment, count=2) as held:
        _kill_all(held)
    assert max(losses(tmp_path / "run")) == 150
    run_module("jobs.train", *arguments, "--resume", environment=environment)
    require_same_bits(tmp_path / "run", undisturbed, STEPS)


def _kill_all(held: Held) -> None:
    """Kill a command with all its processes, those of its Ray among them."""
    driver = psutil.Process(held.process.pid)
    for member in [*driver.children(recursive=True), driver]:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    assert held.process.wait() == -signal.SIGKILL


@pytest.mark.minutes
def test_a_killed_warm_start_goes_on(undisturbed: Path, dataset: Dataset, tmp_path: Path) -> None:
    """It is killed before its first checkpoint is written, and, resumed, before its second one is."""
    run, expected = tmp_path / "run", tmp_path / "expected"
    # Without Ray, from memory.
    alone = _recipe(max_steps=120, ingest={"in_memory": True})
    alone = alone.model_copy(update={"train": alone.train.warm_started()})
    run_cases(2, dataset.folder, [Case(expected, alone, undisturbed)])
    arguments = [*_arguments(tmp_path, dataset, _recipe(max_steps=120)), "--warm-start", str(undisturbed)]
    environment = environment_without_cluster()
    for step, options in ((50, []), (100, ["--resume"])):
        hold = Hold(tmp_path / f"hold-{step}", checkpoint_name(step))
        with hold.held("jobs.train", *arguments, *options, environment=environment, count=2) as held:
            _kill_all(held)
        assert max(losses(run)) == step
    run_module("jobs.train", *arguments, "--resume", environment=environment)
    require_same_bits(run, expected, 120)
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (run, expected)]
    assert metrics[0]["progressive"] == pytest.approx(metrics[1]["progressive"], rel=1e-9)


def test_elastic_training_goes_on_without_a_killed_node(
    undisturbed: Path, dataset: Dataset, hold: Hold, tmp_path: Path
) -> None:
    """Training begins on two nodes of one CPU; one of them goes away with all that runs on it."""
    own = environment_of_open_cluster()
    arguments = [*_arguments(tmp_path, dataset), "--workers", "1:2"]
    with ray_head(own, num_cpus=0) as head, ray_nodes(head, own, 2) as nodes:
        attached = {**own, "RAY_ADDRESS": head.address}
        with hold.held("jobs.train", *arguments, environment=attached, count=2) as held:
            kill_node(node_of(list(hold.waiting())[-1], nodes))
            hold.end()
            held.wait()
    starts = [r for r in read_history(tmp_path / "run" / "history.jsonl") if r["event"] == "epoch"]
    assert [start["workers"] for start in starts[:2]] == [2, 1]
    assert starts[1]["step"] == 100
    assert losses(tmp_path / "run") == pytest.approx(losses(undisturbed), rel=1e-4)


@pytest.mark.minutes
def test_no_step_is_lost_with_a_node_whose_end_was_announced(
    undisturbed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    """A node is drained, as a cloud does with one that it takes back, and killed when a checkpoint has been saved."""
    # The workers wait at all checkpoints that the recipe asks for, so that none of them follows the one to be tested.
    hold = Hold(tmp_path / "hold", r"step-\d{6}[05]0")
    own = {**environment_of_open_cluster(), "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5"}
    arguments = [*_arguments(tmp_path, dataset), "--workers", "1:2"]
    run = tmp_path / "run"
    with ray_head(own, num_cpus=0) as head, ray_nodes(head, own, 2) as nodes:
        attached = {**own, "RAY_ADDRESS": head.address}
        with hold.held("jobs.train", *arguments, environment=attached, count=2) as held:
            node = node_of(list(hold.waiting())[-1], nodes)
            drain(head, node, attached)
            while not (saved := _saved_on_notice(run)):
                # The notice takes its time, so they may come to the next checkpoint first.
                time.sleep(3)
                for process in hold.waiting():
                    hold.release(process)
                held.until(lambda: len(hold.waiting()) == 2)
            kill_node(node)
            hold.end()
            held.wait()
    starts = [r for r in read_history(run / "history.jsonl") if r["event"] == "epoch"]
    assert [start["workers"] for start in starts[:2]] == [2, 1]
    assert [starts[1]["step"]] == saved
    assert losses(run) == pytest.approx(losses(undisturbed), rel=1e-4)


def _saved_on_notice(path: Path) -> list[int]:
    """The steps after which the run was told of the end of a node and has saved a checkpoint."""
    run = RunFolder(path)
    told = {r["step"] for r in read_history(run.history) if r["event"] == "preemption"}
    return [step for step in checkpoint_steps(run.checkpoints) if step in told]


def test_resume_of_another_run_is_refused(ray_cluster: str, undisturbed: Path, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"--resume cannot change train\.seed from 5 to 6"):
        train_on_ray(_recipe(seed=6), dataset, undisturbed, resume=True)
    with pytest.raises(UserError, match="already exists"):
        train_on_ray(_recipe(), dataset, undisturbed)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"workers": 64}, r"train\.workers: each of 64 workers needs a CPU"),
        ({"freeze": ["dense_network.middle"]}, r"train\.freeze: no part 'dense_network\.middle'"),
        (
            {"embedding_optimizer": {"kind": "adam", "lr": 0.1}},
            "'adam' on a CPU needs train.sharding.default: data_parallel",
        ),
    ],
)
def test_a_mistake_is_found_before_anything_starts(
    ray_cluster: str, dataset: Dataset, tmp_path: Path, section: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_on_ray(_recipe(**section), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.minutes
def test_what_the_workers_find_wrong_is_said_once(ray_cluster: str, dataset: Dataset, tmp_path: Path) -> None:
    section = {"embedding_optimizer": {"kind": "sgd", "lr": 1e38}, "checkpoint": {"every_steps": 1}, "max_failures": 0}
    with pytest.raises(UserError, match=r"^the loss is not finite at step 2: lower train\.embedding_optimizer\.lr"):
        train_on_ray(_recipe(**section), dataset, tmp_path / "run")
    history = read_history(tmp_path / "run" / "history.jsonl")
    assert [(r["event"], r["step"]) for r in history if r["event"] != "phase"] == [("epoch", 0), ("train", 1)]
    assert (tmp_path / "run" / "checkpoints" / checkpoint_name(1)).is_dir()

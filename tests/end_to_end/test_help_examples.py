"""The examples of the help texts do what they say with what `rayrec run` leaves, with and without a second training."""

import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import COMMANDS
from jobs.command import Result
from tests.end_to_end.conftest import Finished, served

ROWS, NEW_ROWS = 900, 300
Rayrec = Callable[..., Finished]
BEFORE = ("inspect", "run", "preprocess")
"""Examples that make what the others take."""
MEASURED = {"evaluate": "", "explain": "--permutations 1", "report": ""}
"""Examples that measure the model, and what makes them smaller: an option that is given again."""
OTHERS = {
    "recipes": "",
    "generate": "--rows 1000",
    "verify": "",
    "train": "",
    "plan": "--workers 2",
    "runs": "",
    "compare": "",
    "predict": "",
    "export": "",
}
ON_RAY = {
    "tune": "--trials 2",
    "benchmark": "--steps 5 --warmup-steps 1 --batch-size 16",
    "benchmark serve": "--seconds 0.2 --protocol json --rows 1 --clients 1",
}
ELSEWHERE = {
    "demo": "makes its own data: tests/end_to_end/test_wheel.py",
    "doctor": "looks at the machine alone: tests/unit/test_doctor.py",
    "forget": "needs a table by a key: tests/unit/test_past_of_days.py",
    "follow": "runs until Ctrl-C, from raw files on: docs/daily.md in tests/end_to_end/test_page_commands.py",
    "serve": "runs until Ctrl-C: a test of its own below",
    "submit": "needs a cluster that takes jobs: tests/end_to_end/test_submit.py",
}


@pytest.fixture(scope="module", params=["with a time", "without"])
def ran(request: pytest.FixtureRequest, rayrec_alone: Rayrec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with clicks.csv, new.csv, clicks.yaml and out/, made by the examples of `inspect` and `run`."""
    folder, draw = tmp_path_factory.mktemp("examples"), random.Random(4)
    lines = ["click,user,item" + (",time" if request.param == "with a time" else "")]
    for row in range(ROWS + NEW_ROWS):
        # New people come with every day, so the vocabularies of all rows are others.
        user, item = draw.randrange(40) + row // 15, draw.randrange(20)
        time = f",2024-05-{1 + row // 60:02d} 10:{row % 60:02d}:00" if request.param == "with a time" else ""
        lines.append(f"{int(draw.random() < 0.1 + 0.6 * (item % 3 == 0))},u{user},i{item}{time}")
    (folder / "clicks.csv").write_text("\n".join(lines[: 1 + ROWS]) + "\n")
    (folder / "new.csv").write_text("\n".join([lines[0], *lines[1 + ROWS :]]) + "\n")
    for command in BEFORE:
        example(rayrec_alone, folder, command)
    return folder


def example(rayrec: Rayrec, folder: Path, command: str, *more: str) -> Finished:
    done = rayrec(*shlex.split(COMMANDS[command].example)[1:], *more, folder=folder)
    assert done.code == 0, done.err
    return done


def test_every_example_runs_here_or_elsewhere() -> None:
    assert sorted([*BEFORE, *MEASURED, *OTHERS, *ON_RAY, *ELSEWHERE]) == sorted(COMMANDS)


@pytest.mark.parametrize("command", OTHERS)
def test_an_example_works(rayrec_alone: Rayrec, ran: Path, command: str) -> None:
    if command == "compare":
        for seed, run in enumerate(("run-a", "run-b")):
            words = f"train clicks.yaml --data dataset --output {run} --set train.seed={seed}"
            assert rayrec_alone(*words.split(), folder=ran).code == 0
    example(rayrec_alone, ran, command, *OTHERS[command].split())


def test_inference_is_measured_without_a_line_of_torch(rayrec_alone: Rayrec, ran: Path) -> None:
    words = "benchmark inference clicks.yaml --data dataset --steps 2 --warmup-steps 1 --batch-size 16"
    done = rayrec_alone(*words.split(), folder=ran)
    assert done.code == 0 and done.err == ""


@pytest.mark.minutes
@pytest.mark.parametrize("command", ON_RAY)
def test_an_example_works_on_ray(rayrec: Rayrec, ran: Path, command: str) -> None:
    done = example(rayrec, ran, command, *ON_RAY[command].split())
    assert command != "tune" or "given recipe" in done.out


@pytest.mark.minutes
def test_the_model_is_served(ray_cluster: str, ran: Path) -> None:
    with served(ray_cluster, ran / COMMANDS["serve"].example.split()[-1]):
        pass  # it has answered


@pytest.mark.parametrize("command", MEASURED)
def test_held_out_rows_are_measured_by_a_model_that_never_saw_them(
    rayrec_alone: Rayrec, ran: Path, command: str
) -> None:
    result = Result.load(ran / "out")
    done = example(rayrec_alone, ran, command, *MEASURED[command].split(), "--json")
    assert done.result["metrics"]["test"]["auc"] == pytest.approx(result.metrics["test"]["auc"], abs=1e-6)
    refitted = (ran / "out" / "refit").is_dir()
    if command != "report":
        said = any("was trained on the held-out rows" in note for note in done.result["details"]["notes"])
        assert said == refitted


def test_a_page_of_the_whole_folder_and_a_list_of_one_line_a_run(rayrec_alone: Rayrec, ran: Path) -> None:
    assert rayrec_alone("report", "out", "--output", "page", folder=ran).code == 0
    listed = rayrec_alone("runs", "out", "--json", folder=ran).result["details"]["runs"]
    assert [run["name"] for run in listed] == ["run"]
    shown = rayrec_alone("runs", "out", folder=ran).out
    assert "auc" in shown and len(shown.splitlines()) == 2


def test_a_dataset_is_scored_by_the_model_that_reads_it(rayrec_alone: Rayrec, ran: Path) -> None:
    done = rayrec_alone(
        "predict", "out/model", "--input", "out/dataset", "--output", "of-dataset", "--json", folder=ran
    )
    assert done.code == 0, done.err
    assert done.result["rows"] == Result.load(ran / "out").metrics["test"]["rows"]


def test_a_folder_that_was_moved_is_found_by_its_ids(rayrec_alone: Rayrec, ran: Path) -> None:
    """Another folder is now where it was."""
    expected = Result.load(ran / "out").metrics["test"]["auc"]
    kept, moved = ran / "kept", ran / "elsewhere" / "out2"
    shutil.copytree(ran / "out", kept)
    moved.parent.mkdir()
    (ran / "out").rename(moved)
    (ran / "out" / "run").mkdir(parents=True)
    made_of = "refit/run" if (moved / "refit").exists() else "run"
    try:
        for words in (
            f"evaluate {moved}/model --data {moved}/dataset",
            f"evaluate {moved}/run --data {moved}/dataset",
            f"predict {moved}/model --input {moved}/dataset --output of-moved",
            f"report {moved} --output page-of-moved",
            f"export {moved}/{made_of} --output exported",
            f"run clicks.yaml --input new.csv --continue {moved}",
        ):
            done = rayrec_alone(*words.split(), "--json", folder=ran)
            assert done.code == 0, (words, done.err)
            if words.startswith("evaluate"):
                assert done.result["metrics"]["test"]["auc"] == pytest.approx(expected, abs=1e-6)
        verified = rayrec_alone("verify", moved / "model", "--json", folder=ran).result["details"]["made_of"]
        assert verified["checkpoint"]["found"] and verified["dataset"]["found"]
    finally:
        shutil.rmtree(moved)
        shutil.rmtree(ran / "out")
        kept.rename(ran / "out")

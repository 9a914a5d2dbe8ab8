"""The examples of the help texts do what they say with what `rayrec run` leaves, with and without a second training."""

import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import COMMANDS
from jobs.command import Result
from tests.end_to_end.conftest import Finished

ROWS, NEW_ROWS = 900, 300
Rayrec = Callable[..., Finished]


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
    for command in ("inspect", "run"):
        example(rayrec_alone, folder, command)
    return folder


def example(rayrec: Rayrec, folder: Path, command: str, *more: str) -> Finished:
    done = rayrec(*shlex.split(COMMANDS[command].example)[1:], *more, folder=folder)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize(
    ("command", "more"),
    [("evaluate", ()), ("explain", ("--permutations", "1")), ("report", ())],
    ids=["evaluate", "explain", "report"],
)
def test_held_out_rows_are_measured_by_a_model_that_never_saw_them(
    rayrec_alone: Rayrec, ran: Path, command: str, more: tuple[str, ...]
) -> None:
    result = Result.load(ran / "out")
    done = example(rayrec_alone, ran, command, *more, "--json")
    assert done.result["metrics"]["test"]["auc"] == pytest.approx(result.metrics["test"]["auc"], abs=1e-6)
    refitted = (ran / "out" / "refit").is_dir()
    if command != "report":
        said = any("was trained on the held-out rows" in note for note in done.result["details"]["notes"])
        assert said == refitted


def test_a_page_of_the_whole_folder_and_a_list_of_one_line_a_run(rayrec_alone: Rayrec, ran: Path) -> None:
    assert rayrec_alone("report", "out", "--output", "page", folder=ran).code == 0
    listed = rayrec_alone("runs", ".", "--json", folder=ran).result["details"]["runs"]
    assert [run["name"] for run in listed] == ["out/run"]
    shown = rayrec_alone("runs", ".", folder=ran).out
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

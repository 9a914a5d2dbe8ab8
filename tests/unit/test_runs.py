"""`rayrec runs`: whole, unfinished and broken runs below a folder."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jobs.command.result import Result
from jobs.command.runner import run_command
from jobs.runs import COMMAND, describe
from rayrec.recipes import dump_recipe
from rayrec.training.run.folder import CheckpointManifest, RunProgress
from tests.training_runs import recipe


def make_run(folder: Path, metrics: dict[str, Any] | None = None, **train: Any) -> None:
    """A run folder as training leaves it, as far as the list reads it."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"dataset": {"id": "0", "folder": "d"}}')
    (folder / "config.yaml").write_text(dump_recipe(recipe(**train)))
    if metrics is not None:
        (folder / "metrics.json").write_text(json.dumps(metrics))
        checkpoint = folder / "checkpoints" / "step-00000010"
        checkpoint.mkdir(parents=True)
        CheckpointManifest(progress=RunProgress(step=10, seconds=2.5)).save(checkpoint)


def metrics(auc: float | None) -> dict[str, Any]:
    return {"validation": {"auc": auc, "log_loss": 0.5, "rows": 9.0}, "test": {"auc": 0.6, "log_loss": 0.4}}


def listed(folder: Path, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run_command(COMMAND, {"folder": folder}, json_output=True) == 0
    return list(json.loads(capfd.readouterr().out)["details"]["runs"])


def test_runs_come_by_their_metric_with_what_differs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "low", metrics(0.7), epochs=1)
    make_run(tmp_path / "deep" / "er" / "high", metrics(0.8), epochs=2)
    make_run(tmp_path / "undefined", metrics(None), epochs=2)
    runs = listed(tmp_path, capfd)
    assert [run["name"] for run in runs] == ["deep/er/high", "low", "undefined"]
    assert runs[0]["settings"] == {"epochs": 2} and runs[1]["settings"] == {"epochs": 1}
    expected = {"status": "done", "recipe": "test", "model": "dlrm", "steps": 10, "rows": 640, "seconds": 2.5}
    assert expected.items() <= runs[0].items() and runs[0]["metrics"]["test"]["auc"] == 0.6
    assert run_command(COMMAND, {"folder": tmp_path}) == 0
    shown = capfd.readouterr().out
    assert re.search(r"deep/er/high +done +0\.800 +0\.500 +640 +2\.50\n +epochs 2\n", shown)


def test_many_runs_are_one_table_of_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for number in range(12):
        optimizer = {"kind": "adam", "lr": 0.0123 * (1 + number)}
        changes = {"dense_optimizer": optimizer, "epochs": 1 + number, "seed": number}
        make_run(tmp_path / "experiments-of-november" / f"{number}-epochs" / "run", metrics(0.6), **changes)
    assert run_command(COMMAND, {"folder": tmp_path}) == 0
    shown = capfd.readouterr().out
    assert "\n\n" not in shown and max(map(len, shown.splitlines())) <= 80
    assert "lr 0.123, epochs 10, seed 9" in shown


def test_losses_are_better_when_they_are_lower(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, loss in (("a", 0.6), ("b", 0.4)):
        make_run(tmp_path / name, {"validation": {"log_loss": loss}}, checkpoint={"keep_best": "log_loss"})
    assert [run["name"] for run in listed(tmp_path, capfd)] == ["b", "a"]


def test_keys_have_the_shortest_names_that_are_different(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        kinds = {"kind": "sgd", "lr": float(number)}
        make_run(tmp_path / str(number), metrics(0.5), embedding_optimizer=kinds, dense_optimizer=kinds, seed=number)
    assert listed(tmp_path, capfd)[0]["settings"] == {
        "dense_optimizer.lr": 1.0,
        "embedding_optimizer.lr": 1.0,
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "model: 3"),
        ("config.yaml", "{"),
        ("config.yaml", None),
        ("metrics.json", "[1"),
        ("metrics.json", "[]"),
        ("metrics.json", '{"test": 3}'),
        ("result.json", "{}"),
        ("checkpoints/step-00000010/manifest.json", "null"),
    ],
)
def test_a_broken_run_has_one_line(
    file: str, content: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "whole", metrics(0.7))
    make_run(tmp_path / "broken", metrics(0.9))
    if content is None:
        (tmp_path / "broken" / file).unlink()
    else:
        (tmp_path / "broken" / file).write_text(content)
    whole, broken = listed(tmp_path, capfd)
    assert (whole["status"], broken["status"], broken["name"]) == ("done", "broken", "broken")
    assert broken["error"] and "\n" not in broken["error"]
    assert run_command(COMMAND, {"folder": tmp_path}) == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("broken: ")


def test_runs_that_have_not_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "begun")
    make_run(tmp_path / "stopped")
    Result(command="train", status="interrupted", error="interrupted").save(tmp_path / "stopped")
    assert [(run["name"], run["status"]) for run in listed(tmp_path, capfd)] == [
        ("begun", "unfinished"),
        ("stopped", "interrupted"),
    ]
    # The folder of a run is a list of one.
    assert [run["name"] for run in listed(tmp_path / "begun", capfd)] == ["begun"]


def test_no_run_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert run_command(COMMAND, {"folder": folder}) == 1
        assert capfd.readouterr().err.startswith(f"error: {folder}: no run")


def test_lists_show_what_only_some_runs_have(tmp_path: Path) -> None:
    shared = [{"kind": "numeric", "columns": [f"I{number}"], "name": None} for number in range(30)]
    more = [*shared, {"kind": "cross", "of": ["x", "y"], "name": None}]
    runs = [
        {"name": name, "when": "", "status": "done", "settings": {"features": features}}
        for name, features in (("a", shared), ("b", more))
    ]
    text = " ".join(describe(Result(command="runs", details={"runs": runs})).split())
    assert "30 shared" in text and "numeric" not in text and "null" not in text
    assert '30 shared + {"kind": "cross", "of": ["x", "y"]}' in text

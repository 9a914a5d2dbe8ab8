"""`rayrec train --warm-start`: from the command line to the run folder, and what is said of mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rayrec.ingest.dataset import Dataset
from rayrec.training.run.folder import RunFolder
from rayrec.training.run.history import read_history
from tests.end_to_end.conftest import RECIPE, Finished, Pipeline

Rayrec = Callable[..., Finished]
pytestmark = pytest.mark.minutes


@pytest.fixture(scope="module")
def continued(pipeline: Pipeline, rayrec: Rayrec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run that goes on from that of the pipeline, of two workers, on the same data."""
    run = tmp_path_factory.mktemp("continued") / "run"
    done = rayrec(*_arguments(pipeline, run, pipeline.run), "--reset", "C3", "--json")
    assert done.code == 0, done.err
    (run / "printed.json").write_text(done.out)
    return run


def _arguments(pipeline: Pipeline, output: Path, warm_start: Path) -> list[str | Path]:
    return ["train", RECIPE, "--data", pipeline.dataset, "--warm-start", warm_start, "--output", output]


def test_one_pass_over_all_rows(pipeline: Pipeline, continued: Path) -> None:
    result = json.loads((continued / "printed.json").read_text())
    rows = Dataset.open(pipeline.dataset).split("train").rows
    size = RunFolder.open(continued).recipe.train.global_batch_size
    assert rows % size, "the last batch is a smaller one"
    assert (result["rows"], result["details"]["steps"]) == (rows, -(-rows // size))
    assert result["metrics"].keys() == {"validation", "test", "progressive"}
    assert result["metrics"]["progressive"]["rows"] == rows
    assert result["metrics"] == json.loads((continued / "metrics.json").read_text())
    (epoch,) = (r for r in read_history(continued / "history.jsonl") if r["event"] == "epoch")
    assert epoch["rows_dropped"] == 0


def test_it_goes_on_from_what_was_learned(pipeline: Pipeline, continued: Path) -> None:
    """Its first rows are scored as by a trained model, with a table less; a new run begins like a coin."""
    first = next(r for r in read_history(continued / "history.jsonl") if r["event"] == "progressive")
    assert first["auc"] > 0.55
    origin = RunFolder.open(continued).origin
    assert origin is not None and (origin.run, origin.reset) == (str(pipeline.run), ("C3",))


def test_the_exported_model_has_the_metrics_of_held_out_rows(
    pipeline: Pipeline, rayrec: Rayrec, continued: Path, tmp_path: Path
) -> None:
    done = rayrec("export", continued, "--output", tmp_path / "model", "--json")
    assert done.code == 0, done.err
    assert done.result["metrics"].keys() == {"validation", "test"}


def test_mistakes(pipeline: Pipeline, rayrec: Rayrec, continued: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    new = _arguments(pipeline, output, pipeline.run)
    again = [*_arguments(pipeline, continued, pipeline.run), "--resume"]
    without = [word for word in again if word not in {"--warm-start", pipeline.run}]
    recorded = f"started with --warm-start {pipeline.run} --reset C3; --resume it with the same"
    cases = [
        ([*new, "--reset", "C99"], 2, "--reset: no feature 'C99' has a table; did you mean 'C9'?"),
        ([*new[:4], "--output", output, "--reset", "C1"], 2, "--reset: only for a warm start"),
        ([*new, "--set", "model.top_mlp=[8]"], 2, "model: parameter dense_network.top_mlp.0.weight is (8, "),
        (_arguments(pipeline, output, pipeline.dataset), 1, "dataset: not a run folder (no run.json)"),
        (again, 2, recorded),
        (without, 2, recorded),
        ([*_arguments(pipeline, continued, continued), "--reset", "C3", "--resume"], 2, recorded),
    ]
    for arguments, code, message in cases:
        done = rayrec(*arguments)
        assert (done.code, message in done.err) == (code, True), done.err
    assert not output.exists()

"""`rayrec run`: one job that is killed in each phase ends in the model of the steps done one by one."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.store.artifact import id_of
from rayrec.training.run.folder import RunFolder
from tests.end_to_end.conftest import RECIPE, Finished, Pipeline, environment, weights
from tests.holding import Hold

Rayrec = Callable[..., Finished]
MOMENTS = {
    "preprocess": [r"\.scratch$", r"\.scratch/fit\.json$", r"/schema\.json$", r"/\.manifest\.json\.\w+$"],
    "train": [r"/run\.json$", r"/history\.jsonl$", r"/step-\d+$", r"/step-\d+/\.manifest\.json\.\w+$"],
    "export": [r"\.model\.unfinished-new$", r"\.model\.unfinished-new/\.manifest\.json\.\w+$", r"/model$"],
}
"""For each phase, the paths of which it is about to make one when it is killed."""


@pytest.mark.minutes
def test_a_run_killed_in_each_phase_ends_in_the_same_model(
    ray_cluster: str, pipeline: Pipeline, rayrec: Rayrec, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = ["run", RECIPE, "--input", pipeline.raw / "criteo.tsv", "--output", output, "--workers", "2"]
    said = []
    for phase, moments in MOMENTS.items():
        hold = Hold(tmp_path / phase, rf"{output}/.*{random.choice(moments)}")
        said.append(f"{phase}, at {hold.pattern}:")
        with hold.held("rayrec.cli", *arguments, environment=environment(ray_cluster)) as held:
            held.kill()
            said.append(held.log.read_text())
        hold.end()
        assert re.findall(r"^(\w+) -> ", said[-1], re.MULTILINE)[-1] == phase, said[-1]
    done = rayrec(*arguments, "--json")
    story = "\n".join([*said, done.err])
    assert done.code == 0, story
    assert len(re.findall(r"^train -> ", story, re.MULTILINE)) >= 2, story
    assert weights(output / "model") == weights(pipeline.model), story
    evaluated = rayrec("evaluate", pipeline.run, "--data", pipeline.dataset, "--json").result
    assert done.result["metrics"]["test"] == pytest.approx(evaluated["metrics"]["test"], rel=1e-9), story
    assert sorted(path.name for path in output.iterdir()) == [
        "dataset", "model", "pipeline.json", "result.json", "run",
    ], story  # fmt: skip


@pytest.fixture(scope="module")
def finished(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose first two phases are finished: those of the pipeline that was made step by step."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    folder.mkdir()
    (folder / "pipeline.json").write_text("{}")
    shutil.copytree(pipeline.dataset, folder / "dataset")
    shutil.copytree(pipeline.run, folder / "run")
    return folder


# What is different from the finished phases, and what is said about it.
CHANGES: list[tuple[list[str], str]] = [
    (
        ["--set", "preprocess.frequency_limit=5"],
        "out/dataset: preprocess.frequency_limit is 5, but was 4 when it was made; change it back, or remove "
        "out/dataset out/run to make them again, or give another --output",
    ),
    (
        ["--set", "train.epochs=3"],
        "out/run: train.epochs is 3, but was 2 when it was made; change it back, or remove out/run to make it again, "
        "or give another --output",
    ),
    (["--set", "model.top_mlp=[64]"], "out/run: model.top_mlp is [64], but was [64, 32] when it was made; change"),
    (["--input", "more.tsv"], "out/dataset: more.tsv is not the same as when it was made; change it back, or remove"),
]


@pytest.mark.parametrize(("changed", "message"), CHANGES, ids=[" ".join(changed) for changed, _ in CHANGES])
def test_another_recipe_is_refused_and_nothing_is_touched(
    changed: list[str], message: str, finished: Path, pipeline: Pipeline, rayrec: Rayrec
) -> None:
    shutil.copyfile(pipeline.raw / "criteo.tsv", finished.parent / "more.tsv")
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    arguments = ["run", RECIPE, "--input", pipeline.raw / "criteo.tsv", "--output", "out", *changed]
    done = rayrec(*arguments, folder=finished.parent)
    last = done.err.replace(f"{finished.parent}/", "").splitlines()[-1]
    assert (done.code, done.out) == (2, "")
    assert last.startswith(f"error: {message}")
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_folder_of_something_else_is_not_touched(pipeline: Pipeline, rayrec: Rayrec) -> None:
    raw = pipeline.raw / "criteo.tsv"
    done = rayrec("run", RECIPE, "--input", raw, "--output", pipeline.raw)
    assert (done.code, done.out) == (1, "")
    assert "already exists; give another --output" in done.err
    assert not (pipeline.raw / "pipeline.json").exists()


@pytest.mark.minutes
def test_finished_phases_are_not_done_again(finished: Path, pipeline: Pipeline, rayrec: Rayrec) -> None:
    arguments = ["run", RECIPE, "--input", pipeline.raw / "criteo.tsv", "--output", finished, "--json"]
    first, second = rayrec(*arguments, "--workers", "1"), rayrec(*arguments)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert first.result["metrics"] == second.result["metrics"]
    seconds = first.result["details"]["phases"]
    assert [name for name, spent in seconds.items() if spent is None] == ["preprocess", "train"]
    assert all(spent is None for spent in second.result["details"]["phases"].values())
    assert weights(finished / "model") == weights(pipeline.model)
    model, best = ModelFolder.open(finished / "model"), RunFolder.open(finished / "run").checkpoint("best")
    assert model.manifest.made_of["checkpoint"].id == id_of(best)
    assert model.manifest.made_of["dataset"].id == id_of(finished / "dataset")

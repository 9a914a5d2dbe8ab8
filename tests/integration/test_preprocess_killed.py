"""Preprocessing of every kind of data, killed and begun again: no finished stage is done again, and the files are those
of a command that nothing disturbed."""

import os
from itertools import count
from pathlib import Path

import pytest

from benchmarks.preprocess_kills import ROWS, files_of, write_raw
from tests.environments import environment_without_cluster
from tests.holding import Hold, run_module

MARK = r"\.scratch/\.{}\.json\."
"""The file that becomes the mark of a finished stage, when all that the stage made is on the disk."""
MANIFEST = r"\.unfinished-[^/]+/\.manifest\.json\."
"""The file that becomes the last one of a dataset."""
GOES_ON = "continuing unfinished work of an earlier run"
STAGES = {
    "criteo": ("parse", "write-train"),
    "table": ("fit", "write-train"),
    "interactions": ("histories", "write"),
    "displays": ("values", "features"),
}
"""The stages of each kind in which Spark's command is killed: half-way through the first, at the end of the second."""


@pytest.mark.parametrize(
    "kind", [kind if kind == "table" else pytest.param(kind, marks=pytest.mark.minutes) for kind in ROWS]
)
def test_threads_killed_at_the_end_of_every_stage(kind: str, tmp_path: Path) -> None:
    environment = environment_without_cluster()
    output, arguments = tmp_path / "dataset", write_raw(tmp_path, kind, ROWS[kind] // 4)
    run_module("jobs.preprocess", *arguments, "--output", tmp_path / "undisturbed", environment=environment)
    before: dict[str, int] = {}
    for attempt in count():
        # It waits before it marks the first stage that is not done, and the second.
        hold = Hold(tmp_path / f"attempt-{attempt}", f"{MARK.format('[^/]+')}|{MANIFEST}")
        with hold.held("jobs.preprocess", *arguments, "--output", output, environment=environment) as held:
            ((process, path),) = hold.waiting().items()
            assert _finished(output) == before
            if "manifest" in path:
                hold.end()
                held.wait()
                break
            hold.release(process)
            held.until(hold.waiting)
        found = _finished(output)
        assert before.items() < found.items()
        before = found
    assert len(before) == attempt >= 6
    assert files_of(output) == files_of(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    "kind", [kind if kind == "interactions" else pytest.param(kind, marks=pytest.mark.minutes) for kind in ROWS]
)
def test_spark_killed_in_two_stages(kind: str, ray_cluster: str, no_spark: None, tmp_path: Path) -> None:
    on_cluster = {**os.environ, "RAY_ADDRESS": ray_cluster}
    arguments = [*write_raw(tmp_path, kind, ROWS[kind] // 20), "--set", "preprocess.spark.executor_memory=1g"]
    environment = environment_without_cluster()
    run_module("jobs.preprocess", *arguments, "--output", tmp_path / "undisturbed", environment=environment)

    output = tmp_path / "dataset"
    arguments += ["--output", str(output)]
    first, second = STAGES[kind]
    hold = Hold(tmp_path / "first", MARK.format(first))
    with hold.held("jobs.preprocess", *arguments, environment=on_cluster, count=0) as held:
        held.until(lambda: any(path.is_file() for path in _scratch(output, f"{first}/**/*")))
    before = _finished(output)
    assert first not in before
    hold = Hold(tmp_path / "second", MARK.format(second))
    with hold.held("jobs.preprocess", *arguments, environment=on_cluster) as held:
        held.kill()
        assert GOES_ON in held.log.read_text()
    found = _finished(output)
    assert before.items() < found.items()
    assert first in found
    assert second not in found
    hold = Hold(tmp_path / "third", MANIFEST)
    with hold.held("jobs.preprocess", *arguments, environment=on_cluster) as held:
        assert GOES_ON in held.log.read_text()
        assert found.items() < _finished(output).items()
        hold.end()
        held.wait()
    assert files_of(output) == files_of(tmp_path / "undisturbed")


def _scratch(output: Path, pattern: str) -> list[Path]:
    """Return what lies in the scratch folder of an unfinished dataset."""
    return list(output.parent.glob(f".{output.name}.unfinished-*/.scratch/{pattern}"))


def _finished(output: Path) -> dict[str, int]:
    """Return the stages that are done, each with the time when it was marked, which changes if it is done again."""
    return {mark.stem: mark.stat().st_mtime_ns for mark in _scratch(output, "[!.]*.json")}

"""Stages of a long job: each runs once, and what was begun but not finished is begun again from nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import DiskError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.config import Config
from rayrec.config.transforms import Fill, NumericTransform, Standardize
from rayrec.features.text_forms import TextFacts
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.extract import Extracted, ExtractedChunk
from rayrec.preprocessing.pipeline import Preprocessing
from rayrec.preprocessing.segments import Piece
from rayrec.preprocessing.workspace import Stages, Workspace, WrittenDataset
from rayrec.sources.interactions.histories import HistoryCounts
from rayrec.store.files import new_file
from rayrec.store.folders import new_folder
from tests.builders import make_dataset, make_recipe
from tests.messages import Messages


class Found(Config):
    path: Path
    rows: int


def test_a_stage_runs_once(tmp_path: Path) -> None:
    calls = []

    def work(folder: Path) -> Found:
        calls.append(folder)
        (folder / "rows").write_text("1")
        return Found(path=folder / "rows", rows=1)

    messages = Messages()
    first = Stages(tmp_path, messages).run("parse", Found, work)
    again = Stages(tmp_path, messages).run("parse", Found, work)
    assert first == again == Found(path=tmp_path / "parse" / "rows", rows=1)
    assert len(calls) == 1 and first.path.read_text() == "1"
    assert messages.lines == ["parse: already done"]


def test_results_are_what_they_were(tmp_path: Path) -> None:
    """Of types that JSON has no word for."""
    chunk = ExtractedChunk(
        "day_0", 0, 3, {"": (Piece(tmp_path / "rows", 0, 3),)}, {}, tmp_path / "bad", {"a": TextFacts(True, (1, 2))}
    )
    numbers = {"a": (Standardize(mean=0.1, deviation=1 / 3), Fill(value=-1e-300))}
    results: list[tuple[Any, Any]] = [
        (Extracted, Extracted([chunk], {"bad": 1})),
        (dict[str, tuple[NumericTransform, ...]], numbers),
        (tuple[list[Piece], HistoryCounts], ([Piece(tmp_path / "x", 1, 2)], HistoryCounts(train=5))),
    ]
    for number, (kind, result) in enumerate(results):
        for _ in range(2):
            assert Stages(tmp_path, SilentProgress()).run(f"s{number}", kind, lambda _, r=result: r) == result
    assert list(Stages(tmp_path, SilentProgress()).run("s1", results[1][0], pytest.fail)) == ["a"]


def test_a_mark_is_written_when_all_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync, replace = os.fsync, os.replace

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def named(source: Path, target: Path) -> None:
        if target.name == "parse.json":
            assert {files, files / "rows", dataset, tmp_path, source} <= set(synced)
            assert any(path.name.startswith(".part.") for path in synced)
        synced.clear() if target.name == "parse.json" else None
        replace(source, target)

    def work(folder: Path) -> None:
        with new_file(folder / "rows" / "part") as temporary:
            temporary.write_text("1")

    files, dataset = tmp_path / ".scratch" / "parse", tmp_path / "vocabulary"
    dataset.mkdir()
    (tmp_path / ".scratch").mkdir()
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", named)
    Stages(tmp_path / ".scratch", SilentProgress()).leave("parse", work)
    assert synced == [tmp_path / ".scratch"], "the mark's own name"


def test_an_unfinished_stage_begins_from_nothing(tmp_path: Path) -> None:
    stages = Stages(tmp_path, SilentProgress())
    statistics, test = tmp_path / "data" / "statistics", tmp_path / "data" / "test"
    for folders in ((), (statistics,), (statistics, test)):
        filled = folders or (tmp_path / "rates",)

        def dies(_: Path, filled: tuple[Path, ...] = filled) -> None:
            for folder in filled:
                (folder / "half").write_text("1")
            raise RuntimeError

        with pytest.raises(RuntimeError):
            stages.leave("rates", dies, *folders)
        stages.leave("rates", lambda files: (files / "whole").touch(), *folders)
        assert [[path.name for path in folder.iterdir()] for folder in filled] == [["whole"], []][: len(filled)]
        (tmp_path / "rates.json").unlink()


def test_released_files_are_gone_and_the_stage_stays_done(tmp_path: Path) -> None:
    stages = Stages(tmp_path, SilentProgress())
    stages.leave("parse", lambda folder: (folder / "rows").touch())
    stages.release("parse", "parse")
    assert not (tmp_path / "parse").exists()
    stages.leave("parse", lambda _: pytest.fail("runs again"))


# --- the folder that stages lie in


def test_work_is_found_again_after_every_error_but_the_users(tmp_path: Path) -> None:
    output = tmp_path / "out"
    for error in (KeyboardInterrupt, RuntimeError, DiskError):
        with pytest.raises(error), new_folder(output, "abc") as folder:
            (folder / error.__name__).touch()
            raise error
        assert not output.exists()
    with new_folder(output, "abc") as folder:
        assert sorted(p.name for p in folder.iterdir()) == ["DiskError", "KeyboardInterrupt", "RuntimeError"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"] and len(list(output.iterdir())) == 3


def test_the_work_of_other_inputs_is_kept_until_one_succeeds(tmp_path: Path) -> None:
    for name in ("out", "out2"):
        with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / name, "abc") as folder:
            (folder / "rows").touch()
            raise KeyboardInterrupt
    with new_folder(tmp_path / "out", "other") as folder:
        assert not any(folder.iterdir())
        assert (tmp_path / ".out.unfinished-abc" / "rows").exists()
    assert [path.name for path in tmp_path.glob(".out*.unfinished-*")] == [".out2.unfinished-abc"]


def test_a_users_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bad rows"), new_folder(tmp_path / "out", "abc") as folder:
        (folder / "rows").touch()
        raise UserError("bad rows")
    assert list(tmp_path.iterdir()) == []


# --- the job around the stages


class NothingLeft:
    """A job whose work is done."""

    files = ()

    def write(self, workspace: Workspace) -> WrittenDataset:
        pytest.fail("works again")


def test_a_kill_while_the_scratch_is_removed_costs_nothing(tmp_path: Path) -> None:
    """The manifest is there, but marks may be gone in any order."""
    job = Preprocessing(NothingLeft(), make_recipe(), tmp_path / "out")
    folder = tmp_path / f".out.unfinished-{job._settings()}"
    manifest = make_dataset(folder).manifest
    (folder / ".scratch" / "parse").mkdir(parents=True)
    (folder / ".scratch" / "fit.json").touch()
    assert job.run(EmbeddedEngine(1), SilentProgress()) == manifest
    assert Dataset.open(tmp_path / "out").manifest == manifest
    assert not list((tmp_path / "out").glob(".*")) and [p.name for p in tmp_path.iterdir()] == ["out"]

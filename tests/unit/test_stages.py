"""Stages of a long job: each runs once, and what was begun but not finished is begun again from nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayrec.common.errors import DiskFullError, UserError
from rayrec.common.files import resumable_folder
from rayrec.common.progress import SilentProgress
from rayrec.config import Config
from rayrec.preprocessing.workspace import Stages


class Found(Config):
    path: Path
    rows: int


class Messages(SilentProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


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
    assert messages.texts == ["parse: done before"]


def test_an_unfinished_stage_begins_from_nothing(tmp_path: Path) -> None:
    def dies(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise RuntimeError

    stages = Stages(tmp_path, SilentProgress())
    elsewhere = tmp_path / "data" / "statistics"
    for folder in (None, elsewhere):
        with pytest.raises(RuntimeError):
            stages.leave("rates", dies, folder)
        stages.leave("rates", lambda files: (files / "whole").touch(), folder)
        assert [p.name for p in (folder or tmp_path / "rates").iterdir()] == ["whole"]
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
    for error in (KeyboardInterrupt, RuntimeError, DiskFullError):
        with pytest.raises(error), resumable_folder(output, "abc") as folder:
            (folder / error.__name__).touch()
            raise error
        assert not output.exists()
    with resumable_folder(output, "other") as folder:
        assert not any(folder.iterdir())
        raised = sorted(p.name for p in (tmp_path / ".out.unfinished-abc").iterdir())
    assert raised == ["DiskFullError", "KeyboardInterrupt", "RuntimeError"]
    output.rmdir()
    with resumable_folder(output, "abc") as folder:
        assert len(list(folder.iterdir())) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["out"] and len(list(output.iterdir())) == 3


def test_a_users_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bad rows"), resumable_folder(tmp_path / "out", "abc") as folder:
        (folder / "rows").touch()
        raise UserError("bad rows")
    assert list(tmp_path.iterdir()) == []


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    """Another process holds it; when that is killed, it is free, with what lies in it."""
    code = (
        "import sys, time; from pathlib import Path; from rayrec.common.files import resumable_folder\n"
        "with resumable_folder(Path(sys.argv[1]), 'abc') as folder:\n"
        "    (folder / 'held').touch(); time.sleep(60)\n"
    )
    output = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen([sys.executable, "-c", code, str(output)], env=environment)
    held = tmp_path / ".out.unfinished-abc" / "held"
    try:
        deadline = time.monotonic() + 30
        while not held.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(UserError, match="another run is writing it"), resumable_folder(output, "abc"):
            pass
        assert held.exists()
    finally:
        other.kill()
        other.wait()
    with resumable_folder(output, "abc") as folder:
        assert [p.name for p in folder.iterdir()] == ["held"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]

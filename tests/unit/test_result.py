"""result.json, and how a command's outcome and errors become exit codes and one line of text."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.command.interface import as_arguments, main
from jobs.command.request import Request
from jobs.command.result import Result, text_table
from jobs.command.runner import Command, execute, run_command
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress, SilentProgress


class StubRequest(Request):
    """A request with a field of each kind."""

    output: Path
    rows: int = 1
    set: tuple[str, ...] = ()
    resume: bool = False


def command_that(act: Callable[[StubRequest], Any]) -> Command[StubRequest]:
    """A command whose work is `act`."""

    def run(request: StubRequest, progress: Progress) -> Result:
        act(request)
        baselines = {"test": {"base rate": {"auc": 0.5}}}
        metrics: dict[str, dict[str, float | None]] = {"test": {"auc": 0.75, "hr@10": None, "rows": 1_234.0}}
        return Result(command="stub", output=request.output, rows=request.rows, metrics=metrics, baselines=baselines)

    return Command("stub", StubRequest, run)


def raising(error: BaseException) -> Callable[[StubRequest], None]:
    def act(request: StubRequest) -> None:
        request.output.mkdir(parents=True)
        raise error

    return act


def test_done_writes_result_and_prints_a_summary(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = command_that(lambda request: request.output.mkdir())
    code = run_command(command, {"output": tmp_path / "out", "rows": 1234})
    out, err = capfd.readouterr()
    saved = Result.load(tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("stub: done in ") and "1,234 rows" in out
    assert out.splitlines()[1:] == ["  test: auc 0.750 (base rate 0.500), hr@10 -, rows 1,234"]
    assert (saved.status, saved.rows, saved.metrics["test"]["auc"]) == ("done", 1234, 0.75)
    assert saved.baselines == {"test": {"base rate": {"auc": 0.5}}}


_WIDE: list[dict[str, Any]] = [
    {"column": f"a column with a long name {number}", "kind": "numeric", "share": 0.123456, "unknown values": 1_234_567,
     "why": "many words on what this column is and becomes " * 3}
    for number in range(3)
]  # fmt: skip


@pytest.mark.parametrize("below", [None, "why"])
@pytest.mark.parametrize("width", [24, 50, 80, 120, 400])
def test_tables_fit_the_width_and_lose_nothing(width: int, below: str | None) -> None:
    shown = text_table(_WIDE, below=below, width=width)
    assert max(map(len, shown.splitlines())) <= width
    words = "".join(shown.split())
    assert words.count("0.123") == 3 and words.count("1,234,567") == 3
    for row in _WIDE:
        assert all(word in shown for word in str(row["column"]).split())
    assert shown.count("becomes") == 9


def test_a_table_with_room_is_as_wide_as_its_texts() -> None:
    rows = [{"name": "a", "share": "1.5%", "n": 3}, {"name": "bcd", "share": "12.5%", "n": None}]
    assert text_table(rows, width=80) == "name  share  n\na      1.5%  3\nbcd   12.5%"


def test_columns_that_do_not_fit_follow_below() -> None:
    rows = [{"run": "r1", **{f"metric{number}": 0.5 for number in range(12)}}]
    parts = text_table(rows, width=40).split("\n\n")
    assert len(parts) > 1 and all(part.startswith("run") for part in parts)


def test_json_is_the_saved_object_alone_on_stdout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def act(request: StubRequest) -> None:
        request.output.mkdir()
        print("a library prints")
        os.write(1, b"a child process prints\n")

    code = run_command(command_that(act), {"output": tmp_path / "out"}, json_output=True)
    out, err = capfd.readouterr()
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "out" / "result.json").read_text())
    assert "a library prints" in err and "a child process prints" in err


@pytest.mark.parametrize(
    ("error", "code", "status", "line"),
    [
        (UserError("data: missing; give one"), 1, "failed", "error: data: missing; give one"),
        (ConfigError("train.lr: bad"), 2, "failed", "error: train.lr: bad"),
        (KeyboardInterrupt(), 130, "interrupted", "error: interrupted"),
        (SystemExit(15), 130, "interrupted", "error: interrupted"),
        (
            RuntimeError("in a task\n  File 'x.py', line 3\n\nZeroDivisionError: division by zero"),
            1,
            "failed",
            "error: RuntimeError: in a task ... ZeroDivisionError: division by zero; "
            "run again with --debug for the traceback",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "/data/part-0"),
            1,
            "failed",
            "error: /data/part-0: no such file or directory; run again with --debug for the traceback",
        ),
    ],
)
def test_errors(
    error: BaseException, code: int, status: str, line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = run_command(command_that(raising(error)), {"output": tmp_path / "out"}, json_output=True)
    out, err = capfd.readouterr()
    saved = Result.load(tmp_path / "out")
    assert (found, err) == (code, f"{line}\n")
    assert saved.status == status == json.loads(out)["status"]
    assert saved.error == json.loads(out)["error"]


def test_debug_shows_the_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_command(command_that(raising(ZeroDivisionError("x"))), {"output": tmp_path / "out"}, debug=True)
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(("resume", "begins", "kept"), [(False, True, True), (True, False, True), (True, True, False)])
def test_a_failure_leaves_an_older_output_as_it_was(resume: bool, begins: bool, kept: bool, tmp_path: Path) -> None:
    """Unless the command resumes it, and was not refused."""

    def fail(request: StubRequest) -> None:
        if begins:
            (request.output / "config.yaml").touch()
        raise UserError("already exists")

    before = Result(command="earlier", output=tmp_path, rows=7)
    before.save(tmp_path)
    os.utime(tmp_path, (0, 0))
    with pytest.raises(UserError):
        execute(command_that(fail), StubRequest(output=tmp_path, resume=resume), SilentProgress())
    assert (Result.load(tmp_path) == before) is kept


def test_a_failure_before_there_is_a_folder_makes_none(tmp_path: Path) -> None:
    def fail(request: StubRequest) -> None:
        raise UserError("no input")

    with pytest.raises(UserError):
        execute(command_that(fail), StubRequest(output=tmp_path / "out"), SilentProgress())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "request_",
    [
        StubRequest(output=Path("out")),
        StubRequest(output=Path("a b"), rows=7, set=("a=1", "b=[2, 3]", "--c=-1"), resume=True),
    ],
)
def test_arguments_make_the_request_again(request_: StubRequest) -> None:
    seen: list[StubRequest] = []

    def run(request: StubRequest, progress: Progress) -> Result:
        seen.append(request)
        return Result(command="stub")

    assert main(Command("train", StubRequest, run), as_arguments(request_)) == 0
    assert seen == [request_]


def test_sigterm_cleans_up_like_an_interrupt(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from jobs.command.interface import main\n"
        "from jobs.command.request import Request\n"
        "from jobs.command.result import Result\n"
        "from jobs.command.runner import Command\n"
        "from rayrec.store.folders import new_folder\n"
        "class StubRequest(Request):\n"
        "    output: Path\n"
        "def run(request, progress):\n"
        "    with new_folder(request.output) as folder:\n"
        "        print('ready', file=sys.stderr, flush=True)\n"
        "        time.sleep(600)\n"
        "sys.exit(main(Command('train', StubRequest, run), ['--output', sys.argv[1]]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out")], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "error: interrupted\n")
    assert list(tmp_path.iterdir()) == []

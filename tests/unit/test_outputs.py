"""Every command judges where it will write before it works, in one way."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs import COMMANDS
from jobs.command import Request, Result, build_request, execute, load_command
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.raw.input_files import list_inputs

RECIPE = "dcnv2-criteo-debug"
READ = "read"
VALUES: dict[str, dict[str, Any]] = {
    "demo": {},
    "recipes": {"name": RECIPE},
    "inspect": {"path": READ},
    "generate": {"source": "criteo", "rows": 9},
    "preprocess": {"recipe": RECIPE, "input": READ},
    "run": {"recipe": RECIPE, "input": READ},
    "train": {"recipe": RECIPE, "data": READ},
    "tune": {"recipe": RECIPE, "data": READ, "trials": 2},
    "follow": {"recipe": RECIPE, "input": READ, "serve": "versions"},
    "report": {"source": READ},
    "explain": {"source": READ, "data": "data"},
    "compare": {"run": ["run", READ]},
    "predict": {"model": "model", "input": f"test={READ}", "raw": True},
    "export": {"run": READ},
    "serve": {"model": f"name={READ}"},
}
"""What each command that writes is given besides its outputs."""
OUTPUTS = [(name, field) for name in VALUES for field in load_command(name).request.outputs if field != "figures"]
ENDINGS = {("inspect", "output"): ".yaml", ("inspect", "page"): ".html", ("recipes", "output"): ".yaml"}


def _full(path: Path) -> Path:
    path.mkdir()
    (path / "precious").touch()
    return path


def _link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


def _below_a_file(path: Path) -> Path:
    path.touch()
    return path / "deep" / path.name


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "full": (_full, "already exists"),
    "dangling": (lambda path: _link(path, "nowhere"), "a link to nowhere, which does not exist"),
    "circle": (lambda path: _link(path, path.name), "a link to out.*, which does not exist"),
    "below a dangling link": (lambda path: _link(path, "nowhere") / path.name, "because .* is not a folder"),
    "below a file": (_below_a_file, "because .* is not a folder"),
    "takes nothing": (lambda path: Path("/proc", "deep", path.name), "because /proc takes no new folder"),
    "long": (lambda path: path.with_name("a" * 240 + path.name), "file name too long; give a shorter one"),
    "within the input": (lambda path: path.parent / READ / "deep" / path.name, "lies in what is read"),
}  # fmt: skip
ONLY_FOLDERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "here": (lambda _: Path("."), "the folder in which the command runs"),
    "around": (lambda path: path.parent, "the folder in which the command runs"),
    "the input": (lambda path: path.parent / READ, "lies in what is read|already exists"),
    "a file": (lambda path: path.parent / READ / "rows.csv", "already exists|lies in what is read"),
}
READ_NOTHING = {"demo", "recipes", "generate"}
FINE = {
    ("inspect", "output", "within the input"),  # recipes may lie beside rows, and logs in any folder
    *(("serve", "log_folder", case) for case in ("full", "here", "around")),
}


def _judge(name: str, field: str, output: Path) -> None:
    """Raise what a command says of an output before its work, which must not begin."""
    command = load_command(name)

    def work(_: Request, __: Progress) -> Result:
        raise AssertionError("the work began")

    values: dict[str, Any] = {**VALUES[name], field: str(output)}
    if "output" in command.request.model_fields and "continue_" not in values:
        values.setdefault("output", f"other{ENDINGS.get((name, 'output'), '')}")
    request = build_request(command.request, values)
    execute(replace(command, run=work), request, SilentProgress())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / READ).mkdir()
    (tmp_path / READ / "rows.csv").write_text("label,a\n1,2\n")
    return tmp_path


def test_all_commands_that_write_are_here() -> None:
    requests = {name: load_command(name).request for name in COMMANDS}
    assert {n for n, request in requests.items() if request.outputs.keys() & request.model_fields.keys()} == set(VALUES)


@pytest.mark.parametrize("case", [*BAD, *ONLY_FOLDERS])
@pytest.mark.parametrize(("name", "field"), OUTPUTS)
def test_a_bad_output_is_refused_before_the_work(name: str, field: str, case: str, here: Path) -> None:
    ending = ENDINGS.get((name, field), "")
    if (ending and case in ONLY_FOLDERS) or (name, field, case) in FINE or ("input" in case and name in READ_NOTHING):
        pytest.skip("not such a command")
    make, message = {**BAD, **ONLY_FOLDERS}[case]
    output = make(here / f"out{ending}")
    left = sorted(map(str, here.rglob("*")))
    with pytest.raises(UserError, match=message) as refused:
        _judge(name, field, output)
    assert "\n" not in str(refused.value)
    assert sorted(map(str, here.rglob("*"))) == left


@pytest.mark.parametrize(("name", "field"), OUTPUTS)
def test_a_good_output_is_left_to_the_work(name: str, field: str, here: Path) -> None:
    for output in (here / "out", here / "new" / "deep" / "out", Path("out")):
        with pytest.raises(AssertionError, match="the work began"):
            _judge(name, field, output.with_suffix(ENDINGS.get((name, field), "")))
        assert sorted(path.name for path in here.iterdir()) == [READ]


@pytest.mark.parametrize("name", VALUES)
def test_names_that_are_not_utf8_are_refused(name: str, here: Path) -> None:
    command = load_command(name)
    for field in (*command.request.outputs.keys() - {"figures"}, *VALUES[name]):
        if field == "rows" or field == "trials":
            continue
        other = {} if field == "continue_" else {"output": "other"}
        values = {**other, **VALUES[name], field: os.fsdecode(b"caf\xe9")}
        with pytest.raises(ConfigError, match=rf"^{field}: .*caf\\udce9' is not UTF-8"):
            build_request(command.request, values)


def test_a_raw_file_whose_name_is_not_utf8_is_named(here: Path) -> None:
    (here / READ / os.fsdecode(b"\xe9t\xe9.csv")).touch()
    for given in (READ, f"{READ}/*"):
        with pytest.raises(UserError, match=r"read/\\udce9t\\udce9.csv': a name that is not UTF-8; rename"):
            list_inputs([given])


def test_a_working_folder_without_a_name_of_utf8_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / os.fsdecode(b"\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="the name of the working folder is not UTF-8"):
        _judge("run", "output", Path("out"))
    folder.rmdir()
    with pytest.raises(UserError, match="the working folder was removed"):
        _judge("run", "output", Path("out"))

"""Every mistake of the tables gets its line, and docs/errors.md shows the same tables."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from rayrec.cli.main import app
from rayrec.common.program import run_program
from tests.end_to_end import bad_tables
from tests.end_to_end.bad_inputs import COMMANDS, DOCUMENT, ROWS, document, prepare
from tests.end_to_end.conftest import Finished
from tests.end_to_end.mistake import BadInput


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    prepared = tmp_path_factory.mktemp("mistakes")
    prepare(prepared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYREC_CACHE", str(tmp_path_factory.mktemp("staging")))
        yield prepared


def check(case: BadInput, done: Finished, folder: Path) -> None:
    *progress, last = done.err.replace(f"{folder}/", "").splitlines()
    assert (done.code, done.out, last) == (case.code, "", f"error: {case.message}")
    assert not any("error" in line.lower() or "Traceback" in line for line in progress)
    assert [path.name for path in (folder / "full").iterdir()] == ["precious"]
    assert not any((folder / name).exists() for name in ("run", "out", "model", "scores", "raw"))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.title, marks=[pytest.mark.minutes] if case in ROWS else []) for case in COMMANDS],
)
def test_one_line_says_what_is_wrong(case: BadInput, folder: Path, rayrec: Callable[..., Finished]) -> None:
    check(case, rayrec(*shlex.split(case.command), folder=folder), folder)


@pytest.fixture
def rayrec_here(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Finished]:
    """Return a command in the process of the tests, which takes a moment."""
    monkeypatch.chdir(folder)

    def run(command: str) -> Finished:
        code = run_program(typer.main.get_command(app), "rayrec", shlex.split(command))
        return Finished(code, *capfd.readouterr())

    return run


@pytest.mark.parametrize("case", [*bad_tables.RECIPES, *bad_tables.FILES, *bad_tables.INSPECT], ids=lambda c: c.title)
def test_one_line_says_what_is_wrong_with_a_table(
    case: BadInput, folder: Path, rayrec_here: Callable[[str], Finished]
) -> None:
    check(case, rayrec_here(case.command), folder)


@pytest.mark.parametrize("case", bad_tables.BAD_ROWS, ids=lambda c: c.title)
def test_one_line_says_what_is_wrong_with_the_rows(
    case: BadInput, folder: Path, rayrec_here: Callable[[str], Finished]
) -> None:
    check(case, rayrec_here(case.command), folder)


def test_the_documentation_shows_the_tables() -> None:
    assert DOCUMENT.read_text() == document()

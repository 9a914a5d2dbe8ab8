"""Every mistake of the table gets its line, and docs/errors.md shows the same table."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.bad_inputs import COMMANDS, DOCUMENT, ROWS, BadInput, document, prepare
from tests.end_to_end.conftest import Finished


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    prepared = tmp_path_factory.mktemp("mistakes")
    prepare(prepared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYREC_STAGING", str(tmp_path_factory.mktemp("staging")))
        yield prepared


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.title, marks=[pytest.mark.minutes] if case in ROWS else []) for case in COMMANDS],
)
def test_one_line_says_what_is_wrong(case: BadInput, folder: Path, rayrec: Callable[..., Finished]) -> None:
    done = rayrec(*shlex.split(case.command), folder=folder)
    *progress, last = done.err.replace(f"{folder}/", "").splitlines()
    assert (done.code, done.out, last) == (case.code, "", f"error: {case.message}")
    assert not any("error" in line.lower() or "Traceback" in line for line in progress)
    assert [path.name for path in (folder / "full").iterdir()] == ["precious"]
    assert not any((folder / name).exists() for name in ("run", "out", "model", "scores", "raw"))


def test_the_documentation_shows_the_table() -> None:
    assert DOCUMENT.read_text() == document()

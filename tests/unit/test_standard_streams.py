"""A command whose output or errors go nowhere does its work, and says in one line what could not be printed."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "closed": (">&-", 1, "error: standard output: closed"),
    "full": (">/dev/full", 1, "error: standard output: no space left on device"),
    "a reader that has left": ("| true; exit ${PIPESTATUS[0]}", 0, ""),
    "errors closed": ("2>&- >/dev/null", 0, ""),
    "errors full": ("2>/dev/full >/dev/null", 0, ""),
    "nothing open": ("<&- >&- 2>&-", 1, ""),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arguments", ["recipes mf-ml-1m --output new.yaml", "recipes mf-ml-1m --json", "recipes -h"])
def test_what_cannot_be_printed_is_said(arguments: str, case: str, tmp_path: Path) -> None:
    redirected, code, line = CASES[case]
    if arguments.endswith("-h") and "reader" in case:
        pytest.skip("typer's own code of it")
    command = f"{sys.executable} -m rayrec.cli {arguments} {redirected}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(line) and done.stderr.count("\n") == bool(line)
    if "new.yaml" in arguments:
        assert (tmp_path / "new.yaml").stat().st_size
        assert ("the work is done; the result is in new.yaml" in done.stderr) is bool(line)

"""The memory that is left: the machine's, or that of a container with a limit."""

from pathlib import Path

import psutil
import pytest

from rayrec.common import memory


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param("1000000", 1_000_000 - 700_000 + 250_000, id="idle pages of files are available"),
        pytest.param("400000", 0, id="a limit below what is used"),
        pytest.param("max", None, id="no limit"),
        pytest.param(str(2**60), None, id="a limit beyond the machine's memory"),
    ],
)
def test_a_container_has_what_its_limit_leaves(
    limit: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available_memory() == free.available, "no container"
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\nfile 300000\ninactive_file 250000\nactive_file 50000\n")
    assert memory.available_memory() == (free.available if expected is None else expected)

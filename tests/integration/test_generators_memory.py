"""Peak resident memory of the generators: it does not grow with the rows that they write."""

import subprocess
import sys
from pathlib import Path

import pytest

from rayrec.sources.criteo.generator import CHUNK_ROWS

REPOSITORY = Path(__file__).resolve().parents[2]


def peak_mebibytes(module: str, folder: Path, rows: int) -> int:
    code = (
        f"import resource, sys; from pathlib import Path; from {module} import generate\n"
        "generate(Path(sys.argv[1]), int(sys.argv[2]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    return int(subprocess.check_output([sys.executable, "-c", code, str(folder), str(rows)], cwd=REPOSITORY))


@pytest.mark.parametrize(
    ("module", "few", "many"),
    [
        ("rayrec.sources.criteo.generator", CHUNK_ROWS, 8 * CHUNK_ROWS),
        ("rayrec.sources.outbrain.synthetic.generator", 10_000, 60_000),
    ],
    ids=["criteo", "outbrain"],
)
def test_memory_does_not_grow_with_rows(module: str, few: int, many: int, tmp_path: Path) -> None:
    least = peak_mebibytes(module, tmp_path / "few", few)
    peak = peak_mebibytes(module, tmp_path / "many", many)
    written = sum(path.stat().st_size for path in (tmp_path / "many").rglob("*") if path.is_file()) / 2**20
    assert peak - least < min(30, 0.25 * written)

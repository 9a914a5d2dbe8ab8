"""Peak resident memory of the generators: it does not grow with the rows that they write."""

import subprocess
import sys
from pathlib import Path

import pytest

from rayrec.sources.synthetic import CHUNK_ROWS

REPOSITORY = Path(__file__).resolve().parents[2]
# A table's columns have ten million values, of which nothing is kept.
RECIPE = """\
source:
  kind: table
  label: y
  features: [{columns: [a, b, c], kind: categorical}, {columns: [d, e], kind: numeric}]
model: {kind: dcnv2}
"""
TABLE = "recipe=__import__('rayrec').load_recipe('wide.yaml'), cardinality={'?': 10**7}"
CASES = {
    # Rows of a small and a large file, further options of each.
    "criteo": (CHUNK_ROWS, 8 * CHUNK_ROWS, "", ""),
    "criteo by day": (3 * CHUNK_ROWS, 24 * CHUNK_ROWS, "days=3, drift=1.0", "days=6, drift=1.0"),
    "interactions of people": (4 * CHUNK_ROWS, 20 * CHUNK_ROWS, "drift=1.0", "drift=1.0"),
    "interactions by day": (3 * CHUNK_ROWS, 24 * CHUNK_ROWS, "days=3, drift=1.0", "days=6, drift=1.0"),
    "table": (CHUNK_ROWS, 32 * CHUNK_ROWS, TABLE, TABLE),
    "outbrain": (10_000, 60_000, "", ""),
}


def peak_mebibytes(kind: str, folder: Path, rows: int, more: str) -> int:
    code = (
        "import resource; from pathlib import Path; from rayrec.common.progress import SilentProgress\n"
        "from rayrec.sources.generated_files import GeneratorOptions; from rayrec.sources.registry import source_of\n"
        f"source_of({kind!r}).generate(Path('{rows}'), GeneratorOptions({rows}, {more}), SilentProgress())\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    environment = {"PYTHONPATH": str(REPOSITORY)}
    return int(subprocess.check_output([sys.executable, "-c", code], cwd=folder, env=environment))


@pytest.mark.parametrize("case", CASES)
def test_memory_is_flat(case: str, tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text(RECIPE)
    kind, (few, many, of_few, of_many) = case.split()[0], CASES[case]
    small, large = (peak_mebibytes(kind, tmp_path, rows, more) for rows, more in ((few, of_few), (many, of_many)))
    written = sum(file.stat().st_size for file in (tmp_path / str(many)).iterdir()) / 2**20
    assert written > 8 and large - small < 0.5 * written

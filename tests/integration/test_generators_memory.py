"""Peak resident memory of the generators: it does not grow with the rows that they write."""

import subprocess
import sys
from pathlib import Path

import pytest

from rayrec.sources.synthetic import CHUNK_ROWS

REPOSITORY = Path(__file__).resolve().parents[2]


def peak_mebibytes(kind: str, folder: Path, rows: int, more: str = "") -> int:
    code = (
        "import resource, sys; from pathlib import Path; from rayrec.common.progress import SilentProgress\n"
        "from rayrec.sources.generated_files import GeneratorOptions; from rayrec.sources.registry import source_of\n"
        f"options = GeneratorOptions(int(sys.argv[2]), {more})\n"
        f"source_of({kind!r}).generate(Path(sys.argv[1]), options, SilentProgress())\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    return int(subprocess.check_output([sys.executable, "-c", code, str(folder), str(rows)], cwd=REPOSITORY))


def test_criteo(tmp_path: Path) -> None:
    few = peak_mebibytes("criteo", tmp_path / "few", CHUNK_ROWS)
    many = peak_mebibytes("criteo", tmp_path / "many", 8 * CHUNK_ROWS)
    size = (tmp_path / "many" / "criteo.tsv").stat().st_size / 2**20
    assert size > 25
    assert many - few < 0.25 * size


@pytest.mark.parametrize("source", ["criteo", "interactions"])
def test_days(source: str, tmp_path: Path) -> None:
    rows = 3 * CHUNK_ROWS
    few = peak_mebibytes(source, tmp_path / "few", rows, "days=3, drift=1.0")
    many = peak_mebibytes(source, tmp_path / "many", 8 * rows, "days=6, drift=1.0")
    assert many < few + 30


def test_tables(tmp_path: Path) -> None:
    """Of columns of ten million values, of which nothing is kept."""
    rules = "{columns: [a, b, c], kind: categorical}, {columns: [d, e], kind: numeric}"
    recipe = f"source: {{kind: table, label: y, features: [{rules}]}}\nmodel: {{kind: dcnv2}}\n"
    (tmp_path / "wide.yaml").write_text(recipe)
    more = f"recipe=__import__('rayrec').load_recipe({str(tmp_path / 'wide.yaml')!r}), cardinality={{'?': 10**7}}"
    few, many = (peak_mebibytes("table", tmp_path / str(n), n * CHUNK_ROWS, more) for n in (1, 32))
    assert (tmp_path / "32/table.csv").stat().st_size > 15 * 2**20
    assert many < few + 30


def test_outbrain(tmp_path: Path) -> None:
    few, many = (peak_mebibytes("outbrain", tmp_path / str(rows), rows) for rows in (10_000, 60_000))
    assert many < few + 30

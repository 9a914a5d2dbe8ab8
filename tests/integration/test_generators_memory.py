"""Peak resident memory of the generators: it does not grow with the rows that they write."""

import subprocess
import sys
from pathlib import Path

import pytest

from rayrec.sources.synthetic import CHUNK_ROWS

REPOSITORY = Path(__file__).resolve().parents[2]


def peak_mebibytes(module: str, folder: Path, rows: int, more: str = "") -> int:
    code = (
        f"import resource, sys; from pathlib import Path; from {module} import generate\n"
        f"generate(Path(sys.argv[1]), int(sys.argv[2]), {more})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    return int(subprocess.check_output([sys.executable, "-c", code, str(folder), str(rows)], cwd=REPOSITORY))


def test_criteo(tmp_path: Path) -> None:
    few = peak_mebibytes("rayrec.sources.criteo.generator", tmp_path / "few", CHUNK_ROWS)
    many = peak_mebibytes("rayrec.sources.criteo.generator", tmp_path / "many", 8 * CHUNK_ROWS)
    size = (tmp_path / "many" / "criteo.tsv").stat().st_size / 2**20
    assert size > 25
    assert many - few < 0.25 * size


@pytest.mark.parametrize("source", ["criteo", "interactions"])
def test_days(source: str, tmp_path: Path) -> None:
    module, rows = f"rayrec.sources.{source}.generator", 3 * CHUNK_ROWS
    few = peak_mebibytes(module, tmp_path / "few", rows, "days=3, drift=1.0")
    many = peak_mebibytes(module, tmp_path / "many", 8 * rows, "days=6, drift=1.0")
    assert many < few + 30


def test_tables(tmp_path: Path) -> None:
    """Of columns of ten million values, of which nothing is kept."""
    rules = "{columns: [a, b, c], kind: categorical}, {columns: [d, e], kind: numeric}"
    recipe = f"source: {{kind: table, label: y, features: [{rules}]}}\nmodel: {{kind: dcnv2}}\n"
    (tmp_path / "wide.yaml").write_text(recipe)
    more = f"recipe=__import__('rayrec').load_recipe({str(tmp_path / 'wide.yaml')!r}), cardinality={{'?': 10**7}}"
    module, rows = "rayrec.sources.table.generator", CHUNK_ROWS
    few, many = (peak_mebibytes(module, tmp_path / str(n), n * rows, more) for n in (1, 32))
    assert (tmp_path / "32/table.csv").stat().st_size > 15 * 2**20
    assert many < few + 30


def test_outbrain(tmp_path: Path) -> None:
    module = "rayrec.sources.outbrain.synthetic.generator"
    few, many = (peak_mebibytes(module, tmp_path / str(rows), rows) for rows in (10_000, 60_000))
    assert many < few + 30

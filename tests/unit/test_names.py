"""Data sets are named where they belong: in their sources, the recipes, the demo and the documentation."""

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("rayrec", "jobs", "serve", "tune", "cluster", "cuda_ops")
ELSEWHERE = re.compile(r"^rayrec/sources/|(^|/)recipes/|\.md$|^jobs/demo\.py$|\.schema\.json$")
DATA_SETS = re.compile(r"outbrain|criteo|movielens", re.IGNORECASE)


def test_the_product_names_no_data_set() -> None:
    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    files = [REPOSITORY / name for name in listed.stdout.splitlines() if not ELSEWHERE.search(name)]
    assert len(files) > 100
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in files
        if path.is_file()
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), start=1)
        if DATA_SETS.search(line) or DATA_SETS.search(path.name)
    ]
    assert found == []

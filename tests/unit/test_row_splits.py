"""Which split a row falls into, if that follows from the row or its number in the file; what is kept of it."""

import dataclasses
import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.progress import SilentProgress
from rayrec.config.preprocess import ColumnSplitConfig, HashSplitConfig, SplitConfig
from rayrec.config.table import FileFormat
from rayrec.features.hashes import hash_string
from rayrec.features.text_forms import in_form
from rayrec.ingest.dataset import Dataset, SourceFile
from rayrec.preprocessing import extract
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.extract import pieces_of
from rayrec.preprocessing.planned_columns import KeptColumn
from rayrec.preprocessing.row_splits import KeptColumns, RowDivision, integers_of, keys_of_files
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.input_files import list_inputs
from rayrec.raw.table_reader import open_table
from tests.builders import make_dataset
from tests.table_files import raw_columns

ROWS = 1_000
TABLE = pa.table({
    "click": [n % 2 for n in range(ROWS)],
    "n": list(range(ROWS)),
    "user": [None if n % 10 == 0 else f"u{n % 37}" for n in range(ROWS)],
    "fold": [("train", "test", None, "validation")[n % 4] for n in range(ROWS)],
    "weight": [0.5] * ROWS,
})  # fmt: skip


def divided(
    given: Path | Sequence[Path],
    split: SplitConfig,
    hashed: str | None = None,
    *,
    chunk_bytes: int = 2**30,
    seed: int = 0,
    parent: Dataset | None = None,
) -> dict[str, list[int]]:
    """Return the numbers of the rows of each split, parsed and divided as a job does it in one thread."""
    files = list_inputs([str(path) for path in ([given] if isinstance(given, Path) else given)])
    columns = raw_columns(n="integer", user="text", fold="text", weight="number")
    reader = open_table(files, FileFormat()).reader(columns, "click")
    kept = KeptColumns("click", (KeptColumn("weight", "weight", "w"),), (pa.field("n", pa.int64()),))
    keys = keys_of_files([file.name for file in files], parent)
    division = RowDivision(split, seed, hashed, kept, reader, keys)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(extract, "_LEAST_CHUNK_BYTES", chunk_bytes)
        patch.setattr(extract, "_MOST_CHUNK_BYTES", chunk_bytes)
        scratch = Path(folder)
        workspace = Workspace(EmbeddedEngine(1), scratch / "data", scratch / "scratch", SilentProgress())
        workspace.folder.mkdir()
        workspace.scratch.mkdir()
        chunks, _ = extract.extract(workspace, reader, files, 0.5, division)
        files_of = {name: [piece.path for piece in pieces_of(chunks, name)] for name in division.names}
        return {
            name: [n for path in paths for n in pq.read_table(path)["n"].to_pylist()]
            for name, paths in files_of.items()
        }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the table as the files `log` of several formats."""
    return written(TABLE, tmp_path_factory.mktemp("files"))


def written(table: pa.Table, folder: Path) -> dict[str, Path]:
    paths = {kind: folder / f"log.{kind}" for kind in ("csv", "csv.gz", "jsonl", "parquet")}
    csv.write_csv(table, paths["csv"])
    paths["csv.gz"].write_bytes(gzip.compress(paths["csv"].read_bytes()))
    paths["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    pq.write_table(table, paths["parquet"], row_group_size=64)
    return paths


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("hashed", [None, "user"])
def test_hashed_splits_do_not_depend_on_the_chunks(files: dict[str, Path], kind: str, hashed: str | None) -> None:
    split = HashSplitConfig(validation=0.2, test=0.3)
    whole = divided(files[kind], split, hashed)
    assert sorted(n for rows in whole.values() for n in rows) == list(range(ROWS))
    for chunk_bytes in (500, 3_000):
        assert divided(files[kind], split, hashed, chunk_bytes=chunk_bytes) == whole
    assert divided(files[kind], split, hashed, seed=1) != whole
    if hashed is None:
        assert [len(rows) / ROWS for rows in whole.values()] == pytest.approx([0.5, 0.2, 0.3], abs=0.05)
    else:
        users = [{TABLE["user"][n].as_py() for n in rows} for rows in whole.values()]
        assert not users[0] & users[1] and not users[0] & users[2] and not users[1] & users[2]


def test_a_random_split_depends_on_the_numbers_of_rows_alone(files: dict[str, Path], tmp_path: Path) -> None:
    split = HashSplitConfig(validation=0.2, test=0.3)
    expected = divided(files["csv"], split)
    flipped = TABLE.set_column(0, "click", pc.subtract(1, TABLE["click"]))
    alike = TABLE.set_column(2, "user", pa.array(["u"] * ROWS)).set_column(0, "click", pa.array([1] * ROWS))
    for number, table in enumerate((TABLE, flipped, alike)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert [divided(path, split) for path in written(table, folder).values()] == [expected] * 4
    # Bad rows keep their numbers, and so do the rows behind them.
    bad = {5, 6, 700}
    lines = files["csv"].read_text().splitlines(keepends=True)
    path = tmp_path / "log.tsv"
    path.write_text("".join("0,\n" if number - 1 in bad else line for number, line in enumerate(lines)))
    for chunk_bytes in (500, 2**30):
        found = divided(path, split, chunk_bytes=chunk_bytes)
        assert found == {name: [n for n in rows if n not in bad] for name, rows in expected.items()}


def test_a_value_of_two_spellings_is_in_one_split(tmp_path: Path) -> None:
    split, path = HashSplitConfig(test=0.5), tmp_path / "log.csv"
    users = [str(n % 37) for n in range(ROWS)]
    found = []
    for spelled in (users, [f"{user}.0" if n % 2 else user for n, user in enumerate(users)]):
        csv.write_csv(TABLE.set_column(2, "user", pa.array(spelled)), path)
        found.append(divided(path, split, "user"))
    assert found[0] == found[1] and found[0]["test"]


def test_files_of_one_name_are_dealt_differently(tmp_path: Path) -> None:
    days = [tmp_path / day / "log.csv" for day in ("a", "b")]
    for path in days:
        path.parent.mkdir()
        csv.write_csv(TABLE, path)
    split = HashSplitConfig(test=0.5)
    alone = [divided(path, split)["test"] for path in days]
    assert alone[0] == alone[1]
    both = divided(days, split)["test"]
    assert both[: len(alone[0])] == alone[0]
    second = both[len(alone[0]) :]
    assert len(set(second) & set(alone[0])) / len(second) == pytest.approx(0.5, abs=0.1)
    # As an extension, the second file is divided as it was beside the first.
    parent = make_dataset(tmp_path / "data", {"train": 1})
    source = SourceFile(path=str(days[0]), bytes=0, modified=0, digest="")
    manifest = parent.manifest.model_copy(update={"sources": (source,)})
    parent = dataclasses.replace(parent, manifest=manifest)
    assert divided(days[1], split, parent=parent)["test"] == second


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_values_that_name_splits(files: dict[str, Path], kind: str) -> None:
    found = divided(files[kind], ColumnSplitConfig(column="fold"))
    assert found == {
        "train": [n for n in range(ROWS) if n % 4 in (0, 2)],
        "validation": list(range(3, ROWS, 4)),
        "test": list(range(1, ROWS, 4)),
    }
    both: dict[Any, Any] = {"test": ["validation", "train"]}
    others = divided(files[kind], ColumnSplitConfig(column="fold", values=both))
    assert others == {name: [n for n in range(ROWS) if (n % 4 in (0, 3)) == (name == "test")] for name in others}
    assert list(others) == ["train", "test"]


TEXTS = st.one_of(st.text(max_size=9), st.integers(-(2**70), 2**70).map(str), st.from_regex(r"\A0*[0-9]{1,3}\Z"))


@given(st.lists(TEXTS))
def test_numbers_of_groups(texts: list[str]) -> None:
    def number(text: str) -> int:
        text = in_form(pa.array([text], pa.string()), "number")[0].as_py()
        is_integer = text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text
        if is_integer and -(2**63) <= int(text) < 2**63:
            return int(text)
        hashed = hash_string(text)
        return hashed - 2**64 if hashed >= 2**63 else hashed

    expected = [number(text) for text in texts]
    for column in (pa.array(texts, pa.string()), pa.array(texts, pa.string()).dictionary_encode()):
        assert integers_of(column).tolist() == expected
    assert integers_of(pa.array([3, -5])).tolist() == [3, -5]

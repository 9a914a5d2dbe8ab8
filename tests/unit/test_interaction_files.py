"""Files of interactions: layouts told from their beginning, rows parsed against expected ones, what is refused."""

import gzip
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.table import LabelCondition
from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.recipes import Recipe
from rayrec.sources.interactions.config import (
    InteractionFilesSplitConfig,
    InteractionSourceConfig,
    LeaveOneOutSplitConfig,
)
from rayrec.sources.interactions.interaction_job import find_files
from rayrec.sources.interactions.interaction_reader import InteractionReader, has_lists
from rayrec.sources.registry import preprocessing

Row = tuple[float, str, str, Fraction | None]


def read(path: Path, chunk_bytes: int = 2**20, **config: Any) -> tuple[list[Row], list[tuple[int, str, str]]]:
    """Return rows and rejected rows (line, reason, text) of a file, lines counted from its first."""
    files = list_inputs([str(path)])
    source = InteractionSourceConfig(**config)
    is_lists = has_lists(source, files[0])
    reader = InteractionReader() if is_lists else InteractionReader.of_tables(source, files)
    rows: list[Row] = []
    rejected: list[tuple[int, str, str]] = []
    before = 0
    for chunk in plan_chunks(files, chunk_bytes):
        for block in reader.read(chunk):
            assert block.rows.schema == reader.schema
            for *row, time in zip(*block.rows.to_pydict().values(), strict=True):
                rows.append((*row, None if time is None else Fraction(time, 10**6)))
            assert len(block.lines) == block.rows.num_rows
            rejected += [(before + r["line"], r["reason"], r["text"]) for r in block.rejected.to_pylist()]
        before += _lines(reader, chunk)
    return rows, rejected


def _lines(reader: InteractionReader, chunk: Any) -> int:
    return sum(block.num_lines for block in reader.read(chunk))


TEXT: dict[str, tuple[bytes, dict[str, Any], list[Row]]] = {
    # content; config; rows
    "u.data": (b"196\t242\t3\t881250949\n186\t302\t3\t-5", {}, [(1, "196", "242", 881250949), (1, "186", "302", -5)]),
    "pairs": (b"0\t31\r\n0\t22\r\n", {}, [(1, "0", "31", None), (1, "0", "22", None)]),
    "ratings.dat": (b"1::1193::5::978300760\n", {}, [(1, "1", "1193", 978300760)]),
    "ratings.csv": (b"userId,movieId,rating,timestamp\n1,3,4.0,9\n", {}, [(1, "1", "3", 9)]),
    "no time": (b"user_id,item_id\na,b\n", {}, [(1, "a", "b", None)]),
    "other order, spaces in the header": (b"x, item , user\n1,i,u\n", {}, [(1, "u", "i", None)]),
    "names given": (
        b"who,what,when,timestamp\nu,i,7,8\n",
        {"user": "who", "item": "what", "timestamp": "when"},
        [(1, "u", "i", 7)],
    ),
    "two columns of one name": (
        b"userId,movieId,x,x\n1,2,3,4\n",
        {"header": ("userId", "movieId", "x", "y")},
        [(1, "1", "2", None)],
    ),
    "tab with a header": (b"item_id\tuser_id\ttimestamp\n1\t2\t3\n", {}, [(1, "2", "1", 3)]),
    "byte order mark": (b"\xef\xbb\xbfuser,item\n1,2\n", {}, [(1, "1", "2", None)]),
    "quotes": (
        b'user,item,title\n1,"a,b","x ""y"""\n2,c,"d"\n3,e,f\n',
        {},
        [(1, "1", "a,b", None), (1, "2", "c", None), (1, "3", "e", None)],
    ),
    "not ASCII": ("user,item\nJürgen,日本\n".encode(), {}, [(1, "Jürgen", "日本", None)]),
    "leading zeros": (b"007\t010\n", {}, [(1, "007", "010", None)]),
    "lists": (
        b"(0,25)\t10\t25\t11\n(a b,1)\t2\n",
        {},
        [
            (1, "0", "25", None),
            (0, "0", "10", None),
            (0, "0", "11", None),
            (1, "a b", "1", None),
            (0, "a b", "2", None),
        ],
    ),
}


@pytest.mark.parametrize("case", TEXT)
def test_rows(case: str, tmp_path: Path) -> None:
    content, config, expected = TEXT[case]
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    assert read(tmp_path / "file", **config) == (expected, [])
    assert read(tmp_path / "packed", **config) == (expected, [])
    assert read(tmp_path / "file", chunk_bytes=3, **config) == (expected, [])


BAD: dict[str, tuple[bytes, int, list[tuple[int, str, str]]]] = {
    # content; good rows; rejected
    "tab": (
        b"1\t2\t3\t4\n1\t2\t3\n\n\t2\t3\t4\n1\t\t3\t4\n1\t2\t3\tx\n1\t2\t3\t\n1\t2\t3\t4,5\n\xff\t2\t3\t4\n5\t6\t7\t8\n",
        2,
        [
            (2, "wrong column count", "1\t2\t3"),
            (4, "no value in a required column", "\t2\t3\t4"),
            (5, "no value in a required column", "1\t\t3\t4"),
            (6, "not a time", "1\t2\t3\tx"),
            (7, "no value in a required column", "1\t2\t3\t"),
            (8, "not a time", "1\t2\t3\t4,5"),
            (9, "invalid UTF-8", "\\xff\t2\t3\t4"),
        ],
    ),
    "double colon": (
        b"1::2::3::4\n1::2::3\n::2::3::4\n",
        1,
        [(2, "wrong column count", "1::2::3"), (3, "no value in a required column", "::2::3::4")],
    ),
    "csv": (
        b'user,item\n1,2\n"1,2\n"1",2,3\n"","4"\n3\r4,5\n6,"7"\n',
        2,
        [
            (3, "unclosed double quote", '"1,2'),
            (4, "wrong column count", '"1",2,3'),
            (5, "no value in a required column", '"","4"'),
            (6, "carriage return inside the row", "3\r4,5"),
        ],
    ),
    "lists": (
        b"(1,2)\t3\n(1,2)\n1,2\t3\n(1,2)\t3\t\t4\n(\xff,2)\t3\n",
        2,
        [
            (2, "not (user,item) and its negatives", "(1,2)"),
            (3, "not (user,item) and its negatives", "1,2\t3"),
            (4, "not (user,item) and its negatives", "(1,2)\t3\t\t4"),
            (5, "invalid UTF-8", "(\\xff,2)\t3"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("chunk_bytes", [2**20, 5])
@pytest.mark.parametrize("case", BAD)
def test_bad_rows(case: str, chunk_bytes: int, tmp_path: Path) -> None:
    content, good, expected = BAD[case]
    (tmp_path / "file").write_bytes(content)
    rows, rejected = read(tmp_path / "file", chunk_bytes)
    assert len(rows) == good
    assert rejected == expected


def test_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "rating": [1.5] * 6,
            "movie_id": pa.array(["a", "b", "", "c", None, "d"]).dictionary_encode(),
            "user": pa.array([1, 2, 3, None, 5, 6], pa.int32()),
            "timestamp": pa.array([10**9, None, 3, 4, 5, 6], pa.timestamp("s")),
        }
    )
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=2)
    expected = [(1, "1", "a", 10**9), (1, "6", "d", 6)]
    for chunk_bytes in (2**20, 50):
        rows, rejected = read(tmp_path / "r.parquet", chunk_bytes)
        assert rows == expected
        assert [line for line, *_ in rejected] == [2, 3, 4, 5]
        assert {reason for _, reason, _ in rejected} == {"no value in a required column"}
    assert "'movie_id': 'b'" in rejected[0][2]


def test_times_of_all_files_are_seconds_and_exact(tmp_path: Path) -> None:
    moments = ["2024-02-29 12:00:00.000001", "2024-02-29T12:00:00.000002Z", "1969-12-31 23:59:59.5"]
    expected = [Fraction("1709208000.000001"), Fraction("1709208000.000002"), Fraction("-0.5")]
    table = pd.DataFrame({"user": [1, 2, 3], "item": [4, 5, 6], "timestamp": moments})
    table.to_csv(tmp_path / "text.csv", index=False)
    table.to_json(tmp_path / "lines.jsonl", orient="records", lines=True)
    table["timestamp"] = pd.to_datetime(table["timestamp"], format="mixed", utc=True)
    table.to_parquet(tmp_path / "table.parquet")
    for name in ("text.csv", "lines.jsonl", "table.parquet"):
        rows, rejected = read(tmp_path / name)
        assert ([time for *_, time in rows], rejected) == (expected, [])
    (tmp_path / "numbers").write_text("1\t2\t3\t-9223372036854775808\n1\t2\t3\t9223372036854775807\n")
    assert [10**6 * time for *_, time in read(tmp_path / "numbers")[0]] == [-(2**63), 2**63 - 1], "of no unit"


def test_rejected_rows_name_the_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("movieId,userId,timestamp\n1,2,3\n1, ,3\n1,2,soon\n")
    files = list_inputs([str(tmp_path / "a.csv")])
    (block,) = InteractionReader.of_tables(InteractionSourceConfig(), files).read(plan_chunks(files, 2**20)[0])
    cells = [(row["line"], row["column"], row["value"]) for row in block.rejected.to_pylist()]
    assert cells == [(3, "userId", " "), (4, "timestamp", "soon")]


def test_pairs_to_score_need_no_time_and_no_rating(tmp_path: Path) -> None:
    config = InteractionSourceConfig(timestamp="when", choices=LabelCondition(column="stars", at_least=4))
    (tmp_path / "pairs.csv").write_text("item,user\n1,2\n3,4\n")
    files = list_inputs([str(tmp_path / "pairs.csv")])
    with pytest.raises(UserError, match="no column 'when'"):
        InteractionReader.of_tables(config, files)
    (block,) = InteractionReader.of_tables(config, files, is_scored=True).read(plan_chunks(files, 2**20)[0])
    assert [tuple(row.values()) for row in block.rows.to_pylist()] == [(1, "2", "1", None), (1, "4", "3", None)]


def test_the_first_file_with_rows_tells_the_form_of_all(tmp_path: Path) -> None:
    for name, content in {"a.gz": gzip.compress(b""), "b": b"", "c": b"1\t2\n", "d": b"3\t4\n"}.items():
        (tmp_path / name).write_bytes(content)
    files = list_inputs([str(tmp_path)])
    reader = InteractionReader.of_tables(InteractionSourceConfig(), files)
    rows = [row for chunk in plan_chunks(files, 2**20) for b in reader.read(chunk) for row in b.rows.to_pylist()]
    assert [(row["user"], row["item"]) for row in rows] == [("1", "2"), ("3", "4")]


LOO = {"kind": "leave_one_out"}
FILES = {"kind": "files"}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str | None, list[str]], type[UserError], str]] = {
    # source; split; inputs; error; what it says
    "empty gzip": ({}, LOO, {None: ["empty.gz"]}, UserError, "empty.gz: empty; there are no rows"),
    "damaged gzip": ({}, LOO, {None: ["cut.gz"]}, UserError, "cut.gz: damaged gzip file"),
    "given twice": ({}, LOO, {None: ["a.tab", "a.tab"]}, UserError, "given for two splits; give every file once"),
    "no separator": ({}, LOO, {None: ["words"]}, UserError, "no column of the user among 'hello'; set source.user"),
    "no header": ({}, LOO, {None: ["no_header.csv"]}, UserError, "no column of the user among '1', '2'; set"),
    "no such column": ({"item": "film"}, LOO, {None: ["r.csv"]}, UserError, "no column 'film' among 'userId'"),
    "no such time": ({"timestamp": "t"}, LOO, {None: ["r.csv"]}, UserError, "no column 't' .* set source.timestamp"),
    "three columns": ({}, LOO, {None: ["three.tab"]}, UserError, "among '1', '2', '3'; .*, or source.header"),
    "no Parquet": ({"format": "parquet"}, LOO, {None: ["a.tab"]}, UserError, "a.tab: damaged Parquet file"),
    "two columns of a name": ({}, LOO, {None: ["twice.csv"]}, UserError, "two columns 'x' in its first line"),
    "Parquet of lists": ({}, LOO, {None: ["f.parquet"]}, UserError, "'user': holds list.*, needs a text"),
    "mixed times": ({}, LOO, {None: ["n.csv", "r.csv"]}, UserError, "n.csv: no column 'timestamp', which .*r.csv has"),
    "lists as ratings": ({}, LOO, {None: ["x.test.negative"]}, UserError, "lists of negatives, no interactions"),
    "named splits": ({}, LOO, {"train": ["a.tab"]}, ConfigError, "--input train=...: .*kind is 'leave_one_out'"),
    "other split": ({}, FILES, {"train": ["a.tab"], "dev": ["a.tab"]}, ConfigError, "--input dev=...: no split"),
    "no train": ({}, FILES, {"test": ["x.test.negative"]}, ConfigError, "add train=PATH"),
    "no lists": ({}, FILES, {"train": ["a.tab"], "test": ["r.csv"]}, UserError, "r.csv: no lists of a positive"),
    "no files of the paper": ({}, FILES, {None: ["a.tab"]}, UserError, "no files NAME.train.rating"),
    "validation twice": (
        {},
        {**FILES, "validation": True},
        {"train": ["a.tab"], "validation": ["x.test.negative"]},
        ConfigError,
        "preprocess.split.validation makes that split",
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    files = {
        "a.tab": b"1\t2\n",
        "r.csv": b"userId,movieId,rating,timestamp\n1,2,3,4\n",
        "n.csv": b"userId,movieId\n1,2\n",
        "twice.csv": b"userId,movieId,x,x\n1,2,3,4\n",
        "no_header.csv": b"1,2\n",
        "three.tab": b"1\t2\t3\n",
        "words": b"hello\n",
        "empty": b"",
        "empty.gz": gzip.compress(b""),
        "cut.gz": gzip.compress(b"1\t2\n" * 10)[:12],
        "x.test.negative": b"(1,2)\t3\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    pd.DataFrame({"user": [[1]], "item": ["a"]}).to_parquet(folder / "f.parquet")
    return folder


def job(folder: Path, inputs: dict[str | None, list[str]], source: dict[str, Any], split: dict[str, Any]) -> Any:
    recipe = Recipe.model_validate(
        {
            "name": "test",
            "model": {"kind": "neumf"},
            "source": {"kind": "interactions", **source},
            "preprocess": {"split": split},
        }
    )
    paths = {name: [str(folder / path) for path in given] for name, given in inputs.items()}
    return preprocessing(recipe, paths, folder.parent / "out")


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, folder: Path) -> None:
    source, split, inputs, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as caught:
        job(folder, inputs, source, split)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert not (folder.parent / "out").exists()


def names_of(folder: Path, paths: dict[str | None, list[str]], split: Any) -> list[str]:
    """Return the files that a job reads, in order."""
    given = {name: [str(folder / path) for path in of_split] for name, of_split in paths.items()}
    found = find_files(InteractionSourceConfig(), split, given)
    return [file.base_name for of_split in found.values() for file in of_split]


def test_a_folder_of_movielens_stands_for_its_ratings(folder: Path) -> None:
    for name in ("ratings.csv", "movies.csv", "tags.csv"):
        (folder / name).write_bytes(b"userId,movieId\n1,2\n")
    assert names_of(folder, {None: ["."]}, LeaveOneOutSplitConfig()) == ["ratings.csv"]


def test_files_of_the_paper_are_found_in_a_folder_or_by_name(folder: Path) -> None:
    paper = folder / "paper"
    paper.mkdir()
    contents = {
        "ml.train.rating": b"1\t2\t3\t4\n",
        "ml.test.rating": b"1\t3\t3\t5\n",
        "ml.test.negative": b"(1,3)\t4\n",
        "users.dat": b"1::F\n",
    }
    for name, content in contents.items():
        (paper / name).write_bytes(content)
    expected = ["ml.train.rating", "ml.test.negative"]
    assert names_of(folder, {None: ["paper"]}, InteractionFilesSplitConfig()) == expected
    # Whatever the order of the command line.
    given: dict[str | None, list[str]] = {"test": ["paper/ml.test.negative"], "train": ["paper/ml.train.rating"]}
    assert names_of(folder, given, InteractionFilesSplitConfig()) == expected

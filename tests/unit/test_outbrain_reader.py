"""Outbrain's tables: found by the names of their files, rows read against expected ones, what is refused."""

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import UserError
from rayrec.features.hashes import hash_text
from rayrec.features.schema import Schema
from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.sources.outbrain.config import OutbrainSourceConfig
from rayrec.sources.outbrain.generator import generate
from rayrec.sources.outbrain.source import SOURCE
from rayrec.sources.outbrain.tables import LEAN_TABLES, OutbrainReader, OutbrainTable, find_files
from tests.outbrain_reference import Tables, read_tables
from tests.outbrain_tables import SAMPLE, write_sample_tables

Rows = list[tuple[Any, ...]]
Rejected = list[tuple[int, str, str]]


def packed(content: bytes, packing: str, members: tuple[str, ...] = ("table.csv",)) -> bytes:
    if packing == "gzip":
        return gzip.compress(content)
    if packing == "plain":
        return content
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            archive.writestr(member, content)
    return sink.getvalue()


def read(table: OutbrainTable, path: Path, chunk_bytes: int = 2**20) -> tuple[Rows, Rejected]:
    """Return rows and rejected rows (line, reason, text) of a file, lines counted from its first."""
    files = list_inputs([str(path)])
    reader = OutbrainReader.open(table, files[0])
    rows: Rows = []
    rejected: Rejected = []
    before = 0
    for chunk in plan_chunks(files, chunk_bytes):
        lines = 0
        for block in reader.read(chunk):
            assert block.rows.schema == reader.schema == table.layout.schema
            assert len(block.lines) == block.rows.num_rows
            rows += [tuple(row.values()) for row in block.rows.to_pylist()]
            rejected += [(before + r["line"], r["reason"], r["text"]) for r in block.rejected.to_pylist()]
            lines += block.num_lines
        before += lines
    return rows, rejected


CASES: dict[str, tuple[OutbrainTable, bytes, Rows, Rejected]] = {
    "clicks": (
        OutbrainTable.CLICKS_TRAIN,
        b"display_id,ad_id,clicked\n1,42337,0\n1,139684,1\n,1,0\n1,,0\n1,2,2\n1,2,\n1,2\n1,x,0\n1,99999999999999999999,0",
        [(1, 42337, 0), (1, 139684, 1)],
        [
            (4, "no value in a required column", ",1,0"),
            (5, "no value in a required column", "1,,0"),
            (6, "label other than 0 or 1", "1,2,2"),
            (7, "no label", "1,2,"),
            (8, "wrong column count", "1,2"),
            (9, "not an integer", "1,x,0"),
            (10, "not an integer", "1,99999999999999999999,0"),
        ],
    ),
    "clicks to predict, CRLF, byte order mark": (
        OutbrainTable.CLICKS_TEST,
        b"\xef\xbb\xbfdisplay_id,ad_id\r\n16874594,66758\r\n",
        [(16874594, 66758)],
        [],
    ),
    "events": (
        OutbrainTable.EVENTS,
        b"display_id,uuid,document_id,timestamp,platform,geo_location\n"
        b"1,cb8c55702adb93,379743,61,3,US>SC>519\n2,\\N,\\N,\\N,\\N,\\N\n3,,,,,\n4,u,5,6,7,\xc3\x85\n\\N,u,5,6,1,US\n"
        b"5,u,5,6,2.0,US\n5,u,5,6,2.5,US\n6,\xff,5,6,1,US\n",
        [
            (1, "cb8c55702adb93", 379743, 61, 3, "US>SC>519"),
            (2, None, None, None, None, None),
            (3, None, None, None, None, None),
            (4, "u", 5, 6, None, "Å"),
            (5, "u", 5, 6, 2, "US"),
        ],
        [
            (6, "no value in a required column", "\\N,u,5,6,1,US"),
            (8, "not an integer", "5,u,5,6,2.5,US"),
            (9, "invalid UTF-8", "6,\\xff,5,6,1,US"),
        ],
    ),
    "page views, another order, a column more": (
        OutbrainTable.PAGE_VIEWS,
        b"traffic_source, timestamp ,more,uuid,document_id,platform,geo_location\n"
        b"2,-9,x,u,1,1,US>CA\n0,5,,u,1,\\N,\\N\n1,\\N,x,u,1,1,US\n1,3,x,,1,1,US\n",
        [("u", 1, -9, 1, "US>CA", 2), ("u", 1, 5, None, None, None)],
        [
            (4, "no value in a required column", "1,\\N,x,u,1,1,US"),
            (5, "no value in a required column", "1,3,x,,1,1,US"),
        ],
    ),
    "promoted content": (
        OutbrainTable.PROMOTED_CONTENT,
        b"ad_id,document_id,campaign_id,advertiser_id\n1,6614,1,7\n2,\\N,,\n",
        [(1, 6614, 1, 7), (2, None, None, None)],
        [],
    ),
    "documents": (
        OutbrainTable.DOCUMENTS_META,
        b"document_id,source_id,publisher_id,publish_time\n"
        b"1,2,3,2016-06-05 00:00:00\n2,2,,1970-01-01 00:00:00.0019\n3,,,1969-12-31T23:59:59.999999\n4,1,1,\\N\n"
        b"5,1,1,2016-02-30 00:00:00\n6,1,1,June\n7,1,1,2016-02-29\n8,1,1,0001-01-01 00:00:00\n",
        [
            (1, 2, 3, 1465084800000),
            (2, 2, None, 1),
            (3, None, None, -1),
            (4, 1, 1, None),
            (7, 1, 1, 1456704000000),
            (8, 1, 1, -62135596800000),
        ],
        [(6, "not a time", "5,1,1,2016-02-30 00:00:00"), (7, "not a time", "6,1,1,June")],
    ),
    "topics": (
        OutbrainTable.DOCUMENTS_TOPICS,
        b"document_id,topic_id,confidence_level\n1,140,0.0731131601068925\n1,2,1e-3\n1,3,nan\n1,4,\n1,5,0x1\n1,6,.5\n"
        b"1,7,inf\n1,8,-0.1\n",
        [(1, 140, 0.0731131601068925), (1, 2, 0.001), (1, 6, 0.5)],
        [
            (4, "no value in a required column", "1,3,nan"),
            (5, "no value in a required column", "1,4,"),
            (6, "not a number", "1,5,0x1"),
            (8, "weight below 0 or not a number", "1,7,inf"),
            (9, "weight below 0 or not a number", "1,8,-0.1"),
        ],
    ),
    "entities, quoted": (
        OutbrainTable.DOCUMENTS_ENTITIES,
        b'"document_id","entity_id","confidence_level"\n1,"f9eec25663db",0.5\n"1","","0.5"\n',
        [(1, hash_text("f9eec25663db"), 0.5)],
        [(3, "no value in a required column", '"1","","0.5"')],
    ),
    "categories, no rows": (OutbrainTable.DOCUMENTS_CATEGORIES, b"document_id,category_id,confidence_level\n", [], []),
}


@pytest.mark.parametrize("packing", ["plain", "gzip", "zip"])
@pytest.mark.parametrize("case", CASES)
def test_rows(case: str, packing: str, tmp_path: Path) -> None:
    table, content, rows, rejected = CASES[case]
    (tmp_path / "file").write_bytes(packed(content, packing))
    for chunk_bytes in (2**20, 7):
        assert read(table, tmp_path / "file", chunk_bytes) == (rows, rejected)


def all_rows(folder: Path) -> Tables:
    """Return the rows of all tables in a folder, of which none may be bad."""
    tables: Tables = {table.value: [] for table in OutbrainTable}
    for table, file in find_files([str(folder)]).items():
        for chunk in plan_chunks([file], 2**20):
            for block in OutbrainReader.open(table, file).read(chunk):
                assert block.rejected.num_rows == 0
                tables[table.value] += block.rows.to_pylist()
    return tables


def expected_rows(folder: Path) -> Tables:
    """Return the rows as pandas reads them, entities by the hash of their text."""
    tables = read_tables(folder)
    for row in tables["documents_entities"]:
        row["entity_id"] = hash_text(row["entity_id"])
    return tables


def test_generated_tables_are_read_as_pandas_reads_them(tmp_path: Path) -> None:
    generate(tmp_path / "raw", 1_500, seed=3)
    assert all_rows(tmp_path / "raw") == expected_rows(tmp_path / "raw")


def test_real_tables_are_read_as_pandas_reads_them(shared_data: Path, tmp_path: Path) -> None:
    write_sample_tables(shared_data / SAMPLE, tmp_path)
    found = all_rows(tmp_path)
    assert found == expected_rows(tmp_path)
    assert (len(found["clicks_train"]), len(found["events"]), len(found["promoted_content"])) == (9_999, 1_959, 4_319)


def names(folder: Path, *paths: str, **given: Any) -> dict[str, str]:
    files = find_files([str(folder / path) for path in paths], **given)
    return {table.value: file.base_name for table, file in files.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = (
        "page_views_sample.csv.zip", "clicks_train.csv", "clicks_test.csv.gz", "events.zip", "promoted_content.csv",
        "documents_meta.csv", "documents_topics.csv", "documents_entities.csv", "documents_categories.csv",
    )  # fmt: skip
    for table, name in zip(OutbrainTable, names, strict=True):
        header = ",".join(table.layout.schema.names).encode() + b"\n"
        packing = {".zip": "zip", ".gz": "gzip"}.get(Path(name).suffix, "plain")
        (tmp_path / name).write_bytes(packed(header, packing))
    (tmp_path / "sample_submission.csv").write_text("display_id,ad_id\n")
    return tmp_path


def test_tables_are_found_in_a_folder_or_by_name(folder: Path) -> None:
    found = names(folder, ".")
    assert list(found) == [table.value for table in OutbrainTable]
    assert found["page_views"] == "page_views_sample.csv.zip" and found["events"] == "events.zip"
    assert names(folder, *found.values()) == found
    # All page views are better than a sample of them.
    (folder / "page_views.csv").write_bytes(b"x")
    assert names(folder, ".")["page_views"] == "page_views.csv"


def test_what_is_not_required_may_be_absent(folder: Path) -> None:
    (folder / "page_views_sample.csv.zip").unlink()
    (folder / "clicks_test.csv.gz").unlink()
    assert set(names(folder, ".", required=LEAN_TABLES)) == {table.value for table in LEAN_TABLES}
    with pytest.raises(UserError, match=r"no page_views.csv \(or .csv.gz, .csv.zip\); give the folder"):
        names(folder, ".")


def test_a_table_twice_is_refused(folder: Path) -> None:
    (folder / "events.csv").write_bytes(b"x")
    with pytest.raises(UserError, match=r"events.zip: the same table as .*events.csv; give one of them"):
        names(folder, ".")


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty; there are no rows to read"),
    "no column": (b"display_id,ad,clicked\n", "no column 'ad_id'; it has display_id, ad, clicked"),
    "no file in it": (packed(b"x", "zip", ()), "cannot be unpacked"),
    "cut zip": (packed(b"display_id,ad_id,clicked\n", "zip")[:40], "cannot be unpacked"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    (tmp_path / "clicks_train.csv").write_bytes(content)
    with pytest.raises(UserError, match=f"clicks_train.csv: {message}") as caught:
        OutbrainReader.open(OutbrainTable.CLICKS_TRAIN, *list_inputs([str(tmp_path)]))
    assert "\n" not in str(caught.value)


def test_a_damaged_zip_file_is_named(tmp_path: Path) -> None:
    content = packed(b"display_id,ad_id\n" + b"1,2\n" * 1_000, "zip")
    start = content.index(b"table.csv") + len("table.csv")
    (tmp_path / "clicks_test.zip").write_bytes(content[: start + 10] + b"\xff" * 8 + content[start + 18 :])
    with pytest.raises(UserError, match=r"clicks_test.zip: damaged zip file \(.*\); fetch it again"):
        read(OutbrainTable.CLICKS_TEST, tmp_path / "clicks_test.zip")


def test_examples_are_not_read_from_single_files(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_bytes(b"x\n")
    with pytest.raises(UserError, match=r"source.kind 'outbrain': its raw files hold no examples"):
        SOURCE.reader(OutbrainSourceConfig(), Schema(label="clicked", features=()), list_inputs([str(tmp_path)]))

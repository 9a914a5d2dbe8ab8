"""Raw files: found, unpacked, and cut into chunks of whole lines."""

import errno
import gzip
import io
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.raw.input_files import Chunk, InputFile, list_inputs, plan_chunks
from rayrec.raw.text import read_data_lines, read_lines

TEXTS = {
    "newline at the end": b"a\nbb\nccc\n",
    "no newline at the end": b"a\nbb\nccc",
    "empty lines": b"\n\na\n\n\nb\n\n",
    "one long line": b"x" * 40,
    "crlf": b"a\r\nb\r\nc",
    "empty": b"",
    "byte order mark": b"\xef\xbb\xbfa\nb\n",
}


def zipped(text: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("member", text)
    return file.getvalue()


def zstd(text: bytes) -> bytes:
    return pa.compress(text, "zstd", asbytes=True)


PACK: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress, "zip": zipped, "zstd": zstd}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_chunks_of_every_size_give_every_line_once(
    tmp_path: Path, text: bytes, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayrec.raw.text.BLOCK_BYTES", 4)
    path = tmp_path / "file"
    path.write_bytes(PACK[packing](text))
    (file,) = list_inputs([str(path)])
    expected = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    for chunk_bytes in range(1, len(text) + 2):
        blocks = [block for chunk in plan_chunks([file], chunk_bytes) for block in read_lines(chunk)]
        assert all(block.endswith(b"\n") for block in blocks)
        assert b"".join(blocks).split(b"\n")[:-1] == expected


@pytest.mark.parametrize("compress", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_several_packed_files_after_each_other(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "file"
    path.write_bytes(compress(b"a\nb") + compress(b"c\n"))
    (file,) = list_inputs([str(path)])
    assert b"".join(read_lines(plan_chunks([file], 10)[0])) == b"a\nbc\n"


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", [lambda d: d[:-40], lambda d: d[:8] + b"\xff" * 40 + d[48:]], ids=["cut", "broken"])
def test_damaged_file(tmp_path: Path, packing: str, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "file.gz"
    text = bytes(np.random.default_rng(0).integers(32, 64, 50_000, np.uint8))
    path.write_bytes(damage(PACK[packing](text)))
    (file,) = list_inputs([str(path)])
    with pytest.raises(UserError, match=rf"file\.gz: damaged {packing} file"):
        list(read_lines(plan_chunks([file], 10)[0]))


def test_endless_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayrec.raw.text.MAX_LINE_BYTES", 2**20)
    path = tmp_path / "file"
    path.write_bytes(b"\x01" * 2**24)
    (file,) = list_inputs([str(path)])
    with pytest.raises(UserError, match="line longer"):
        list(read_lines(Chunk(file, 0, 0, None)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ["day_10", "day_2.gz", "day_1", ".hidden", "_SUCCESS", "truth.json"]:
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith(".gz") else b"x\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


LISTINGS = {
    "folder": ([""], ["day_1", "day_2.gz", "day_10"]),
    "glob": (["/day_1*"], ["day_1", "day_10"]),
    "file": (["/day_10"], ["day_10"]),
    "files in the order given": (["/day_10", "/day_1"], ["day_10", "day_1"]),
}


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(("paths", "expected"), LISTINGS.values(), ids=list(LISTINGS))
def test_listing(folder: Path, paths: list[str], expected: list[str], scheme: str) -> None:
    files = list_inputs([f"{scheme}{folder}{path}" for path in paths])
    assert [f.base_name for f in files] == expected
    assert [f.packing == "gzip" for f in files] == [name.endswith(".gz") for name in expected]
    assert all(f.modified > 0 and f.bytes > 0 for f in files)


@given(st.lists(st.sampled_from([b"a", b"bc", b""]), max_size=12).map(b"\n".join), st.integers(1, 20), st.booleans())
def test_blank_lines_at_the_end_of_a_file_are_no_lines(text: bytes, chunk_bytes: int, is_crlf: bool) -> None:
    text = text.replace(b"\n", b"\r\n") if is_crlf else text
    with tempfile.NamedTemporaryFile() as written:
        Path(written.name).write_bytes(text)
        file = InputFile("file", Path(written.name), len(text), 0.0, None)
        blocks = [block for chunk in plan_chunks([file], chunk_bytes) for block in read_data_lines(chunk)]
    assert all(block.endswith(b"\n") for block in blocks)
    expected = text.rstrip(b"\r\n").split(b"\n") if text.strip(b"\r\n") else []
    assert [line.rstrip(b"\r") for block in blocks for line in block.split(b"\n")[:-1]] == [
        line.rstrip(b"\r") for line in expected
    ]


@pytest.mark.parametrize(
    ("log", "given", "lake"),
    [
        ("_delta_log/00000000000000000000.json", "table", "Delta Lake"),
        ("_delta_log/00000000000000000000.json", "table/day=2024-05-01", "Delta Lake"),
        ("_delta_log/00000000000000000000.json", "table/day=2024-05-01/*.parquet", "Delta Lake"),
        ("metadata/v3.metadata.json", "table/day=2024-05-01/rows.parquet", "Apache Iceberg"),
        (".hoodie/hoodie.properties", "", "Apache Hudi"),
    ],
)
def test_tables_with_a_log_are_refused(tmp_path: Path, log: str, given: str, lake: str) -> None:
    """Their folders also hold rows that were removed."""
    for name in (log, "day=2024-05-01/rows.parquet"):
        file = tmp_path / "table" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"PAR1")
    with pytest.raises(UserError, match=rf"{tmp_path}/table: a table of {lake}"):
        list_inputs([str(tmp_path / given)])


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    for path in ("-", str(tmp_path / "rows.csv"), "/dev/null"):
        with pytest.raises(UserError, match=f"^{path}: a pipe cannot be read twice"):
            list_inputs([path])


def test_a_name_that_begins_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~today.csv").write_text("a\n")
    for path in ("~today.csv", "./~today.csv", str(tmp_path / "~today.csv")):
        (file,) = list_inputs([path])
        assert file.name == str(tmp_path / "~today.csv")
    with pytest.raises(UserError, match="home directory"):
        list_inputs(["~nobody-of-this-name/rows.csv"])


def test_a_recipe_beside_its_data_is_no_data(tmp_path: Path) -> None:
    for name in ("rows.csv", "mine.yaml"):
        (tmp_path / name).write_text("a\n")
    assert [file.base_name for file in list_inputs([str(tmp_path)])] == ["rows.csv"]


@pytest.mark.parametrize("target", ["gone.csv", "part.csv"], ids=["to nowhere", "to itself"])
@pytest.mark.parametrize("given", ["", "/*.csv", "/part.csv"], ids=["folder", "glob", "file"])
def test_a_link_whose_rows_would_be_missed_is_said(given: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "whole.csv").write_text("a\n1\n")
    (tmp_path / "part.csv").symlink_to(target)
    with pytest.raises(UserError, match=f"part.csv: a link to {target}, which does not exist; mend or remove it"):
        list_inputs([f"{tmp_path}{given}"])


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "whole.csv").write_text("a\n1\n")
    scan = os.scandir

    def denied(path: str) -> object:
        if str(path).endswith("inner"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(UserError, match="cannot be read: permission denied; change its permissions"):
        list_inputs([str(tmp_path)])

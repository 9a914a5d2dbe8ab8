"""A disk that cannot be written is told in one line, whatever met it: where, what is wrong, what is free and kept."""

import errno
import gzip
import re
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from jobs.command import Command, Request, Result, execute
from rayrec.common.disk_errors import disk_error, naming, unreadable
from rayrec.common.errors import DiskError, UserError, first_failure
from rayrec.common.progress import SilentProgress
from rayrec.inference.folder.model_folder import copy
from rayrec.inference.folder.tensor_files import save_tensors
from rayrec.internals.torch_checkpoint import save
from rayrec.store.files import new_file, write_atomically
from rayrec.store.folders import new_folder, owned
from rayrec.store.parquet import new_parquet
from rayrec.store.paths import Folder

FULL = r"no space left on its disk: [\d.]+ \w+ of [\d.]+ \w+ free; free some space and run again"
QUOTA = r"the quota of its disk is used up: .* free; free some space, or ask for more"
READ_ONLY = "read-only file system; remount it, or give a path on another disk"
DENIED = "permission denied; change its permissions, or give another path"
TOO_LARGE = r"file too large; raise the limit \(`ulimit -f`\), or use another file system"


class RemoteTaskError(Exception):
    """As Ray's: what a worker raised is an attribute."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("ray::work() (pid=7)\n  File '/opt/work.py', line 3\nOSError")
        self.cause = cause


def after(first: Exception, second: Exception) -> Exception:
    second.__context__ = first
    return second


ERRORS: dict[str, tuple[Exception, str]] = {
    "rows of a query": (
        duckdb.OutOfMemoryException(
            "Out of Memory Error: failed to offload data block of size 192.0 KiB (35.9 MiB/36.0 MiB used).\n"
            "This limit was set by the 'max_temp_directory_size' setting."
        ),
        f"/written/here: {FULL}",
    ),
    "a file": (OSError(errno.ENOSPC, "", "/disk/part-7"), f"/disk/part-7: {FULL}"),
    "a copy": (OSError(errno.ENOSPC, "", "/source/a", None, "/disk/b"), f"/disk/b: {FULL}"),
    "copies": (
        shutil.Error([("/source/a", "/disk/b", "[Errno 122] Disk quota exceeded: '/source/a' -> '/disk/b'")]),
        f"/disk/b: {QUOTA}",
    ),
    "no name": (OSError(errno.EDQUOT, "Disk quota exceeded"), f"/written/here: {QUOTA}"),
    "a lock": (OSError(errno.EROFS, "", "/disk/.run.lock"), f"/disk/run: {READ_ONLY}"),
    "unfinished": (OSError(errno.EROFS, "", f"/disk/.a.unfinished-1f/.b.{'0' * 32}"), f"/disk/a/b: {READ_ONLY}"),
    "a long name": (OSError(errno.ENAMETOOLONG, "", "/disk/aaa"), "/disk/aaa: file name too long; give a shorter one"),
    "permissions": (PermissionError(errno.EACCES, "", "/disk/a"), f"/disk/a: {DENIED}"),
    "pyarrow": (OSError("[Errno 30] Error writing bytes. Detail: [errno 30]"), f"/written/here: {READ_ONLY}"),
    "Arrow": (pa.ArrowException("IOError: No space left on device"), f"/written/here: {FULL}"),
    "safetensors": (Exception("Error while serializing: I/O error (os error 27)"), f"/written/here: {TOO_LARGE}"),
    "DuckDB": (Exception('IO Error: Could not write file "/spill/t": No space left on device'), f"/spill/t: {FULL}"),
    "SQLite": (sqlite3.OperationalError("database or disk is full"), f"/written/here: {FULL}"),
    "Java": (
        Exception("An error occurred\n: java.io.FileNotFoundException: /blocks/1c (Permission denied)\n\tat java.base"),
        f"/blocks/1c: {DENIED}",
    ),
    "Ray's spilling": (Exception("Local disk is full. The object cannot be created"), f"/written/here: {FULL}"),
    "torch": (after(OSError(errno.ENOSPC, ""), RuntimeError("unexpected pos 704 vs 598")), f"/written/here: {FULL}"),
    "permissions elsewhere": (
        Exception("PermissionError: [Errno 13] Permission denied: '/spill/x'"),
        f"/spill/x: {DENIED}",
    ),
    "a worker": (RemoteTaskError(OSError(errno.EROFS, "", "/disk/x")), f"/disk/x: {READ_ONLY}"),
    "a worker's line": (
        DiskError("ray::work()\n  File '/opt/x.py'\nrayrec.common.errors.DiskError: /x: full"),
        "/x: full",
    ),
    "a task": (Exception("Traceback\nrayrec.common.errors.DiskError: /x: full; do\n\tat java"), "/x: full; do"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_one_line_names_the_path_and_the_reason(case: str) -> None:
    error, line = ERRORS[case]
    found = str(disk_error(error, [Path("/written/here")]))
    assert re.fullmatch(rf"{line}.*", found), found


@pytest.mark.parametrize(
    "error",
    [
        ValueError("28 columns"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/a"),
        PermissionError(errno.EACCES, "Permission denied"),  # to listen at a port
        Exception("AWS Error ACCESS_DENIED: Permission denied by the policy"),
    ],
    ids=str,
)
def test_other_errors_are_left_as_they_are(error: Exception, tmp_path: Path) -> None:
    assert disk_error(error, [tmp_path]) is None
    with pytest.raises(type(error)) as raised, naming(tmp_path):
        raise error
    assert raised.value is error


def test_an_error_that_says_more_is_kept(tmp_path: Path) -> None:
    """What was caught on the way to it may be of a disk; whoever raised it knows better."""

    def fail(request: StubRequest, _: object) -> Result:
        try:
            raise PermissionError(errno.EACCES, "", "/keys/token")
        except PermissionError:
            raise UserError("--token-file: cannot be read; give another") from None

    with pytest.raises(UserError, match=r"^--token-file: cannot be read; give another$"):
        execute(Command("stub", StubRequest, fail), StubRequest(output=tmp_path / "out"), SilentProgress())


def test_the_full_disk_is_blamed_of_those_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that says no path may have written any of them."""
    free = {"/": 2**40, "/tmp": 0}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=2**41, free=free[str(path)]))
    found = disk_error(OSError(errno.ENOSPC, ""), [Path("/away/run"), Path("/tmp/spill-of-nobody")], needed=3 * 2**20)
    assert "/tmp/spill-of-nobody: no space left on its disk: 0 B of 2.0 TiB free, 3.0 MiB needed;" in str(found)


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes, which is what a disk that becomes full is to its writers.

    Python ignores the signal that would end the process.
    """
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def _parquet(path: Path) -> None:
    with new_parquet(path, pa.schema([("x", pa.int64())]), compression=None, use_dictionary=False) as writer:
        writer.write_table(pa.table({"x": np.arange(9_000)}))


def _gzip(path: Path) -> None:
    with new_file(path) as temporary, gzip.open(temporary, "wb", compresslevel=0) as file:
        file.write(bytes(50_000))


def _checkpoint(path: Path) -> None:
    try:
        save({"x": torch.zeros(9_000)}, path)
    except CheckpointException as error:
        raise disk_error(first_failure(error.failures, ""), [path]) or error from None


def _copies(path: Path) -> None:
    source = path.with_name("source")
    source.mkdir()
    (source / "a").hardlink_to(path.with_name("large"))
    copy(source, path)


WRITERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda path: write_atomically(path, "x" * 50_000), ""),
    "parquet": (_parquet, ""),
    "gzip": (_gzip, ""),
    "a mapped table": (lambda path: save_tensors(path, {"x": np.zeros(9_000)}), ""),
    "checkpoint": (_checkpoint, ""),
    "a copy": (lambda path: copy(path.with_name("large"), path), ""),
    "copies": (_copies, "/a"),
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("writer", WRITERS)
def test_what_writes_names_its_file(writer: str, tmp_path: Path) -> None:
    write, inside = WRITERS[writer]
    (tmp_path / "large").write_bytes(bytes(50_000))
    path = tmp_path / "new"
    with files_limited_to(20_000), pytest.raises(DiskError) as raised:
        write(path)
    assert re.fullmatch(rf"{path}{inside}: {TOO_LARGE}", str(raised.value))


def test_a_name_that_is_too_long_names_the_output(tmp_path: Path) -> None:
    long = tmp_path / ("é" * 126)  # 252 bytes, which would do without the names of what is unfinished
    for write in (owned, new_folder, new_file):
        with pytest.raises(DiskError) as raised, write(long):
            pass
        assert str(raised.value) == f"{long}: file name too long; give a shorter one"


class StubRequest(Request):
    output: Folder
    resume: bool = False


def _run(output: Path, begins: bool) -> str:
    def fill(request: StubRequest, _: object) -> Result:
        if begins:
            (output / "step-7").mkdir(parents=True)
        raise OSError(errno.ENOSPC, "", f"{output}/step-8")

    with pytest.raises(UserError) as raised:
        execute(Command("stub", StubRequest, fill), StubRequest(output=output), SilentProgress())
    return str(raised.value)


def test_a_command_says_what_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "out"
    before = _run(output, begins=False)
    assert re.fullmatch(rf"{output}/step-8: {FULL}; nothing was written to {output}", before)
    line = _run(output, begins=True)
    assert re.fullmatch(rf"{output}/step-8: {FULL}; finished parts are kept; --resume continues from them", line)
    assert Result.load(output).error == line


def test_a_file_is_called_damaged_only_by_its_bytes() -> None:
    denied = PermissionError(errno.EACCES, "[Errno 13] Failed to open local file 'a'. Detail: [errno 13]")
    assert str(unreadable("a", denied, "make it again")) == (
        "a: cannot be read: permission denied; change its permissions, or give another path"
    )
    for error in (pa.ArrowInvalid("no magic bytes\nat all"), OSError("no magic bytes")):
        assert str(unreadable("a", error, "make it again")) == "a: damaged (no magic bytes); make it again"

"""Errors of disks, from any library, as one line: which path, what is wrong, what is free, how to mend it.

What writes a file names it, in the process that writes (`naming`), since most libraries do not. The runner of commands
translates other errors, and adds how much of the work is kept.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rayrec.common.errors import DiskError, UserError
from rayrec.common.text import format_bytes

_FULL = {errno.ENOSPC: "no space left on its disk", errno.EDQUOT: "the quota of its disk is used up"}
_MENDED = {
    errno.ENOSPC: "free some space and run again",
    errno.EDQUOT: "free some space, or ask for more, and run again",
    errno.EFBIG: "raise the limit (`ulimit -f`), or use another file system",
    errno.EROFS: "remount it, or give a path on another disk",
    errno.EACCES: "change its permissions, or give another path",
    errno.ENAMETOOLONG: "give a shorter one",
    errno.ELOOP: "mend the link, or give another path",
    errno.EIO: "check the disk, or copy the file anew",
    errno.EMFILE: "raise the limit (`ulimit -n`)",
}
"""How each error of a disk is mended."""
_SIGNS = {
    **{
        rf"{os.strerror(code)}|\[errno {code}\]|\(os error {code}\)": code  # Python's and pyarrow's, Rust's
        for code in _MENDED
        if code != errno.EACCES
    },
    # Ports, stores and hosts are denied too, without a path; the second is Java's.
    r"\[errno 13\].* ['\"]/|/\S+ \(Permission denied\)": errno.EACCES,
    "database or disk is full": errno.ENOSPC,  # SQLite's
    "attempt to write a readonly database": errno.EROFS,
    "max_temp_directory_size": errno.ENOSPC,  # DuckDB's, for rows that its memory has no room for
    "local disk is full": errno.ENOSPC,  # Ray's, whose object store spills to its temporary folder
}
"""Texts by which an error is known that comes from another language or process."""
_TARGET = re.compile(r"-> '(/[^']+)'")
_PATH = re.compile(r"""['"](/[^'"]+)['"]|(/\S+) \(""")
_BEING_WRITTEN = re.compile(r"/\.(?:unfinished-([^/]+)|([^/]+)\.(?:unfinished-[^/]+|lock|[0-9a-f]{32}))(?=/|$)")


@contextmanager
def naming(*written: Path, needed: int | None = None) -> Iterator[None]:
    """Raise DiskError for an error of a disk in the block; if it names no path, it names one of `written`.

    `needed`: bytes that the block writes, if they are known.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (found := disk_error(error, written, needed)) is not None:
            raise found from error
        raise


def unreadable(file: object, error: BaseException, remedy: str, what: str = "damaged") -> UserError:
    """Return the error of a file that cannot be read: what the system says, or that it is damaged, and the `remedy`.

    Errors of the system have a number; those of libraries that find no table in the bytes have none.
    """
    if isinstance(error, OSError) and error.errno is not None:
        fix = _MENDED.get(error.errno, "run again when it can be read")
        return UserError(f"{file}: cannot be read: {os.strerror(error.errno).lower()}; {fix}")
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(f"{file}: {what} ({reason}); {remedy}")


def temporary_folders() -> list[Path]:
    """Return where libraries of this process, and Java, write what nobody asked for."""
    spark, own = os.environ.get("SPARK_LOCAL_DIRS"), os.environ.get("TMPDIR") or "/tmp"
    return [Path(folder.partition(",")[0]) for folder in (spark, own) if folder]


def disk_error(error: BaseException, written: Sequence[Path], needed: int | None = None) -> DiskError | None:
    """Return the error of a disk in an exception, or in one that led to it; None for other errors.

    `written`: the paths that it may be about, if it names none.
    """
    written = [path for path in written if "://" not in str(path)] or temporary_folders()  # a URI is on no disk
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if told := re.search(rf"\b{DiskError.__name__}: (.+)", str(cause)):  # raised in another process
            return DiskError(told[1])
        if isinstance(cause, DiskError):
            return cause
        code, path = _code_and_path(cause)
        if code is not None:
            return _described(code, path or _likeliest(code, written), needed)
        seen.append(cause)
        # Ray's errors have what a worker raised as an attribute.
        of_worker, context = getattr(cause, "cause", None), None if cause.__suppress_context__ else cause.__context__
        cause = of_worker if isinstance(of_worker, BaseException) else cause.__cause__ or context
    return None


def _code_and_path(error: BaseException) -> tuple[int | None, Path | None]:
    """Return the number of an error of a disk, and the path that it is about, as far as they are known."""
    if isinstance(error, OSError) and error.errno in _MENDED and isinstance(error.filename, str | Path):
        return error.errno, Path(error.filename2 or error.filename)  # a copy fails where it is written
    for line in str(error).splitlines():
        for sign, code in _SIGNS.items():
            if re.search(sign, line, re.IGNORECASE):
                path = _TARGET.search(line) or _PATH.search(line)
                return code, None if path is None else Path(path[path.lastindex or 0])
    return None, None


def _likeliest(code: int, written: Sequence[Path]) -> Path:
    """Return the path on the fullest disk, or the first one that cannot be written."""
    if code == errno.ENOSPC:
        return min(written, key=lambda path: shutil.disk_usage(_existing(path)).free)
    return next((path for path in written if not os.access(_existing(path), os.W_OK)), written[0])


def _described(code: int, path: Path, needed: int | None) -> DiskError:
    what = _FULL.get(code, os.strerror(code).lower())
    if code in _FULL:
        with suppress(OSError):
            disk = shutil.disk_usage(_existing(path))
            what += f": {format_bytes(disk.free)} of {format_bytes(disk.total)} free"
        what += f", {format_bytes(needed)} needed" if needed is not None else ""
    # People know the name that a file or folder is to get, not the one under which it is being written.
    shown = _BEING_WRITTEN.sub(r"/\1\2", str(path))
    return DiskError(f"{shown}: {what}; {_MENDED[code]}")


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder around it that exists."""
    return next(place for place in (path, *path.absolute().parents) if os.path.exists(place))

"""Files and folders that are either whole or absent, whatever moment the process dies at."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayrec.common.errors import UserError

_URI = re.compile(r"^[a-z][a-z0-9+.-]*://")


def is_uri(path: str) -> bool:
    """Whether `path` names its file system, as s3://bucket/key does."""
    return _URI.match(path) is not None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` that becomes `path` when the block ends without an error.

    On an error the sibling is removed. Raises UserError where `path` exists and is not an empty folder.
    """
    require_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.unfinished-"))
    try:
        temporary.chmod(0o755)
        yield temporary
        if path.exists():
            path.rmdir()  # require_absent allowed an empty folder; a race that filled it fails here
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def require_absent(path: Path) -> None:
    """Raise UserError where `path` is something other than an empty folder."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path}: already exists; give another --output, or remove it first")

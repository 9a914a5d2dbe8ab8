"""Logs with one JSON object a line."""

import json
import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from rayrec.common.disk_errors import disk_error, naming

logger = logging.getLogger("ray.serve.rayrec")

_MAX_BYTES, _OLD_FILES = 64 * 2**20, 4


class _FileOfLines(RotatingFileHandler):
    """Says once that lines cannot be written, not for every request, which is answered all the same."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- its name in logging
        error = sys.exc_info()[1]
        if error is not None and not self._has_failed:
            reason = disk_error(error, [Path(self.baseFilename)]) or f"{self.baseFilename}: {error}"
            logger.warning("%s; requests are still answered, but lines of this log are lost", reason)
        self._has_failed = True


class JsonLog:
    """A file of lines, rotated at 64 MiB with four old files kept; without a folder, Ray Serve's own log."""

    def __init__(self, name: str, folder: Path | None, replica: str) -> None:
        """The file is `folder/NAME-REPLICA.jsonl`: each replica writes its own."""
        self._logger = logging.getLogger(f"ray.serve.rayrec.{name}")
        self._logger.setLevel(logging.INFO)
        if folder is not None:
            with naming(folder):
                folder.mkdir(parents=True, exist_ok=True)
            handler = _FileOfLines(
                folder / f"{name}-{replica}.jsonl", maxBytes=_MAX_BYTES, backupCount=_OLD_FILES, delay=True
            )
            handler.setFormatter(logging.Formatter("%(message)s"))
            self._logger.handlers = [handler]
            self._logger.propagate = False

    def write(self, entry: dict[str, Any]) -> None:
        """Write one line, with the time in seconds since 1970."""
        self._logger.info("%s", json.dumps({"time": round(time.time(), 3), **entry}))

"""Logs with one JSON object a line."""

import json
import logging
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

_MAX_BYTES, _OLD_FILES = 64 * 2**20, 4


class JsonLog:
    """A file of lines, rotated at 64 MiB with four old files kept; without a folder, Ray Serve's own log."""

    def __init__(self, name: str, folder: Path | None, replica: str) -> None:
        """The file is `folder/NAME-REPLICA.jsonl`: each replica writes its own."""
        self._logger = logging.getLogger(f"ray.serve.rayrec.{name}")
        self._logger.setLevel(logging.INFO)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(
                folder / f"{name}-{replica}.jsonl", maxBytes=_MAX_BYTES, backupCount=_OLD_FILES, delay=True
            )
            handler.setFormatter(logging.Formatter("%(message)s"))
            self._logger.handlers = [handler]
            self._logger.propagate = False

    def write(self, entry: dict[str, Any]) -> None:
        """Write one line, with the time in seconds since 1970."""
        self._logger.info("%s", json.dumps({"time": round(time.time(), 3), **entry}))

"""Logs of a server, and what they cost it when they cannot be written."""

import json
from pathlib import Path
from unittest import TestCase

import pytest

from rayrec.common.errors import DiskError
from serve.json_log import JsonLog


def test_lines_are_json(tmp_path: Path) -> None:
    log = JsonLog("access", tmp_path / "logs", "r7")
    log.write({"path": "/é", "status": 200})
    (line,) = (tmp_path / "logs" / "access-r7.jsonl").read_text().splitlines()
    assert json.loads(line).items() >= {"path": "/é", "status": 200}.items()


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "access-r8.jsonl").symlink_to("/dev/full")
    log = JsonLog("access", tmp_path, "r8")
    with TestCase().assertLogs("ray.serve.rayrec") as logs:
        for _ in range(3):
            log.write({"status": 200})
    (message,) = (record.getMessage() for record in logs.records)
    assert message.startswith(f"{tmp_path}/access-r8.jsonl: no space left on its disk: ")
    assert message.endswith("; requests are still answered, but lines of this log are lost")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=rf"^{tmp_path}/l+: file name too long"):
        JsonLog("access", tmp_path / ("l" * 300), "r9")

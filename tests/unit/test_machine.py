"""Results say on which machine they were measured, beside what load, and with which versions."""

import json
import os
import platform
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.result_rows import ResultRows
from rayrec.common.machine import Machine, available_cpus, describe_machine


def test_a_machine_is_described_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (7.5, 2.0, 1.5))
    described = Machine(load_at_start=(0.123, 0.5, 1.0)).described()
    assert described["load_at_start"] == [0.12, 0.5, 1.0] and described["load_at_end"] == [7.5, 2.0, 1.5]
    assert described["cpu"] and described["cores"] == os.cpu_count()
    assert 1 <= described["cpus_usable"] == available_cpus() <= described["cores"]
    assert described["memory_gib"] == pytest.approx(psutil.virtual_memory().total / 2**30, abs=0.1)
    versions = described["versions"]
    assert versions["python"] == platform.python_version() and torch.__version__.startswith(versions["torch"])
    assert {"rayrec", "torchrec", "ray", "pyarrow", "pyspark", "raydp"} <= versions.keys()
    assert json.loads(json.dumps(described)) == described
    assert all(str(value) in describe_machine(described) for value in (described["cpu"], 0.12, 7.5))


def test_each_row_of_results_has_its_machine(tmp_path: Path) -> None:
    results = ResultRows(tmp_path / "rows.json", keys=("side",), printed=("side",))
    for side in ("a", "b", "a"):
        results.add({"side": side})
    rows = results.read()
    assert [row["side"] for row in rows] == ["b", "a"]
    assert all(row["machine"].keys() == Machine().described().keys() for row in rows)

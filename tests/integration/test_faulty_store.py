"""Reading and writing a bucket on a bad day: the same bytes, or one line that says what is wrong."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rayrec.common.errors import UserError
from rayrec.config.train import CheckpointConfig
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.packed_rows import RowPacker
from rayrec.store import stores
from rayrec.store.files import copy, files_below, remove
from rayrec.store.growing_files import growing_files
from rayrec.store.node_copy import on_this_node
from rayrec.store.paths import to_path
from rayrec.training.loop.records import Checkpoints, load_state
from rayrec.training.run.folder import HISTORY_FILE, RunFolder, RunProgress, checkpoint_name, checkpoint_steps
from rayrec.training.run.history import append_history, read_history
from tests.builders import make_dataset
from tests.faulty_store import Endpoint, Faults, faulty_store

pytestmark = pytest.mark.minutes
URI = "s3://bucket/data"
BAD_DAYS = {
    "fails": Faults(seed=1, fail=0.3),
    "resets": Faults(seed=2, reset=0.3),
    "slow": Faults(seed=3, slow=0.3),
    "cuts": Faults(seed=4, cut=0.3),
    "truncates": Faults(seed=5, short=0.3),
    "all": Faults(seed=6, fail=0.1, reset=0.1, slow=0.1, cut=0.1, short=0.1),
}


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with faulty_store() as store, store.endpoint() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
        monkeypatch.setenv("RAYREC_CACHE", str(tmp_path / "staging"))
        yield endpoint


@pytest.mark.parametrize("day", BAD_DAYS)
def test_what_is_written_and_read_is_the_same_to_the_byte(endpoint: Endpoint, day: str) -> None:
    store, content = endpoint.store, os.urandom(700_000)
    folder = to_path(URI)
    store.faults = BAD_DAYS[day]
    for number in range(3):
        path = folder / f"file-{number}"
        path.write_bytes(content)
        assert path.stat().st_size == len(content)
        with path.open("rb") as file:
            file.seek(100_000)
            assert file.read(300_000) == content[100_000:400_000]
            assert file.read() == content[400_000:]
        assert len(files_below(folder)) == number + 1
    (folder / "file-0").unlink()
    assert "file-0" not in files_below(folder)
    assert store.met


def test_the_last_byte_may_be_any(endpoint: Endpoint) -> None:
    """It tells a short answer, and is told apart from the byte that the memory had before."""
    content = bytes(range(256)) * 4
    path = to_path(URI) / "bytes"
    path.write_bytes(content)
    with path.open("rb") as file:
        for start in range(64):
            file.seek(start)
            assert file.read(9) == content[start : start + 9]


def test_a_folder_is_deleted_with_all_that_is_in_it(endpoint: Endpoint) -> None:
    """Also the one that a URI names, which has no name of its own in the bucket."""
    folder = to_path(URI)
    for name in ("a", "below/b", "below/c", "beside/d"):
        (folder / name).write_bytes(b"1")
    remove(folder / "below")
    assert list(files_below(folder)) == ["a", "beside/d"]
    remove(folder)
    assert not folder.exists()


def test_a_dataset_is_read_where_it_lies(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, rows = endpoint.store, {"train": 80_000, "test": 8_000}
    expected = make_dataset(tmp_path / "data", rows, rows_per_part=40_000, rows_per_row_group=4_000)
    store.faults = BAD_DAYS["all"]
    copy(expected.folder, to_path(URI))
    monkeypatch.setenv("RAYREC_CACHE", str(tmp_path / "another"))

    store.faults = Faults()
    endpoint.read.clear()
    dataset = Dataset.open(to_path(URI))
    assert dataset.manifest == expected.manifest
    assert not list((tmp_path / "another").rglob("*.parquet"))
    assert endpoint.bytes_of(".parquet") == 0
    packer, part = RowPacker.of(dataset), dataset.split("train").parts[0]
    one = packer.read(part.path, 1)
    assert 0 < endpoint.bytes_of(".parquet") < part.bytes / 4  # a row group of ten, and the footer
    assert np.array_equal(one.one_hot, RowPacker.of(expected).read(part.path, 1).one_hot)
    store.faults = BAD_DAYS["all"]
    for split in rows:
        pairs = zip(
            packer.read_split(dataset.split(split), threads=True),
            RowPacker.of(expected).read_split(expected.split(split)),
            strict=True,
        )
        for found, wanted in pairs:
            assert np.array_equal(found.one_hot, wanted.one_hot)
            assert np.array_equal(found.dense, wanted.dense)
    fetched = on_this_node(dataset.folder / "test")
    assert [path.read_bytes() for path in sorted(fetched.iterdir())] == [
        path.read_bytes() for path in sorted((expected.folder / "test").iterdir())
    ]
    assert store.met.keys() == {"fail", "reset", "slow", "cut", "short"}


def test_checkpoints_are_written_and_read_at_the_uri(
    endpoint: Endpoint, one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the history of the run is there before each of them, and read on other nodes, which have nothing."""
    store, names = endpoint.store, [checkpoint_name(step) for step in range(1, 5)]
    store.faults = BAD_DAYS["all"]
    run = to_path(URI)

    def step(value: float) -> Any:
        return SimpleNamespace(state_dict=lambda: {"weight": torch.full((300_000,), value)})

    checkpoints = Checkpoints(run / "checkpoints", CheckpointConfig(keep_last=2, keep_best=None))
    with growing_files(run, HISTORY_FILE) as growing:
        folder = RunFolder(run, growing)
        for number in range(1, 5):
            append_history(folder.history, {"step": number})
            folder.put_history()
            checkpoints.save(step(number), RunProgress(step=number))
            there = store.names("data/checkpoints")
            kept = names[max(0, number - 2) : number]
            files = (".metadata", "__0_0.distcp", "manifest.json")
            assert there == ["index.json", *(f"{name}/{file}" for name in kept for file in files)]
            assert [record["step"] for record in read_history(run / HISTORY_FILE)] == list(range(1, number + 1))
    assert checkpoint_steps(run / "checkpoints") == [3, 4]
    assert not list(tmp_path.rglob("*.distcp"))
    store.faults = BAD_DAYS["truncates"]
    for node in ("staging", "another"):
        monkeypatch.setenv("RAYREC_CACHE", str(tmp_path / node))
        state = {"weight": torch.zeros(300_000)}
        load_state(state, run / "checkpoints" / names[3])
        assert state["weight"].eq(4).all()


def test_what_a_dead_rank_left_is_not_taken_for_a_checkpoint(endpoint: Endpoint, one_rank: None) -> None:
    run, store = to_path(URI), endpoint.store
    step = SimpleNamespace(state_dict=lambda: {"weight": torch.ones(3)})
    checkpoints = Checkpoints(run / "checkpoints", CheckpointConfig(keep_last=2, keep_best=None))
    checkpoints.save(step, RunProgress(step=1))
    for name in (f"{checkpoint_name(2)}/__0_0.distcp", f"{checkpoint_name(3)}/__1_0.distcp"):
        (run / "checkpoints" / name).write_bytes(b"part")
    assert checkpoint_steps(run / "checkpoints") == [1]
    checkpoints.save(step, RunProgress(step=3))
    assert [name for name in store.names("data/checkpoints") if name.endswith(".distcp")] == [
        f"{checkpoint_name(step)}/__0_0.distcp" for step in (1, 3)
    ]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_a_line(
    endpoint: Endpoint, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = to_path(URI), endpoint.store
    step = SimpleNamespace(state_dict=lambda: {"weight": torch.ones(3)})
    monkeypatch.setattr(stores, "_PATIENCE_SECONDS", 1.0)
    checkpoints = Checkpoints(run / "checkpoints", CheckpointConfig(keep_best=None))
    checkpoints.save(step, RunProgress(step=1))
    store.faults = Faults(fail=1.0)
    with pytest.raises(UserError) as raised:
        checkpoints.save(step, RunProgress(step=2))
    store.faults = Faults()
    assert re.match(f"{URI}/checkpoints/[^ ]*: cannot be ", str(raised.value))
    assert str(raised.value).endswith(": the store keeps failing; try again later")
    assert store.names("data/checkpoints")[0] == "index.json"
    assert not [name for name in store.names("data/checkpoints") if checkpoint_name(2) in name]


def test_a_store_that_does_not_get_well_ends_the_work_with_a_line(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = to_path(URI) / "file"
    path.write_bytes(b"12345")
    monkeypatch.setattr(stores, "_PATIENCE_SECONDS", 1.0)
    line = f"{path}: cannot be read: the store keeps failing; try again later"
    for faults in (Faults(fail=1.0), Faults(short=1.0)):
        endpoint.store.faults = faults
        with pytest.raises(UserError) as raised:
            path.read_bytes()
        assert str(raised.value) == line

"""A checkpoint is read without running code from it, whatever its files hold."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from rayrec.common.errors import UserError
from rayrec.internals import torch_checkpoint
from rayrec.internals.torch_checkpoint import load, read_metadata
from rayrec.training.loop.records import load_state

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed")


def _state(fill: float) -> dict[str, Any]:
    """The kinds of content that a checkpoint of rayrec has: tensors, and numbers and tuples of optimizers."""
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters(), lr=fill)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    tables = {"a": torch.full((4, 2), fill), "b": torch.full((3,), fill, dtype=torch.bfloat16)}
    return {"model": tables, "optimizer": get_optimizer_state_dict(network, optimizer)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    dcp.save(_state(0.5), checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture
def checkpoint(written: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for file in written.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_what_was_saved_is_read(written: Path) -> None:
    state = _state(0.1)
    load(state, written, no_dist=True)
    (group,) = state["optimizer"]["param_groups"]
    assert (group["lr"], group["betas"]) == (0.5, (0.9, 0.999))
    assert {str(tensor.dtype): tensor.unique().tolist() for tensor in state["model"].values()} == {
        "torch.float32": [0.5],
        "torch.bfloat16": [0.5],
    }


class Command:
    """Runs a command when a plain unpickler reads it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def _in_metadata(folder: Path, marker: Path) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    metadata.planner_data = Command(marker)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _store_bytes(folder: Path, name: str, content: Any) -> None:
    """Make `name` an entry that is not a tensor, with `content`, as `torch.save` writes it."""
    metadata = dcp.FileSystemReader(folder).read_metadata()
    written = io.BytesIO()
    torch.save(content, written)
    (folder / "__1_0.distcp").write_bytes(written.getvalue())
    part = next(iter(metadata.storage_data.values()))
    metadata.storage_data = {index: kept for index, kept in metadata.storage_data.items() if index.fqn != name}
    place = type(part)(relative_path="__1_0.distcp", offset=0, length=len(written.getvalue()))
    metadata.storage_data[MetadataIndex(name)] = place
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _in_a_number(folder: Path, marker: Path) -> None:
    _store_bytes(folder, "optimizer.param_groups.0.lr", Command(marker))


def _instead_of_a_tensor(folder: Path, marker: Path) -> None:
    _store_bytes(folder, "model.a", Command(marker))


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "in the metadata": _in_metadata,
    "in a number": _in_a_number,
    "instead of a tensor": _instead_of_a_tensor,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_no_code_is_run(case: str, checkpoint: Path, tmp_path: Path) -> None:
    marker = tmp_path / "run"
    HOSTILE[case](checkpoint, marker)
    with pytest.raises(UserError, match=r"cannot be loaded .*(names 'posix\.system'|[Ww]eights.only)"):
        load_state(_state(0.1), checkpoint)
    assert not marker.exists()
    dcp.load(_state(0.1), checkpoint_id=checkpoint, no_dist=True)
    assert marker.exists()  # or the checkpoint is harmless, and this test shows nothing


def test_no_file_outside_is_read(checkpoint: Path) -> None:
    metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    next(iter(metadata.storage_data.values())).relative_path = "../elsewhere"
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(pickle.UnpicklingError, match="not that of a checkpoint"):
        read_metadata(checkpoint)


def test_other_content_is_no_checkpoint(checkpoint: Path) -> None:
    for content in (b"", b"\x80\x04", pickle.dumps({"a": 1}), pickle.dumps(torch.nn.Linear)):
        (checkpoint / ".metadata").write_bytes(content)
        with pytest.raises(pickle.UnpicklingError):
            read_metadata(checkpoint)
        with pytest.raises(CheckpointException):
            load(_state(0.1), checkpoint, no_dist=True)


@given(st.data())
def test_metadata_that_is_cut_short_is_refused(written: Path, data: st.DataObject) -> None:
    content = (written / ".metadata").read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(pickle.UnpicklingError):
        torch_checkpoint._unpickled(io.BytesIO(content[:cut]))

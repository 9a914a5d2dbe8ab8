"""What lies in folders and buckets is data: whatever its bytes are, to read it runs no code."""

import os
import pickle
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import Dataset
from rayrec.internals.torch_checkpoint import save
from rayrec.preprocessing import numbers as number_fitting
from rayrec.preprocessing.numbers import Summary
from rayrec.store.tensors import StoredTensors
from rayrec.training.run.folder import RunFolder
from tests.builders import make_dataset
from tests.model_folders import make_model_folder

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS_CODE = re.compile(
    r"\bpickle\.(loads?|Unpickler)\b|allow_pickle=True|weights_only=False|torch\.load\(|\b(joblib|dill|shelve|marshal)\b"
    r"|yaml\.(unsafe_|full_)?load\(|\beval\(|\bexec\("
)
ALLOWED = {
    "rayrec/config/validation.py": 1,  # a SafeLoader
    # Between processes of one session, never in a file.
    "rayrec/inference/batch/pool.py": 2,
    "rayrec/ingest/packed_rows.py": 1,
    # Which knows the classes of torch's metadata alone.
    "rayrec/internals/torch_checkpoint.py": 2,
}
"""Lines of each module that may match."""


def test_the_product_unpickles_no_file() -> None:
    product = ("rayrec", "jobs", "serve", "tune", "cluster", "cuda_ops")
    listed = subprocess.run(["git", "ls-files", *product], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    found: dict[str, int] = {}
    for name in listed.stdout.splitlines():
        if name.endswith(".py") and (REPOSITORY / name).is_file():
            lines = (REPOSITORY / name).read_text().splitlines()
            if risky := sum(RUNS_CODE.search(line.replace(".eval()", "")) is not None for line in lines):
                found[name] = risky
    assert found == ALLOWED


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self._proof),)


Writes = Callable[[Path], Callable[[], object]]
"""Writes an artifact into a folder; returns what reads all of it."""


def _dataset(folder: Path) -> Callable[[], object]:
    dataset = make_dataset(folder / "data", rows=300)

    def read() -> None:
        for part in Dataset.open(dataset.folder).split("train").parts:
            pq.read_table(dataset.folder / part.path)

    return read


def _model(folder: Path) -> Callable[[], object]:
    make_model_folder(folder / "model")
    return lambda: load_model(folder / "model")


def _checkpoint(folder: Path) -> Callable[[], object]:
    save({"model": {"a": torch.ones(3)}}, folder / "step")
    return lambda: StoredTensors(folder / "step").fill({"model.a": torch.zeros(3)})


def _run(folder: Path) -> Callable[[], object]:
    for name in (
        "run.json",
        "config.yaml",
        "schema.json",
        "checkpoints/index.json",
        "checkpoints/step-1/manifest.json",
    ):
        (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "run" / name).write_text("{}")

    def read() -> None:
        run = RunFolder.open(folder / "run")
        for look in (run.progress, lambda: run.recipe, lambda: run.schema, lambda: run.checkpoint("latest")):
            with pytest.raises(Exception):  # noqa: B017, PT011 -- of any kind
                look()

    return read


@pytest.mark.filterwarnings("ignore:torch.distributed", "ignore:Detected pickle protocol")
@pytest.mark.parametrize("write", [_dataset, _model, _checkpoint, _run])
def test_a_pickle_in_the_place_of_a_file_is_not_run(
    write: Callable[[Path], Callable[[], object]], tmp_path: Path
) -> None:
    """Each file in turn; it may be refused, or not be needed."""
    read, proof = write(tmp_path), tmp_path / "it-ran"
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(pickle.dumps(Planted(proof)))
        with suppress(Exception, CheckpointException):
            read()
        assert not proof.exists(), path
        path.write_bytes(content)
    assert len(paths) >= 2
    pickle.loads(pickle.dumps(Planted(proof)))
    assert proof.exists(), "what was planted would have run"


def test_summaries_are_shuffled_as_data() -> None:
    summary = Summary.of(np.array([1e300, -1e300, 0.25, 0.25]))
    assert summary is not None
    (row,) = zip(*number_fitting._as_row(summary).columns, strict=True)
    read = number_fitting._of_row(row)
    for field, value in vars(summary).items():
        assert np.array_equal(getattr(read, field), value), field

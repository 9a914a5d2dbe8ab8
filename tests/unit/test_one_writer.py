"""Of two commands on one output the second is refused at once: before it starts Ray or Spark."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayrec
from rayrec.common.errors import UserError
from rayrec.store.folders import owned
from tests.builders import make_dataset


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """An output that another command writes, which has not made it yet."""
    output, is_held, is_done = tmp_path / "out", threading.Event(), threading.Event()

    def hold() -> None:
        with owned(output):
            is_held.set()
            is_done.wait()

    other = threading.Thread(target=hold)
    other.start()
    assert is_held.wait(30)
    yield output
    is_done.set()
    other.join()
    assert not list(tmp_path.glob(".*")), "the lock is gone"


def test_preprocess(held: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("\t".join(["1", *["2"] * 13, *["a"] * 26]) + "\n")
    with pytest.raises(UserError, match="out: another command is writing to it; wait until it ends"):
        rayrec.preprocess("dlrm-criteo-debug", tmp_path / "rows.tsv", held, progress=False)
    assert not _ray_runs() and not held.exists()


def test_train(held: Path, tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", recipe=rayrec.load_recipe("dlrm-criteo-debug"))
    with pytest.raises(UserError, match="out: another command is writing to it; wait until it ends"):
        rayrec.train("dlrm-criteo-debug", tmp_path / "data", held, progress=False)
    assert not _ray_runs() and not held.exists()


def _ray_runs() -> bool:
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()

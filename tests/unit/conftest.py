"""What makes the unit tests take less time; what they check does not depend on it."""

import atexit
import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from rayrec.inference.predictor import Predictor

# Two processes of tests share two cores: further threads of each would only wait. Libraries read it when imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# On a busy machine any example may take long.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_synced() -> Iterator[None]:
    """No test waits for the disk; tests of what is brought to it note the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> "Predictor":
    """Return that of a DLRM with three numbers, four categories and a list."""
    from rayrec.inference.predictor import load_model
    from tests.model_folders import make_model_folder

    folder = tmp_path_factory.mktemp("models") / "model"
    make_model_folder(folder, multi_hot=1)
    return load_model(folder)


def pytest_collection() -> None:
    """What imports make lives on: looking for garbage among it again and again takes a second."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collections between here and the end look at what tests make alone, also the five with which pytest ends."""
    gc.freeze()
    gc.enable()
    # To take all of that apart at the end takes two seconds, and libraries say that they leak what is not taken apart.
    if "PYTEST_XDIST_WORKER" in os.environ:
        atexit.register(os._exit, 0)
    else:
        atexit.register(gc.unfreeze)

"""What makes the unit tests take less time; what they check does not depend on it."""

import gc
import os

# Two processes of tests share two cores: further threads of each would only wait. Libraries read it when imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection() -> None:
    """What imports make lives on: looking for garbage among it again and again takes a second."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collections between here and the end look at what tests make alone."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Libraries say that they leak what is never collected."""
    gc.unfreeze()

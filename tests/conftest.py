"""Fixtures of all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real data sets, which lies beside the checkout and is no part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets (../shared/data beside the checkout) are not there")
    return folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """One Ray session for all tests; its address, where commands that tests start find it too."""
    from cluster.ray_session import ray_session

    with ray_session():
        import ray

        yield ray.get_runtime_context().gcs_address

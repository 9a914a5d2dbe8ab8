"""Fixtures of the tests that run real Ray and Spark."""

from collections.abc import Iterator

import pytest

from cluster.ray_session import ray_session


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray session for all tests of the folder."""
    with ray_session():
        yield

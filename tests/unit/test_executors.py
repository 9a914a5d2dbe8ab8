"""How many executors of which size a Spark session has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spark_session import Executors, size_executors
from rayrec.common.errors import UserError
from rayrec.config.preprocess import SparkConfig

GIB = 2**30


def sizes(executors: Executors) -> tuple[int, int, float, float]:
    return executors.count, executors.cores, executors.heap / GIB, executors.memory / GIB


@pytest.mark.parametrize(
    ("nodes", "gib", "expected"),
    [
        ([2], 16, (1, 2, 4, 5.5)),
        ([8], 4, (1, 8, 1, 4)),  # the Python workers get what is left
        ([9], 64, (2, 4, 8, 11)),
        ([16, 16], 128, (4, 8, 8, 14)),
        ([128], 512, (16, 8, 8, 14)),
        ([128] * 64, 64 * 1024, (1024, 8, 16, 22)),
        ([4, 12], 64, (4, 4, 4, 7)),  # nodes of several sizes: executors that fit into the smallest
    ],
)
def test_large_nodes_have_several_executors(nodes: list[int], gib: int, expected: tuple[int, int, float, float]):
    assert sizes(size_executors(SparkConfig(), nodes, sum(nodes), gib * GIB)) == expected


def test_a_machine_of_which_ray_declares_more_cpus_than_it_has() -> None:
    """Both ways of asking for one executor count the CPUs that are there."""
    for config in (SparkConfig(), SparkConfig(executors=1)):
        assert size_executors(config, [2], 8, 16 * GIB).cores == 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SparkConfig(executors=2), (2, 16, 16, 28)),
        (SparkConfig(executors=2, executor_cores=3), (2, 3, 16, 18.25)),
        (SparkConfig(executor_cores=16), (2, 16, 16, 28)),
        (SparkConfig(executor_memory="2g"), (4, 8, 2, 8)),
    ],
)
def test_what_is_set_is_kept(config: SparkConfig, expected: tuple[int, int, float, float]):
    assert sizes(size_executors(config, [32], 32, 128 * GIB)) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SparkConfig(executors=5), "5 executors of 1 cores need 5 CPUs and Ray has 4 free"),
        (SparkConfig(executor_cores=8), "1 executors of 8 cores need 8 CPUs"),
        (SparkConfig(executor_memory="32g"), "1 executors of 32.0 GiB need more memory than the 16.0 GiB"),
    ],
)
def test_what_cannot_be_had_is_refused(config: SparkConfig, message: str):
    with pytest.raises(UserError, match=f"^preprocess.spark: {message}"):
        size_executors(config, [4], 4, 16 * GIB)


@given(nodes=st.lists(st.integers(1, 256), min_size=1, max_size=20), gib=st.integers(1, 4), share=st.floats(0, 1))
def test_executors_fit_into_what_is_free(nodes: list[int], gib: int, share: float):
    free_cpus = max(1, int(sum(nodes) * share))
    free_memory = sum(nodes) * gib * GIB
    executors = size_executors(SparkConfig(), nodes, max(free_cpus, min(nodes)), free_memory)
    assert executors.count * executors.cores <= max(free_cpus, min(nodes))
    assert executors.count * executors.memory <= free_memory
    assert executors.cores <= min(8, *nodes) and executors.heap <= min(16 * GIB, executors.memory)

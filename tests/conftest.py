"""Fixtures of all tests."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
# Ray gives its workers a low priority by default: beside other programs the tests would wait for them for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
# Java's second compiler takes more time than it saves in work as small as that of tests.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
# Ray looks for new log files ten times a second, which takes 4 % of a core where tests have left many.
os.environ.setdefault("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0")
os.environ.setdefault("LOG_NAME_UPDATE_INTERVAL_S", "5")


@pytest.hookimpl(trylast=True)  # when `-m` has left out what it leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of few tests, which are the longest tests: processes that take whole files end together."""
    tests_of = Counter(item.path for item in items)
    items.sort(key=lambda item: tests_of[item.path])


@pytest.fixture(scope="session", autouse=True)
def _temporary_files() -> Iterator[None]:
    """Give the processes that tests start, and may kill, a folder of their own for temporary files, and remove it."""
    before = tempfile.gettempdir()
    with (
        tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Not for Ray, whose logs tell why a test failed.
        patch.setenv("RAY_TMPDIR", os.environ.get("RAY_TMPDIR", before))
        patch.setenv("TMPDIR", folder)
        patch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ['JAVA_TOOL_OPTIONS']} -Djava.io.tmpdir={folder}")
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of small real data sets, which lies beside the checkout and is no part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets (../shared/data beside the checkout) are not there")
    return folder


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Make this process the only rank of torch."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """One Ray session for all tests; its address, where commands that tests start find it too."""
    from cluster.ray_session import ray_session

    with ray_session():
        import ray

        yield ray.get_runtime_context().gcs_address


class SharedSpark:
    """A Spark session on the tests' Ray session, started when it is first asked for; a process has one at a time."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._session: Any = None

    def start(self) -> Any:
        """Return the session."""
        from cluster.spark_session import spark_session
        from rayrec.config.preprocess import SparkConfig

        if self._session is None:
            self._session = self._stack.enter_context(spark_session(SparkConfig(executor_memory="1g"), "tests"))
        return self._session

    def stop(self) -> None:
        """End the session, if one runs."""
        self._stack.close()
        self._session = None


@pytest.fixture(scope="session")
def shared_spark(ray_cluster: str) -> Iterator[SharedSpark]:
    """Yield what starts and stops the Spark session of the tests."""
    shared = SharedSpark()
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def spark(shared_spark: SharedSpark) -> Any:
    """Return a Spark session that files of tests share."""
    return shared_spark.start()


@pytest.fixture(scope="module")
def no_spark(shared_spark: SharedSpark) -> None:
    """For tests whose own process starts Spark, as `rayrec.preprocess` does."""
    shared_spark.stop()

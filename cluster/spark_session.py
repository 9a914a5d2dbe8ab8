"""Provides a Spark session on the running Ray session: RayDP starts its executors as Ray actors."""

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cluster.ray_session import ask_nodes
from rayrec.common import errors
from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus
from rayrec.common.process import interrupts_kept
from rayrec.config.preprocess import SparkConfig
from rayrec.internals.pyspark import forget_properties
from rayrec.internals.ray_core import remove_java_libraries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GIB = 2**30
_MOST_CORES = 8
_MOST_HEAP = 16 * _GIB
"""Memory of an executor: 2 GiB a core, as a task sorts up to 0.8 GiB; beyond 32 GiB Java's pointers double."""
_PYTHON_WORKER = 3 * 2**28
"""Bytes of a core's Python worker, the most that was measured; vocabularies and tables are mapped and do not count."""
_LIGHT_COMPILER = "-XX:TieredStopAtLevel=1"
"""For Java, which only plans, waits and moves bytes. It saves half of the CPU time of a short job, and costs a long one
nothing: a shuffle of 860 MB took an executor 6.6 CPU seconds instead of 8.3."""
_LIGHT_JAVA = f"{_LIGHT_COMPILER} -XX:+UseSerialGC"
_WAKE_SECONDS = 30.0
_OF_EXECUTORS = "spark.ray.raydp_spark_executor.actor.resource."
"""Before the name of a resource that each executor takes from Ray."""
_HEAD = "node:__internal_head__"
"""The resource that Ray gives the head node alone; every node has one that is named after its address."""
_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# A Java process prints these lines when it starts, at any log level.
_START_UP_NOISE = re.compile(
    rb"Picked up |NOTE: |Setting default log level|To adjust logging level|Setting Spark log level"
    rb"|^WARNING: |^SLF4J|^\d\d/\d\d/\d\d .* (INFO|WARN) |^[\d-]+ [\d:.,]+ (INFO|WARN) |^\s*$"
)


@contextmanager
def spark_session(config: SparkConfig, name: str = "rayrec", *, on_all_nodes: bool = True) -> Iterator["SparkSession"]:
    """Hold a Spark session on the running Ray session (`cluster.ray_session`) during the block.

    The executors need this process's interpreter, and the files that it reads and writes, at the same paths. If other
    nodes lack these files, `on_all_nodes` is False: all executors are on this process's node. Raises UserError if the
    cluster, or that node, lacks the CPUs or the memory that `config` asks for, or if Spark refuses its properties.
    """
    import raydp
    from py4j.protocol import Py4JJavaError

    # Every node can start Java; copies of Ray's library that earlier Java processes left are removed.
    _require_java_on_nodes()
    ask_nodes(remove_java_libraries)
    # How many executors of which size, and what their Python workers import.
    executors = _size(config, on_all_nodes)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    parallelism = executors.count * executors.cores
    # The folders of the packages that the workers import, and those that this process was given.
    packages = [str(Path(errors.__file__).parents[2]), str(Path(__file__).parents[1])]
    paths = [*packages, *filter(None, [os.environ.get("PYTHONPATH")])]
    properties = {
        "spark.log.level": "FATAL",  # the caller receives a failed task's error as an exception
        "spark.driver.extraJavaOptions": _LIGHT_JAVA,
        "spark.ray.raydp_app_master.extraJavaOptions": _LIGHT_JAVA,
        "spark.executor.extraJavaOptions": _LIGHT_COMPILER,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(paths),
        # Otherwise Python would import from the folder in which Ray was started, before any other.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.python.daemon.module": "cluster.spark_python_daemon",
        # All nodes see the files that tasks read, so none waits seconds for a certain one.
        "spark.locality.wait": "0s",
        "spark.default.parallelism": str(parallelism),
        # RayDP would ask Ray for the heap alone.
        f"{_OF_EXECUTORS}memory": str(executors.memory),
        **({} if on_all_nodes else {f"{_OF_EXECUTORS}{_name_of(_own_node())}": "0.001"}),
        "spark.ray.raydp_spark_master.actor.resource.CPU": "0",
        # It owns the executors. On the head, the loss of another node costs only that node's executor.
        f"spark.ray.raydp_spark_master.actor.resource.{_HEAD}": "0.001",
        **{name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in config.conf.items()},
    }
    with ExitStack() as ends:
        ends.callback(forget_properties, config.conf)
        try:
            with _quiet_java(), interrupts_kept():
                session = raydp.init_spark(
                    # The name of a Ray actor, which must be unique in the cluster.
                    app_name=f"{name}-{uuid4().hex[:8]}",
                    num_executors=executors.count,
                    executor_cores=executors.cores,
                    executor_memory=f"{executors.heap // 2**20}m",
                    # Only ray.data.from_spark needs fault tolerant mode; datasets are passed on as Parquet.
                    fault_tolerant_mode=False,
                    configs=properties,
                )
        except Py4JJavaError as error:
            if not config.conf:
                raise
            raise UserError(f"preprocess.spark.conf: {error.java_exception.getMessage()}") from error
        ends.callback(raydp.stop_spark)
        _wake(session, executors)
        yield session


@dataclass(frozen=True)
class Executors:
    """The executors of a Spark session, all alike."""

    count: int
    cores: int
    heap: int
    """Bytes of the JVM heap of each."""
    memory: int
    """Bytes that Ray sets aside for each: the heap and what the Python workers beside it need."""


def size_executors(config: SparkConfig, nodes: Sequence[int], free_cpus: int, free_memory: int) -> Executors:
    """Return the executors for nodes of so many CPUs each, of which Ray has `free_cpus` and `free_memory` (bytes) free.

    By default each node has one for every 8 of its CPUs, rounded up, so that tasks of a large node share several heaps
    of up to 16 GiB; heaps take 1/4 of the free memory. Raises UserError if Ray lacks what `config` asks for.
    """
    if config.executors:
        count = config.executors
        cores = config.executor_cores or max(1, min(free_cpus, sum(nodes)) // count)
    else:
        smallest = max(1, min(nodes, default=1))
        cores = config.executor_cores or smallest // -(-smallest // _MOST_CORES)
        count = max(1, min(sum(cpus // cores for cpus in nodes), free_cpus // cores))
    if config.executor_memory:
        heap = int(config.executor_memory[:-1]) * _UNITS[config.executor_memory[-1]]
    else:
        heap = max(_GIB, min(free_memory // (4 * count), _MOST_HEAP))
    if count * cores > free_cpus:
        raise UserError(
            f"preprocess.spark: {count} executors of {cores} cores need {count * cores} CPUs and Ray has "
            f"{free_cpus} free; lower executors or executor_cores"
        )
    if count * heap > free_memory:
        raise UserError(
            f"preprocess.spark: {count} executors of {heap / _GIB:.1f} GiB need more memory than the "
            f"{free_memory / _GIB:.1f} GiB that Ray has free; lower executors or executor_memory"
        )
    return Executors(count, cores, heap, heap + min(cores * _PYTHON_WORKER, free_memory // count - heap))


def _wake(session: "SparkSession", executors: Executors) -> None:
    """Wait until each executor has done a task, for which it starts Python, so that no stage of a job waits for that.

    One that takes too long, such as where Ray has no room for it now, joins later.
    """
    deadline, cores = time.monotonic() + _WAKE_SECONDS, executors.count * executors.cores
    asked = session.sparkContext.parallelize(range(cores), cores).map(lambda _: (socket.gethostname(), os.getppid()))
    awake = set(asked.collect())
    while len(awake) < executors.count and time.monotonic() < deadline:
        time.sleep(0.1)
        awake |= set(asked.collect())


def _own_node() -> dict[str, Any]:
    """Return the node of this process, as Ray describes it."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    return next(node for node in ray.nodes() if node["NodeID"] == own)


def _name_of(node: dict[str, Any]) -> str:
    """Return the resource of one node alone. (Tests have several nodes at one address.)"""
    return _HEAD if _HEAD in node["Resources"] else f"node:{node['NodeManagerAddress']}"


def _size(config: SparkConfig, on_all_nodes: bool) -> Executors:
    import ray

    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    nodes = [count for count in cpus if count]
    free = ray.available_resources()
    if not on_all_nodes:
        own = _own_node()["Resources"]
        nodes = [int(own.get("CPU", 0))]
        free = {name: min(free.get(name, 0), own.get(name, 0)) for name in ("CPU", "memory")}
    free_cpus = int(free.get("CPU", 0))
    if len(nodes) == 1:
        # A Ray session on one machine may declare more CPUs than it may use; executors count these.
        nodes = [min(free_cpus, available_cpus())]
    return size_executors(config, nodes, free_cpus, int(free.get("memory", 0)))


def _require_java_on_nodes() -> None:
    """Raise UserError if a node of the running Ray session was started without `java` on its PATH.

    The raylet of such a node cannot start Java workers, and dies when Spark's first process registers with it.
    """
    import ray

    def knows_java() -> bool:
        # A worker's parent is the raylet, whose arguments are the only place where Ray shows this.
        arguments = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        return b"--java_worker_command=" not in arguments

    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    without = sorted({hosts[node] for node, knows in ask_nodes(knows_java).items() if not knows})
    if without:
        raise UserError(
            f"the Ray node on {', '.join(without)} was started without Java, which Spark needs; run "
            '`eval "$(python -m cluster.java)"` there before `ray start`'
        )


@contextmanager
def _quiet_java() -> Iterator[None]:
    """Filter the error output of processes that start in the block, until they end.

    Java prints JAVA_TOOL_OPTIONS, and Spark its first log lines, before they read any setting. The processes inherit
    the write end of a pipe as stderr; a thread copies all other lines to the true stderr.
    """
    sys.stderr.flush()
    terminal, own = os.dup(2), os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)

    def copy() -> None:
        with os.fdopen(read_end, "rb") as lines, os.fdopen(terminal, "wb", buffering=0) as out:
            for line in lines:
                if not _START_UP_NOISE.search(line):
                    out.write(line)

    threading.Thread(target=copy, name="java-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)

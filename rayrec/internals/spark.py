"""Private parts of PySpark: the Java objects of a session, bytes in partitions by number, and running tasks."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession


def java(spark: "SparkSession") -> Any:
    """Return the classes of the session's Java process by their full names, such as `java(spark).java.lang.System`."""
    return spark.sparkContext._jvm


def moved_to_partitions(numbered: "RDD[tuple[int, bytes]]", partitions: int) -> "RDD[bytes]":
    """Return the bytes of pairs (partition, bytes), each in its partition, from 0, in no order.

    This is `RDD.partitionBy` without its Python side, which holds hundreds of pairs before it pickles them.
    """
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer, pack_long

    def alternating(_: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        for partition, content in pairs:
            yield pack_long(partition)
            yield content

    context = numbered.context
    sent: Any = numbered.mapPartitionsWithIndex(alternating, preservesPartitioning=True)
    sent._bypass_serializer = True
    classes: Any = context._jvm
    pairs = classes.PairwiseRDD(sent._jrdd.rdd()).asJavaPairRDD()
    moved = classes.PythonRDD.valueOfPair(pairs.partitionBy(classes.PythonPartitioner(partitions, 0)))
    return RDD(moved, context, NoOpSerializer())


def has_running_tasks(spark: "SparkSession") -> bool:
    """Return whether an executor still runs a task of the session."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    return any(executor.numRunningTasks() for executor in tracker.getExecutorInfos())

"""Private parts of PySpark: the Java objects that a session stands for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java(spark: "SparkSession") -> Any:
    """The classes of the session's Java process by their full names, such as `java(spark).java.lang.System`."""
    return spark.sparkContext._jvm


def has_running_tasks(spark: "SparkSession") -> bool:
    """Whether an executor still runs a task of the session."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    return any(executor.numRunningTasks() for executor in tracker.getExecutorInfos())

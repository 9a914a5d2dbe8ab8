"""Private parts of PySpark: the Java objects of a session, data frames of given batches, and running tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def java(spark: "SparkSession") -> Any:
    """Return the classes of the session's Java process by their full names, such as `java(spark).java.lang.System`."""
    return spark.sparkContext._jvm


def frame_of_batches(spark: "SparkSession", batches: Sequence[pa.RecordBatch]) -> "DataFrame":
    """Return a data frame with a partition for each batch, of which a task is sent only its own; at least one batch.

    What Spark offers for this, `createDataFrame` of a pandas data frame, cuts the rows by a setting that also sizes the
    batches of every other stage, and keeps a small frame in one place.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    from pyspark.sql.pandas.types import from_arrow_schema

    # Below this size (bytes) Spark would deal the rows to as many partitions as there are cores.
    spark.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    functions = java(spark).PythonSQLUtils
    sent = spark.sparkContext._serialize_to_jvm(
        iter(batches),
        ArrowStreamSerializer(),
        functions.readArrowStreamFromFile,
        java(spark).ArrowIteratorServer,
    )
    schema = from_arrow_schema(batches[0].schema).json()
    return DataFrame(functions.toDataFrame(sent, schema, spark._jsparkSession), spark)


def has_running_tasks(spark: "SparkSession") -> bool:
    """Return whether an executor still runs a task of the session."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    return any(executor.numRunningTasks() for executor in tracker.getExecutorInfos())

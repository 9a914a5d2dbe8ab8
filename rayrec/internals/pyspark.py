"""What PySpark offers no public way to: properties of the Java process that outlives its Spark sessions."""

from collections.abc import Iterable


def forget_properties(names: Iterable[str]) -> None:
    """Remove Spark's properties from this process's Java, which was started with those of the first session.

    Later sessions would take them over as defaults, such as an event log in a folder that is gone.
    """
    from pyspark import SparkContext

    if SparkContext._jvm is not None:
        for name in names:
            SparkContext._jvm.java.lang.System.clearProperty(name)

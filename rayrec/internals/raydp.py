"""Private parts of RayDP and PySpark: the Java process of Spark's driver, started before there is a cluster."""

from collections.abc import Mapping


def start_driver_java(configs: Mapping[str, str], stderr: int) -> None:
    """Start the Java process of Spark's driver, unless this process has one; `raydp.init_spark` then finds it.

    `configs`: the settings that `init_spark` will be given, of which the process has those that Java needs at its start.
    `stderr`: the file descriptor that the process writes its errors to.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from raydp.spark.ray_cluster import SparkCluster

    cluster = SparkCluster.__new__(SparkCluster)
    cluster._configs = dict(configs)
    cluster._num_executors = cluster._executor_cores = cluster._executor_memory = 1
    cluster._prepare_spark_configs()
    of_java = ("spark.driver.extraJavaOptions", "spark.driver.extraClassPath")
    conf = SparkConf(loadDefaults=False).setAll([(name, cluster._configs[name]) for name in of_java])
    with SparkContext._lock:
        if SparkContext._gateway is None:
            SparkContext._gateway = launch_gateway(conf, {"stderr": stderr})
            SparkContext._jvm = SparkContext._gateway.jvm

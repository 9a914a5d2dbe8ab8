"""The process that Spark forks its Python workers from: it imports once what every worker would import for seconds."""

import pyspark.daemon

import rayrec.preprocessing.pipeline  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()

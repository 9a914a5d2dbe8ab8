"""The process from which Spark forks its Python workers: it imports once what would take each worker seconds."""

import pyspark.daemon

import rayrec.preprocessing.pipeline  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()

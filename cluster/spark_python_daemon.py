"""The process from which Spark forks its Python workers: it imports once what would take each worker seconds."""

import gc

import pyspark.daemon

from rayrec.common.plugins import SOURCES

for _kind in SOURCES.packages:
    SOURCES.load(_kind, "source")
gc.freeze()  # a worker collects garbage after each task; what was imported is none, and takes long to look through

if __name__ == "__main__":
    pyspark.daemon.manager()

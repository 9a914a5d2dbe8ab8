"""The process from which Spark forks its Python workers: it imports once what would take each worker seconds."""

import pyspark.daemon

from rayrec.common.plugins import SOURCES
from rayrec.internals.spark import shorten_tasks

for _kind in SOURCES.packages:
    SOURCES.load(_kind, "source")
shorten_tasks()

if __name__ == "__main__":
    pyspark.daemon.manager()

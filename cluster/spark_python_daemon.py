"""The process from which Spark forks its Python workers: it imports once what would take each worker seconds."""

import gc
import zipimport

import pyspark.daemon

from rayrec.common.plugins import SOURCES

for _kind in SOURCES.packages:
    SOURCES.load(_kind, "source")
gc.freeze()  # a worker collects garbage after each task; imported modules are no garbage and take long to look through
# A worker also forgets before each task what import has found. Spark's own archives do not change, and to read their
# lists of files again took 50 ms.
zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]

if __name__ == "__main__":
    pyspark.daemon.manager()

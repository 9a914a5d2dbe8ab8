"""Turns Parquet shards into batches: the order of the data, the readers, the batches."""

"""From Parquet shards to batches: the plan of the data order, the reader, the batches."""

"""The formats of files of tables: delimited text, JSON lines and Parquet."""

"""Features of rows, each an ad in a context, from the statistics: in Spark for tables, in serving for requests."""

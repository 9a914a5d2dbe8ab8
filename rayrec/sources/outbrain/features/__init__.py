"""Features of ads in a context, computed from the statistics: by Spark for tables, by the server for requests."""

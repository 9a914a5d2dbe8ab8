"""Features of ads in a context, computed from the statistics, by preprocessing and by the server."""

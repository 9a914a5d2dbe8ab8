"""Sessions on a cluster, made here and handed down: Ray, and Spark on Ray."""

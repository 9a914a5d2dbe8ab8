"""Makes the sessions that the rest is given: Ray, and Spark on Ray."""

"""The feature schema and its transforms: one definition, applied by Spark to tables and in serving to requests."""

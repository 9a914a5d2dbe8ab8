"""The feature schema and the transforms: one definition, applied by Spark to tables and by the predictor to requests."""

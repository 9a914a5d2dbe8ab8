"""Metrics, logs and API tokens."""

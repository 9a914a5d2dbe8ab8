"""Turns raw tables into a dataset, with Spark; see README.md in the folder above and docs/outbrain.md."""

"""Turns raw tables into a dataset; see README.md in the folder above and docs/outbrain.md."""

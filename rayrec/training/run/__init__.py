"""Checks before a run, and its records: the run folder, the history, trackers."""

"""What is checked before a run and kept of it: the run folder, the history, trackers."""

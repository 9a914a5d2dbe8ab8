"""Helpers of all parts of rayrec: errors, texts, progress, the machine, this process, the Ray session."""

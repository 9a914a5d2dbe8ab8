"""Helpers of all parts of rayrec: errors, atomic files, console output."""

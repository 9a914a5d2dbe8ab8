"""Inspection of raw files: the kinds of their columns, a recipe for them, and drift."""

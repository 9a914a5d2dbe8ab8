"""Looks at data, runs and scores: raw tables and the recipe for them, profiles, drift, held-out rows, what differs."""

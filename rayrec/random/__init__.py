"""Stateless random numbers: each is a function of a key and an index, so any worker computes any of them alone.

Datasets, models and the order of training depend on every bit of them, so none may change.
"""

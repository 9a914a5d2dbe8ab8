"""Admission of requests and their batching into forward passes; knows no model and no protocol."""

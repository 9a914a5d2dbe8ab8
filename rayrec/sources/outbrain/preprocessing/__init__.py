"""Displays of ads: tables joined to rows, statistics of train, features computed from them. See docs/outbrain.md."""

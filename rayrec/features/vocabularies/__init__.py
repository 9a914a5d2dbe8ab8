"""Vocabularies: the values that have ids, how they grow, and what ids were and stand for."""

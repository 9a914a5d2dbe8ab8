"""The columns of Criteo's display-ads logs."""

LABEL = "label"
NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
SEPARATOR = "\t"

"""The columns and the file names of Criteo's display-ads logs."""

import re

LABEL = "label"
NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
SEPARATOR = "\t"

_DAY_FILE = re.compile(r"^day_(\d+)(\.gz)?$")


def day_of(file_name: str) -> int | None:
    """The day that a file of the Terabyte layout holds (`day_7`, `day_7.gz`); None for other names."""
    match = _DAY_FILE.match(file_name)
    return int(match[1]) if match else None

"""The columns and the file names of Criteo's display-ads logs."""

import re

from rayrec.preprocessing.rows.text_reader import DelimitedText, RawColumns

LABEL = "label"
NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
SEPARATOR = "\t"

_DAY_FILE = re.compile(r"^day_(\d+)(\.gz)?$")


class CriteoText(DelimitedText):
    """Lines of a label, 13 integers and 26 categories."""

    def day_of(self, file_name: str) -> int | None:
        """The day that a file of the Terabyte layout holds (`day_7`, `day_7.gz`); None for other names."""
        match = _DAY_FILE.match(file_name)
        return int(match[1]) if match else None


FORMAT = CriteoText(RawColumns(LABEL, NUMERIC, CATEGORICAL), SEPARATOR)

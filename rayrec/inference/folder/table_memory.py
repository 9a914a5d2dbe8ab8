"""A limit for what the mapped tables of a process hold in memory.

Pages of a mapped file stay with the process that read them until the machine runs out of memory; one that looks up a
skewed stream of ids in tables of many GiB would seem to hold them all. Beyond the limit they are given back: hot rows
are then mapped again from the system's page cache, at the price of a page fault each.
"""

import os
from pathlib import Path
from weakref import WeakSet

from rayrec.inference.folder.table_files import MappedTable

# A row that was not mapped brings up to 16 pages with it (the kernel's fault-around), 64 KiB.
_ROWS_BETWEEN_LOOKS = 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class TableMemory:
    """Shared by the predictors of a process; safe to use from several threads."""

    def __init__(self, limit_bytes: float) -> None:
        """The limit is for the tables: other files that the process has mapped by now are not counted.

        It may be exceeded by 64 MiB, or by the pages of one look-up of more than 1,024 rows.
        """
        self._limit = limit_bytes + mapped_bytes()
        self._tables: WeakSet[MappedTable] = WeakSet()
        self._rows = 0

    def add(self, table: MappedTable) -> None:
        """Count a table from now on, as long as it is used."""
        self._tables.add(table)

    def note(self, rows: int) -> None:
        """Called after `rows` rows were looked up; gives pages back if the limit is exceeded."""
        self._rows += rows
        if self._rows < _ROWS_BETWEEN_LOOKS:
            return
        self._rows = 0
        if mapped_bytes() > self._limit:
            for table in tuple(self._tables):
                table.release()


def mapped_bytes() -> int:
    """Bytes of files that this process has mapped and holds in memory."""
    return int(_STATM.read_text().split()[2]) * _PAGE

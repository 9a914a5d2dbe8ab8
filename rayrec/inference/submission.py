"""Kaggle's format of answers: a line a display with its ads, the likeliest first."""

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError

SUBMISSION_FILE = "submission.csv"


class Submission:
    """Writes `display_id,ad_id` lines as displays come, one after the other; those of equal scores in that order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._display = np.empty(0, np.int64)
        self._ad = np.empty(0, np.int64)
        self._score = np.empty(0, np.float32)

    def add(self, display: NDArray[np.int64], ad: NDArray[np.int64], score: NDArray[np.float32]) -> None:
        """More rows (n,). Raises UserError where they are not sorted by display, as the rows of `train` are not."""
        display = np.concatenate((self._display, display))
        if (np.diff(display) < 0).any():
            raise UserError(
                "--submission: the split's rows are in random order, so displays are scattered; give another --split"
            )
        self._display = display
        self._ad, self._score = np.concatenate((self._ad, ad)), np.concatenate((self._score, score))
        # The last display may go on.
        self._write(int(np.searchsorted(self._display, self._display[-1])) if len(display) else 0)

    def __enter__(self) -> Self:
        self._file = self._path.open("w")
        self._file.write("display_id,ad_id\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._write(len(self._display))
        self._file.close()

    def _write(self, rows: int) -> None:
        """Write the first rows, whole displays."""
        order = np.lexsort((-self._score[:rows], self._display[:rows]))
        ads = self._ad[order].astype(str)
        displays, starts = np.unique(self._display[:rows], return_index=True)
        for display, start, stop in zip(displays, starts, [*starts[1:], rows], strict=False):
            self._file.write(f"{display},{' '.join(ads[start:stop])}\n")
        self._display, self._ad, self._score = self._display[rows:], self._ad[rows:], self._score[rows:]

"""A user's mistake that a worker met, noted where all workers and the driver see it, whatever nodes they are on."""

import json
from dataclasses import dataclass
from uuid import uuid4

from rayrec.common import errors
from rayrec.common.errors import DiskError, UserError
from rayrec.internals.ray_core import note, read_note, remove_note
from rayrec.store.node_copy import shown


@dataclass(frozen=True)
class MistakeNote:
    """The key of a note in the Ray session, which has one for each run."""

    _key: str

    @classmethod
    def new(cls) -> "MistakeNote":
        """Return a note that nothing was written to."""
        return cls(f"rayrec-mistake-{uuid4().hex}")

    def write(self, error: UserError) -> None:
        """Note an error, unless another one was noted before."""
        # Its paths are those of this node; of a disk, which is this node's too, nothing else would be true.
        text = str(error) if isinstance(error, DiskError) else shown(str(error))
        note(self._key, json.dumps([type(error).__name__, text]).encode())

    def is_there(self) -> bool:
        """Return whether an error was noted."""
        return read_note(self._key) is not None

    def raise_if_any(self) -> None:
        """Raise the error that was noted."""
        if (written := read_note(self._key)) is not None:
            kind, text = json.loads(written)
            raise getattr(errors, kind)(text) from None

    def remove(self) -> None:
        """Forget the note, when its run is over."""
        remove_note(self._key)

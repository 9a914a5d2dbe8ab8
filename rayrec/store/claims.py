"""The right to write a folder at a URI, which one writer has at a time.

Its manifest.json is first the claim of the one who writes it, and in the end what says that it is whole. Each change of
it is one conditional request, which fails if anybody else has changed it. So of "take over" and "finish" only one can
happen, and of two writers of a folder at most one hears that it succeeded.

What a writer has on its way to the store when it is taken over may still arrive, and replace or remove a file of the
new writer. The manifest stays that of the new one, whose checksums show it (`rayrec verify`).
"""

import json
from contextlib import suppress
from uuid import uuid4

from rayrec.common.errors import UserError
from rayrec.store import objects
from rayrec.store.files import remove_hidden
from rayrec.store.paths import RemotePath

MANIFEST_FILE = "manifest.json"
"""The file that is written last, and says that a folder is whole."""
UNFINISHED = "unfinished"
"""The key of a claim: the fingerprint of the work, "" if it has none; None where the work was given up."""
FINISHED = "finished"
"""The only key of a manifest of a folder that has none of its own: pages, raw files, runs."""
_MOST_BYTES = 1_000
"""Larger ones are manifests, and are not read to tell whether they are claims."""


class Claim:
    """The right of this process to write a folder at a URI, from `take` to `finish` or `give_up`."""

    def __init__(self, folder: RemotePath, version: objects.Version | None) -> None:
        """`version` is that of the claim that this one takes over."""
        self.folder = folder
        self.manifest: bytes | None = None
        """What manifest.json will be; None for a folder without one of its own."""
        self._writer, self._content, self._version = uuid4().hex, b"", version

    @classmethod
    def take(cls, folder: RemotePath, fingerprint: str) -> "Claim":
        """Claim a folder that is not whole, and take it over from the process that began it.

        What others left there is removed, but for work with the same fingerprint, if that is not empty: it goes on.
        Raises UserError if the folder is whole, or if somebody else takes it at this moment.
        """
        found = objects.versioned(folder / MANIFEST_FILE, _MOST_BYTES)
        before = _claim(found)
        if found is not None and before is None:
            raise UserError(f"{folder}: already exists; give another --output, or remove it first")
        goes_on = before is not None and fingerprint != "" and before[UNFINISHED] == fingerprint
        claim = cls(folder, None if found is None else found[1])
        claim._say(fingerprint if goes_on else "")
        if not goes_on:
            # Only when nothing of others is there may a later attempt with our fingerprint keep what it finds.
            claim._remove_files()
            if fingerprint:
                claim._say(fingerprint)
        return claim

    def require(self) -> None:
        """Raise UserError if somebody else has taken the folder over."""
        found = objects.versioned(self.folder / MANIFEST_FILE, _MOST_BYTES)
        if found is None or found[0] != self._content:
            raise _lost(self.folder)

    def finish(self) -> None:
        """Say that the folder is whole, if it is still ours. Raises UserError if it is not."""
        self._put(self.manifest or json.dumps({FINISHED: self._writer}).encode())

    def give_up(self) -> None:
        """Remove what was written. Raises UserError if the folder is no longer ours.

        The claim stays, without work to go on with: deleting it is no conditional request, and when it arrived, the
        manifest of another writer might be there.
        """
        self._remove_files()
        self._say(None)

    def tidy(self) -> None:
        """Remove hidden files from the folder, which is whole, also with them."""
        with suppress(UserError):
            remove_hidden(self.folder)

    def _say(self, fingerprint: str | None) -> None:
        self._put(json.dumps({UNFINISHED: fingerprint, "writer": self._writer}).encode())

    def _put(self, content: bytes) -> None:
        """Change manifest.json from what it was when we saw it last. Raises UserError if others have changed it."""
        try:
            self._version = objects.put_if(self.folder / MANIFEST_FILE, content, self._version)
        except FileExistsError:
            raise _lost(self.folder) from None
        self._content = content

    def _remove_files(self) -> None:
        """Remove all but the claim, and first what may say that something is whole (*.json)."""

        def remove(name: str) -> None:
            self.require()
            objects.delete(self.folder / name)

        names = [name for name in objects.files_below(self.folder) if name != MANIFEST_FILE]
        for of_json in (True, False):
            objects.for_each(remove, [name for name in names if name.endswith(".json") is of_json])


def claim_on(folder: RemotePath) -> dict[str, str | None] | None:
    """Return the claim on a folder that somebody began to write and that is not whole; None without one.

    Maybe nobody writes it any more. Raises UserError.
    """
    return _claim(objects.versioned(folder / MANIFEST_FILE, _MOST_BYTES))


def _claim(found: tuple[bytes | None, objects.Version] | None) -> dict[str, str | None] | None:
    """Return what a manifest.json says if it is a claim."""
    try:
        content = json.loads((found and found[0]) or b"{}")
    except ValueError:
        return None
    return content if isinstance(content, dict) and UNFINISHED in content else None


def _lost(folder: RemotePath) -> UserError:
    return UserError(f"{folder}: another command has begun to write it; give another --output")

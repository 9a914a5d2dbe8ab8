"""How the bytes of a file are text: the encoding, and what ends a line."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Encodings by the byte order mark with which a text begins."""
_ASCII = bytes(range(128))
_MANY, _FEW = 0.3, 0.02


@dataclass(frozen=True)
class TextEncoding:
    """How the bytes of a file are text."""

    encoding: str = "utf-8"
    has_returns: bool = False
    """Whether a carriage return alone ends a line."""

    @classmethod
    def of(cls, head: bytes, encoding: str | None) -> "TextEncoding":
        """Tell the form from the first bytes; a byte order mark counts more than the encoding that is given."""
        marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
        found = marked or (codecs.lookup(encoding).name if encoding else _without_mark(head))
        form = cls(found.removesuffix("-sig"))
        text = b"".join(form.decoded([head], is_cut=True))
        return cls(form.encoding, b"\n" not in text and b"\r" in text.rstrip(b"\r"))

    @cached_property
    def is_whole(self) -> bool:
        """Whether a newline cannot be told by its byte, as in UTF-16, so that the text is read from its beginning."""
        return _ASCII.decode(self.encoding, "replace") != _ASCII.decode("ascii")

    def as_utf8(self, lines: bytes) -> bytes:
        """Return whole lines as UTF-8; a byte that is not of the encoding stays, which makes its line invalid."""
        if self.encoding == "utf-8":
            return lines
        return lines.decode(self.encoding, "surrogateescape").encode("utf-8", "surrogateescape")

    def decoded(self, blocks: Iterable[bytes], *, is_cut: bool = False) -> Iterator[bytes]:
        """Yield a text that comes in blocks as UTF-8, with newlines as the ends of lines.

        Raises UnicodeDecodeError, also if it breaks off, unless it `is_cut`.
        """
        # Halves of surrogate pairs stay halves, which are invalid in UTF-8, too.
        errors = "surrogatepass" if self.encoding.startswith(("utf-16", "utf-32")) else "surrogateescape"
        decoder = codecs.getincrementaldecoder(self.encoding)(errors)
        for block in blocks:
            text = block if self.encoding == "utf-8" else decoder.decode(block).encode("utf-8", errors)
            yield text.replace(b"\r", b"\n") if self.has_returns else text
        if self.encoding != "utf-8" and not is_cut:
            decoder.decode(b"", final=True)


UTF8 = TextEncoding()


def _without_mark(head: bytes) -> str:
    """Tell UTF-16 by its zeros: of letters and digits, every second byte is one."""
    half = max(len(head) // 2, 1)
    even, odd = head[::2].count(0) / half, head[1::2].count(0) / half
    if odd > _MANY and even < _FEW:
        return "utf-16-le"
    return "utf-16-be" if even > _MANY and odd < _FEW else "utf-8"

"""Tell the encoding of a text that is not UTF-8, by how much of it are words then."""

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

WESTERN = "windows-1252"
"""The encoding of texts of Western Europe, and of what no other explains."""
_GOOD, _FAIR = 0.9, 0.75
"""The share of characters beyond ASCII that fit at which a text is taken to be Western, or of another encoding."""
_MOST_BYTES = 2**16
_SCRIPTS = {
    WESTERN: "LATIN",
    "windows-1251": "CYRILLIC",
    "koi8_r": "CYRILLIC",
    "cp866": "CYRILLIC",
    "windows-1253": "GREEK",
    "mac_roman": "LATIN",
    "cp850": "LATIN",
    "windows-1250": "LATIN",
    "iso8859_2": "LATIN",
}
"""Encodings with a byte a character, and the script of their words."""
_COMMON: dict[str, tuple[tuple[tuple[int, int], ...], int]] = {
    "euc_kr": (((0xB0, 0xC8),), 0xA1),
    "shift_jis": (((0x82, 0x83), (0x88, 0x97)), 0x40),
    "gb18030": (((0xB0, 0xD7),), 0xA1),
    "euc_jp": (((0xA4, 0xA5), (0xB0, 0xCF)), 0xA1),
    "big5": (((0xA4, 0xC6),), 0x40),
}
"""Encodings with two bytes a character: ranges of the first byte of common ones, and the least second byte. Of two that
explain a text alike, the first is taken."""
_MARKS = "«»“”„‘’‚–—…·•€£§©®™°ªº²³´¿¡µ\xa0"  # noqa: RUF001
_WIDE_MARKS = "\u3000、。・「」《》，！？：（）ー"  # noqa: RUF001
"""What stands around and between words."""


class FoundEncoding(NamedTuple):
    """The likeliest encoding of a text."""

    name: str
    words: str | None
    """Some of its words in this encoding, for a person to judge; None where it is Western as a matter of course."""


def find_encoding(text: bytes) -> FoundEncoding:
    """Return the encoding of a text that is not UTF-8; a Western one where none explains it."""
    lines = [line for line in text[:_MOST_BYTES].split(b"\n") if not line.isascii()]
    data = b"\n".join(lines)
    try:
        data.decode(WESTERN)
        western = WESTERN
    except UnicodeDecodeError:  # Latin-1 has a character for every byte
        western = "latin-1"
    shares = {name: _share_in_words(_decoded(data, name), script) for name, script in _SCRIPTS.items()}
    if shares[WESTERN] >= _GOOD:
        return FoundEncoding(western, None)
    shares |= {name: _share_of_common(_decoded(data, name), _common(name)) for name in _COMMON}
    best = max(shares, key=shares.__getitem__)
    best = western if best == WESTERN or shares[best] < _FAIR else best
    words = re.findall(r"[^\W\d_]*[^\W\d_\x00-\x7f][^\W\d_]*", data.decode(best, "replace"))
    return FoundEncoding(best, ", ".join(f"'{word}'" for word in list(dict.fromkeys(words))[:3]))


def _decoded(data: bytes, encoding: str) -> str:
    """Return a text; an empty one if more than a few bytes are no characters."""
    text = data.decode(encoding, "replace")
    return text if text.count("\ufffd") <= len(text) / 1_000 else ""


def _share_in_words(text: str, script: str) -> float:
    """Return the share of the characters beyond ASCII, but for marks, in likely words of a script; 1 of none."""
    good, total = 0.0, 0
    for token in re.findall(r"[A-Za-z\x80-\U0010ffff]+", text):
        word = token.strip(_MARKS)
        beyond = sum(not character.isascii() for character in word)
        if beyond and (len(word) > 1 or word.isalpha()):
            total += beyond
            good += beyond * min(_likeliness(part, script) for part in re.split("[\u2019·]", word) if part)
    return good / total if total else float(bool(text))


def _likeliness(word: str, script: str) -> float:
    """Return 1 for a word of a script, less for one in capitals, of which fewer are written, and 0 for others."""
    is_of_script = all(unicodedata.name(c, "").startswith(script) and c != "ƒ" for c in word)
    beyond = sum(not character.isascii() for character in word)
    is_latin = script != "LATIN" or beyond <= max(2, 3 * len(word) / 4)
    if not (is_of_script and is_latin):
        return 0.0
    return 1.0 if word[1:].islower() or len(word) == 1 else 0.9 if word.isupper() else 0.0


def _share_of_common(text: str, common: frozenset[str]) -> float:
    """Return the share of common characters among those beyond ASCII; none of one or two within Latin words is."""
    good = total = 0
    for before, run, after in re.findall(r"([A-Za-z]?)([^\x00-\x7f]+)([A-Za-z]?)", text):
        found = [character for character in run if character not in _WIDE_MARKS]
        total += len(found)
        good += 0 if (before or after) and len(run) <= 2 else sum(map(common.__contains__, found))
    return good / max(total, 1)


@lru_cache
def _common(encoding: str) -> frozenset[str]:
    ranges, least = _COMMON[encoding]
    pairs = (bytes([a, b]) for low, high in ranges for a in range(low, high + 1) for b in range(least, 0xFF))
    return frozenset("".join(pair.decode(encoding, "ignore") for pair in pairs))

"""Numbers, amounts of memory and users' names as people write and read them."""

import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote_to_bytes

from rayrec.common.errors import ConfigError


def parse_bytes(text: str) -> int:
    """Read '80GB' or '1.5 GiB' as bytes; GB is 10^9, GiB is 2^30. Raises ConfigError on anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(i?)B", text)
    if match is None:
        raise ConfigError(f"memory '{text}': write it as 80GB or 64GiB")
    number, letter, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** ("KMGT".index(letter) + 1))


def format_bytes(count: float) -> str:
    """Return a number of bytes for people, such as '15.6 GiB'."""
    from pydantic import ByteSize  # takes a while, and `rayrec --help` does not need it

    return ByteSize(int(count)).human_readable(separator=" ")


def format_number(value: float) -> str:
    """Return a measure for people: three significant digits, and thousands set apart, such as '0.793' or '41,500'."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.3g}"
    # Rounding first: 9.996 becomes 10.0, which has a digit less behind the point.
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{max(2 - math.floor(math.log10(abs(rounded))), 0)}f}"


def format_share(share: float) -> str:
    """Return a share for people, in percent with three significant digits, such as '24.9%'."""
    return f"{format_number(100 * share)}%"


def distinct_ends(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the shortest end of each path, of folders or keys, that no other path has; of different paths.

    A path that is the end of another one stays whole.
    """
    found = []
    for path in paths:
        ends = (path[-length:] for length in range(1, len(path)))
        found.append(next((end for end in ends if sum(other[-len(end) :] == end for other in paths) == 1), path))
    return found


_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
"""Control codes, ends of lines, marks that turn the direction of texts, and halves of characters."""


def printable(text: str, keep: str = "") -> str:
    """Return a text that a terminal, a page or a comment shows in its line: what controls them as `\\x1b` or `\\n`.

    Characters in `keep` stay. Within double quotes, YAML reads the text that was given.
    """
    return _UNSEEN.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)


def shell_line(words: Iterable[str]) -> str:
    """Return a command in one line, to be pasted into a shell; bash and zsh read words with line breaks, too."""

    def quoted(word: str) -> str:
        if printable(word) == word:
            return shlex.quote(word)
        # By bytes, as a name of a file need not be UTF-8.
        plain = (chr(b) if 32 <= b < 127 and chr(b) not in "\\'" else f"\\x{b:02x}" for b in os.fsencode(word))
        return f"$'{''.join(plain)}'"

    return " ".join(map(quoted, words))


MOST_ORDERED = 32
"""Most values of a feature that are shown in their order; of more the most frequent ones are shown."""
_SCALES = tuple(map(str.split, (
    "monday tuesday wednesday thursday friday saturday sunday",
    "mon tue wed thu fri sat sun",
    "january february march april may june july august september october november december",
    "jan feb mar apr may jun jul aug sep oct nov dec",
    "spring summer autumn fall winter",
    "night morning noon afternoon evening",
    "xxs xs s m l xl xxl xxxl",
    "tiny small medium large huge",
    "never rarely sometimes often always",
    "lowest low medium mid moderate normal high highest",
)))  # fmt: skip
_UNORDERED = {"", *["?", "unknown", "other", "others", "none", "null", "nan", "n/a", "na", "missing", "unspecified"]}
_BELOW = r"<=?|[≤~]|(?:under|below|less than|up to|until|before)\b"
_ABOVE = r">=?|≥|(?:over|above|more than|from|after)\b"
_NUMBER = re.compile(
    rf"(?:(?P<below>{_BELOW})|(?P<above>{_ABOVE}))?\W*?(?P<number>-?(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+(?:,\d+)?)(?:\.\d+)?"
    r"(?:e[+-]?\d+)?)(?:\s?(?P<unit>[km]|am|pm)\b)?(?P<rest>.*)",
    re.DOTALL,
)


def natural_order(names: Sequence[str]) -> list[int] | None:
    """Return the places of names in the order that they speak of, None if they speak of none.

    Numbers, ranges such as `18-24`, `<5` or `10k+`, hours, weekdays, months and sizes are in an order; `unknown` is
    last.
    """
    words = [name.strip().lower() for name in names]
    ordered = [word for word in words if word not in _UNORDERED]
    scale = next((scale for scale in _SCALES if set(ordered) <= set(scale)), None)
    starts = {word[: len(word) - len(re.sub(r"^[^\W\d]\D*", "", word))] for word in ordered}
    start = starts.pop() if len(starts) == 1 else ""  # `Q` of `Q1` and `Q2`
    keys: list[tuple[float, ...]] = []
    for word in words:
        if word in _UNORDERED:
            keys.append((math.inf,))
        elif scale is not None:
            keys.append((scale.index(word),))
        else:
            # The comma of an interval, `[100,200)`, sets no thousands apart.
            numbers = re.sub(r"^([(\[][^,]*),", r"\1 ", word.removeprefix(start))
            found = _NUMBER.fullmatch(numbers)
            if found is None:
                return None
            is_thousands = re.search(r",\d{3}(?!\d)", found["number"])
            number = float(found["number"].replace(",", "" if is_thousands else "."))
            if found["unit"] in ("am", "pm"):
                number = number % 12 + 12 * (found["unit"] == "pm")
            number *= {"k": 1e3, "m": 1e6}.get(found["unit"], 1)
            side = -1 if found["below"] else 1 if found["above"] else 0
            keys.append((number, side, *(float(digits) for digits in re.findall(r"\d+(?:\.\d+)?", found["rest"]))))
    return sorted(range(len(names)), key=keys.__getitem__)


_KEPT = "".join(map(chr, range(128))).replace("%", "")


def ascii_name(name: str) -> str:
    """Return a name in ASCII: `%` and other characters as in a URL, `größe` as `gr%C3%B6%C3%9Fe`.

    Names that differ stay different, and `with_names` gives them back.
    """
    # A name of a file that is not UTF-8 has lone surrogates.
    return quote(name, safe=_KEPT, errors="backslashreplace")


def with_names(text: bytes) -> bytes:
    """Return UTF-8 text in which names stand again that `ascii_name` has replaced."""
    return unquote_to_bytes(text)

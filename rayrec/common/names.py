"""Users' names (of models, columns, runs) where only ASCII is taken: Ray's metrics refuse tags of other characters."""

from urllib.parse import quote, unquote_to_bytes

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

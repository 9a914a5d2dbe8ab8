"""What the generators write, as the commands after them take it."""

from typing import NamedTuple


class Generated(NamedTuple):
    """The data of one source."""

    file: str
    """What `preprocess` reads, in the generator's folder; empty for the folder itself."""
    split: str
    """A `preprocess.split.kind` that suits it."""
    evaluated: str
    """The split that a model is measured on."""


GENERATED = {
    "criteo": Generated("criteo.tsv", "hash", "test"),
    "movielens": Generated("ratings.csv", "leave_one_out", "test"),
    "outbrain": Generated("", "displays", "validation"),
}

"""Names of the ids of a categorical feature."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rayrec.config.transforms import Buckets, Cross, Hash, HashIds, TimePart
from rayrec.features.schema import CategoricalFeature
from rayrec.features.vocabularies.vocabulary import VocabularyLookup

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


class ValueNames:
    """Names the ids of a feature."""

    def __init__(self, feature: CategoricalFeature, vocabulary: VocabularyLookup | None) -> None:
        """`vocabulary`: that of the feature, if it has one."""
        self._feature = feature
        self._vocabulary = vocabulary
        self._first = 1 + feature.unlisted_buckets
        """The id of the first listed value."""
        self._folded = next((t.buckets for t in feature.transforms if isinstance(t, HashIds)), None)

    @classmethod
    def load(cls, feature: CategoricalFeature, folder: Path) -> "ValueNames":
        """Map the vocabulary of a feature from the folder of its schema."""
        vocabulary = feature.vocabulary
        return cls(feature, None if vocabulary is None else VocabularyLookup.load(folder / vocabulary.file))

    @property
    def missing(self) -> str:
        """Return what id 0 stands for."""
        is_listed = self._vocabulary is not None and not self._feature.unlisted_buckets
        return "missing or not listed" if is_listed else "missing"

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return the names of some ids."""
        return [self._name(int(number)) for number in ids]

    def _name(self, number: int) -> str:
        if number == 0:
            return self.missing
        if self._vocabulary is not None:
            return self._listed(number, self._vocabulary)
        match self._feature.transforms[:1]:
            case (TimePart(part="weekday"),):
                return _WEEKDAYS[number - 1]
            case (TimePart(part="month"),):
                return _MONTHS[number - 1]
            case (TimePart(part="day"),):
                return str(number)
            case (TimePart(part="hour"),):
                return f"{number - 1}:00"
            case (Buckets(boundaries=boundaries),):
                return _range(boundaries, number - 1)
            case (Hash() | Cross(),):
                return f"bucket {number}"
        return str(number)

    def _listed(self, number: int, vocabulary: VocabularyLookup) -> str:
        place = number - self._first
        if place < 0:
            return f"not listed, bucket {number}"
        name = vocabulary.values(np.array([place + 1]))[0].as_py() or "a value that is listed no longer"
        shares = self._folded is not None and number + self._folded - 1 < self._first + len(vocabulary)
        return f"{name} and others" if shares else name


def _range(boundaries: Sequence[float], number: int) -> str:
    """Return the name of a range of numbers, the first of which is below all boundaries."""
    if not boundaries:
        return "any number"
    if number == 0:
        return f"below {boundaries[0]:g}"
    if number == len(boundaries):
        return f"from {boundaries[-1]:g}"
    return f"{boundaries[number - 1]:g} to {boundaries[number]:g}"

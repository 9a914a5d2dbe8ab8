"""Transforms as data: what turns a raw column into what a model reads.

Each is a frozen config named by `op`, with what was fitted to the rows of `train`. Their one implementation, over Arrow
and NumPy, is `rayrec.features.transforms` and `rayrec.features.transforms`; Spark runs the same code on tables that the
predictor runs on requests.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from rayrec.config.base import Config, Zone


class Log(Config):
    """Return ln(x + offset); missing where that is undefined."""

    op: Literal["log"] = "log"
    offset: float = 3.0
    """Number added to x."""


class Log2(Config):
    """Return log2(1 + scale * x); missing where that is undefined."""

    op: Literal["log2"] = "log2"
    scale: float = 1.0
    """Factor of x."""


class MinMax(Config):
    """(x - min) / (max - min); 0 if the two are equal."""

    op: Literal["min_max"] = "min_max"
    min: float
    max: float
    clip: bool = True
    """Values outside of the range become 0 or 1."""


class Standardize(Config):
    """(x - mean) / deviation; 0 if the deviation is 0."""

    op: Literal["standardize"] = "standardize"
    mean: float
    deviation: float = Field(ge=0.0)


class Clip(Config):
    """Return min(max(x, min), max), or x where it is within the bounds and a missing value elsewhere."""

    op: Literal["clip"] = "clip"
    min: float | None = None
    """Least value."""
    max: float | None = None
    """Largest value."""
    outside: Literal["bound", "missing"] = Field("bound", exclude_if=lambda given: given == "bound")
    """What values beyond become: an outlier is still a large number, while 1e300 among prices says nothing."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "Clip":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"clip: min {self.min:g} is above max {self.max:g}")
        return self


class Quantile(Config):
    """The share of the fitted values that lie below x, from 0 to 1, linear between `boundaries`; beyond them 0 or 1."""

    op: Literal["quantile"] = "quantile"
    boundaries: tuple[float, ...] = Field(min_length=1)
    """Ascending values at equal shares: the first at 0, the last at 1."""

    @model_validator(mode="after")
    def _ascend(self) -> "Quantile":
        if sorted(self.boundaries) != list(self.boundaries):
            raise ValueError("quantile: boundaries must ascend")
        return self


class Fill(Config):
    """A constant for missing values (null or NaN)."""

    op: Literal["fill"] = "fill"
    value: float = 0.0


class Vocabulary(Config):
    """Value -> id from 1 by descending frequency (ties by ascending value); missing or unlisted values -> 0."""

    op: Literal["vocabulary"] = "vocabulary"
    file: str
    """Parquet file or folder of parts, relative to the folder of the schema: columns `value` (string), `id` (int64),
    `count` (int64), in order of id."""
    size: int = Field(ge=0)
    """Number of listed values; ids run to `size`."""
    content_hash: str | None = None
    """Tells which values have which ids: `rayrec.features.vocabulary.content_hash` in hexadecimal."""


class HashUnlisted(Config):
    """After a vocabulary: a present, unlisted value -> 1 + h mod buckets; ids of listed values move up by `buckets`.

    Missing stays 0, and h is `rayrec.features.hashes.hash_strings`. Listed values come last, so that a vocabulary
    that grows changes no other id.
    """

    op: Literal["hash_unlisted"] = "hash_unlisted"
    buckets: PositiveInt


class HashIds(Config):
    """Caps the table: id 0 stays, id i >= 1 becomes 1 + (i - 1) mod (buckets - 1).

    After a vocabulary this keeps the buckets - 1 most frequent values apart from each other: only rarer ones share
    rows with them (DLRM's `--hash_indices` takes i mod buckets, which mixes rare values into the row of the missing).
    """

    op: Literal["hash_ids"] = "hash_ids"
    buckets: PositiveInt = Field(ge=2)


class Hash(Config):
    """Value -> 1 + h mod (buckets - 1), h its 64-bit hash; missing values -> 0. Needs no list of values.

    h is `rayrec.random.arrays.hash_integers` or `rayrec.features.hashes.hash_strings`.
    """

    op: Literal["hash"] = "hash"
    buckets: PositiveInt = Field(ge=2)
    of: Literal["integers", "strings"]
    """Type of the raw values."""


class Buckets(Config):
    """Number -> 1 + the number of `boundaries` that are not above it; missing -> 0. The feature reads one number."""

    op: Literal["buckets"] = "buckets"
    boundaries: tuple[float, ...]
    """Ascending, each once; ids run to len(boundaries) + 1."""

    @model_validator(mode="after")
    def _ascend(self) -> "Buckets":
        if sorted(set(self.boundaries)) != list(self.boundaries):
            raise ValueError("buckets: boundaries must ascend, each once")
        return self


class TimePart(Config):
    """Time -> 1 + its local hour (0 to 23), weekday (Monday is 0), day of the month (from 0) or month (from 0).

    A missing time -> 0. The feature reads one time.
    """

    op: Literal["time_part"] = "time_part"
    part: Literal["hour", "weekday", "day", "month"]
    zone: Zone = "UTC"

    @property
    def cardinality(self) -> int:
        """Return the number of ids, which run from 0."""
        return {"hour": 25, "weekday": 8, "day": 32, "month": 13}[self.part]


class Cross(Config):
    """The ids of several categorical features -> 1 + h mod (buckets - 1); 0 if all of them are 0.

    h mixes the ids' 64-bit hashes in order (`rayrec.features.hashes.hash_key`). The feature's inputs are the names of
    these features, which stand before it in the schema.
    """

    op: Literal["cross"] = "cross"
    buckets: PositiveInt = Field(ge=2)


class Elapsed(Config):
    """The first time minus the second, in units of `per`; missing if one of them is. The feature reads two times."""

    op: Literal["elapsed"] = "elapsed"
    per: Literal["second", "hour", "day"] = "day"


NumericTransform = Annotated[
    Elapsed | Log | Log2 | Clip | MinMax | Standardize | Quantile | Fill, Field(discriminator="op")
]
CategoricalTransform = Annotated[
    Vocabulary | HashUnlisted | HashIds | Hash | Buckets | TimePart | Cross, Field(discriminator="op")
]

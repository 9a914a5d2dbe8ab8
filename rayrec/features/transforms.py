"""Transforms as data: what turns a raw column into what a model reads.

Each is a frozen config named by `op`. Their one implementation, over Arrow and NumPy, is `rayrec.features.numeric` and
`rayrec.features.categorical`; Spark runs the same code on tables that the predictor runs on requests.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from rayrec.config import Config


class Log(Config):
    """ln(x + offset), computed in float64; undefined (x + offset <= 0) becomes missing."""

    op: Literal["log"] = "log"
    offset: float = 3.0


class Log2(Config):
    """log2(1 + scale * x), computed in float64; undefined (1 + scale * x <= 0) becomes missing."""

    op: Literal["log2"] = "log2"
    scale: float = 1.0


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
    fingerprint: str | None = None
    """Identifies which values have which ids: `rayrec.features.vocabulary.fingerprint` in hexadecimal."""


class HashIds(Config):
    """Caps the table: id 0 stays, id i >= 1 becomes 1 + (i - 1) mod (buckets - 1).

    After a vocabulary this keeps the buckets - 1 most frequent values apart from each other: only rarer ones share
    rows with them (DLRM's `--hash_indices` takes i mod buckets, which mixes rare values into the row of the missing).
    """

    op: Literal["hash_ids"] = "hash_ids"
    buckets: PositiveInt = Field(ge=2)


class Hash(Config):
    """Value -> 1 + h mod (buckets - 1), h its 64-bit hash; missing values -> 0. Needs no list of values.

    h is `rayrec.random.splitmix64.hash_integers` or `rayrec.features.string_hash.hash_strings`.
    """

    op: Literal["hash"] = "hash"
    buckets: PositiveInt = Field(ge=2)
    of: Literal["integers", "strings"]
    """Type of the raw values."""


NumericTransform = Annotated[Log | Log2 | MinMax | Standardize | Fill, Field(discriminator="op")]
CategoricalTransform = Annotated[Vocabulary | HashIds | Hash, Field(discriminator="op")]

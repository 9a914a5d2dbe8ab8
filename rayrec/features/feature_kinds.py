"""The kinds of features: how many values a row has, what they are computed from and by which transforms."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from rayrec.config import Config
from rayrec.config.transforms import (
    Buckets,
    CategoricalTransform,
    Cross,
    Elapsed,
    Hash,
    HashIds,
    HashUnlisted,
    NumericTransform,
    TimePart,
    Vocabulary,
)
from rayrec.features.raw_columns import RawType


class _Feature(Config):
    name: str
    inputs: tuple[str, ...] = ()
    """The raw columns that it is computed from (of a cross: features; of a list with weights: the values, then the
    weights); empty if it is the one of its own name."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the raw columns it is computed from."""
        return self.inputs or (self.name,)

    @property
    def reads(self) -> RawType | None:
        """Return the type of its raw columns (of weighted lists that of the values); None if it is made of features."""
        raise NotImplementedError


class NumericFeature(_Feature):
    """One float32 per row."""

    kind: Literal["numeric"] = "numeric"
    transforms: tuple[NumericTransform, ...] = ()

    @model_validator(mode="after")
    def _elapsed_comes_first(self) -> "NumericFeature":
        if any(isinstance(transform, Elapsed) for transform in self.transforms[1:]):
            raise ValueError(f"feature '{self.name}': 'elapsed' must be its first transform")
        return self

    @property
    def reads(self) -> RawType:
        return "time" if self.transforms and isinstance(self.transforms[0], Elapsed) else "number"


class VectorFeature(_Feature):
    """`size` float32 per row, from a list of as many numbers; a missing list is all 0, a missing number in it 0."""

    kind: Literal["vector"] = "vector"
    size: PositiveInt
    normalize: bool = False
    """Divide a row's numbers by their Euclidean length, unless it is 0."""

    @property
    def reads(self) -> RawType:
        return "numbers"


class CategoricalFeature(_Feature):
    """One id per row (int32, 0 = missing or unknown), looked up in an embedding table of `cardinality` rows."""

    kind: Literal["categorical"] = "categorical"
    transforms: tuple[CategoricalTransform, ...] = ()
    cardinality: PositiveInt
    """Rows of the table: ids are 0 ... cardinality - 1."""
    embedding_dim: PositiveInt | None = None
    """Width of the table; None in a dataset, resolved from the model's config when it is built."""
    table: str | None = None
    """The feature whose table it reads, with the same transforms and cardinality; None has a table of its own."""

    @model_validator(mode="after")
    def _transforms_in_order(self) -> "CategoricalFeature":
        following = {Vocabulary: (HashUnlisted, HashIds), HashUnlisted: (HashIds,)}
        if self.transforms and isinstance(self.transforms[0], HashUnlisted):
            raise ValueError(f"feature '{self.name}': 'hash_unlisted' must follow 'vocabulary'")
        for transform, after in pairwise(self.transforms):
            if not isinstance(after, following.get(type(transform), ())):
                raise ValueError(f"feature '{self.name}': '{after.op}' cannot follow '{transform.op}'")
        return self

    @model_validator(mode="after")
    def _cardinality_fits_transforms(self) -> "CategoricalFeature":
        rows = None
        for transform in self.transforms:
            match transform:
                case Hash(buckets=buckets) | Cross(buckets=buckets):
                    rows = buckets
                case Vocabulary(size=size):
                    rows = size + 1
                case HashUnlisted(buckets=buckets):
                    rows = (rows or 1) + buckets
                case HashIds(buckets=buckets) if rows is not None:
                    rows = min(rows, buckets)
                case Buckets(boundaries=boundaries):
                    rows = len(boundaries) + 2
                case TimePart(cardinality=parts):
                    rows = parts
        if rows is not None and rows > self.cardinality:
            raise ValueError(
                f"feature '{self.name}': transforms give ids up to {rows - 1}, but cardinality is {self.cardinality}"
            )
        return self

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Return the list of values that have ids; None if ids follow from the values themselves."""
        return next((transform for transform in self.transforms if isinstance(transform, Vocabulary)), None)

    @property
    def unlisted_buckets(self) -> int:
        """Return the number of ids, from 1 on, that unlisted values share; those of listed values follow."""
        return next((t.buckets for t in self.transforms if isinstance(t, HashUnlisted)), 0)

    @property
    def reads(self) -> RawType | None:
        match self.transforms[:1]:
            case (Cross(),):
                return None
            case (Buckets(),):
                return "number"
            case (TimePart(),):
                return "time"
            case (Vocabulary() | Hash(of="strings"),):
                return "text"
        return "integer"


class MultiHotFeature(CategoricalFeature):
    """A list of ids per row (possibly empty), each perhaps with a weight, pooled after the look-up.

    The weights, float32 from 0 on, multiply the embeddings; their mean is divided by the sum of the weights.
    """

    kind: Literal["multi_hot"] = "multi_hot"  # type: ignore[assignment]
    pooling: Literal["sum", "mean"] = "sum"
    hotness: PositiveInt = 1
    """Most ids of a row; longer raw lists are cut."""

    @model_validator(mode="after")
    def _transforms_of_lists(self) -> "MultiHotFeature":
        for transform in self.transforms:
            if isinstance(transform, Buckets | TimePart | Cross):
                raise ValueError(f"feature '{self.name}': '{transform.op}' is for one value a row, not for lists")
        return self

    @property
    def reads(self) -> RawType:
        return "texts" if super().reads == "text" else "integers"

    @property
    def weights(self) -> str | None:
        """Return the raw column of the values' weights; None if all weigh the same."""
        return self.inputs[1] if len(self.inputs) == 2 else None


Feature = Annotated[NumericFeature | VectorFeature | CategoricalFeature | MultiHotFeature, Field(discriminator="kind")]

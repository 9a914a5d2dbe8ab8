"""The feature schema: travels with the data and with the model, so that nothing downstream guesses a column.

A feature says how many values a row has, and what they are computed from by which transforms.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from rayrec.common.errors import UserError
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
from rayrec.config.validation import read_json
from rayrec.features.raw_columns import History, ListLength, Lookup, RawColumn, RawType
from rayrec.store.files import write_json
from rayrec.store.paths import confined


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
    keep: Literal["first", "last"] = Field("first", exclude_if=lambda given: given == "first")
    """Which ids of a longer list stay."""

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


SCHEMA_FILE = "schema.json"


class InteractionColumns(Config):
    """The two features of a dataset of interactions; the rows of `train` are their known pairs."""

    user: str
    """A categorical feature."""
    item: str
    """A categorical feature; its ids from 1 are the catalogue that negatives are drawn from."""


_MADE_OF: dict[RawType, tuple[RawType, ...]] = {
    "number": ("number", "integer"),
    "integer": ("integer",),
    "text": ("text", "integer"),
    "time": ("time",),
    "numbers": ("numbers", "integers"),
    "integers": ("integers",),
    "texts": ("texts", "integers"),
}
"""What a feature reads, and the types of raw columns that it can be made of."""


def _require_columns(feature: Feature, raw: Mapping[str, RawType]) -> None:
    """Raise ValueError unless the raw columns of a feature, given by name with their types, are what it reads."""
    assert feature.reads is not None
    where = f"feature '{feature.name}'"
    if not raw and feature.inputs:
        raise ValueError(f"{where}: its inputs need `columns`")
    needed: tuple[RawType, ...] = (feature.reads,)
    if isinstance(feature, NumericFeature) and feature.reads == "time":
        needed = ("time", "time")
    elif isinstance(feature, MultiHotFeature) and feature.weights is not None:
        needed = (feature.reads, "numbers")
    if len(feature.columns) != len(needed):
        raise ValueError(f"{where}: has {len(feature.columns)} inputs, needs {len(needed)}")
    for name, kind in zip(feature.columns, needed, strict=True) if raw else ():
        if name not in raw:
            raise ValueError(f"{where}: no column '{name}'")
        if raw[name] not in _MADE_OF[kind]:
            raise ValueError(f"{where}: needs {kind}, column '{name}' is {raw[name]}")


class Schema(Config):
    """Every feature, in the order in which a model concatenates them; the label; optional columns beside them."""

    version: Literal[3] = 3
    label: str
    """Column of 0/1 labels (float32 in a dataset)."""
    group: str | None = None
    """Column of int64 group ids for ranking metrics."""
    weight: str | None = None
    """Column of float32 row weights."""
    candidate: str | None = None
    """Column of int64 ids of what a group's rows offer, so that predictions can name it."""
    features: tuple[Feature, ...]
    columns: tuple[RawColumn, ...] = ()
    """The raw columns, with those that lookups give; empty if each feature reads the column of its own name."""
    lookups: tuple[Lookup, ...] = ()
    """What is looked up for raw rows before features are computed, in this order."""
    interactions: InteractionColumns | None = None
    """None for rows that come with labels of both kinds."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Schema":
        names = [*(f.name for f in self.features), *self.other_columns]
        repeated = sorted({n for n in names if names.count(n) > 1})
        if repeated:
            raise ValueError(f"names used twice: {', '.join(repeated)}")
        return self

    @model_validator(mode="after")
    def _inputs_are_there(self) -> "Schema":
        raw = {column.name: column.type for column in self.columns}
        if len(raw) < len(self.columns):
            raise ValueError("columns: a name is used twice")
        ids: set[str] = set()
        for feature in self.features:
            where = f"feature '{feature.name}'"
            if feature.reads is None:
                missing = next((name for name in feature.inputs if name not in ids), None)
                if missing is not None or len(feature.inputs) < 2:
                    raise ValueError(f"{where}: its inputs must be two or more categorical features before it")
            else:
                _require_columns(feature, raw)
            if type(feature) is CategoricalFeature:
                ids.add(feature.name)
        for lookup in self.lookups:
            for name in (*lookup.reads, *lookup.columns):
                if name not in raw:
                    raise ValueError(f"lookup '{lookup.name}': no column '{name}'")
        return self

    @model_validator(mode="after")
    def _shared_tables_fit(self) -> "Schema":
        owners = {f.name: f for f in self.categorical}
        for feature in self.categorical:
            if feature.table is None:
                continue
            where, owner = f"feature '{feature.name}'", owners.get(feature.table)
            if owner is None or owner.table is not None:
                raise ValueError(f"{where}: table '{feature.table}' is no categorical feature with a table of its own")
            for name in ("cardinality", "embedding_dim", "transforms"):
                if getattr(feature, name) != getattr(owner, name):
                    raise ValueError(f"{where}: its {name} must be that of '{owner.name}', whose table it reads")
        return self

    @property
    def has_drawn_negatives(self) -> bool:
        """Tell whether held-out rows are positives with negatives that were drawn for them."""
        return self.interactions is not None

    @model_validator(mode="after")
    def _interactions_are_features(self) -> "Schema":
        if self.interactions is None:
            return self
        columns = self.interactions.model_dump()
        one_hot = {f.name for f in self.categorical if not isinstance(f, MultiHotFeature)}
        for side, name in columns.items():
            if name not in one_hot:
                raise ValueError(f"interactions.{side}: '{name}' is not a categorical feature")
        if self.interactions.user == self.interactions.item:
            raise ValueError(f"interactions: user and item are both '{self.interactions.user}'")
        return self

    @property
    def other_columns(self) -> tuple[str, ...]:
        """Return the columns of a dataset that are not features, the label first."""
        optional = (self.group, self.weight, self.candidate)
        return (self.label, *(name for name in optional if name is not None))

    @property
    def raw_columns(self) -> tuple[RawColumn, ...]:
        """Return `columns`, or else the one column of each feature."""
        return self.columns or tuple(RawColumn(name=f.name, type=f.reads) for f in self.features if f.reads is not None)

    @property
    def histories(self) -> tuple[History, ...]:
        """Return the look-ups of what happened before a row."""
        return tuple(lookup for lookup in self.lookups if isinstance(lookup, History))

    @property
    def event_lists(self) -> frozenset[str]:
        """Return the lists that have an id for each event, 0 for a missing value: those of histories with several."""
        taken = ([one.column for one in history.takes if one.op == "last"] for history in self.histories)
        columns = {column for of_history in taken if len(of_history) > 1 for column in of_history}
        return frozenset(f.name for f in self.features if isinstance(f, MultiHotFeature) and f.columns[0] in columns)

    @property
    def looked_up(self) -> frozenset[str]:
        """Return the names of the raw columns that look-ups give."""
        return frozenset(name for lookup in self.lookups for name in lookup.columns)

    @property
    def given_columns(self) -> tuple[RawColumn, ...]:
        """Return the raw columns that rows of files bring themselves."""
        return tuple(column for column in self.raw_columns if column.name not in self.looked_up)

    @property
    def request_columns(self) -> tuple[RawColumn, ...]:
        """Return the raw columns, with those of events, which rows to score may bring and files of the log do not."""
        return (*self.raw_columns, *(history.events for history in self.histories if history.fields))

    @property
    def list_lengths(self) -> tuple[ListLength, ...]:
        """Return how long lists of numbers must be: those of vectors, and of weights."""
        vectors = (ListLength(f.columns[0], f.size) for f in self.vectors)
        weights = (ListLength(f.inputs[1], f.inputs[0]) for f in self.weighted)
        return (*vectors, *weights)

    @property
    def numeric(self) -> tuple[NumericFeature, ...]:
        return tuple(f for f in self.features if isinstance(f, NumericFeature))

    @property
    def vectors(self) -> tuple[VectorFeature, ...]:
        return tuple(f for f in self.features if isinstance(f, VectorFeature))

    @property
    def dense(self) -> tuple[NumericFeature | VectorFeature, ...]:
        """Return the features of the matrix `dense`, one column or several each."""
        return tuple(f for f in self.features if isinstance(f, NumericFeature | VectorFeature))

    @property
    def dense_width(self) -> int:
        """Return the number of columns of the matrix `dense`."""
        return sum(f.size if isinstance(f, VectorFeature) else 1 for f in self.dense)

    @property
    def categorical(self) -> tuple[CategoricalFeature, ...]:
        """Return the features with an embedding table, multi-hot ones included."""
        return tuple(f for f in self.features if isinstance(f, CategoricalFeature))

    @property
    def weighted(self) -> tuple[MultiHotFeature, ...]:
        """Return the multi-hot features whose ids have weights."""
        return tuple(f for f in self.features if isinstance(f, MultiHotFeature) and f.weights is not None)

    @property
    def hotness(self) -> dict[str, int]:
        """Return the most ids of a row, by multi-hot feature."""
        return {f.name: f.hotness for f in self.features if isinstance(f, MultiHotFeature)}

    def with_embedding_dims(self, default: int, by_feature: dict[str, int]) -> "Schema":
        """Return a copy with every table's width set. Raises UserError on a name that has no table of its own."""
        known = {f.name for f in self.categorical if f.table is None}
        for feature in self.categorical:
            if feature.table is not None and feature.name in by_feature:
                raise UserError(
                    f"model.embedding_dims: '{feature.name}' shares the table of '{feature.table}'; set that one"
                )
        unknown = sorted(set(by_feature) - known)
        if unknown:
            raise UserError(
                f"model.embedding_dims: no categorical feature '{unknown[0]}'; "
                f"the dataset has {', '.join(sorted(known))}"
            )
        features = tuple(
            f.model_copy(update={"embedding_dim": by_feature.get(f.table or f.name, default)})
            if isinstance(f, CategoricalFeature)
            else f
            for f in self.features
        )
        return self.model_copy(update={"features": features})

    def require_same_features(self, dataset: "Schema", source: Path) -> None:
        """Raise UserError unless a dataset was encoded as this model reads it: the same features in the same order.

        `source` is the dataset's folder, for the message.
        """
        encoded = {f.name: f for f in dataset.features}
        for feature in self.features:
            other = encoded.get(feature.name)
            if other is None:
                raise UserError(
                    f"{source}: has no feature '{feature.name}', which the model needs; "
                    "give a dataset of the model's preprocessing"
                )
            if feature.model_dump(exclude={"embedding_dim"}) != other.model_dump(exclude={"embedding_dim"}):
                raise UserError(
                    f"{source}: feature '{feature.name}' was not encoded as the model needs it; preprocess with "
                    "the model's vocabulary, or give the dataset that the model was trained on; predict takes raw rows "
                    "(--raw)"
                )
        names = [f.name for f in self.features]
        if list(encoded) != names:
            extra = [name for name in encoded if name not in names]
            wrong = (
                f"has a feature '{extra[0]}' that the model does not have"
                if extra
                else "has its features in another order"
            )
            raise UserError(f"{source}: {wrong}; give a dataset of the model's preprocessing")

    def save(self, folder: Path) -> None:
        """Write `schema.json` into `folder`, atomically."""
        write_json(folder / SCHEMA_FILE, self.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path) -> "Schema":
        """Read `folder/schema.json`. Raises UserError if it is missing or invalid."""
        path = folder / SCHEMA_FILE
        schema = read_json(cls, path, "preprocess and train again")
        if schema is None:
            raise UserError(f"{path}: missing; give a dataset or model folder")
        for feature in schema.categorical:
            if feature.vocabulary is not None:
                confined(feature.vocabulary.file, path)
        return schema

"""The feature schema: travels with the data and with the model, so that nothing downstream guesses a column."""

from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field, PositiveInt, ValidationError, model_validator

from rayrec.common.errors import UserError
from rayrec.common.files import write_json
from rayrec.config import Config
from rayrec.config.transforms import CategoricalTransform, Hash, HashIds, NumericTransform, Vocabulary
from rayrec.config.validation import describe_validation_error

SCHEMA_FILE = "schema.json"
STATISTICS_FOLDER = "statistics"
"""Tables in which columns or features of rows are looked up; export copies them into the model folder."""


class RawColumn(Config):
    """A column of raw rows, and how its values are read; the same in files and in requests."""

    name: str
    type: Literal["number", "integer", "text", "time", "numbers", "integers", "texts"]
    """The last three are lists of the first three. An integer that stands for a text is its decimal digits."""
    separator: str | None = None
    """What separates the values of a list that a file or a request gives as one text; None takes lists alone."""
    time_format: str = "iso"
    """`iso` (ISO 8601), `s`, `ms` or `us` (numbers since 1970, UTC), or a format of strptime such as `%y%m%d%H`."""
    zone: str = "UTC"
    """The IANA time zone of times that do not name one."""

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column in a table of raw rows: float64, int64, string, timestamp[us, UTC], or lists."""
        scalar = {"number": pa.float64(), "integer": pa.int64(), "text": pa.string(), "time": pa.timestamp("us", "UTC")}
        return scalar[self.type] if self.type in scalar else pa.list_(scalar[self.type.removesuffix("s")])


class _Feature(Config):
    name: str
    inputs: tuple[str, ...] = ()
    """The raw columns that it is computed from (of a cross: features); empty if it is the one of its own name."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what it is computed from."""
        return self.inputs or (self.name,)


class NumericFeature(_Feature):
    """One float32 per row."""

    kind: Literal["numeric"] = "numeric"
    transforms: tuple[NumericTransform, ...] = ()


class VectorFeature(_Feature):
    """`size` float32 per row, from a list of as many numbers; a missing list is all 0, a missing number in it 0."""

    kind: Literal["vector"] = "vector"
    size: PositiveInt
    normalize: bool = False
    """Divide a row's numbers by their Euclidean length, unless it is 0."""


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
    def _cardinality_fits_transforms(self) -> "CategoricalFeature":
        largest = None
        for transform in self.transforms:
            if isinstance(transform, Hash) and len(self.transforms) > 1:
                raise ValueError(f"feature '{self.name}': 'hash' stands alone among its transforms")
            if isinstance(transform, Hash):
                largest = transform.buckets
            elif isinstance(transform, Vocabulary):
                largest = transform.size + 1
            elif isinstance(transform, HashIds) and largest is not None:
                largest = min(largest, transform.buckets)
        if largest is not None and largest > self.cardinality:
            raise ValueError(
                f"feature '{self.name}': its transforms give ids up to {largest - 1}, cardinality is {self.cardinality}"
            )
        return self


class MultiHotFeature(CategoricalFeature):
    """A list of ids per row (possibly empty), pooled after the look-up."""

    kind: Literal["multi_hot"] = "multi_hot"  # type: ignore[assignment]
    pooling: Literal["sum", "mean"] = "sum"
    hotness: PositiveInt = 1
    """Most ids of a row; longer raw lists are cut."""


Feature = Annotated[NumericFeature | VectorFeature | CategoricalFeature | MultiHotFeature, Field(discriminator="kind")]


class SideTable(Config):
    """Raw columns that are looked up by a key, unless a request gives them."""

    kind: Literal["table"] = "table"
    name: str
    """The table lies in the folder `statistics/tables/NAME` (`rayrec.features.keyed_table`)."""
    key: str
    """The raw column (text) whose value is looked up."""
    columns: tuple[str, ...]
    """The raw columns that it gives; a column NAME_x is x in the table's files."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The raw columns that it is looked up by."""
        return (self.key,)


class Rate(Config):
    """A raw column (number) that is looked up by keys: the smoothed rate of the label in rows of `train`.

    (positives + smoothing * mean) / (rows + smoothing); `mean` where the keys were never seen or one is missing. A row
    of `train` counts only the rows of other folds (docs/own-data.md).
    """

    kind: Literal["rate"] = "rate"
    name: str
    """The raw column; the table lies in the folder `statistics/rates/NAME` (`rayrec.features.keyed_table`)."""
    keys: tuple[str, ...]
    """Raw columns of text."""
    smoothing: float
    mean: float

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that it gives."""
        return (self.name,)


Lookup = Annotated[SideTable | Rate, Field(discriminator="kind")]


class InteractionColumns(Config):
    """The two features of a dataset of interactions; the rows of `train` are their known pairs."""

    user: str
    """A categorical feature."""
    item: str
    """A categorical feature; its ids from 1 are the catalogue that negatives are drawn from."""


class Schema(Config):
    """Every feature, in the order in which a model concatenates them; the label; optional columns beside them."""

    version: Literal[1] = 1
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
        """The columns of a dataset that are not features, the label first."""
        optional = (self.group, self.weight, self.candidate)
        return (self.label, *(name for name in optional if name is not None))

    @property
    def numeric(self) -> tuple[NumericFeature, ...]:
        return tuple(f for f in self.features if isinstance(f, NumericFeature))

    @property
    def categorical(self) -> tuple[CategoricalFeature, ...]:
        """Features with an embedding table, multi-hot ones included."""
        return tuple(f for f in self.features if isinstance(f, CategoricalFeature))

    @property
    def hotness(self) -> dict[str, int]:
        """The most ids of a row, by multi-hot feature."""
        return {f.name: f.hotness for f in self.features if isinstance(f, MultiHotFeature)}

    def with_embedding_dims(self, default: int, by_feature: dict[str, int]) -> "Schema":
        """A copy with every table's width set. Raises UserError on a name that is not a categorical feature."""
        known = {f.name for f in self.categorical}
        unknown = sorted(set(by_feature) - known)
        if unknown:
            raise UserError(
                f"model.embedding_dims: no categorical feature '{unknown[0]}'; "
                f"the dataset has {', '.join(sorted(known))}"
            )
        features = tuple(
            f.model_copy(update={"embedding_dim": by_feature.get(f.name, default)})
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
                raise UserError(f"{source}: has no feature '{feature.name}', as the model; give another dataset")
            if feature.model_dump(exclude={"embedding_dim"}) != other.model_dump(exclude={"embedding_dim"}):
                raise UserError(
                    f"{source}: feature '{feature.name}' was encoded otherwise than for the model; preprocess with "
                    "the model's vocabulary, or score the raw rows with --raw"
                )
        names = [f.name for f in self.features]
        if list(encoded) != names:
            extra = [name for name in encoded if name not in names]
            wrong = f"has a feature '{extra[0]}', unlike the model" if extra else "has its features in another order"
            raise UserError(f"{source}: {wrong}; give a dataset of the model's preprocessing")

    def save(self, folder: Path) -> None:
        """Write `schema.json` into `folder`, atomically."""
        write_json(folder / SCHEMA_FILE, self.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path) -> "Schema":
        """Read `folder/schema.json`. Raises UserError if it is missing or invalid."""
        path = folder / SCHEMA_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise UserError(f"{path}: missing; give a dataset or model folder") from None
        except ValidationError as error:
            raise UserError(f"{path}: {describe_validation_error(error, cls)}") from None

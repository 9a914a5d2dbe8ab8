"""The sections `source` and `preprocess`: raw files, and how they become a dataset folder."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, WithJsonSchema, model_validator

from rayrec.config.base import Config

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
_DURATION = r"^[0-9]+[smhdw]$"
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _is_span(value: float | str) -> float | str:
    is_good = re.match(_DURATION, value) if isinstance(value, str) else 0.0 <= value < 1.0
    if not is_good:
        raise ValueError("give a fraction from 0 to 1 or a duration such as 12h or 1d (s, m, h, d or w)")
    return value


Span = Annotated[
    float | str,
    AfterValidator(_is_span),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 1}, {"type": "string", "pattern": _DURATION}]}
    ),
]
"""A fraction, or a number of seconds, minutes, hours, days or weeks such as `12h`."""


def _texts(given: Any) -> Any:
    """Return one value or a list of them as a tuple of texts; YAML reads `1` and `true` as other types."""

    def text(value: Any) -> Any:
        return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else value

    return tuple(map(text, given)) if isinstance(given, (list, tuple)) else (text(given),)


_Word = str | int | bool
Names = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(_texts, json_schema_input_type=_Word | Annotated[tuple[_Word, ...], Field(min_length=1)]),
]
"""One name or value, or several."""


def seconds_of(duration: str) -> int:
    """The seconds of a duration such as `12h`."""
    return int(duration[:-1]) * _SECONDS[duration[-1]]


class DaySplitConfig(Config):
    """Cut by day: one day is held out and halved by line count, the other days train.

    The first half is `test`, the second `validation`, both in file order.
    """

    kind: Literal["day"] = "day"
    held_out_day: int = Field(23, ge=0)
    """The number of the day that is held out: that of its file, `day_23`."""


class _Fractions(Config):
    validation: Fraction = 0.0
    """Share of the rows in the `validation` split."""
    test: Fraction = 0.1
    """Share of the rows in the `test` split."""

    @model_validator(mode="after")
    def _leaves_rows_to_train(self) -> "_Fractions":
        if self.validation + self.test >= 1.0:
            raise ValueError("validation + test must be below 1, so that rows are left for train")
        return self


class FractionSplitConfig(_Fractions):
    """Cut by position: the first rows in file order train, then `validation`, the last rows are `test`."""

    kind: Literal["fraction"] = "fraction"


class HashSplitConfig(_Fractions):
    """Cut at random by `preprocess.seed` and the number of each row in its file, or by the hash of a column.

    A row of a file of the same name falls into the same split again, whatever else is read, and in every format.
    """

    kind: Literal["hash"] = "hash"
    column: str | None = None
    """The column whose value is hashed, so that its rows stay together. None takes the column of groups, or without
    one the row's number and the name of its file."""


class TimeSplitConfig(Config):
    """Cut by the time of `source.time`: the latest rows are `test`, those right before them `validation`.

    Both are durations (`1d`, `12h`), counted back from the latest time, or both are shares of the rows, which are met
    as closely as equal times allow.
    """

    kind: Literal["time"] = "time"
    validation: Span = 0.0
    """Duration or share of the `validation` split."""
    test: Span = 0.1
    """Duration or share of the `test` split."""

    @model_validator(mode="after")
    def _one_way(self) -> "TimeSplitConfig":
        given = [value for value in (self.validation, self.test) if value != 0.0]
        if len({isinstance(value, str) for value in given}) > 1:
            raise ValueError("give validation and test both as durations or both as shares")
        if sum(value for value in given if isinstance(value, float)) >= 1.0:
            raise ValueError("validation + test must be below 1, so that rows are left for train")
        return self


class ColumnSplitConfig(Config):
    """Cut by a column whose value names the split of the row."""

    kind: Literal["column"] = "column"
    column: str
    """The name of the column."""
    values: dict[Literal["validation", "test"], Names] = {"validation": ("validation",), "test": ("test",)}
    """The values of the rows of a split; rows with any other value are `train`."""


class FileSplitConfig(Config):
    """Splits come as files: the command line names the files of each split (`--input train=PATH --input test=PATH`)."""

    kind: Literal["files"] = "files"


SplitConfig = Annotated[
    DaySplitConfig | FractionSplitConfig | HashSplitConfig | TimeSplitConfig | ColumnSplitConfig | FileSplitConfig,
    Field(discriminator="kind"),
]


class ShardLayoutConfig(Config):
    """The Parquet files of a split; defaults chosen by measurement (docs/preprocessing.md)."""

    rows_per_part: PositiveInt = 4_194_304
    """Most rows in one Parquet file; data that would give fewer than 16 such files is cut into smaller ones."""
    rows_per_row_group: PositiveInt = 32_768
    """Rows in one row group: the unit that ingest reads and shuffles."""
    compression: Literal["none", "lz4", "zstd", "snappy"] = "lz4"
    """How the pages of the files are packed."""


class SparkConfig(Config):
    """The Spark application that runs on Ray; unset values are sized from the cluster's free resources."""

    executors: PositiveInt | None = None
    """Number of executors."""
    executor_cores: PositiveInt | None = None
    """Tasks that an executor runs at once."""
    executor_memory: str | None = Field(None, pattern=r"^\d+[kmgt]$", examples=["4g"])
    """JVM heap of one executor, as Spark writes it: `4g`."""
    shuffle_partitions: PositiveInt | None = None
    """Parts of a shuffle; by default four for each core."""


class PreprocessConfig(Config):
    """Settings of every source's preprocessing; each source names the class of its own."""

    kind: str = ""
    """Follows from the source, so that a recipe can leave it out."""
    max_rejected_fraction: float = Field(0.01, ge=0.0, le=1.0)
    """A larger share of bad rows stops the job."""
    seed: int = 0
    """Seed of the order of rows, of splits by hash, and of whatever is drawn."""
    layout: ShardLayoutConfig = ShardLayoutConfig()
    spark: SparkConfig = SparkConfig()

    @property
    def reads_splits_from_files(self) -> bool:
        """Whether the command line names the files of each split (`--input train=PATH`)."""
        return False

    @property
    def split_of_all_rows(self) -> Config | None:
        """The section `split` that leaves all rows in `train`; None if there is none."""
        return None

    @property
    def holds_out_latest(self) -> bool:
        """Whether the held-out rows are the latest, the most like those to come."""
        return False


class VocabularyPreprocessConfig(PreprocessConfig):
    """Settings of the preprocessing of sources with vocabularies."""

    broadcast_limit: PositiveInt = 2_000_000
    """Vocabularies up to this many values are looked up in memory; the rest of a larger one is joined by Spark."""
    expire_after: str | None = Field(None, pattern=_DURATION, examples=["30d"])
    """A value that did not occur for this long, such as `30d`, leaves its vocabulary when the dataset is extended.
    Where rows have no times, an extension is a day."""


class RowsPreprocessConfig(VocabularyPreprocessConfig):
    """How rows that are examples with a label become a dataset."""

    kind: Literal["rows"] = "rows"
    split: SplitConfig = HashSplitConfig()
    """How rows are cut into splits."""
    frequency_limit: int = 15
    """A categorical value that occurs fewer times in `train` is unlisted, unless its rule has a `min_count`."""
    max_table_size: PositiveInt | None = Field(None, ge=2)
    """Most rows of one embedding table; ids beyond it share rows by hashing."""
    compact: bool = False
    """Number the values anew when a dataset is extended, by their frequency over all days and without those that have
    left. A model goes on by value all the same, but is published in full."""
    order: Literal["input", "total_random", "day_random"] = "total_random"
    """Order of the rows of `train`; the other splits always keep the order of the input."""

    @property
    def reads_splits_from_files(self) -> bool:
        return self.split.kind == "files"

    @property
    def split_of_all_rows(self) -> Config:
        return HashSplitConfig(validation=0.0, test=0.0)

    @property
    def holds_out_latest(self) -> bool:
        return self.split.kind == "time"


class SourceConfig(Config):
    """The raw files and their columns; each source has a class of its own."""

    preprocess: ClassVar[type[PreprocessConfig]] = RowsPreprocessConfig
    """The class of the section `preprocess` of a recipe with this source."""
    gives_interactions: ClassVar[bool] = False
    """Whether its datasets name the features of a user and an item (`Schema.interactions`)."""
    kind: str

    @property
    def unneeded_columns(self) -> tuple[str, ...]:
        """Raw columns, or patterns of them, that scoring does not need; features may be made of one all the same."""
        return ()

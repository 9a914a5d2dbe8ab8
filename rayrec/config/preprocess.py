"""The sections `source` and `preprocess`: raw files, and how they become a dataset folder."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, WithJsonSchema, model_validator

from rayrec.config.base import Config

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
_DURATION = r"^[0-9]+[smhdw]$"
_MOST_SECONDS = 1_000 * 366 * 86_400
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
"""Seconds of the units of durations."""


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


def _is_in_time(value: str) -> str:
    if seconds_of(value) > _MOST_SECONDS:
        raise ValueError("is longer than 1,000 years; give a shorter one, or leave it out")
    return value


Duration = Annotated[str, Field(pattern=_DURATION, examples=["1d"]), AfterValidator(_is_in_time)]
"""A number of seconds, minutes, hours, days or weeks such as `12h`."""


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
    """Return the seconds of a duration such as `12h`."""
    return int(duration[:-1]) * SECONDS[duration[-1]]


class DaySplitConfig(Config):
    """Hold out one day: its first half of lines is `test`, the second `validation`."""

    kind: Literal["day"] = "day"
    held_out_day: int = Field(23, ge=0)
    """Number of the held-out day, as in the file name `day_23`."""


class _Fractions(Config):
    validation: Fraction = 0.0
    """Fraction of the rows in `validation`."""
    test: Fraction = 0.1
    """Fraction of the rows in `test`."""

    @model_validator(mode="after")
    def _leaves_rows_to_train(self) -> "_Fractions":
        if self.validation + self.test >= 1.0:
            raise ValueError("validation + test must be below 1, so that rows are left for train")
        return self


class FractionSplitConfig(_Fractions):
    """Split by position in the files: first `train`, then `validation`, last `test`."""

    kind: Literal["fraction"] = "fraction"


class HashSplitConfig(_Fractions):
    """Split at random, by `preprocess.seed` and the hash of a column or of the file name and row number.

    A row falls into the same split again, whatever other files are read.
    """

    kind: Literal["hash"] = "hash"
    column: str | None = None
    """Column whose equal values stay in one split; `null`: `source.group`, or without one the file name and row
    number.
    """


class TimeSplitConfig(Config):
    """Split by `source.time`: the latest rows are `test`, those before them `validation`.

    Give durations back from the latest time (`1d`, `12h`), or fractions of the rows.
    """

    kind: Literal["time"] = "time"
    validation: Span = 0.0
    """Duration or fraction of `validation`."""
    test: Span = 0.1
    """Duration or fraction of `test`."""

    @model_validator(mode="after")
    def _one_way(self) -> "TimeSplitConfig":
        given = [value for value in (self.validation, self.test) if value != 0.0]
        if len({isinstance(value, str) for value in given}) > 1:
            raise ValueError("give validation and test both as durations or both as fractions")
        if sum(value for value in given if isinstance(value, float)) >= 1.0:
            raise ValueError("validation + test must be below 1, so that rows are left for train")
        return self


class ColumnSplitConfig(Config):
    """Split by a column that names the row's split."""

    kind: Literal["column"] = "column"
    column: str
    """Name of the column."""
    values: dict[Literal["validation", "test"], Names] = {"validation": ("validation",), "test": ("test",)}
    """Values of the rows of each split; other rows are `train`."""


class FileSplitConfig(Config):
    """Split by files: `--input train=PATH --input test=PATH`."""

    kind: Literal["files"] = "files"


SplitConfig = Annotated[
    DaySplitConfig | FractionSplitConfig | HashSplitConfig | TimeSplitConfig | ColumnSplitConfig | FileSplitConfig,
    Field(discriminator="kind"),
]


class ShardLayoutConfig(Config):
    """Size of the Parquet files of a split."""

    rows_per_part: PositiveInt = 4_194_304
    """Most rows in a file; a split of fewer than 16 such files gets smaller ones."""
    rows_per_row_group: PositiveInt = 32_768
    """Rows in a row group, the unit of reading and shuffling."""
    compression: Literal["none", "lz4", "zstd", "snappy"] = "lz4"
    """Compression of the files."""


class SparkConfig(Config):
    """Size and properties of the Spark application on Ray; `null`: by the cluster's free resources."""

    executors: PositiveInt | None = None
    """Number of executors."""
    executor_cores: PositiveInt | None = None
    """Tasks that an executor runs at once."""
    executor_memory: str | None = Field(None, pattern=r"^\d+[kmgt]$", examples=["4g"])
    """JVM heap of an executor."""
    conf: dict[str, str | int | float | bool] = {}
    """Properties of Spark, such as `spark.ui.enabled: true`; they stand above rayrec's own."""

    @model_validator(mode="before")
    @classmethod
    def _without_partitions(cls, content: Any) -> Any:
        """Read the recipes of earlier datasets and models, in which the number of partitions was a setting."""
        if isinstance(content, dict) and content.get("shuffle_partitions", 0) is None:
            return {key: value for key, value in content.items() if key != "shuffle_partitions"}
        return content


class PreprocessConfig(Config):
    """Settings of every source's preprocessing; each source names the class of its own."""

    kind: str = ""
    """Kind of preprocessing, which the source decides."""
    max_rejected_fraction: float = Field(0.01, ge=0.0, le=1.0)
    """Largest fraction of bad rows; more stop the job."""
    seed: int = 0
    """Seed of the order of rows, of splits by hash and of drawn negatives."""
    layout: ShardLayoutConfig = ShardLayoutConfig()
    spark: SparkConfig = SparkConfig()

    @property
    def reads_splits_from_files(self) -> bool:
        """Return whether the command line names the files of each split (`--input train=PATH`)."""
        return False

    @property
    def split_of_all_rows(self) -> Config | None:
        """Return the section `split` that leaves all rows in `train`; None for sources without such a section."""
        return None

    @property
    def holds_out_latest(self) -> bool:
        """Return whether the held-out rows are the latest, the most like those to come."""
        return False


class VocabularyPreprocessConfig(PreprocessConfig):
    """Settings of the preprocessing of sources with vocabularies."""

    expire_after: str | None = Field(None, pattern=_DURATION, examples=["30d"])
    """Time after which a value that no longer occurs leaves its vocabulary in an extension; without times of rows, an
    extension counts as a day.
    """


class RowsPreprocessConfig(VocabularyPreprocessConfig):
    """Preprocessing of rows with a label."""

    kind: Literal["rows"] = "rows"
    split: SplitConfig = HashSplitConfig()
    """Split of the rows."""
    frequency_limit: int = 15
    """Times that a value must occur in `train` to be listed, unless its rule has a `min_count`."""
    max_table_size: PositiveInt | None = Field(None, ge=2)
    """Most rows of an embedding table; further ids share rows by hashing."""
    compact: bool = False
    """Number values anew in an extension, by frequency over all days, without expired ones; the model is then
    published in full.
    """
    order: Literal["input", "total_random", "day_random"] = "total_random"
    """Order of the rows of `train`; other splits keep the order of the input."""

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

    @property
    def other_names(self) -> dict[str, str]:
        """Return the names of columns in raw files that the dataset has under another name, each with that name."""
        return {}

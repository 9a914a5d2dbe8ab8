"""The sections `source` and `preprocess`: raw files, and how they become a dataset folder."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from rayrec.config.base import Config

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class DaySplitConfig(Config):
    """Cut by day: one day is held out and halved by line count, the other days train.

    The first half is `test`, the second `validation`, both in file order.
    """

    kind: Literal["day"] = "day"
    held_out_day: int = Field(23, ge=0)


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
    """Cut by a hash of the row's text and `preprocess.seed`: the same row always falls into the same split."""

    kind: Literal["hash"] = "hash"


class FileSplitConfig(Config):
    """Splits come as files: the command line names the files of each split (`--input train=PATH --input test=PATH`)."""

    kind: Literal["files"] = "files"


SplitConfig = Annotated[
    DaySplitConfig | FractionSplitConfig | HashSplitConfig | FileSplitConfig, Field(discriminator="kind")
]


class ShardLayoutConfig(Config):
    """The Parquet files of a split; defaults chosen by measurement (docs/preprocessing.md)."""

    rows_per_part: PositiveInt = 4_194_304
    """Most rows in one Parquet file; data that would give fewer than 16 such files is cut into smaller ones."""
    rows_per_row_group: PositiveInt = 32_768
    """Rows in one row group: the unit that ingest reads and shuffles."""
    compression: Literal["none", "lz4", "zstd", "snappy"] = "lz4"


class SparkConfig(Config):
    """The Spark application that runs on Ray; unset values are sized from the cluster's free resources."""

    executors: PositiveInt | None = None
    executor_cores: PositiveInt | None = None
    executor_memory: str | None = Field(None, pattern=r"^\d+[kmgt]$")
    """JVM heap of one executor, as Spark writes it: `4g`."""
    shuffle_partitions: PositiveInt | None = None


class PreprocessConfig(Config):
    """Settings of every source's preprocessing; each source names the class of its own."""

    kind: str = ""
    """Follows from the source, so that a recipe can leave it out."""
    max_rejected_fraction: float = Field(0.01, ge=0.0, le=1.0)
    """A larger share of bad rows stops the job."""
    seed: int = 0
    layout: ShardLayoutConfig = ShardLayoutConfig()
    spark: SparkConfig = SparkConfig()

    @property
    def reads_splits_from_files(self) -> bool:
        """Whether the command line names the files of each split (`--input train=PATH`)."""
        return False


class VocabularyPreprocessConfig(PreprocessConfig):
    """Settings of the preprocessing of sources with vocabularies."""

    broadcast_limit: PositiveInt = 2_000_000
    """Vocabularies up to this many values are looked up in memory; the rest of a larger one is joined by Spark."""


class RowsPreprocessConfig(VocabularyPreprocessConfig):
    """How rows that are examples with a label become a dataset."""

    kind: Literal["rows"] = "rows"
    split: SplitConfig = HashSplitConfig()
    frequency_limit: int | dict[str, int] = 15
    """A categorical value that occurs fewer times gets id 0. One number, or numbers by column with `default`."""
    max_table_size: PositiveInt | None = Field(None, ge=2)
    """Most rows of one embedding table; ids beyond it share rows by hashing."""
    numeric_log: bool = True
    """Numeric columns become ln(x + 3), missing or undefined 0; without it x, missing 0."""
    order: Literal["input", "total_random", "day_random"] = "total_random"
    """Order of the rows of `train`; the other splits always keep the order of the input."""

    def frequency_limit_of(self, column: str) -> int:
        """The least count at which a value of `column` keeps its own id."""
        if isinstance(self.frequency_limit, int):
            return self.frequency_limit
        return self.frequency_limit.get(column, self.frequency_limit.get("default", 1))

    @property
    def reads_splits_from_files(self) -> bool:
        return self.split.kind == "files"


class SourceConfig(Config):
    """The raw files and their columns; each source has a class of its own."""

    preprocess: ClassVar[type[PreprocessConfig]] = RowsPreprocessConfig
    """The class of the section `preprocess` of a recipe with this source."""
    kind: str

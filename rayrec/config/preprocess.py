"""How raw rows become a dataset folder."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from rayrec.config.base import Config

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class DaySplitConfig(Config):
    """As published for Criteo Terabyte: one day is held out and halved by line count, the other days train.

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
    """By position: the first rows in file order train, then `validation`, the last rows are `test`."""

    kind: Literal["fraction"] = "fraction"


class HashSplitConfig(_Fractions):
    """By a hash of the row's text and `preprocess.seed`: the same row always falls into the same split."""

    kind: Literal["hash"] = "hash"


class FileSplitConfig(Config):
    """By file: the command line names the files of each split (`--input train=PATH --input test=PATH`)."""

    kind: Literal["files"] = "files"


SplitConfig = Annotated[
    DaySplitConfig | FractionSplitConfig | HashSplitConfig | FileSplitConfig, Field(discriminator="kind")
]


class _HeldOutItems(Config):
    validation: bool = False
    """Also hold out the interaction before, as the `validation` split."""
    negatives: PositiveInt = 100
    """Items that each held-out one is ranked among."""
    sampling: Literal["distinct", "with_replacement"] = "distinct"
    """`distinct`: no item twice in a list, and none that the user is known to have chosen in any split.
    `with_replacement`: as the original draws: items may repeat, and only the user's items in train are left out, so
    the held-out item itself may be drawn. For comparison with published figures."""


class LeaveOneOutSplitConfig(_HeldOutItems):
    """The last interaction of each user is `test`, each with drawn negatives."""

    kind: Literal["leave_one_out"] = "leave_one_out"
    min_interactions: NonNegativeInt = 20
    """Users with fewer rows, repeated ones counted, are dropped; 0 keeps all."""


class InteractionFilesSplitConfig(_HeldOutItems):
    """By file, as the NCF paper gives them: interactions for `train`, lists of a positive and its negatives for `test`.

    `validation` cuts the last interaction of each user from train, with drawn negatives.
    """

    kind: Literal["files"] = "files"


InteractionSplitConfig = Annotated[LeaveOneOutSplitConfig | InteractionFilesSplitConfig, Field(discriminator="kind")]


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


class _CommonConfig(Config):
    max_rejected_fraction: float = Field(0.01, ge=0.0, le=1.0)
    """A larger share of bad rows stops the job."""
    seed: int = 0
    layout: ShardLayoutConfig = ShardLayoutConfig()
    spark: SparkConfig = SparkConfig()


class _VocabularyConfig(_CommonConfig):
    broadcast_limit: PositiveInt = 2_000_000
    """Vocabularies up to this many values are looked up in memory; the rest of a larger one is joined by Spark."""


class PreprocessConfig(_VocabularyConfig):
    """Of sources whose rows are examples with a label."""

    kind: Literal["rows"] = "rows"
    """Follows from the source; a recipe need not say it."""
    split: SplitConfig = HashSplitConfig()
    frequency_limit: int | dict[str, int] = 15
    """A categorical value that occurs fewer times gets id 0. One number, or numbers by column with `default`."""
    vocabulary_from: Literal["train", "all"] = "train"
    """Rows that vocabularies are counted over. `all` repeats the original's leak of the test rows."""
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


class InteractionPreprocessConfig(_VocabularyConfig):
    """Of sources whose rows are interactions of a user with an item (`rayrec.config.source.INTERACTION_SOURCES`)."""

    kind: Literal["interactions"] = "interactions"
    """Follows from the source; a recipe need not say it."""
    split: InteractionSplitConfig = LeaveOneOutSplitConfig()


class DisplaySplitConfig(Config):
    """Whole displays: of the last days all are `validation`, of the days before a share of them."""

    kind: Literal["displays"] = "displays"
    held_out_from_day: NonNegativeInt = 11
    """Days count from the first millisecond of the data."""
    held_out_share: Fraction = 0.2


class RatesConfig(Config):
    """Rates of clicks as features, without what a row says of itself: docs/outbrain.md."""

    folds: int = Field(5, ge=2)
    """A row of train sees the rates of the other folds."""
    smoothing: NonNegativeFloat = 20.0
    """Views with the mean rate of train that a key begins with."""


class DisplayPreprocessConfig(_CommonConfig):
    """Of sources whose rows are candidates shown together, with features that are joined from tables and fitted."""

    kind: Literal["displays"] = "displays"
    """Follows from the source; a recipe need not say it."""
    feature_set: Literal["full", "lean"] = "full"
    """`full`: the 54 features of NVIDIA's first version, with users' profiles; `lean`: the 29 of the newest."""
    original: bool = False
    """Repeat what NVIDIA published, its leaks and defects included, for comparison."""
    split: DisplaySplitConfig = DisplaySplitConfig()
    rates: RatesConfig = RatesConfig()

    @property
    def drops_events(self) -> bool:
        """Whether events without a platform or a place count as absent, as in the original of `full`."""
        return self.original and self.feature_set == "full"

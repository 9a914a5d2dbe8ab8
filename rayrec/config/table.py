"""The section `source` of sources whose rows are examples: the columns of the raw files, and what each of them becomes.

Columns are matched by the rules of `features`, in order; the first rule that names a column or matches it decides.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, PositiveInt, model_validator

from rayrec.config.base import Config
from rayrec.config.preprocess import Names, PreprocessConfig, RowsPreprocessConfig, SourceConfig
from rayrec.config.times import TimeFormat, Zone
from rayrec.config.transforms import Clip, Log, Log2


class FitFill(Config):
    """A constant for missing values: a number, or the mean or median of the values in `train`."""

    op: Literal["fill"] = "fill"
    value: float | Literal["mean", "median"] = 0.0
    """What a missing value becomes."""


class FitStandardize(Config):
    """(x - mean) / deviation, both of `train`."""

    op: Literal["standardize"] = "standardize"


class FitMinMax(Config):
    """(x - min) / (max - min), both of `train`; values outside of the range become 0 or 1."""

    op: Literal["min_max"] = "min_max"


class FitQuantile(Config):
    """The share of the values in `train` that lie below x."""

    op: Literal["quantile"] = "quantile"
    count: PositiveInt = 100
    """Number of quantiles, at equal shares."""


def _named(given: Any) -> Any:
    """A transform without settings may be written as its name alone."""
    return {"op": given} if isinstance(given, str) else given


_Step = Annotated[Log | Log2 | Clip | FitFill | FitStandardize | FitMinMax | FitQuantile, Field(discriminator="op")]
_StepName = Literal["clip", "fill", "log", "log2", "min_max", "quantile", "standardize"]
NumericStep = Annotated[_Step, BeforeValidator(_named, json_schema_input_type=_StepName | _Step)]


class _Rule(Config):
    columns: Names
    """Names of columns, or patterns with `*` and `?`."""
    name: str | None = None
    """The name of a further feature, from the one column named; other rules may still match this column."""


class NumericRule(_Rule):
    """Numbers."""

    kind: Literal["numeric"] = "numeric"
    transforms: tuple[NumericStep, ...] = ()
    """Steps in order, each `fill`, `clip`, `log`, `log2`, `standardize`, `min_max` or `quantile`, by name or with
    settings (`{op: log, offset: 1}`). What is missing after the last one is 0."""


class _CategoricalRule(_Rule):
    min_count: PositiveInt | None = None
    """A value that occurs less often in `train` is unlisted; None takes `preprocess.frequency_limit`."""
    max_size: PositiveInt | None = None
    """The most values that are listed, the most frequent ones."""
    unlisted_buckets: PositiveInt | None = None
    """Table rows that unlisted values share by hashing; without them they share row 0 with missing values."""
    hash_buckets: Annotated[int, Field(ge=2)] | None = None
    """Hash all values to this many table rows; no value is listed."""
    values: Names | None = None
    """The values that are listed, in order of id, instead of those found in `train`."""
    share: str | None = None
    """The feature whose vocabulary and table it shares; that feature's rule says how values are listed."""
    cardinality: PositiveInt | Literal["auto"] | None = None
    """Values are ids already, integers below this; `auto` takes the largest one in `train`."""

    @model_validator(mode="after")
    def _one_way_to_ids(self) -> "_CategoricalRule":
        ways = [name for name in ("hash_buckets", "values", "share", "cardinality") if getattr(self, name) is not None]
        listing = [n for n in ("min_count", "max_size", "unlisted_buckets") if getattr(self, n) is not None]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} exclude each other; keep one")
        if ways and listing and (ways != ["values"] or listing != ["unlisted_buckets"]):
            raise ValueError(f"{listing[0]} has no meaning beside {ways[0]}; remove it")
        if self.values is not None and len(set(self.values)) < len(self.values):
            raise ValueError(f"values: '{max(self.values, key=self.values.count)}' is there twice; list it once")
        return self

    @property
    def has_vocabulary(self) -> bool:
        """Whether its values are listed for it."""
        return self.hash_buckets is None and self.share is None and self.cardinality is None


class CategoricalRule(_CategoricalRule):
    """Values that are looked up in a table."""

    kind: Literal["categorical"] = "categorical"


class ListRule(_CategoricalRule):
    """Lists of values, pooled after the look-up."""

    kind: Literal["list"] = "list"
    separator: str | None = None
    """What separates values in a text; lists of Parquet and JSON need none."""
    weights: str | None = None
    """The column of the values' weights: as many numbers from 0 on as there are values, in a text with the same
    separator or in a list. In a row without any, all weights are 1."""
    max_length: PositiveInt = 16
    """Longer lists are cut."""
    pooling: Literal["sum", "mean"] = "mean"
    """Weights multiply the embeddings; `mean` divides by their sum."""


class TimestampRule(_Rule):
    """Times, of which features are derived: NAME_hour, NAME_weekday, NAME_day, NAME_month and NAME_age."""

    kind: Literal["timestamp"] = "timestamp"
    derive: Annotated[tuple[Literal["hour", "weekday", "day", "month", "age"], ...], Field(min_length=1)] = (
        "hour",
        "weekday",
    )
    """`age`: days from this time to that of `source.time`."""
    format: TimeFormat = "iso"
    """`iso`, `s`, `ms` or `us` since 1970, or a format of strptime, such as `%y%m%d%H`."""
    zone: Zone = "UTC"
    """The IANA time zone of times that do not name one, and of the parts."""


class BucketsRule(_Rule):
    """Numbers, each replaced by the range that it lies in, as a category."""

    kind: Literal["buckets"] = "buckets"
    boundaries: tuple[float, ...] | None = None
    """Where ranges begin, ascending; give these or `quantiles`."""
    quantiles: Annotated[int, Field(ge=2)] | None = None
    """Number of ranges of about as many rows of `train` each."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "BucketsRule":
        if (self.boundaries is None) == (self.quantiles is None):
            raise ValueError("give boundaries or quantiles, one of the two")
        if self.boundaries is not None and sorted(set(self.boundaries)) != list(self.boundaries):
            raise ValueError("boundaries must ascend, each once")
        return self


class CrossRule(Config):
    """The combination of several categorical features as one more, hashed."""

    kind: Literal["cross"] = "cross"
    of: Annotated[tuple[str, ...], Field(min_length=2)]
    """Names of features."""
    buckets: Annotated[int, Field(ge=2)] = 100_000
    """Rows of its table, which the combinations share by hashing."""
    name: str | None = None
    """The name of the feature; None joins the names of the others by `_x_`."""


class VectorRule(_Rule):
    """Lists of a fixed number of numbers, such as another model's embedding."""

    kind: Literal["vector"] = "vector"
    size: PositiveInt
    """Numbers of each list; a row with another number of them is set aside."""
    separator: str | None = None
    """What separates numbers in a text; lists of Parquet and JSON need none."""
    normalize: bool = False
    """Divide by the Euclidean length."""


Rule = Annotated[
    NumericRule | CategoricalRule | ListRule | TimestampRule | BucketsRule | CrossRule | VectorRule,
    Field(discriminator="kind"),
]


class LabelCondition(Config):
    """A label that a column's value decides: 1 if the condition holds, otherwise 0; without one, the value itself."""

    column: str
    """The column that decides."""
    at_least: float | None = None
    """The label is 1 where the number of the column is this or more."""
    equals: Names | None = None
    """The label is 1 where the value of the column is one of these."""
    missing: Annotated[int, Field(ge=0, le=1)] | None = None
    """The label of a row that has no value in the column; None leaves such rows out."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "LabelCondition":
        is_given = self.at_least is not None, self.equals is not None
        if all(is_given) or not (any(is_given) or self.missing is not None):
            raise ValueError("give at_least or equals, one of the two")
        return self


class TimeColumn(Config):
    """The column of a row's time."""

    column: str
    """The name of the column."""
    format: TimeFormat = "iso"
    """`iso`, `s`, `ms` or `us` since 1970, or a format of strptime, such as `%y%m%d%H`."""
    zone: Zone = "UTC"
    """The IANA time zone of times that do not name one."""


def matches(name: str, pattern: str) -> bool:
    """Whether a column's name is `pattern`, or what its `*` and `?` stand for; brackets are characters."""
    return name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(f"'{max(names, key=names.count)}' is there twice; name every column once")
    return names


class FileFormat(Config):
    """How files hold rows."""

    format: Literal["auto", "delimited", "json_lines", "parquet"] = "auto"
    """`auto` recognises it by the name: .parquet, .parq, .pq, .jsonl, .ndjson, .json; all else is delimited text.
    Text may be packed by gzip or zstd."""
    separator: str | None = Field(None, pattern=r"^[\x00-\x7f]$", examples=[","])
    """What separates fields of delimited text, one ASCII character; None takes a tab if the first line has one,
    otherwise a comma."""
    quote: bool = True
    """Whether double quotes enclose fields of delimited text; otherwise they are characters as others."""
    header: Annotated[tuple[str, ...], AfterValidator(_distinct)] | None = None
    """The names of the columns of delimited text without a header; None reads them from the first line."""
    null_values: tuple[str, ...] = ("",)
    """Texts of delimited files that stand for a missing value."""

    @model_validator(mode="after")
    def _separator_separates(self) -> "FileFormat":
        if self.separator in ("\n", "\r", '"'):
            raise ValueError("separator: not a quote or the end of a line")
        return self


class SideTableConfig(FileFormat):
    """A table whose columns are joined to the rows; column x of table `users` becomes `users_x`."""

    path: str
    """File, folder, glob or URI."""
    key: str
    """The column whose values are unique in the side table; rows of the log have the value in `on`."""
    on: str | None = None
    """The column of the log; None has the name of `key`."""


class RateConfig(Config):
    """The smoothed rate of the label by one or more columns, a numeric feature `rate_KEY`; out of fold in `train`."""

    keys: Names
    """Columns of the log."""
    smoothing: NonNegativeFloat = 20.0
    """Rows of the mean rate that are added to each key's."""
    transforms: tuple[NumericStep, ...] = (FitStandardize(),)
    """Steps that the rate passes, as those of a numeric rule."""


class TableSourceConfig(SourceConfig, FileFormat):
    """Rows of named columns, one example each."""

    preprocess: ClassVar[type[PreprocessConfig]] = RowsPreprocessConfig
    label: str | LabelCondition
    """The column of the label, 0 or 1 (or false and true, no and yes), or a condition on a column."""
    weight: str | None = None
    """The column of the rows' weights, in loss and metrics."""
    group: str | None = None
    """The column whose equal values make a list: for ranking metrics and listwise loss."""
    candidate: str | None = None
    """The column that names what a group's rows offer, so that `:rank` takes its values alone."""
    time: str | TimeColumn | None = None
    """The column of the rows' times."""
    ignore: tuple[str, ...] = ()
    """Columns, or patterns of them, that become no features; a rule with a `name` may still read one of them."""
    features: tuple[Rule, ...]
    """Rules; the first one that names or matches a column decides what it becomes."""
    tables: dict[str, SideTableConfig] = {}
    """Side tables by name."""
    rates: tuple[RateConfig, ...] = ()
    """Smoothed rates of the label as features."""
    rate_folds: Annotated[int, Field(ge=2)] = 5
    """Parts of `train`; a row has the rates of the other parts, so that it does not see its own label."""

    @property
    def label_column(self) -> str:
        """The name of the column of the label."""
        return self.label.column if isinstance(self.label, LabelCondition) else self.label

    @property
    def time_column(self) -> str | None:
        """The name of the column of the rows' times."""
        return self.time.column if isinstance(self.time, TimeColumn) else self.time

    @property
    def unneeded_columns(self) -> tuple[str, ...]:
        """Return the columns of the label and of roles, and those of `ignore`."""
        roles = (self.label_column, self.weight, self.group, self.candidate, self.time_column)
        return (*(name for name in roles if name is not None), *self.ignore)

    def is_ignored(self, name: str) -> bool:
        """Whether a column is in `ignore`."""
        return any(matches(name, pattern) for pattern in self.ignore)

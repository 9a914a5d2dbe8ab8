"""The section `source` of sources whose rows are examples: the columns of the raw files, and what each of them becomes.

Columns are matched by the rules of `features`, in order; the first rule that names a column or matches it decides.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, PositiveInt, model_validator

from rayrec.config.base import Config, NumberFormat, TimeFormat, Zone
from rayrec.config.preprocess import Duration, Names, PreprocessConfig, RowsPreprocessConfig, SourceConfig, seconds_of
from rayrec.config.transforms import Clip, Log, Log2


class FitFill(Config):
    """Replace missing values by a number, or by the mean or median of `train`."""

    op: Literal["fill"] = "fill"
    value: float | Literal["mean", "median"] = 0.0
    """Value for missing ones."""


class FitStandardize(Config):
    """Return (x - mean) / deviation, with the mean and deviation of `train`."""

    op: Literal["standardize"] = "standardize"


class FitMinMax(Config):
    """Return (x - min) / (max - min) with the bounds of `train`; values outside become 0 or 1."""

    op: Literal["min_max"] = "min_max"


class FitQuantile(Config):
    """Return the fraction of the values in `train` that lie below x."""

    op: Literal["quantile"] = "quantile"
    count: PositiveInt = 100
    """Number of quantiles."""


def _named(given: Any) -> Any:
    """Return a transform that was given by its name alone with its key `op`."""
    return {"op": given} if isinstance(given, str) else given


_Step = Annotated[Log | Log2 | Clip | FitFill | FitStandardize | FitMinMax | FitQuantile, Field(discriminator="op")]
_StepName = Literal["clip", "fill", "log", "log2", "min_max", "quantile", "standardize"]
NumericStep = Annotated[_Step, BeforeValidator(_named, json_schema_input_type=_StepName | _Step)]


class _Rule(Config):
    columns: Names
    """Names of columns, or patterns with `*` and `?`."""
    name: str | None = None
    """Name of the feature, for a single column. Other rules may still match that column."""
    number_format: NumberFormat | None = None
    """How numbers are written; `null`: as `source.number_format`, and categories are texts, not numbers."""


class NumericRule(_Rule):
    """Numbers."""

    kind: Literal["numeric"] = "numeric"
    transforms: tuple[NumericStep, ...] = ()
    """Steps in order, by name or with settings: `{op: log, offset: 1}`. Values still missing afterwards are 0."""


class _CategoricalRule(_Rule):
    min_count: PositiveInt | None = None
    """Times that a value must occur in `train` to be listed; `null`: `preprocess.frequency_limit`."""
    max_size: PositiveInt | None = None
    """Most values listed; the most frequent ones stay."""
    unlisted_buckets: PositiveInt | None = None
    """Table rows that unlisted values share by hashing; `null`: row 0, with missing values."""
    hash_buckets: Annotated[int, Field(ge=2)] | None = None
    """Table rows to hash all values to, instead of listing them."""
    values: Names | None = None
    """Values to list, in the order of their ids."""
    share: str | None = None
    """Name of the feature whose vocabulary and table this one shares."""
    cardinality: PositiveInt | Literal["auto"] | None = None
    """Number of ids, if values are integer ids from 0 already; `auto`: from the largest one in `train`."""

    @model_validator(mode="after")
    def _one_way_to_ids(self) -> "_CategoricalRule":
        # A value's id comes from exactly one place: a list that is counted, or one of these.
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
        """Return whether its values are listed for it."""
        return self.hash_buckets is None and self.share is None and self.cardinality is None


class CategoricalRule(_CategoricalRule):
    """Values that have a row each in an embedding table."""

    kind: Literal["categorical"] = "categorical"


class ListRule(_CategoricalRule):
    """Lists of values, whose embeddings are pooled."""

    kind: Literal["list"] = "list"
    separator: str | None = None
    """Text between values; lists of Parquet and JSON need none. `[,]` and `[ ]`: lists in brackets, as
    Python, JSON, PostgreSQL and NumPy write them, such as `['a', 'b']`, `{a,b}` and `[1 2]`.
    """
    weights: str | None = None
    """Column with a weight of at least 0 for each value, written as the list is; where empty, all are 1."""
    max_length: PositiveInt = 16
    """Most values of a list; others are cut off."""
    keep: Literal["first", "last"] | None = None
    """Which values of a longer list stay; `null`: the last ones, the newest, where `source.time` is given, else the
    first ones.
    """
    pooling: Literal["sum", "mean"] = "mean"
    """Weighted sum of the embeddings, or weighted mean."""


class TimestampRule(_Rule):
    """Times, from which features NAME_hour, NAME_weekday, NAME_day, NAME_month and NAME_age are derived."""

    kind: Literal["timestamp"] = "timestamp"
    derive: Annotated[tuple[Literal["hour", "weekday", "day", "month", "age"], ...], Field(min_length=1)] = (
        "hour",
        "weekday",
    )
    """Features to derive. `age`: days until the time in `source.time`."""
    format: TimeFormat = "iso"
    """`iso`; `s`, `ms`, `us` or `ns` since 1970; or a pattern of strptime such as `%y%m%d%H`."""
    zone: Zone = "UTC"
    """IANA time zone of times that name none, and of the derived features."""


class BucketsRule(_Rule):
    """Numbers, each replaced by its range as a category."""

    kind: Literal["buckets"] = "buckets"
    boundaries: tuple[float, ...] | None = None
    """Ascending starts of the ranges; give these or `quantiles`."""
    quantiles: Annotated[int, Field(ge=2)] | None = None
    """Number of ranges with about equally many rows of `train`."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "BucketsRule":
        if (self.boundaries is None) == (self.quantiles is None):
            raise ValueError("give either boundaries or quantiles")
        if self.boundaries is not None and sorted(set(self.boundaries)) != list(self.boundaries):
            raise ValueError("boundaries must ascend, each once")
        return self


class CrossRule(Config):
    """Combinations of the values of several categorical features, hashed."""

    kind: Literal["cross"] = "cross"
    of: Annotated[tuple[str, ...], Field(min_length=2)]
    """Names of the features."""
    buckets: Annotated[int, Field(ge=2)] = 100_000
    """Table rows that the combinations share by hashing."""
    name: str | None = None
    """Name of the feature; `null`: the features' names, joined by `_x_`."""


class VectorRule(_Rule):
    """Lists of a fixed number of numbers, such as another model's embedding."""

    kind: Literal["vector"] = "vector"
    size: PositiveInt
    """Numbers in each list; rows with another number are rejected."""
    separator: str | None = None
    """Text between numbers; lists of Parquet and JSON need none. `[,]` and `[ ]`: lists in brackets, as
    Python, JSON, PostgreSQL and NumPy write them, such as `['a', 'b']`, `{a,b}` and `[1 2]`.
    """
    normalize: bool = False
    """Divide each list by its Euclidean length."""


Rule = Annotated[
    NumericRule | CategoricalRule | ListRule | TimestampRule | BucketsRule | CrossRule | VectorRule,
    Field(discriminator="kind"),
]


class LabelCondition(Config):
    """A condition on a column: the label is 1 where it holds, else 0. With `missing` alone, the value is the label."""

    column: str
    """Column to check."""
    at_least: float | None = None
    """Least number with label 1."""
    equals: Names | None = None
    """Values with label 1."""
    missing: Annotated[int, Field(ge=0, le=1)] | None = None
    """Label of rows without a value; `null` drops these rows."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "LabelCondition":
        is_given = self.at_least is not None, self.equals is not None
        if all(is_given) or not (any(is_given) or self.missing is not None):
            raise ValueError("give either at_least or equals")
        return self


class TimeColumn(Config):
    """The column with a row's time."""

    column: str
    """Name of the column."""
    format: TimeFormat = "iso"
    """`iso`; `s`, `ms`, `us` or `ns` since 1970; or a pattern of strptime such as `%y%m%d%H`."""
    zone: Zone = "UTC"
    """IANA time zone of times that name none."""


def matches(name: str, pattern: str) -> bool:
    """Return whether a column's name is `pattern`, or matches its `*` and `?`; brackets stand for themselves."""
    return name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(f"'{max(names, key=names.count)}' is there twice; name every column once")
    return names


def _known_encoding(name: str) -> str:
    try:
        "".encode(name)
    except LookupError:
        raise ValueError(f"'{name}' is no encoding that is known; use one of Python's, such as latin-1") from None
    return name


class FileFormat(Config):
    """How files hold rows."""

    format: Literal["auto", "delimited", "json_lines", "parquet"] = "auto"
    """`auto` goes by Parquet's first bytes, or the ending: .jsonl, .ndjson or .json for JSON, else delimited text."""
    encoding: Annotated[str, AfterValidator(_known_encoding)] | None = None
    """Encoding of text, such as `latin-1`; `null`: UTF-8, or what the first bytes show, such as UTF-16."""
    separator: str | None = Field(None, pattern=r"^[\x00-\x7f]{1,4}$", examples=[","])
    """ASCII characters between fields of delimited text; `null`: a tab, a comma or `::`, the first of these that the
    first line has.
    """
    quote: bool | Literal["'"] = True
    """Read double quotes, or single ones (`"'"`), around a field as quotes; not beside a separator of several
    characters.
    """
    escape: str | None = Field(None, pattern=r"^[!-~]$", examples=["\\"])
    """Character that makes a quote after it one of the field, as Spark's backslash does; two quotes always do."""
    comment: str | None = Field(None, pattern=r"^[!-~]{1,2}$", examples=["#"])
    """What lines of delimited text begin with that are no rows."""
    header: Annotated[tuple[str, ...], AfterValidator(_distinct)] | None = None
    """Names of the columns if delimited text has no header, or one whose names are to be others."""
    null_values: tuple[str, ...] = ("",)
    """Texts that mean "missing", beside the empty one."""
    number_format: NumberFormat = "plain"
    """How texts are numbers: by an example of people's, also with blanks or apostrophes between thousands, a currency
    or percent sign (`$5`, `20 %`), or a minus as `(5)` or `5-`; signs are left out.
    """

    @model_validator(mode="after")
    def _separator_separates(self) -> "FileFormat":
        if self.separator is not None and not {"\n", "\r", '"'}.isdisjoint(self.separator):
            raise ValueError("separator: must not be a quote or a line break")
        return self

    @property
    def null_words(self) -> tuple[str, ...]:
        """Return the texts that mean "missing", without the empty one, which always does."""
        return tuple(word for word in self.null_values if word)

    @property
    def quote_mark(self) -> str | None:
        """Return the character that encloses fields."""
        if not self.quote or len(self.separator or "") > 1:
            return None
        return '"' if self.quote is True else self.quote


class SideTableConfig(FileFormat):
    """A table to join to the rows; column x of table `users` becomes `users_x`."""

    path: str
    """File, folder, glob or URI."""
    key: str
    """Column with unique values to join by."""
    on: str | None = None
    """Column of the rows to join by; `null`: named as `key`."""
    least_found: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Smallest share of the rows with a key that must find it in the table; a table that knows few rows takes less."""


class RateConfig(Config):
    """A numeric feature `rate_KEY`: the smoothed mean label of rows with the same key; with `source.time`, of those
    that happened before the row.
    """

    keys: Names
    """Columns of the key: texts, or numbers that are features."""
    smoothing: NonNegativeFloat = 20.0
    """Number of rows with the mean label that are added to each key."""
    delay: Duration | None = None
    """Time from a row to when its label is known, such as `1d`; it needs `source.time`."""
    transforms: tuple[NumericStep, ...] = (FitStandardize(),)
    """Steps as in a numeric rule."""


class TakeCount(Config):
    """The number of events: NAME_count."""

    op: Literal["count"] = "count"


class TakeAge(Config):
    """Days since the last event, missing if there is none: NAME_age."""

    op: Literal["age"] = "age"


class TakeRate(Config):
    """The mean label of the events, NAME_rate, or the mean of a column of numbers, NAME_rate_COLUMN; smoothed by the
    mean of the events of all keys up to the last full minute.
    """

    op: Literal["rate"] = "rate"
    column: str | None = None
    """Column of the events; `null`: the label of the log."""
    smoothing: NonNegativeFloat = 5.0
    """Number of events with that mean that are added to each key."""


class TakeMean(Config):
    """The mean of a column of numbers, missing if no event has one: NAME_mean_COLUMN."""

    op: Literal["mean"] = "mean"
    column: str
    """Column of the events."""


class TakeSum(Config):
    """The sum of a column of numbers: NAME_sum_COLUMN."""

    op: Literal["sum"] = "sum"
    column: str
    """Column of the events."""


class TakeLast(Config):
    """The list of a column's newest values, the oldest of them first: NAME_last_COLUMN."""

    op: Literal["last"] = "last"
    column: str
    """Column of the events: categories."""
    length: Annotated[PositiveInt, Field(le=1_000)] = 20
    """Most values."""


_Take = Annotated[TakeCount | TakeAge | TakeRate | TakeMean | TakeSum | TakeLast, Field(discriminator="op")]
Take = Annotated[_Take, BeforeValidator(_named, json_schema_input_type=Literal["age", "count", "rate"] | _Take)]


_Given = TypeVar("_Given")


def _each_has_a_name(given: dict[str, _Given]) -> dict[str, _Given]:
    if any(not name.strip() for name in given):
        raise ValueError("one has no name, which its columns begin with; give it one")
    return given


_ByName = Annotated[dict[str, _Given], AfterValidator(_each_has_a_name)]


class HistoryConfig(FileFormat):
    """Columns of what is known of a row's past: of the events with the same key that happened before it.

    An event counts for the rows with event.time + delay < row.time. Columns that no rule of `features` names become
    features: numbers, and lists that share the table of their column's feature.
    """

    by: Names
    """Columns of the key: texts, or numbers that are features. The events have columns of the same names."""
    path: str | None = None
    """File, folder, glob or URI of the events; `null`: the rows of the log, of all splits."""
    time: str | TimeColumn | None = None
    """Column with the times of events at `path`; `null`: as in `source.time`."""
    where: LabelCondition | None = None
    """Condition for the events that count; `null`: all do."""
    window: Duration | None = None
    """Time before the row within which events count, such as `7d`; `null`: all that happened before."""
    delay: Duration | None = None
    """Time from an event to when it is known, label included; events that are not known yet do not count."""
    known: Duration | None = None
    """Period at which a server gets new events, such as `1d`: a row knows those up to the last full one (UTC)."""
    take: Annotated[tuple[Take, ...], Field(min_length=1)]
    """Columns to take of the events."""

    @model_validator(mode="after")
    def _makes_sense(self) -> "HistoryConfig":
        if self.time is not None and self.path is None:
            raise ValueError("time: is that of events at `path`; those of the log have source.time")
        for number, take in enumerate(self.take):
            if isinstance(take, TakeRate) and take.column is None and self.path is not None:
                raise ValueError(f"take.{number}.column: missing; events at `path` have no label, so name a column")
        if self.window is not None and not seconds_of(self.window):
            raise ValueError("window: is empty; give a longer one, or leave it out to count all earlier events")
        if self.known is not None and not seconds_of(self.known):
            raise ValueError("known: is empty; leave it out where a server knows each event at once")
        return self


class TableSourceConfig(SourceConfig, FileFormat):
    """Rows of named columns, one example each."""

    preprocess: ClassVar[type[PreprocessConfig]] = RowsPreprocessConfig
    label: str | LabelCondition
    """Column with the label (0/1, false/true, no/yes), or a condition on a column."""
    weight: str | None = None
    """Column with the rows' weights in loss and metrics."""
    group: str | None = None
    """Column whose equal values make a list, for ranking metrics and listwise loss."""
    candidate: str | None = None
    """Column with the id of a list's candidate, which `:rank` takes."""
    time: str | TimeColumn | None = None
    """Column with the rows' times."""
    ignore: tuple[str, ...] = ()
    """Columns, or patterns, that become no features; a rule with a `name` may still read them."""
    features: tuple[Rule, ...]
    """Rules for columns; the first rule that matches a column applies."""
    tables: _ByName[SideTableConfig] = {}
    """Side tables by name."""
    rates: tuple[RateConfig, ...] = ()
    """Label rates by key, as features."""
    rate_folds: Annotated[int, Field(ge=2)] = 5
    """Number of folds of `train` for `rates` without `time`; a row gets the other folds' rate."""
    histories: _ByName[HistoryConfig] = {}
    """Columns of what happened before a row, by name: counts, rates, ages and lists of earlier events of its key."""

    @model_validator(mode="after")
    def _the_past_needs_a_time(self) -> "TableSourceConfig":
        if self.time is None:
            if self.histories:
                raise ValueError(
                    f"histories.{next(iter(self.histories))}: the past of a row needs its time; add `time`"
                )
            for number, rate in enumerate(self.rates):
                if rate.delay is not None:
                    raise ValueError(f"rates.{number}.delay: needs the times of rows; add `time`")
        return self

    @property
    def label_column(self) -> str:
        """Return the name of the column of the label."""
        return self.label.column if isinstance(self.label, LabelCondition) else self.label

    @property
    def time_column(self) -> str | None:
        """Return the name of the column of the rows' times."""
        return self.time.column if isinstance(self.time, TimeColumn) else self.time

    @property
    def unneeded_columns(self) -> tuple[str, ...]:
        """Return the columns of the label and of roles, and those of `ignore`."""
        roles = (self.label_column, self.weight, self.group, self.candidate, self.time_column)
        return (*(name for name in roles if name is not None), *self.ignore)

    def is_ignored(self, name: str) -> bool:
        """Return whether a column is in `ignore`."""
        return any(matches(name, pattern) for pattern in self.ignore)

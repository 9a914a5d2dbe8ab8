"""The plan of a table's columns: what is read, what becomes a feature, what is looked up (`column_plan` makes it)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rayrec.config.preprocess import SplitConfig, TimeSplitConfig
from rayrec.config.table import (
    CategoricalRule,
    FitStandardize,
    HistoryConfig,
    ListRule,
    NumericRule,
    NumericStep,
    Rule,
    TableSourceConfig,
    VectorRule,
)
from rayrec.config.transforms import Elapsed
from rayrec.features.raw_columns import History, ListLength, Rate, RawColumn, SideTable
from rayrec.raw.table_reader import TableFiles, TableReader

MODULE_ATTRIBUTES = frozenset({
    "T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "clear", "compile",
    "cpu", "cuda", "double", "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer",
    "get_extra_state", "get_parameter", "get_submodule", "half", "ipu", "items", "keys", "load_state_dict", "modules",
    "mtia", "named_buffers", "named_children", "named_modules", "named_parameters", "parameters", "pop",
    "register_backward_hook", "register_buffer", "register_forward_hook", "register_forward_pre_hook",
    "register_full_backward_hook", "register_full_backward_pre_hook", "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook", "register_module", "register_parameter", "register_state_dict_post_hook",
    "register_state_dict_pre_hook", "requires_grad_", "set_extra_state", "set_submodule", "share_memory",
    "state_dict", "to", "to_empty", "train", "training", "type", "update", "values", "xpu", "zero_grad",
})  # fmt: skip
"""What torch's modules use for themselves; embedding tables are modules named as their features."""


@dataclass(frozen=True)
class PlannedFeature:
    """A feature before anything is fitted."""

    name: str
    inputs: tuple[str, ...]
    """The raw columns that it reads, of a list the values before their weights; of a cross, the features."""
    rule: Rule
    where: str
    """The rule's key in the recipe, for messages."""
    part: Literal["", "hour", "weekday", "day", "month", "age"] = ""
    """What is derived of a time."""
    has_ids: bool = False
    """Whether its values are ids, integers below a cardinality."""

    @property
    def steps(self) -> tuple[NumericStep | Elapsed, ...] | None:
        """Transforms of a number, some of them to be fitted; None if it is no number."""
        if isinstance(self.rule, NumericRule):
            return self.rule.transforms
        return (Elapsed(per="day"), FitStandardize()) if self.part == "age" else None

    @property
    def shares(self) -> str | None:
        """Feature whose table it reads; None if it has one of its own."""
        return self.rule.share if isinstance(self.rule, (CategoricalRule, ListRule)) else None

    @property
    def is_one_id(self) -> bool:
        """Return whether it is a category with one id in each row."""
        return self.steps is None and not isinstance(self.rule, (ListRule, VectorRule))


@dataclass(frozen=True)
class KeptColumn:
    """A column that says something of the row, kept in the dataset."""

    role: Literal["weight", "group", "candidate"]
    column: str
    """The name of the column in the files."""
    name: str
    """The name of the column in the dataset, which no raw column and no feature has."""


@dataclass(frozen=True)
class ColumnPlan:
    """Columns that are read, and the features that they become."""

    read: tuple[RawColumn, ...]
    """The columns of the files to read, without the label, in the order of the files."""
    columns: tuple[RawColumn, ...]
    """The raw columns of a request: those that features are computed from or looked up by, and those looked up."""
    tables: tuple[SideTable, ...]
    rates: tuple[Rate, ...]
    """The rates of the label to look up; the mean that they state is not known yet."""
    histories: tuple[tuple[History, HistoryConfig], ...]
    """What is taken of earlier events, and how these are read."""
    event_columns: tuple[str, ...]
    """The columns of the files, beside those of requests, that events of the log have."""
    features: tuple[PlannedFeature, ...]
    """The features in the order of the schema: crosses are last."""
    label: str
    """The column of the label."""
    time: str | None
    """The column of the rows' times."""
    kept: tuple[KeptColumn, ...]
    """The columns that the dataset has beside label and features."""

    @property
    def list_lengths(self) -> tuple[ListLength, ...]:
        """Return how long lists of numbers must be: those of vectors, and of weights."""
        vectors = (ListLength(f.inputs[0], f.rule.size) for f in self.features if isinstance(f.rule, VectorRule))
        weights = (f.inputs for f in self.features if isinstance(f.rule, ListRule) and f.rule.weights is not None)
        return (*vectors, *(ListLength(column, values) for values, column in weights))

    def reader(self, log: TableFiles, source: TableSourceConfig, split: SplitConfig) -> TableReader:
        """Return the reader of the rows. Raises UserError as `TableFiles.reader`."""
        by_time = self.time if self.histories or isinstance(split, TimeSplitConfig) else None
        required = [name for name in (source.group, source.candidate, by_time) if name is not None]
        return log.reader(
            self.read,
            source.label,
            weight=source.weight,
            required=required,
            list_lengths=self.list_lengths,
        )


def rate_column(keys: Iterable[str]) -> str:
    """Return the name of the raw column and of the feature for the rate of a key."""
    return f"rate_{'_'.join(keys)}"


def can_name_a_table(name: str) -> bool:
    """Tell whether an embedding table, a module of torch, can have this name."""
    return bool(name) and "." not in name and name not in MODULE_ATTRIBUTES

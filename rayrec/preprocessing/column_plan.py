"""Decides what a job reads of a table's columns and which features it makes of them, from the config and their names.

Everything that is wrong with the columns is found here, before Spark starts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.config.base import NumberFormat
from rayrec.config.preprocess import ColumnSplitConfig, HashSplitConfig, SplitConfig, TimeSplitConfig
from rayrec.config.table import (
    BucketsRule,
    CategoricalRule,
    CrossRule,
    HistoryConfig,
    LabelCondition,
    ListRule,
    NumericRule,
    Rule,
    TableSourceConfig,
    TimeColumn,
    TimestampRule,
    VectorRule,
    matches,
)
from rayrec.features.raw_columns import History, Rate, RawColumn, SideTable, Taken
from rayrec.preprocessing.history_plan import (
    default_rule,
    event_columns,
    events_of_rate,
    plan_history,
    plan_rate_in_time,
    with_fields,
)
from rayrec.preprocessing.planned_columns import ColumnPlan, KeptColumn, PlannedFeature, can_name_a_table, rate_column

_FROM_INTEGERS = {"integer": ("number", "text"), "integers": ("numbers", "texts")}
_LISTS = {"number": "numbers", "integer": "integers", "text": "texts"}
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def plan_columns(
    config: TableSourceConfig, split: SplitConfig, columns: Sequence[str], tables: Mapping[str, Sequence[str]]
) -> ColumnPlan:
    """Plan the columns of files; `tables`: the columns of each side table. Raises ConfigError naming key and fix."""
    return _Planner(config, split, columns, tables).plan()


@dataclass
class _Planner:
    config: TableSourceConfig
    split: SplitConfig
    columns: Sequence[str]
    tables: Mapping[str, Sequence[str]]
    wanted: dict[str, tuple[RawColumn, str]] = field(default_factory=dict)
    """How a raw column is read, and the key in the recipe that wants it so."""
    features: list[PlannedFeature] = field(default_factory=list)
    past: dict[str, Taken] = field(default_factory=dict)
    """The columns that histories give."""

    def plan(self) -> ColumnPlan:
        config = self.config
        self.available = self._all_columns()
        # Every column is a role of the row, a key of look-ups, the input of a feature, or ignored by name.
        roles, keys = self._roles(), self._keys()
        label = config.label_column
        weights = {rule.weights for rule in config.features if isinstance(rule, ListRule) and rule.weights is not None}
        taken = self._match_rules({label, *roles.values(), *weights}, label)
        of_log = [past for past in config.histories.values() if past.path is None]
        of_past = dict.fromkeys(name for past in of_log for name in event_columns(past, label))
        used = {*taken, label, *roles.values(), *keys, *weights, *of_past, *self.past}
        if unmatched := [name for name in self.available if name not in used and not self.config.is_ignored(name)]:
            more = f" (and {len(unmatched) - 1} more: {', '.join(unmatched[1:6])})" if len(unmatched) > 1 else ""
            _fail(
                "source.features",
                f"no rule matches column '{unmatched[0]}'{more}; add a rule, or list it in source.ignore",
            )
        # The rules have said how they read their columns; roles and keys have a say, too, and `_want` compares.
        for role, name in roles.items():
            match role:
                case "time":
                    self._want(self._time_column(), "source.time")
                case "weight":
                    self._want(RawColumn(name=name, type="number"), "source.weight")
                case "split":
                    self._want(RawColumn(name=name, type="text"), "preprocess.split.column")
                case _:
                    self._want(RawColumn(name=name, type="text"), f"source.{role}")
        rates, histories = self._plan_rates()
        histories = (*self._plan_histories(), *histories)
        inputs = [name for feature in self.features if feature.rule.kind != "cross" for name in feature.inputs]
        of_rates = {key for rate in rates for key in rate.keys}
        of_rates |= {key for history, _ in histories for key in history.keys}
        for key, where in keys.items():
            # A number that is also a feature is a key of rates as it is.
            if key not in of_rates or key not in self.wanted or self.wanted[key][0].type != "number":
                self._want(RawColumn(name=key, type="text"), where)
        tables = self._plan_tables({*inputs, *keys, *of_past})
        self._check_shares()
        self._check_crosses()
        wanted = {name: column for name, (column, _) in self.wanted.items()}
        histories = tuple((with_fields(history, past, wanted, config), past) for history, past in histories)
        for history, _ in histories:
            if history.events_name in self.available:
                _fail("source.histories", f"'{history.events_name}' is a column, too; rename history '{history.name}'")
        # A request has what features are computed from or looked up by. Rates are looked up, never read.
        of_label = (rate_column(rate.keys) for rate in config.rates)
        looked_up = {name: RawColumn(name=name, type="number") for name in of_label}
        times = [history.time for history, _ in histories]
        # Events of the log have columns of side tables as rows have them: looked up.
        of_tables = [name for name in of_past if self.available[name]]
        in_requests = dict.fromkeys((*inputs, *keys, *times, *of_tables))
        # What the dataset keeps beside the features must not have the name of one.
        taken_names = {*inputs, *keys, *(feature.name for feature in self.features)}
        kept: list[KeptColumn] = []
        for of_row in ("weight", "group", "candidate"):
            if of_row in roles:
                name = roles[of_row]
                free = name if name not in {*taken_names, *(other.name for other in kept)} else f"{name}_{of_row}"
                kept.append(KeptColumn(of_row, name, free))
        self._check_names(label, kept)
        return ColumnPlan(
            read=tuple(self.wanted[name][0] for name in self.columns if name in self.wanted),
            columns=tuple(looked_up[name] if name in looked_up else self.wanted[name][0] for name in in_requests),
            tables=tables,
            rates=rates,
            histories=histories,
            event_columns=tuple(name for name in of_past if name not in in_requests),
            features=tuple(sorted(self.features, key=lambda feature: isinstance(feature.rule, CrossRule))),
            label=label,
            time=roles.get("time"),
            kept=tuple(kept),
        )

    # --- the columns that there are

    def _all_columns(self) -> dict[str, str]:
        """Return all columns that rules can match, in order, with the side table that each comes from, or ''."""
        found = dict.fromkeys(self.columns, "")
        if len(found) < len(self.columns):
            twice = next(name for name in self.columns if list(self.columns).count(name) > 1)
            _fail("input", f"two columns are named '{twice}'; rename one, or name them all in source.header")
        for table, names in self.tables.items():
            given = self.config.tables[table]
            if given.key not in names:
                self._unknown(f"source.tables.{table}.key", given.key, names)
            for name in names:
                if name == given.key:
                    continue
                if f"{table}_{name}" in found:
                    _fail(f"source.tables.{table}", f"two columns are named '{table}_{name}'; rename the table")
                found[f"{table}_{name}"] = table
        for history, config in self.config.histories.items():
            takes = plan_history(history, config, "").takes
            for taken in takes:
                where = f"source.histories.{history}"
                if self.past.get(taken.column) in takes:
                    _fail(f"{where}.take", f"'{taken.column}' is taken twice; remove one")
                if taken.column in found:
                    _fail(where, f"two columns are named '{taken.column}'; rename the history")
                found[taken.column] = ""
                self.past[taken.column] = taken
        return found

    def _roles(self) -> dict[str, str]:
        """Return the columns with a role beside the label's."""
        config, split = self.config, self.split
        time = config.time_column
        roles = {"weight": config.weight, "group": config.group, "candidate": config.candidate, "time": time}
        places = {role: f"source.{role}" for role in roles} | {"split": "preprocess.split.column"}
        match split:
            case TimeSplitConfig() if time is None:
                _fail("preprocess.split", "kind 'time' needs a column with the time of each row; add source.time")
            case ColumnSplitConfig() | HashSplitConfig():
                roles["split"] = split.column
        given = {role: name for role, name in roles.items() if name is not None}
        label = config.label_column
        self._known("source.label", label)
        for role, name in given.items():
            self._known(places[role], name)
            if name == label:
                _fail(places[role], f"column '{name}' is the label; name another column")
        return given

    def _keys(self) -> dict[str, str]:
        """Return the columns that side tables and rates are looked up by, and the key in the recipe that says so."""
        config = self.config
        found: dict[str, str] = {}
        for name, table in config.tables.items():
            where = f"source.tables.{name}.on"
            self._known(where, table.on or table.key)
            found[table.on or table.key] = where
        for number, rate in enumerate(config.rates):
            for key in rate.keys:
                where = f"source.rates.{number}.keys"
                if key not in self.available:
                    self._unknown(where, key, self.available)
                found[key] = where
        for history, past in config.histories.items():
            for key in past.by:
                where = f"source.histories.{history}.by"
                self._known_of_events(where, key)
                found[key] = where
        for name, where in found.items():
            if name == self.config.label_column:
                _fail(where, f"column '{name}' is the label; name another column")
        return found

    def _known(self, where: str, name: str) -> None:
        if name not in self.columns:
            self._unknown(where, name, self.columns)

    def _known_of_events(self, where: str, name: str) -> None:
        """Raise ConfigError unless events of the log have the column: of the files, or of a side table."""
        if name not in self.available or name in self.past:
            self._unknown(where, name, [known for known in self.available if known not in self.past])

    def _unknown(self, where: str, name: str, known: Iterable[str]) -> NoReturn:
        is_row = any(_NUMBER.fullmatch(column) for column in known)
        header = "; if their first line is a row, list the column names as `header`" if is_row else ""
        _fail(where, f"the files have no column '{name}'; {did_you_mean(name, known, 'they have')}{header}")

    # --- rules

    def _match_rules(self, roles: set[str], label: str) -> set[str]:
        """Make the features of all rules; return the columns that they read.

        Patterns leave out columns that say something of the row (`roles`) and ignored ones.
        """
        matched: dict[str, int] = {}
        read: set[str] = set()
        for number, rule in enumerate(self.config.features):
            where = f"source.features.{number}"
            if isinstance(rule, CrossRule):
                self.features.append(PlannedFeature(rule.name or "_x_".join(rule.of), rule.of, rule, where))
                continue
            columns = self._columns_of(rule, where, matched, roles, label)
            if rule.name is None:
                matched |= dict.fromkeys(columns, number)
            read.update(columns)
            for column in columns:
                self._add(rule, column, where)
        return read

    def _columns_of(self, rule: Rule, where: str, matched: Mapping[str, int], roles: set[str], label: str) -> list[str]:
        """Return the columns that a rule decides on."""
        assert not isinstance(rule, CrossRule)
        if rule.name is not None and (len(rule.columns) != 1 or rule.columns[0] not in self.available):
            self._known_feature_column(where, rule.columns[0])
            _fail(f"{where}.name", "only a rule of one column can have a name; name one column")
        columns: list[str] = []
        for entry in rule.columns:
            if entry in self.available:
                if entry == label:
                    _fail(where, f"column '{entry}' is the label; a feature made from it would give away the answer")
                if rule.name is None and entry in matched:
                    earlier = self.config.features[matched[entry]]
                    assert not isinstance(earlier, CrossRule)
                    if entry in earlier.columns:
                        fix = "remove one, or give one a `name` to keep both"
                    else:
                        fix = "put this rule before that one"
                    _fail(where, f"column '{entry}' is also matched by source.features.{matched[entry]}; {fix}")
                if rule.name is None and self.config.is_ignored(entry):
                    _fail(where, f"column '{entry}' is also in source.ignore; remove one, or give the feature a `name`")
                if entry in columns:
                    _fail(where, f"column '{entry}' is named twice; remove one")
                columns.append(entry)
                continue
            self._known_feature_column(where, entry)
            columns += [
                name
                for name in self.available
                if matches(name, entry)
                and name not in {*matched, *columns, *roles, *self.past}
                and not self.config.is_ignored(name)
            ]
        if not columns:
            if any(matches(name, entry) for name in self.past for entry in rule.columns):
                _fail(where, "a pattern matches no columns of histories, which have rules anyway; name them in full")
            _fail(where, "earlier rules, roles, weights and source.ignore take all columns that it matches; remove it")
        return columns

    def _known_feature_column(self, where: str, entry: str) -> None:
        if not any(matches(name, entry) for name in self.available):
            is_pattern = "*" in entry or "?" in entry
            what = f"no column matches '{entry}'" if is_pattern else f"the files have no column '{entry}'"
            _fail(where, f"{what}; {did_you_mean(entry, self.available, 'they have')}")

    def _add(self, rule: Rule, column: str, where: str) -> None:
        """Make the features of a column, and say how it is read."""
        assert not isinstance(rule, CrossRule)
        if isinstance(rule, ListRule) and rule.keep is None:
            is_in_time = self.config.time is not None
            rule = rule.model_copy(update={"keep": "last" if is_in_time else "first"})
        name, has_ids = rule.name or column, False
        inputs: tuple[str, ...] = (column,)
        match rule:
            case TimestampRule():
                self._want(
                    RawColumn(name=column, type="time", time_format=rule.format, zone=rule.zone),
                    where,
                    rule.number_format,
                )
                for part in rule.derive:
                    if part == "age" and self.config.time is None:
                        _fail(f"{where}.derive", "'age' needs the time of the row; add source.time")
                    read = (self._time_column().name, column) if part == "age" else inputs
                    self.features.append(PlannedFeature(f"{name}_{part}", read, rule, where, part))
                return
            case NumericRule() | BucketsRule():
                wanted = RawColumn(name=column, type="number")
            case VectorRule():
                wanted = RawColumn(name=column, type="numbers", separator=rule.separator)
            case CategoricalRule() | ListRule():
                has_ids = self._owner(rule).cardinality is not None
                value = "integer" if has_ids else "text"
                separator = rule.separator if isinstance(rule, ListRule) else None
                kind = _LISTS[value] if isinstance(rule, ListRule) else value
                wanted = RawColumn.model_validate({"name": column, "type": kind, "separator": separator})
                if isinstance(rule, ListRule) and rule.weights is not None:
                    inputs = (column, rule.weights)
                    self._want_weights(*inputs, separator, f"{where}.weights")
        self._want(wanted, where, rule.number_format)
        self.features.append(PlannedFeature(name, inputs, rule, where, has_ids=has_ids))

    def _want_weights(self, values: str, weights: str, separator: str | None, where: str) -> None:
        if weights not in self.available:
            self._unknown(where, weights, self.available)
        if weights == self.config.label_column:
            _fail(where, f"column '{weights}' is the label; name another column")
        if self.available[weights] != self.available[values]:
            _fail(where, f"column '{weights}' is not in the files of '{values}'; name a column of the same files")
        self._want(RawColumn(name=weights, type="numbers", separator=separator), where)

    def _owner(self, rule: CategoricalRule | ListRule) -> CategoricalRule | ListRule:
        """Return the rule that lists the values of a feature: its own, or that of the feature it shares."""
        if rule.share is None:
            return rule
        for other in self.config.features:
            if not isinstance(other, (CategoricalRule, ListRule)):
                continue
            for name in (other.name,) if other.name else other.columns:
                if matches(rule.share, name):
                    return other
        return rule  # `_check_shares` says what is wrong

    # --- how columns are read

    def _time_column(self) -> RawColumn:
        time = self.config.time
        assert time is not None
        if isinstance(time, TimeColumn):
            return RawColumn(name=time.column, type="time", time_format=time.format, zone=time.zone)
        for rule in self.config.features:
            if isinstance(rule, TimestampRule) and time in rule.columns:
                return RawColumn(name=time, type="time", time_format=rule.format, zone=rule.zone)
        return RawColumn(name=time, type="time")

    def _want(self, column: RawColumn, where: str, number_format: NumberFormat | None = None) -> None:
        """Read a column so. Raises ConfigError if another key wants it otherwise.

        A column that is wanted as integers and as numbers or texts is read as integers. What a rule says of its numbers
        counts in all places; texts are numbers only where one does.
        """
        table = self.available.get(column.name)
        files = self.config.tables[table] if table else self.config
        if column.name in self.wanted:
            of_files = self.wanted[column.name][0].number_format
        else:
            of_files = "plain" if column.type in ("text", "texts") else files.number_format
        update = {"null_values": files.null_words, "number_format": number_format or of_files}
        column = column.model_copy(update=update)
        before, place = self.wanted.setdefault(column.name, (column, where))
        for one, other, key in ((before, column, place), (column, before, where)):
            if other.type in _FROM_INTEGERS.get(one.type, ()) and one.separator == other.separator:
                self.wanted[column.name] = (one, key)
                return
        if before != column:
            _fail(
                where,
                f"column '{column.name}' would be read as {_described(column, before)} here and as "
                f"{_described(before, column)} in {place}; a column can be read in one way only, so change one of them",
            )

    def _plan_rates(self) -> tuple[tuple[Rate, ...], tuple[tuple[History, HistoryConfig], ...]]:
        """Return the label rates of a log without times, and those of earlier rows in one with times."""
        rates, in_time = list[Rate](), list[tuple[History, HistoryConfig]]()
        for number, rate in enumerate(self.config.rates):
            name, where = rate_column(rate.keys), f"source.rates.{number}"
            if name in self.available:
                _fail(where, f"the rate would be named '{name}', like a column; rename the column")
            if name in self.config.histories:
                _fail(where, f"the rate would be named '{name}', like a history; rename the history")
            rule = NumericRule(columns=(name,), transforms=rate.transforms)
            self.features.append(PlannedFeature(name, (name,), rule, where))
            if self.config.time_column is not None:
                in_time.append((plan_rate_in_time(name, rate, self.config.time_column), events_of_rate(rate)))
            else:
                rates.append(Rate(name=name, keys=rate.keys, smoothing=rate.smoothing, mean=0.0))
        return tuple(rates), tuple(in_time)

    def _plan_histories(self) -> tuple[tuple[History, HistoryConfig], ...]:
        """Say how the columns of events are read, and make features of what is taken of them."""
        time, histories = self.config.time_column, []
        for name, given in self.config.histories.items():
            assert time is not None
            where, config = f"source.histories.{name}", given
            if config.where is not None and config.path is None:
                config = self._with_condition(config, config.where, f"{where}.where")
            history = plan_history(name, config, time)
            for number, take in enumerate(config.take):
                column, place = getattr(take, "column", None), f"{where}.take.{number}.column"
                if column is None or config.path is not None:
                    continue
                if column == self.config.label_column:
                    _fail(place, f"column '{column}' is the label; leave it out of a rate, which is of the label")
                self._known_of_events(place, column)
                if take.op != "last":
                    self._want(RawColumn(name=column, type="number"), place)
                elif column not in self.wanted:
                    self._want(RawColumn(name=column, type="text"), place)
                elif (kind := self.wanted[column][0].type) not in ("text", "integer", "number"):
                    what = "a time" if kind == "time" else "a list itself"
                    _fail(place, f"column '{column}' is {what}; take the last values of a column of categories")
            named = {column for feature in self.features for column in feature.inputs}
            for taken in history.takes:
                if taken.column not in named and not self.config.is_ignored(taken.column):
                    self._add(default_rule(taken, self._table_of(taken.of)), taken.column, where)
                kinds = ("texts", "integers") if taken.op == "last" else ("number",)
                if taken.column in self.wanted and self.wanted[taken.column][0].type not in kinds:
                    what = "a list of values" if taken.op == "last" else "a number"
                    _fail(self.wanted[taken.column][1], f"column '{taken.column}' is {what}; change the rule's kind")
            used = {column for feature in self.features for column in feature.inputs}
            takes = tuple(taken for taken in history.takes if taken.column in used)
            if not takes:
                _fail(where, "source.ignore has all of its columns; remove the history, or ignore fewer of them")
            histories.append((history.model_copy(update={"takes": takes}), config))
        return tuple(histories)

    def _with_condition(self, config: HistoryConfig, where: LabelCondition, place: str) -> HistoryConfig:
        """Say how the column of a condition on events of the log is read; one on the label is of 0 and 1."""
        self._known_of_events(place, where.column)
        if where.column != self.config.label_column:
            self._want(RawColumn(name=where.column, type="number" if where.at_least is not None else "text"), place)
        elif isinstance(self.config.label, LabelCondition):
            if where != self.config.label:
                _fail(
                    place, f"column '{where.column}' is the label, of which only source.label is known; give the same"
                )
            return config.model_copy(update={"where": LabelCondition(column=where.column, at_least=1.0)})
        return config

    def _table_of(self, column: str | None) -> str | None:
        """Return the feature whose table lists the values of a column."""
        for feature in self.features:
            if feature.inputs == (column,) and isinstance(feature.rule, CategoricalRule):
                return feature.rule.share or feature.name
        return None

    def _plan_tables(self, used: set[str]) -> tuple[SideTable, ...]:
        tables = []
        for name, table in self.config.tables.items():
            columns = tuple(column for column, owner in self.available.items() if owner == name and column in used)
            if not columns:
                _fail(
                    f"source.tables.{name}",
                    "no feature reads a column of it; remove the table, or ignore fewer of its columns",
                )
            tables.append(SideTable(name=name, key=table.on or table.key, columns=columns))
        return tuple(tables)

    # --- what features say of each other

    def _check_shares(self) -> None:
        by_name = {feature.name: feature for feature in self.features}
        for feature in self.features:
            rule = feature.rule
            if not isinstance(rule, (CategoricalRule, ListRule)) or rule.share is None:
                continue
            where, owner = f"{feature.where}.share", by_name.get(rule.share)
            if owner is None:
                _fail(where, f"no feature '{rule.share}'; {did_you_mean(rule.share, by_name, 'there are')}")
            if not isinstance(owner.rule, (CategoricalRule, ListRule)):
                _fail(
                    where,
                    f"feature '{rule.share}' is {owner.rule.kind}, which has no vocabulary; name a categorical one",
                )
            if owner.rule.share is not None:
                _fail(where, f"feature '{rule.share}' itself shares '{owner.rule.share}'; share that one")

    def _check_crosses(self) -> None:
        by_name: dict[str, PlannedFeature] = {}
        for feature in sorted(self.features, key=lambda feature: isinstance(feature.rule, CrossRule)):
            if isinstance(feature.rule, CrossRule):
                for name in feature.rule.of:
                    if name not in by_name:
                        nearest = did_you_mean(name, by_name, "features before it are")
                        _fail(f"{feature.where}.of", f"no feature '{name}' before it; {nearest}")
                    if not by_name[name].is_one_id:
                        _fail(
                            f"{feature.where}.of",
                            f"feature '{name}' is {by_name[name].rule.kind}, but a cross needs one category a row; "
                            "make it categorical or buckets",
                        )
            by_name[feature.name] = feature

    def _check_names(self, label: str, kept: Sequence[KeptColumn]) -> None:
        taken = {label: "source.label", **{column.name: f"source.{column.role}" for column in kept}}
        for feature in self.features:
            name = feature.name
            if name in taken:
                _fail(
                    feature.where,
                    f"two columns of the dataset would be named '{name}' (also {taken[name]}); give one another `name`",
                )
            taken[name] = feature.where
            if feature.steps is None and not can_name_a_table(name):
                _fail(
                    feature.where,
                    f"'{name}' cannot name an embedding table; list the column in source.ignore and give the feature "
                    "a `name` without dots" + (" that torch does not use itself" if "." not in name else ""),
                )


def _described(column: RawColumn, other: RawColumn) -> str:
    """Return how a column is read, in as many words as tell it from `other`."""
    if column.type != other.type:
        return column.type
    if column.separator != other.separator:
        return f"{column.type} with separator {column.separator!r}"
    if column.number_format != other.number_format:
        return f"{column.type} with number_format {column.number_format!r}"
    return f"{column.type} in format {column.time_format} and zone {column.zone}"


def _fail(where: str, message: str) -> NoReturn:
    raise ConfigError(f"{where}: {message}")

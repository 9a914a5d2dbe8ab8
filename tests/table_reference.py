"""What the job of tables must give, computed in pandas and NumPy from a recipe and whole columns.

It shares the hashes with rayrec (of texts, of ids), whose values are part of the format, and no
other code. A column of very many distinct numbers has quantiles by ranges (docs/preprocessing.md): those are compared
with the exact ones here, and then taken as they are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from rayrec.config.transforms import Buckets, Quantile
from rayrec.features.hashes import hash_key, hash_string
from rayrec.features.schema import CategoricalFeature, NumericFeature
from rayrec.ingest.dataset import Dataset
from tests.dataset_cells import compare_features, compare_identifiers, read_rows

_EXACT_VALUES = 16_384
"""A column with more distinct values has quantiles by ranges."""
_RANGE_WIDTH = 1e-3
"""Of a range, relative to its values."""
Rule = Mapping[str, Any]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Compared(NamedTuple):
    """What was compared, all of it equal."""

    rows: int
    cells: int
    last_bit: dict[str, int]
    """How many numbers differ in the last bit of a float32, by feature."""


@dataclass(frozen=True)
class TableReference:
    """What a dataset of a log with a weight, a group and a candidate must hold; rows go by their number in the log."""

    source: Rule
    """The section `source` of the recipe."""
    split: Rule
    """A split by time, in days."""
    frequency_limit: int
    log: Path
    """The folder of the log's Parquet files."""
    side_tables: Mapping[str, pa.Table]
    dataset: Dataset
    """What rayrec made; of it only approximate quantiles are read for features."""
    _vocabularies: dict[str, dict[str, int]] = field(default_factory=dict)

    def compare(self, parts: Mapping[str, int]) -> Compared:
        """Compare the dataset: which rows are in each split, and every column of all of them, or of the first `parts`.

        Raises AssertionError naming a column that differs.
        """
        found = []
        for split, rows in self.splits.items():
            numbers = read_rows(self.dataset, split, ["row"])["row"].to_numpy().astype(np.int64)
            assert np.array_equal(np.sort(numbers), rows), f"rows of {split}"
            found.append(read_rows(self.dataset, split, parts=parts.get(split)))
        held = pa.concat_tables(found)
        rows = held["row"].to_numpy().astype(np.int64)
        features = self.of(rows)
        schema = self.dataset.schema
        assert sorted(features) == sorted(feature.name for feature in schema.features)
        assert set(held.column_names) == {*schema.other_columns, *features}
        roles = {schema.label: self.labels[rows], schema.weight: self.numbers(self.source["weight"])[rows]}
        last_bit = compare_features(held, {**roles, **features})
        for role in ("group", "candidate"):
            texts = self.texts(self.source[role]).iloc[rows]
            compare_identifiers(held[getattr(schema, role)].combine_chunks(), texts)
        for table in found:
            groups = table[schema.group].to_numpy()
            assert 1 + (groups[1:] != groups[:-1]).sum() == len(np.unique(groups)), "groups are not together"
        return Compared(len(held), len(held) * held.num_columns, last_bit)

    # --- rows and columns

    @cached_property
    def splits(self) -> dict[str, Integers]:
        """The rows of each split, ascending, without bad ones."""
        weights = self.numbers(self.source["weight"])
        is_good = np.isfinite(weights) & (weights >= 0)
        for name in (self.source["label"]["column"], self.source["group"], self.source["candidate"]):
            is_good &= self.column(name).is_valid().to_numpy(zero_copy_only=False)
        for rule in (rule for rule in self.rules.values() if "weights" in rule):
            values, own = (pc.list_value_length(self.column(rule[key])) for key in ("column", "weights"))
            is_equal = pc.equal(own, pc.fill_null(values, 0))
            is_good &= pc.fill_null(is_equal, True).to_numpy(zero_copy_only=False)
        time = self.source["time"]
        times = self.times(time["column"], time)
        before_end = times[is_good].max() - times
        test, validation = (pd.Timedelta(self.split[name]) for name in ("test", "validation"))
        is_test, is_held_out = (before_end < test).to_numpy(), (before_end < test + validation).to_numpy()
        of_split = {"train": ~is_held_out, "validation": is_held_out & ~is_test, "test": is_test}
        return {split: np.flatnonzero(is_in & is_good) for split, is_in in of_split.items()}

    @property
    def train(self) -> Integers:
        return self.splits["train"]

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """By feature, or by column if several features are derived of it; with the column's name."""
        log = ds.dataset(self.log).schema.names
        side = [f"{table}_{name}" for table, held in self.side_tables.items() for name in held.column_names]
        found: dict[str, Rule] = {}
        for rule in self.source["features"]:
            if rule["kind"] == "cross":
                found[rule.get("name", "_x_".join(rule["of"]))] = rule
                continue
            for name in (
                name for pattern in _names(rule["columns"]) for name in [*log, *side] if fnmatchcase(name, pattern)
            ):
                found.setdefault(rule.get("name", name), {**rule, "column": name})
        for rate in self.source.get("rates", ()):
            name = f"rate_{'_'.join(_names(rate['keys']))}"
            found[name] = {"kind": "numeric", "column": name, "transforms": rate.get("transforms", ["standardize"])}
        return found

    def column(self, name: str) -> pa.Array:
        """Return a column of every row of the log, one of a side table as the row's key has it."""
        for table, held in self.side_tables.items():
            if name.startswith(f"{table}_") and name.removeprefix(f"{table}_") in held.column_names:
                config = self.source["tables"][table]
                keys = pd.Index(held[config["key"]].to_pandas())
                places = keys.get_indexer(self.texts(config["on"]))
                return held[name.removeprefix(f"{table}_")].combine_chunks().take(pa.array(places, mask=places < 0))
        return ds.dataset(self.log).to_table([name])[name].combine_chunks()

    def numbers(self, name: str) -> Floats:
        """Return a column of every row as float64, NaN where it is missing."""
        rates = {f"rate_{'_'.join(_names(rate['keys']))}": rate for rate in self.source.get("rates", ())}
        if name in rates:
            return self.rate(rates[name])
        return self.column(name).cast(pa.float64()).to_pandas().to_numpy(np.float64)

    def texts(self, name: str) -> "pd.Series[Any]":
        """Return a column of every row as text."""
        return self.column(name).cast(pa.string()).to_pandas()

    def times(self, name: str, rule: Rule) -> "pd.Series[Any]":
        """Return a column of every row as UTC."""
        values, form = self.column(name), rule.get("format", "iso")
        if pa.types.is_timestamp(values.type):
            return values.to_pandas()
        if form == "ms":
            return pd.Series(values.cast(pa.timestamp("ms", "UTC")).to_pandas())
        local = pd.to_datetime(values.to_pandas(), format=form)
        zone = rule.get("zone", "UTC")
        is_summer = np.ones(len(local), bool)  # of a time that there is twice, the first
        return local.dt.tz_localize(zone, ambiguous=is_summer, nonexistent="shift_forward").dt.tz_convert("UTC")

    @cached_property
    def labels(self) -> NDArray[np.bool_]:
        """The label of every row."""
        label = self.source["label"]
        return self.numbers(label["column"]) >= label["at_least"]

    def rate(self, rate: Rule) -> Floats:
        """Return for every row the rate of the label by keys in the rows before it, NaN where there is none."""
        keys = pd.DataFrame({name: self.texts(name) for name in _names(rate["keys"])})
        key = keys.groupby(list(keys), sort=False).ngroup().fillna(-1).to_numpy(np.int64)  # -1 if one is missing
        time = self.source["time"]
        rows = pd.DataFrame({"key": key, "time": self.times(time["column"], time), "label": self.labels.astype(float)})
        rows["minute"], rows["row"] = rows["time"].dt.floor("min"), np.arange(len(rows))
        events = rows.iloc[np.concatenate(list(self.splits.values()))].query("key >= 0")

        def up_to(by: list[str], on: str) -> pd.DataFrame:
            counted = events.groupby([*by, on]).label.agg(["size", "sum"]).sort_index(level=on)
            running = counted.groupby(by).cumsum() if by else counted.cumsum()
            asked = rows[["row", *by, on]].sort_values(on)
            found = pd.merge_asof(asked, running.reset_index(), on=on, by=by or None, allow_exact_matches=False)
            return found.set_index("row").sort_index().fillna({"size": 0, "sum": 0})

        of_key, of_all = up_to(["key"], "time"), up_to([], "minute")
        # Rows are added with the mean of all rows up to the last full minute, if there are any.
        added = np.where(of_all["size"] > 0, rate.get("smoothing", 20.0), 0.0)
        mean = np.where(of_all["size"] > 0, of_all["sum"] / of_all["size"], 0.0)
        with np.errstate(invalid="ignore"):
            return np.asarray((of_key["sum"] + added * mean) / (of_key["size"] + added))

    # --- features

    def of(self, rows: Integers) -> dict[str, Any]:
        """Return every feature of some rows: (n,) or (n, size) arrays, and lists of lists."""
        features: dict[str, Any] = {}
        for name, rule in self.rules.items():
            match rule["kind"]:
                case "numeric":
                    numbers = self.numbers(rule["column"])
                    features[name] = self._transformed(name, numbers, rule.get("transforms", ()))[rows]
                case "buckets":
                    features[name] = self._buckets(name, rule)[rows]
                case "categorical":
                    features[name] = self._ids(rule, self.column(rule["column"]).take(pa.array(rows)))
                case "list":
                    features[name] = self._lists(rule, self.column(rule["column"]).take(pa.array(rows)))
                    if "weights" in rule:
                        weights = self.column(rule["weights"]).take(pa.array(rows)).to_pylist()
                        features[name] = [
                            [
                                {"id": id_, "weight": 1.0 if of_row is None else of_row[place]}
                                for place, id_ in enumerate(ids, len(of_row or ()) - len(ids))
                            ]
                            for ids, of_row in zip(features[name], weights, strict=True)
                        ]
                case "timestamp":
                    features |= {part: values[rows] for part, values in self._times(name, rule).items()}
                case "vector":
                    features[name] = _vectors(self.column(rule["column"]).take(pa.array(rows)), rule)
        for name, rule in self.rules.items():
            if rule["kind"] == "cross":
                together = [features[other].astype(np.int64) for other in rule["of"]]
                hashes = hash_key(*together).view(np.uint64)
                ids = 1 + (hashes % np.uint64(rule["buckets"] - 1)).astype(np.int64)
                features[name] = np.where(np.logical_or.reduce(together), ids, 0)
        return features

    def _transformed(self, name: str, values: Floats, steps: Sequence[Any]) -> Floats:
        """Return the numbers of every row after a feature's transforms."""
        for step in ({"op": step} if isinstance(step, str) else step for step in steps):
            of_train = values[self.train]
            of_train = of_train[np.isfinite(of_train)]
            match step["op"]:
                case "log":
                    values = _logarithm(np.log, values + step.get("offset", 3.0))
                case "log2":
                    values = _logarithm(np.log2, 1.0 + step["scale"] * values)
                case "clip":
                    values = np.clip(values, step.get("min"), step.get("max"))
                case "fill" if step["value"] == "mean":
                    values = np.where(np.isnan(values), _mean(of_train), values)
                case "fill" if step["value"] == "median":
                    (median,) = self._quantiles(name, of_train, 2)
                    values = np.where(np.isnan(values), median, values)
                case "fill":
                    values = np.where(np.isnan(values), step["value"], values)
                case "standardize":
                    mean = _mean(of_train)
                    values = (values - mean) / math.sqrt(_mean((of_train - mean) ** 2))
                case "min_max":
                    low, high = of_train.min(), of_train.max()
                    values = np.clip((values - low) / (high - low), 0.0, 1.0)
                case "quantile":
                    inner = self._quantiles(name, of_train, step["count"])
                    values = _shares_below(values, np.array([of_train.min(), *inner, of_train.max()]))
        return values

    def _quantiles(self, name: str, of_train: Floats, count: int) -> Floats:
        """Return the values at 1/count, 2/count, ... of those of `train`."""
        exact = np.quantile(of_train, np.linspace(0.0, 1.0, count + 1)[1:-1])
        if len(np.unique(of_train)) <= _EXACT_VALUES:
            return exact
        (boundaries,) = (
            transform.boundaries if isinstance(transform, Buckets) else transform.boundaries[1:-1]
            for feature in self.dataset.schema.features
            if feature.name == name and isinstance(feature, NumericFeature | CategoricalFeature)
            for transform in feature.transforms
            if isinstance(transform, Buckets | Quantile)
        )
        fitted = np.array(boundaries)
        assert np.allclose(fitted, exact, rtol=_RANGE_WIDTH, atol=0.0), name
        return fitted

    def _buckets(self, name: str, rule: Rule) -> Integers:
        values = self.numbers(rule["column"])
        of_train = values[self.train]
        boundaries = rule.get("boundaries")
        if boundaries is None:
            boundaries = self._quantiles(name, of_train[np.isfinite(of_train)], rule["quantiles"])
        return np.where(np.isnan(values), 0, 1 + np.searchsorted(np.unique(boundaries), values, side="right"))

    def _times(self, name: str, rule: Rule) -> dict[str, Any]:
        times = self.times(rule["column"], rule)
        local = times.dt.tz_convert(rule.get("zone", "UTC"))
        parts = {
            "hour": local.dt.hour,
            "weekday": local.dt.weekday,
            "day": local.dt.day - 1,
            "month": local.dt.month - 1,
        }
        features: dict[str, Any] = {}
        for part in rule["derive"]:
            if part != "age":
                features[f"{name}_{part}"] = (parts[part] + 1).fillna(0).to_numpy(np.int64)
                continue
            time = self.source["time"]
            micros = (self.times(time["column"], time) - times) / pd.Timedelta("1us")
            ages = (micros / 86_400e6).to_numpy(np.float64)
            features[f"{name}_age"] = self._transformed(f"{name}_age", ages, ["standardize"])
        return features

    # --- categories

    def _ids(self, rule: Rule, values: pa.Array) -> Integers:
        """Return the ids of values, one each."""
        if self._owner(rule).get("cardinality") is not None:
            return values.cast(pa.int64()).fill_null(0).to_numpy()
        texts = values.cast(pa.string()).to_pandas()
        ids = {text: self._id(rule, text) for text in texts.dropna().unique()}
        return texts.map(ids).fillna(0).to_numpy(np.int64)

    def _lists(self, rule: Rule, values: pa.Array) -> list[list[int]]:
        most = rule.get("max_length", 16)
        lists = [row[-most:] if row else [] for row in values.to_pylist()]  # the newest, as rows have times
        if self._owner(rule).get("cardinality") is not None:
            return lists
        ids = {text: self._id(rule, text) for text in set(chain.from_iterable(lists))}
        return [[ids[text] for text in row] for row in lists]

    def _id(self, rule: Rule, text: str) -> int:
        owner = self._owner(rule)
        if "hash_buckets" in owner:
            return 1 + hash_string(text) % (owner["hash_buckets"] - 1)
        listed = self._vocabulary(owner["column"])
        buckets = owner.get("unlisted_buckets", 0)
        if text in listed:
            return int(buckets + listed[text])
        return 1 + hash_string(text) % buckets if buckets else 0

    def _owner(self, rule: Rule) -> Rule:
        return self.rules[rule["share"]] if "share" in rule else rule

    def _vocabulary(self, name: str) -> dict[str, int]:
        """Return the ids of a feature's values; those of features that share it are counted with its own."""
        if name not in self._vocabularies:
            rule = self.rules[name]
            sharing = [r["column"] for r in self.rules.values() if r.get("share") == name]
            if "values" in rule:
                ranked = rule["values"]
            else:
                counts = pd.concat(
                    [self._texts_of_train(column) for column in [rule["column"], *sharing]]
                ).value_counts()
                listed = counts[counts >= rule.get("min_count", self.frequency_limit)]
                in_order = sorted(listed.items(), key=lambda item: (-item[1], str(item[0]).encode()))
                ranked = [value for value, _ in in_order[: rule.get("max_size")]]
            self._vocabularies[name] = {value: place for place, value in enumerate(ranked, start=1)}
        return self._vocabularies[name]

    def _texts_of_train(self, name: str) -> "pd.Series[Any]":
        values = self.column(name).take(pa.array(self.train))
        values = values.flatten() if pa.types.is_list(values.type) else values
        return values.cast(pa.string()).drop_null().to_pandas()


def _names(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _mean(values: Floats) -> float:
    return math.fsum(values) / len(values)


def _logarithm(function: Any, values: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(values > 0.0, function(values), np.nan)


def _shares_below(values: Floats, boundaries: Floats) -> Floats:
    """The share of the way through ascending boundaries; at one that is there several times, the first counts."""
    last = len(boundaries) - 1
    first = np.searchsorted(boundaries, np.unique(boundaries))
    at_boundaries = pd.Series(first / last, index=np.unique(boundaries))
    above = np.clip(np.searchsorted(boundaries, values), 1, last)
    low, high = boundaries[above - 1], boundaries[above]
    with np.errstate(invalid="ignore", divide="ignore"):
        between = (above - 1 + (values - low) / (high - low)) / last
    shares = np.where(values > boundaries[-1], 1.0, np.where(values < boundaries[0], 0.0, between))
    exact = at_boundaries.reindex(values).to_numpy()
    return np.where(np.isnan(values), np.nan, np.where(np.isnan(exact), shares, exact))


def _vectors(lists: pa.Array, rule: Rule) -> NDArray[np.float32]:
    """(n, size) numbers; all 0 of a missing list."""
    rows = [row or [0.0] * rule["size"] for row in lists.to_pylist()]
    vectors = np.array(rows, np.float32)
    if rule.get("normalize"):
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        vectors = (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return vectors

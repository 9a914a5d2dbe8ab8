"""Rows, clicks and distinct ads of `train` by key, with the sums of each fold.

All parts of a key but the country and the landing document follow from a row's ad. So rows are counted by ad, by
country and ad, and by landing document and ad; these counts, of which there are far fewer, are then added up by key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.hashes import hash_key
from rayrec.features.table_parts import HASH, Numbers
from rayrec.preprocessing.engines.spark import spark_schema
from rayrec.preprocessing.lookups.label_rates import count_columns
from rayrec.preprocessing.runners.spark_runner import SparkRows, collect_rows, in_hash_ranges
from rayrec.preprocessing.scratch_rows import batch_of, frame_of_rows
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import rows_by_value
from rayrec.preprocessing.vocabularies.hash_ranges import (
    ROW_COUNT,
    range_count,
    row_count,
    write_sorted,
)
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.ad_rows import FOLD, AdRows
from rayrec.sources.outbrain.features.click_rates import keys_of
from rayrec.sources.outbrain.places import country_keys
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles
from rayrec.sources.outbrain.statistics import RATE_KEYS, RateKey, Statistics

_BY_AD, _BY_COUNTRY, _BY_LANDING = range(3)
"""Rows are counted by the ad alone, by country and ad, or by landing document and ad."""
_KEY_NUMBERS = {name: number for number, name in enumerate(RATE_KEYS)}
_KEPT_WHOLE = ("ad", "document")
"""Keys whose number of rows is a feature, however few the rows are."""
_COUNTS = ("views", "clicks")
_UNITS = 2.0**36
"""Confidences are added as integers, in multiples of 1 / _UNITS."""
_COUNTED = pa.schema(
    [
        ("kind", pa.int8()),
        ("ad", pa.int64()),
        ("other", pa.int64()),
        (FOLD, pa.int8()),
        ("views", pa.int64()),
        ("clicks", pa.int64()),
    ]
)


@dataclass(frozen=True)
class RateJob:
    """The rows that rates are computed from, and the keys."""

    train: RowFiles
    folds: int
    keys: tuple[RateKey, ...]
    statistics: Path
    """Folder that holds the tables of documents and ads."""

    @property
    def counted_by(self) -> set[int]:
        return {_counted_by(key) for key in self.keys}

    @property
    def sums(self) -> list[str]:
        """Columns of sums: of all rows, and of each fold."""
        return count_columns(_COUNTS, self.folds)

    @property
    def keyed_schema(self) -> pa.Schema:
        """Schema of counts by key and ad."""
        numbers = (HASH, "first", "second", "confidence", *self.sums)
        return pa.schema([("kind", pa.int8()), *((name, pa.int64()) for name in numbers)])

    def table_schema(self, key: RateKey) -> pa.Schema:
        """Return the schema of a key's table with the sums by fold."""
        return pa.schema([*key.schema, *(pa.field(name, pa.int64(), False) for name in self.sums[len(_COUNTS) :])])


def write_rates(workspace: Workspace, job: RateJob, folder: Path) -> None:
    """Write the tables of rates with the sums by fold, a folder for each key."""
    from pyspark.sql import functions as f

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        return _count_rows(segment, job.counted_by)

    def expand(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for kind in sorted(job.counted_by):
                part = batch.filter(pc.equal(batch["kind"], kind))
                if part.num_rows:
                    yield from _expand(part, kind, job)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = {_KEY_NUMBERS[key.name]: key for key in job.keys}
        for kind, run in rows_by_value(batches, "kind"):
            key = keys[kind]
            yield row_count(write_sorted(run, folder / key.name, job.table_schema(key), _with_mean_confidence))

    with frame_of_rows(workspace, "click-through rates", [(job.train.segments(), read)], _COUNTED) as counted:
        by_ad = SparkRows(counted).sum_by_fold(("kind", "ad", "other"), _COUNTS, FOLD, job.folds).frame
        keyed = by_ad.mapInArrow(expand, spark_schema(job.keyed_schema))
        by_key = keyed.groupBy("kind", HASH, "first", "second").agg(
            f.count("*").alias("ads"),
            # Integers, so that the sum does not depend on the order; a long would not hold that of all rows.
            f.sum(f.col("confidence").cast("decimal(38,0)")).cast("double").alias("confidence"),
            *(f.sum(name).alias(name) for name in job.sums),
        )
        # Keys with too few rows for a rate are left out.
        least = f.lit(0)
        for key in job.keys:
            if key.name not in _KEPT_WHOLE:
                least = f.when(f.col("kind") == _KEY_NUMBERS[key.name], f.lit(key.least)).otherwise(least)
        partitioned = in_hash_ranges(
            by_key.filter(f.col("views") > least), range_count(workspace.runner, job.train.rows)
        )
        ordered = partitioned.sortWithinPartitions("kind", HASH, "first", "second")
        collect_rows(ordered.mapInArrow(write, ROW_COUNT))


def _counted_by(key: RateKey) -> int:
    if key.with_country:
        return _BY_COUNTRY
    return _BY_LANDING if key.name == "document_pair" else _BY_AD


def _count_rows(segment: Segment, counted_by: set[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows and clicks of a segment by what they are counted by, ad and fold."""
    for batch in read_piece(segment.piece, ("ad_id", "document_id", "geo_location", FOLD, CLICKED), ()):
        others = {_BY_AD: pa.nulls(len(batch), pa.int64())}
        if _BY_COUNTRY in counted_by:
            country = country_keys(batch["geo_location"])
            others[_BY_COUNTRY] = pa.array(country.values, mask=~country.valid)
        if _BY_LANDING in counted_by:
            others[_BY_LANDING] = batch["document_id"]
        for kind, other in others.items():
            rows = pa.table({"ad": batch["ad_id"], "other": other, FOLD: batch[FOLD], "clicked": batch[CLICKED]})
            if kind != _BY_AD:
                rows = rows.filter(pc.is_valid(rows["other"]))
            by_key = rows.group_by(["ad", "other", FOLD], use_threads=False)
            counted = by_key.aggregate([("clicked", "count"), ("clicked", "sum")])
            counted = counted.rename_columns({"clicked_count": "views", "clicked_sum": "clicks"})
            kinds = pa.array(np.full(len(counted), kind, np.int8))
            yield from counted.append_column("kind", kinds).select(_COUNTED.names).cast(_COUNTED).to_batches()


class _CountedRows(AdRows):
    """Rows with the same ad, and perhaps the same country or landing document, as one."""

    @cached_property
    def country(self) -> Numbers:
        return self.numbers("country")


def _expand(batch: pa.RecordBatch, by: int, job: RateJob) -> Iterator[pa.RecordBatch]:
    """Yield the counts by ad, and perhaps another part -> counts by key and ad."""
    columns = {"ad_id": batch["ad"], "country": batch["other"], "document_id": batch["other"]}
    rows = _CountedRows(Statistics.cached(job.statistics), pa.RecordBatch.from_pydict(columns))
    for key in job.keys:
        if by != _counted_by(key):
            continue
        keys = keys_of(rows, key)
        valid = np.flatnonzero(keys.valid)
        parts = [part.values[valid] for part in keys.parts]
        first, second = [*parts, np.zeros(len(valid), np.int64)][:2]
        sums = batch.select(job.sums).take(pa.array(keys.owner[valid]))
        columns = {
            "kind": np.full(len(valid), _KEY_NUMBERS[key.name], np.int8),
            HASH: hash_key(*parts),
            "first": first,
            "second": second,
            "confidence": np.round(keys.confidence[valid] * _UNITS).astype(np.int64) * sums["views"].to_numpy(),
        }
        yield batch_of(job.keyed_schema, columns, sums)


def _with_mean_confidence(part: pa.RecordBatch) -> pa.RecordBatch:
    mean = part["confidence"].to_numpy() / (_UNITS * part["views"].to_numpy())
    return part.set_column(part.schema.get_field_index("confidence"), "confidence", pa.array(mean))

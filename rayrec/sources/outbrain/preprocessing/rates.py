"""Rows, clicks and distinct ads of train by key, with the sums of each fold.

What a key is made of follows from a row's ad, but for the country and the landing document. So rows are counted by ad,
by country and ad, and by landing document and ad, and these counts, of which there are far fewer, by key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.keyed_table import HASH, hash_key, write_file
from rayrec.features.mapped_columns import Numbers
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import rows_by_value, whole_groups
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, run_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import ROW_COUNT, in_hash_ranges, range_count, row_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.places import country_keys
from rayrec.sources.outbrain.features.rates import keys_of
from rayrec.sources.outbrain.features.rows import FOLD, Rows
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles
from rayrec.sources.outbrain.statistics import RATE_KEYS, RateKey, Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BY_AD, _BY_COUNTRY, _BY_LANDING = range(3)
"""What rows are counted by, beside the ad."""
_KEY_NUMBERS = {name: number for number, name in enumerate(RATE_KEYS)}
_KEPT_WHOLE = ("ad", "document")
"""Keys whose rows are a feature however few they are."""
_UNITS = 2.0**36
"""Confidences are added as integers of such parts."""
_BATCH_ROWS = 131_072


@dataclass(frozen=True)
class RateJob:
    """What the rates are taken of."""

    train: RowFiles
    folds: int
    keys: tuple[RateKey, ...]
    statistics: Path
    """Folder that holds documents and ads."""

    @property
    def counted_by(self) -> tuple[int, ...]:
        wanted = [_BY_AD]
        wanted += [_BY_COUNTRY] if any(key.with_country for key in self.keys) else []
        wanted += [_BY_LANDING] if RATE_KEYS["document_pair"] in self.keys else []
        return tuple(wanted)

    @property
    def sums(self) -> list[str]:
        """Columns of sums by fold."""
        return [f"{name}_{fold}" for name in ("views", "clicks") for fold in range(self.folds)]


def write_rates(workspace: Workspace, job: RateJob, folder: Path) -> None:
    """Write the tables of rates with the sums by fold, a folder a key."""
    from pyspark.sql import functions as f

    spark, segments = workspace.spark, job.train.segments()
    with counted_rows(spark, workspace.progress, "rates of clicks", job.train.rows) as counter:

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            yield from _count_rows(segment, job.counted_by)
            counter.add(segment.piece.rows)

        def expand(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for kind in job.counted_by:
                    part = batch.filter(pc.equal(batch["kind"], kind))
                    if part.num_rows:
                        yield from _expand(part, kind, job)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write(batches, job, folder)

        counted = frame_of_tasks(
            spark, segments, read, "kind byte, ad long, other long, fold byte, views long, clicks long"
        )
        by_ad = counted.groupBy("kind", "ad", "other").agg(*_sums_by_fold(job))
        sums = ", ".join(f"{name} long" for name in job.sums)
        keyed = by_ad.mapInArrow(expand, f"kind byte, hash long, first long, second long, confidence long, {sums}")
        by_key = keyed.groupBy("kind", "hash", "first", "second").agg(
            f.count("*").alias("ads"),
            # Integers, so that the sum does not depend on the order; a long would not hold that of all rows.
            f.sum(f.col("confidence").cast("decimal(38,0)")).cast("double").alias("confidence"),
            *(f.sum(name).alias(name) for name in job.sums),
        )
        dealt = in_hash_ranges(_frequent(by_key, job), range_count(spark, job.train.rows))
        ordered = dealt.sortWithinPartitions("kind", HASH, "first", "second")
        collect_rows(ordered.mapInArrow(write, ROW_COUNT))


def _sums_by_fold(job: RateJob) -> "list[Column]":
    from pyspark.sql import functions as f

    return [
        f.sum(f.when(f.col(FOLD) == fold, f.col(name)).otherwise(0)).alias(f"{name}_{fold}")
        for name in ("views", "clicks")
        for fold in range(job.folds)
    ]


def _frequent(by_key: "DataFrame", job: RateJob) -> "DataFrame":
    """Without keys that have too few rows for a rate."""
    from pyspark.sql import functions as f

    views = sum((f.col(f"views_{fold}") for fold in range(job.folds)), f.lit(0))
    least = f.lit(0)
    for key in job.keys:
        if key.name not in _KEPT_WHOLE:
            smallest = min(key.least, key.lean_least or key.least)
            least = f.when(f.col("kind") == _KEY_NUMBERS[key.name], f.lit(smallest)).otherwise(least)
    return by_key.filter(views > least)


def _count_rows(segment: Segment, counted_by: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Rows and clicks of a segment by what they are counted by, ad and fold."""
    for batch in read_piece(segment.piece, ("ad_id", "document_id", "geo_location", FOLD, CLICKED), ()):
        others = {_BY_AD: pa.nulls(len(batch), pa.int64())}
        if _BY_COUNTRY in counted_by:
            country = country_keys(batch["geo_location"])
            others[_BY_COUNTRY] = pa.array(country.values, mask=~country.valid)
        if _BY_LANDING in counted_by:
            others[_BY_LANDING] = batch["document_id"]
        for kind, other in others.items():
            rows = pa.table({"ad": batch["ad_id"], "other": other, "fold": batch[FOLD], "clicked": batch[CLICKED]})
            if kind != _BY_AD:
                rows = rows.filter(pc.is_valid(rows["other"]))
            counted = rows.group_by(["ad", "other", "fold"], use_threads=False).aggregate(
                [("clicked", "count"), ("clicked", "sum")]
            )
            kinds = pa.array(np.full(len(counted), kind, np.int8))
            columns = [kinds, *(counted[n] for n in ("ad", "other", "fold", "clicked_count")),
                       counted["clicked_sum"].cast(pa.int64())]  # fmt: skip
            table = pa.table(columns, names=["kind", "ad", "other", "fold", "views", "clicks"])
            yield from table.combine_chunks().to_batches()


class _CountedRows(Rows):
    """Rows with the same ad, and perhaps country or landing document, as one."""

    @cached_property
    def country(self) -> Numbers:
        return self._numbers("country")


def _expand(batch: pa.RecordBatch, by: int, job: RateJob) -> Iterator[pa.RecordBatch]:
    """Counts by ad, and perhaps another part -> the keys that the counted rows have, once a key and ad."""
    named = dict(zip(batch.schema.names, batch.columns, strict=True))
    named = {"ad_id": named["ad"], "country": named["other"], "document_id": named["other"]}
    rows = _CountedRows(Statistics.cached(job.statistics), pa.RecordBatch.from_pydict(named))
    for key in job.keys:
        if by != _counted_by(key):
            continue
        keys = keys_of(rows, key)
        valid = np.flatnonzero(keys.valid)
        owner = keys.owner[valid]
        first, second = [*(part.values[valid] for part in keys.parts), np.zeros(len(valid), np.int64)][:2]
        sums = batch.select(job.sums).take(pa.array(owner))
        views = np.sum([sums[f"views_{fold}"].to_numpy() for fold in range(job.folds)], axis=0)
        columns = [
            pa.array(np.full(len(owner), _KEY_NUMBERS[key.name], np.int8)),
            pa.array(hash_key(*(part.values[valid] for part in keys.parts))),
            pa.array(first),
            pa.array(second),
            pa.array(np.round(keys.confidence[valid] * _UNITS).astype(np.int64) * views),
            *sums.columns,
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["kind", HASH, "first", "second", "confidence", *job.sums])


def _counted_by(key: RateKey) -> int:
    if key.with_country:
        return _BY_COUNTRY
    return _BY_LANDING if key.name == "document_pair" else _BY_AD


def _schema(key: RateKey, job: RateJob) -> pa.Schema:
    """With the sums by fold."""
    return pa.schema([*key.schema, *(pa.field(name, pa.int64(), False) for name in job.sums)])


def _write(batches: Iterator[pa.RecordBatch], job: RateJob, folder: Path) -> Iterator[pa.RecordBatch]:
    """Write rows sorted by kind and hash, a file a key."""
    keys = {_KEY_NUMBERS[key.name]: key for key in job.keys}
    for kind, run in rows_by_value(batches, "kind"):
        key = keys[kind]
        totals = (_with_totals(part, _schema(key, job), job) for part in whole_groups(run, HASH, _BATCH_ROWS))
        rows = write_file(folder / key.name, _schema(key, job), totals)
        yield row_count(rows)


def _with_totals(part: pa.RecordBatch, schema: pa.Schema, job: RateJob) -> pa.RecordBatch:
    views, clicks = (
        np.sum([part[f"{name}_{fold}"].to_numpy() for fold in range(job.folds)], axis=0) for name in ("views", "clicks")
    )
    computed = {"views": views, "clicks": clicks, "confidence": part["confidence"].to_numpy() / (_UNITS * views)}
    columns = [pa.array(computed[f.name]) if f.name in computed else part[f.name] for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_totals(workspace: Workspace, job: RateJob, by_fold: Path, folder: Path) -> None:
    """Write the tables of rates without the sums by fold: what is served."""
    files = [(key, path) for key in job.keys for path in sorted((by_fold / key.name).glob("*.arrow"))]
    workspace.progress.stage("rates to serve")

    def run(item: tuple[RateKey, Path]) -> None:
        key, path = item
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            batches = (file.get_batch(i).select(key.schema.names) for i in range(file.num_record_batches))
            write_file(folder / key.name, key.schema, (batch.cast(key.schema) for batch in batches))

    run_tasks(workspace.spark, files, run)

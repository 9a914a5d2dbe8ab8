"""Rows, clicks and distinct ads of `train` by key, with the sums of each fold.

All parts of a key but the country and the landing document follow from a row's ad. So rows are counted by ad, by
country and ad, and by landing document and ad; these counts, of which there are far fewer, are then added up by key.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.features.hashes import hash_key
from rayrec.features.table_parts import HASH, Numbers
from rayrec.preprocessing.engines.engine import Source, partition_by_hash
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.lookups.label_rates import count_columns
from rayrec.preprocessing.scratch_rows import batch_of
from rayrec.preprocessing.segments import Piece, Segment, read_piece
from rayrec.preprocessing.sorted_rows import rows_by_value
from rayrec.preprocessing.vocabularies.hash_ranges import write_sorted
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.ad_rows import FOLD, AdRows
from rayrec.sources.outbrain.features.click_rates import keys_of
from rayrec.sources.outbrain.places import country_keys
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED
from rayrec.sources.outbrain.preprocessing.row_files import (
    Partitioned,
    RowFiles,
    files_of,
    range_count,
    shuffle_rows,
    write_files,
)
from rayrec.sources.outbrain.statistics import RATE_KEYS, RateKey, Statistics

_KEY_NUMBERS = {name: number for number, name in enumerate(RATE_KEYS)}
_KEPT_WHOLE = ("ad", "document")
"""Keys whose number of rows is a feature, however few the rows are."""
_COUNTS = ("views", "clicks")
_UNITS = 2**36
"""Confidences are added as integers, in multiples of 1 / _UNITS."""
_CLICKS = pa.schema(
    [*((name, pa.int64()) for name in ("ad_id", "document_id", "country")), (FOLD, pa.int8()), (CLICKED, pa.int64())]
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
    def sums(self) -> list[str]:
        """Columns of sums: of all rows, and of each fold."""
        return count_columns(_COUNTS, self.folds)

    @property
    def keyed_schema(self) -> pa.Schema:
        """Schema of counts by key, of some of the ads; confidences are added up over views, in `_UNITS`."""
        names = (HASH, "first", "second", "ads", *self.sums)
        numbers = [(name, pa.int64()) for name in names]
        return pa.schema([("kind", pa.int8()), *numbers, ("confidence", pa.decimal128(38))])

    def table_schema(self, key: RateKey) -> pa.Schema:
        """Return the schema of a key's table with the sums by fold."""
        return pa.schema([*key.schema, *(pa.field(name, pa.int64(), False) for name in self.sums[len(_COUNTS) :])])

    @property
    def counts(self) -> str:
        """The SQL of the sums, over clicks."""
        sums = ["count(*) as views", "sum(clicked)::bigint as clicks"]
        sums += [f"count(*) filter (fold = {n}) as views_{n}" for n in range(self.folds)]
        sums += [f"coalesce(sum(clicked) filter (fold = {n}), 0)::bigint as clicks_{n}" for n in range(self.folds)]
        return ", ".join(sums)

    @property
    def totals(self) -> str:
        """The SQL of the sums, over sums."""
        return ", ".join(f"sum({name})::bigint as {name}" for name in ("ads", *self.sums))


def write_rates(workspace: Workspace, job: RateJob, folder: Path) -> None:
    """Write the tables of rates with the sums by fold, a folder for each key."""
    ranges = range_count(job.train.rows)

    def read_clicks(segment: Segment) -> Partitioned:
        for batch in read_piece(segment.piece, ("ad_id", "document_id", "geo_location", FOLD, CLICKED), ()):
            country = country_keys(batch["geo_location"])
            columns = {"country": pa.array(country.values, mask=~country.valid)}
            yield partition_by_hash(hash_key(batch["ad_id"].to_numpy()), ranges), batch_of(_CLICKS, columns, batch)

    def add_up(partition: int, rows: Mapping[str, pa.Table]) -> dict[str, Piece]:
        """Write the counts by key of some ads."""
        by_key = (("keyed", batch) for batch in _counted(rows["clicks"], job))
        return write_files(folder, partition, {"keyed": job.keyed_schema}, by_key)

    def read_keyed(segment: Segment) -> Partitioned:
        for batch in read_piece(segment.piece, job.keyed_schema.names, ()):
            yield partition_by_hash(batch[HASH].to_numpy(), ranges), batch

    def write(_: int, rows: Mapping[str, pa.Table]) -> None:
        # Keys with too few rows for a rate are left out.
        least = [0 if key.name in _KEPT_WHOLE else key.least for key in job.keys]
        of_keys = query(
            f"""
            select kind, hash, first, second, {job.totals},
                sum(confidence)::double / ({_UNITS}::double * sum(views)) as confidence
            from keyed join keys using (kind)
            group by kind, hash, first, second, least having sum(views) > least
            order by kind, hash, first, second
            """,
            keys=pa.table({"kind": [_KEY_NUMBERS[key.name] for key in job.keys], "least": least}),
            **rows,
        )
        for number, of_key in rows_by_value(of_keys, "kind"):
            key = list(RATE_KEYS.values())[number]
            write_sorted(of_key, folder / key.name, job.table_schema(key))

    clicks = Source(job.train.segments(), _CLICKS, read_clicks)
    pieces = shuffle_rows(workspace, "click-through rates", {"clicks": clicks}, ranges, add_up)
    keyed = Source(files_of(pieces, ("keyed",))["keyed"].segments(), job.keyed_schema, read_keyed)
    shuffle_rows(workspace, "click-through rates", {"keyed": keyed}, ranges, write)


def _counted(clicks: pa.Table, job: RateJob) -> Iterator[pa.RecordBatch]:
    """Yield the counts by key, given all clicks of some ads."""
    for other in (None, "country", "document_id"):
        keys = [key for key in job.keys if _other_part(key) == other]
        by, where = ("ad_id", "") if other is None else (f"ad_id, {other}", f"where {other} is not null")
        counts = query(f"select {by}, {job.counts} from clicks {where} group by {by}", clicks=clicks)
        of_keys = (of_key for batch in counts for of_key in _of_keys(batch, keys, job))
        by_key = query(
            f"select kind, hash, first, second, {job.totals}, sum(confidence) as confidence from by_ad group by all",
            by_ad=pa.RecordBatchReader.from_batches(job.keyed_schema, of_keys),
        )
        yield from (batch.cast(job.keyed_schema) for batch in by_key)


def _other_part(key: RateKey) -> str | None:
    """Return the column of the part of a key that does not follow from the ad."""
    if key.with_country:
        return "country"
    return "document_id" if key.name == "document_pair" else None


class _CountedRows(AdRows):
    """Rows with the same ad, and perhaps the same country or landing document, as one."""

    @cached_property
    def country(self) -> Numbers:
        return self.numbers("country")


def _of_keys(batch: pa.RecordBatch, keys: Sequence[RateKey], job: RateJob) -> Iterator[pa.RecordBatch]:
    """Yield the counts by ad, and perhaps another part -> counts by key and ad."""
    rows = _CountedRows(Statistics.cached(job.statistics), batch)
    for key in keys:
        found = keys_of(rows, key)
        valid = np.flatnonzero(found.valid)
        parts = [part.values[valid] for part in found.parts]
        first, second = [*parts, np.zeros(len(valid), np.int64)][:2]
        sums = batch.select(job.sums).take(pa.array(found.owner[valid]))
        columns = {
            "kind": np.full(len(valid), _KEY_NUMBERS[key.name], np.int8),
            HASH: hash_key(*parts),
            "first": first,
            "second": second,
            "ads": np.ones(len(valid), np.int64),
            "confidence": np.round(found.confidence[valid] * _UNITS).astype(np.int64) * sums["views"].to_numpy(),
        }
        yield batch_of(job.keyed_schema, columns, sums)

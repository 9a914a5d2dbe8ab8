"""Rows, clicks and distinct ads of `train` by key, with the sums of each fold.

Keys follow from a row's ad. So rows are counted by ad, and these counts, of which there are far fewer, by key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.features.hashes import hash_key
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.engine import Source, partition_by_hash
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.lookups.label_rates import count_columns
from rayrec.preprocessing.segments import Piece, Segment, batch_of, read_piece
from rayrec.preprocessing.sorted_rows import range_count, rows_by_value, write_sorted
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.ad_rows import FOLD, AdRows
from rayrec.sources.outbrain.features.click_rates import keys_of
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED
from rayrec.sources.outbrain.preprocessing.row_files import (
    Partitioned,
    RowFiles,
    files_of,
    shuffle_rows,
    write_files,
)
from rayrec.sources.outbrain.statistics import KEY, RateKey, Statistics

_KEPT_WHOLE = ("ad", "document")
"""Keys whose number of rows is a feature, however few the rows are."""
_COUNTS = ("views", "clicks")
_UNITS = 2.0**36
"""Confidences are added as integers, in multiples of 1 / _UNITS."""
_CLICKS = pa.schema([("ad_id", pa.int64()), (FOLD, pa.int8()), (CLICKED, pa.int64())])


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
        """Schema of counts by key and ad; a confidence is that of all views together, in `_UNITS`."""
        return pa.schema([("kind", pa.int8()), *((n, pa.int64()) for n in (HASH, KEY, "confidence", *self.sums))])

    def table_schema(self, key: RateKey) -> pa.Schema:
        """Return the schema of a key's table with the sums by fold."""
        return pa.schema([*key.schema, *(pa.field(name, pa.int64(), False) for name in self.sums[len(_COUNTS) :])])


def write_rates(workspace: Workspace, job: RateJob, folder: Path) -> None:
    """Write the tables of rates with the sums by fold, a folder for each key."""
    ranges = range_count(job.train.rows)

    def read_clicks(segment: Segment) -> Partitioned:
        for batch in read_piece(segment.piece, _CLICKS.names, ()):
            yield partition_by_hash(hash_key(batch["ad_id"].to_numpy()), ranges), batch

    def count(partition: int, rows: Mapping[str, pa.Table]) -> dict[str, Piece]:
        """Write the counts by key of some ads."""
        of_folds = [
            f"count(*) filter (fold = {n}) as views_{n}, count(*) filter (fold = {n} and clicked = 1) as clicks_{n}"
            for n in range(job.folds)
        ]
        counts = ", ".join(["count(*) as views", "count(*) filter (clicked = 1) as clicks", *of_folds])
        by_ad = query(f"select ad_id, {counts} from clicks group by ad_id", **rows)
        keyed = (("keyed", batch) for ad_counts in by_ad for batch in _by_key(ad_counts, job))
        return write_files(folder, partition, {"keyed": job.keyed_schema}, keyed)

    def read_keyed(segment: Segment) -> Partitioned:
        for batch in read_piece(segment.piece, job.keyed_schema.names, ()):
            yield partition_by_hash(batch[HASH].to_numpy(), ranges), batch

    def write(_: int, rows: Mapping[str, pa.Table]) -> None:
        # Keys with too few rows for a rate are left out.
        least = [0 if key.name in _KEPT_WHOLE else key.least for key in job.keys]
        sums = ", ".join(f"sum({name})::bigint as {name}" for name in job.sums)
        of_keys = query(
            f"""
            select kind, hash, {KEY}, count(*) as ads, {sums},
                sum(confidence)::double / ({_UNITS}::double * sum(views)) as confidence
            from keyed join keys using (kind)
            group by kind, hash, {KEY}, least having sum(views) > least
            order by kind, hash, {KEY}
            """,
            keys=pa.table({"kind": range(len(job.keys)), "least": least}),
            **rows,
        )
        for number, of_key in rows_by_value(of_keys, "kind"):
            write_sorted(of_key, folder / job.keys[number].name, job.table_schema(job.keys[number]))

    clicks = Source(job.train.segments(), _CLICKS, read_clicks)
    pieces = shuffle_rows(workspace, "click-through rates", {"clicks": clicks}, ranges, count)
    keyed = Source(files_of(pieces, ("keyed",))["keyed"].segments(), job.keyed_schema, read_keyed)
    shuffle_rows(workspace, "click-through rates", {"keyed": keyed}, ranges, write)


def _by_key(counts: pa.RecordBatch, job: RateJob) -> Iterator[pa.RecordBatch]:
    """Yield the counts of ads by key."""
    rows = AdRows(Statistics.cached(job.statistics), counts)
    for kind, key in enumerate(job.keys):
        keys = keys_of(rows, key)
        valid = np.flatnonzero(keys.value.valid)
        value, sums = keys.value.values[valid], counts.select(job.sums).take(pa.array(keys.owner[valid]))
        columns = {
            "kind": np.full(len(valid), kind),
            HASH: hash_key(value),
            KEY: value,
            "confidence": np.round(keys.confidence[valid] * _UNITS).astype(np.int64) * sums["views"].to_numpy(),
        }
        yield batch_of(job.keyed_schema, columns, sums)

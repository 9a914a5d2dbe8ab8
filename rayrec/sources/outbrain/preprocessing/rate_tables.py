"""Rows, clicks and distinct ads of `train` by key, with the sums of each fold.

Keys follow from a row's ad. So rows are counted by ad, and these counts, of which there are far fewer, by key.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.features.hashes import hash_key
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.lookups.keyed_rows import KeyedRows, range_count, shuffle_rows, write_sorted
from rayrec.preprocessing.lookups.label_rates import count_columns, sums_by_fold, with_folds
from rayrec.preprocessing.segments import Piece, Segment, batch_of, count_rows, make_segments, read_piece, write_piece
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.ad_rows import FOLD, AdRows
from rayrec.sources.outbrain.features.click_rates import keys_of
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED
from rayrec.sources.outbrain.statistics import KEY, RateKey, Statistics

_KEPT_WHOLE = ("ad", "document")
"""Keys whose number of rows is a feature, however few the rows are."""
_COUNTS = ("views", "clicks")
_UNITS = 2.0**36
"""Confidences are added as integers, in multiples of 1 / _UNITS."""
_CLICKS = pa.schema([(HASH, pa.int64()), ("ad_id", pa.int64()), (FOLD, pa.int8()), (CLICKED, pa.int64())])


def write_rates(
    workspace: Workspace, train: Sequence[Piece], folds: int, keys: Sequence[RateKey], statistics: Path, folder: Path
) -> None:
    """Write the tables of rates of rows with the sums by fold, a folder for each key.

    `statistics`: the folder with the tables of documents and ads.
    """
    names = count_columns(_COUNTS, folds)
    by_ad = pa.schema([(name, pa.int64()) for name in ("ad_id", *names)])
    # A confidence is that of all views together, in `_UNITS`.
    by_key = pa.schema([("kind", pa.int8()), *((n, pa.int64()) for n in (HASH, KEY, "confidence", *names))])

    def count(partition: int, rows: Mapping[str, pa.Table]) -> list[Piece]:
        """Write the counts of some ads."""
        each = "(select ad_id, fold, 1 as views, clicked as clicks from clicks)"
        counts = query(f"select ad_id, {sums_by_fold(_COUNTS, folds)} from {each} group by ad_id", **rows)
        return write_piece(folder / f"ads-{partition:06d}.parquet", by_ad, counts)

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        """Yield the counts of ads by key."""
        for counts in read_piece(segment.piece, by_ad.names):
            rows = AdRows(Statistics.cached(statistics), counts)
            for kind, key in enumerate(keys):
                of_rows = keys_of(rows, key)
                valid = np.flatnonzero(of_rows.value.valid)
                value, sums = of_rows.value.values[valid], counts.take(pa.array(of_rows.owner[valid]))
                columns = {
                    "kind": np.full(len(valid), kind),
                    HASH: hash_key(value),
                    KEY: value,
                    "confidence": np.round(of_rows.confidence[valid] * _UNITS).astype(np.int64)
                    * sums["views"].to_numpy(),
                }
                yield batch_of(by_key, columns, sums)

    def write(_: int, rows: Mapping[str, pa.Table]) -> None:
        sums = ", ".join(f"sum({name})::bigint as {name}" for name in names)
        for kind, key in enumerate(keys):
            # Keys with too few rows for a rate are left out.
            least = 0 if key.name in _KEPT_WHOLE else key.least
            of_keys = query(
                f"""
                select hash, {KEY}, count(*) as ads, {sums},
                    sum(confidence)::double / ({_UNITS}::double * sum(views)) as confidence
                from keyed where kind = {kind}
                group by hash, {KEY} having sum(views) > {least}
                order by hash, {KEY}
                """,
                **rows,
            )
            write_sorted(of_keys, folder / key.name, with_folds(key.schema, _COUNTS, folds))

    clicks = KeyedRows.of_files(train, _CLICKS, "ad_id")
    pieces = shuffle_rows(workspace, "click-through rates", {"clicks": clicks}, count)
    keyed = KeyedRows(make_segments(chain(*pieces)), by_key, read)
    # As many ranges as if each row were counted by key.
    shuffle_rows(workspace, "click-through rates", {"keyed": keyed}, write, range_count(count_rows(clicks.segments)))

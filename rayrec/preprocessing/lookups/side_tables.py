"""Side tables: files of rows with a unique key -> tables that are looked up by it."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.table import SideTableConfig
from rayrec.features.keyed_table import HASH, hash_texts
from rayrec.features.lookups import KEY, lookup_folder
from rayrec.features.schema import STATISTICS_FOLDER, SideTable
from rayrec.preprocessing.extract import extract_tables, pieces_of
from rayrec.preprocessing.row_files import frame_of_rows
from rayrec.preprocessing.segments import Segment, count_rows, make_segments, read_piece
from rayrec.preprocessing.vocabularies.hash_ranges import write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.blocks import RowReader
from rayrec.raw.files import InputFile


def write_side_table(
    workspace: Workspace,
    table: SideTable,
    config: SideTableConfig,
    reader: RowReader,
    files: Sequence[InputFile],
    max_rejected: float,
) -> dict[str, int]:
    """Write a side table into the dataset's statistics, and its bad rows into `rejected/`.

    `reader` reads its key as text, and its other columns, by the names in the files. Returns the number of bad rows by
    reason. Raises UserError if a key is there twice, or if more than the share `max_rejected` of the rows is bad.
    """
    scratch = workspace.scratch / "tables" / table.name
    scratch.mkdir(parents=True)
    chunks, rejected = extract_tables(workspace, {table.name: (reader, files)}, scratch, max_rejected)
    segments = make_segments(pieces_of(chunks[table.name]))
    raw_names = [name.removeprefix(f"{table.name}_") for name in table.columns]
    schema = pa.schema(
        [pa.field(HASH, pa.int64(), False), pa.field(KEY, pa.string(), False)]
        + [pa.field(name, reader.schema.field(raw).type) for name, raw in zip(table.columns, raw_names, strict=True)]
    )

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, list(dict.fromkeys((config.key, *raw_names))), ()):
            keys = batch[config.key]
            columns = [pa.array(hash_texts(keys)), keys, *(batch[name] for name in raw_names)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    folder = lookup_folder(workspace.folder / STATISTICS_FOLDER, table)
    folder.parent.mkdir(parents=True, exist_ok=True)
    check = partial(_keys_are_unique, table=table.name, path=config.path, key=config.key)
    with frame_of_rows(workspace, f"side table {table.name}", [(segments, read)], schema) as rows:
        write_table(rows, count_rows(segments), (KEY,), folder, schema, check)
    return rejected


def _keys_are_unique(rows: pa.RecordBatch, table: str, path: str, key: str) -> pa.RecordBatch:
    """`rows`, which are sorted by key. Raises UserError on a key that is there twice."""
    keys = rows[KEY].dictionary_encode()
    counts = np.bincount(keys.indices.to_numpy())
    if counts.max() > 1:
        raise UserError(
            f"side table '{table}' ({path}): key {key} has the value {keys.dictionary[counts.argmax()]} "
            f"{'twice' if counts.max() == 2 else f'{counts.max():,} times'}; keep one row for each key"
        )
    return rows

"""The table of items beside the interactions -> the file of their columns, in the order of the items' ids."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.transforms import Vocabulary
from rayrec.features.item_table import ITEMS_FILE, ItemTable, item_column
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.preprocessing.inputs import open_beside
from rayrec.preprocessing.segments import Piece, rows_of
from rayrec.raw.input_files import InputFile
from rayrec.raw.table_reader import TableReader
from rayrec.sources.interactions.config import ItemTableConfig
from rayrec.sources.interactions.interaction_reader import id_column


def open_items(config: ItemTableConfig) -> tuple[TableReader, tuple[InputFile, ...]]:
    """Look at the beginning of the files. Raises UserError if they lack a column, naming the key in the recipe."""
    table = open_beside("source.items.path", config.path, config)
    columns = [id_column(config.key), *map(item_column, config.columns)]
    return table.reader(columns, required=(config.key,)), table.files


def write_items(config: ItemTableConfig, parsed: Sequence[Piece], vocabulary: Vocabulary, dataset: Path) -> int:
    """Write the columns of the items in `vocabulary` into the dataset's statistics; return how many items have a row.

    Raises UserError if an item is there twice.
    """
    schema = pa.schema([(name, pa.string()) for name in (config.key, *config.columns)])
    rows = rows_of(parsed, schema).read_all()
    lookup = VocabularyLookup.load(dataset / vocabulary.file)
    ids = lookup.ids(rows[config.key].combine_chunks())
    known = np.flatnonzero(ids)
    counts = np.bincount(ids[known], minlength=vocabulary.size + 1)
    if (twice := np.flatnonzero(counts > 1)).size:
        value = lookup.values(twice[:1])[0].as_py()
        raise UserError(f"source.items ({config.path}): {config.key} '{value[:100]}' has several rows; keep one")
    places = np.full(vocabulary.size, -1)
    places[ids[known] - 1] = known
    taken = pa.array(places, mask=places < 0)
    columns = {name: rows[name].combine_chunks().take(taken).dictionary_encode() for name in config.columns}
    ItemTable(columns).save(dataset / STATISTICS_FOLDER / ITEMS_FILE)
    return len(known)

"""The vectors of items and of known users, for an index elsewhere: the score of an item grows with their product.

OUTPUT/items/part-00000.parquet ... (item, vector)    OUTPUT/users/part-00000.parquet ... (user, vector)
OUTPUT/manifest.json (written last)
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.inference.batch.pool import ROWS_PER_PART, finish_prediction, new_part, part_path
from rayrec.inference.recommender import Recommender
from rayrec.store.folders import new_folder

_AT_ONCE = 4_096


def write_vectors(recommender: Recommender, output: Path, progress: Progress) -> dict[str, int]:
    """Write the vectors (list of float32) of all items that are there, and of all known users of a model that reads
    histories; return the numbers of both.

    `output` is written whole or not at all. Raises UserError if the model has no vectors of items.
    """
    if not recommender.compares_items:
        raise UserError(f"{recommender.predictor.folder}: the model has no vectors of items; give one that has")
    items, users = recommender.item_ids, recommender.user_ids if recommender.reads_histories else np.empty(0, np.int64)
    progress.stage("vectors", len(items) + len(users))
    with new_folder(output) as folder:
        write = {
            "item": (items, recommender.item_values, recommender.item_vectors),
            "user": (users, recommender.user_values, recommender.user_vectors),
        }
        for name, (ids, values, vectors) in write.items():
            _write(folder / f"{name}s", name, ids, values, vectors, progress)
        finish_prediction(folder, recommender.predictor.model)
    return {"items": len(items), "users": len(users)}


def _write(
    folder: Path,
    name: str,
    ids: NDArray[np.int64],
    values: Callable[[NDArray[np.int64]], pa.Array],
    vectors: Callable[[NDArray[np.int64]], NDArray[np.float32]],
    progress: Progress,
) -> None:
    schema = pa.schema([pa.field(name, pa.string(), False), pa.field("vector", pa.list_(pa.float32()), False)])
    for part, start in enumerate(range(0, len(ids), ROWS_PER_PART)):
        with new_part(part_path(folder, part), schema) as write:
            for first in range(start, min(start + ROWS_PER_PART, len(ids)), _AT_ONCE):
                some = ids[first : first + _AT_ONCE]
                found = vectors(some)
                offsets = np.arange(len(some) + 1, dtype=np.int32) * found.shape[1]
                lists = pa.ListArray.from_arrays(offsets, pa.array(found.ravel()))
                write(pa.table([values(some), lists], schema=schema))
                progress.advance(len(some))

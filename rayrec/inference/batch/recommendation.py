"""The best items of every user: ranked by a pool of recommenders, written in the order of the user ids.

OUTPUT/recommendations/part-00000.parquet ...
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from rayrec.common.files import new_folder
from rayrec.common.progress import Progress
from rayrec.inference.batch.pool import map_with_pool, new_parts
from rayrec.inference.recommender import load_recommender

RECOMMENDATIONS_FOLDER = "recommendations"
_SCORES_PER_TASK = 4_194_304
_COLUMNS = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
    ]
)


def recommend_to_all(folder: Path, k: int, output: Path, progress: Progress) -> int:
    """Write the `k` best items of each user of a model folder; returns the number of users. Needs a Ray session.

    The columns are user, rank (int32, from 1), item and score (float32): k rows a user, fewer if no more items are new
    to the user. `output` is written whole or not at all. Raises UserError if the model does not rate users and items.
    """
    recommender = load_recommender(folder)
    users_per_task = max(1, _SCORES_PER_TASK // max(1, recommender.num_items))
    starts = range(1, recommender.num_users + 1, users_per_task)
    ends = [min(start + users_per_task, recommender.num_users + 1) for start in starts]
    tasks = [pa.table({"first": [start], "end": [end]}) for start, end in zip(starts, ends, strict=True)]
    progress.stage("recommend", recommender.num_users)
    with new_folder(output) as temporary, new_parts(temporary / RECOMMENDATIONS_FOLDER, _COLUMNS) as write:
        blocks = map_with_pool(tasks, _user_ids, _RecommendBlocks, {"folder": folder, "k": k})
        for block in blocks:
            write(block.cast(_COLUMNS))
            progress.advance(int((block["rank"].to_numpy() == 1).sum()))
    return recommender.num_users


def _user_ids(tasks: pa.Table) -> Iterator[pa.Table]:
    for task in tasks.to_pylist():
        yield pa.table({"user_id": np.arange(task["first"], task["end"])})


class _RecommendBlocks:
    """An actor of the pool: a block of user ids to a block of their best items."""

    def __init__(self, folder: Path, k: int) -> None:
        torch.set_num_threads(1)  # the actors of the pool run in parallel
        self._recommender = load_recommender(folder)
        self._k = k

    def __call__(self, block: pa.Table) -> pa.Table:
        users = block["user_id"].to_numpy()
        ranked = [self._recommender.recommend_ids(int(user), self._k) for user in users]
        counts = np.array([len(items) for items, _ in ranked], np.int64)
        items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in ranked)])
        scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in ranked)])
        first = np.repeat(np.cumsum(counts) - counts, counts)
        return pa.table(
            {
                "user": self._recommender.user_values(np.repeat(users, counts)),
                "rank": (np.arange(len(items)) - first + 1).astype(np.int32),
                "item": self._recommender.item_values(items),
                "score": scores,
            }
        )

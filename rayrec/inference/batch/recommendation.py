"""The best items of every user: ranked and written by a pool of recommenders, in the order of the user ids.

OUTPUT/recommendations/part-00000.parquet ...    OUTPUT/manifest.json (written last)
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.inference.batch.pool import ScoringPool, finish_prediction, new_part, part_path
from rayrec.inference.batch.scoring import rows_of_parts
from rayrec.inference.recommender import Recommender, load_recommender
from rayrec.store.folders import new_folder
from rayrec.store.node_copy import original

RECOMMENDATIONS_FOLDER = "recommendations"
_SCORES_AT_ONCE = 4_194_304
_COLUMNS = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
    ]
)


def recommend_to_all(recommender: Recommender, k: int, output: Path, pool: ScoringPool, progress: Progress) -> None:
    """Write the `k` best items of each user; the workers open the recommender's folder.

    The columns are user, rank (int32, from 1), item and score (float32): k rows a user, fewer if no more items are new
    to the user. `output` is written whole or not at all.
    """
    rows_a_user = max(1, min(k, recommender.num_items))
    users = len(recommender.user_ids)
    users_per_part = max(1, rows_of_parts(users * rows_a_user) // rows_a_user)
    starts = range(0, users, users_per_part)
    ends = [min(start + users_per_part, users) for start in starts]
    tasks = [(part, start, end) for part, (start, end) in enumerate(zip(starts, ends, strict=True))]
    progress.stage("recommend", users)
    with new_folder(output.absolute(), shared=True) as temporary:
        arguments = {"folder": original(recommender.predictor.folder), "k": k, "output": temporary}
        for ranked in pool.run(tasks, _RecommendBlocks, arguments):
            progress.advance(ranked)
        finish_prediction(temporary, recommender.predictor.model)


class _RecommendBlocks:
    """A worker of the pool: writes the best items of some users as a part."""

    def __init__(self, folder: Path, k: int, output: Path) -> None:
        torch.set_num_threads(1)  # the workers of the pool run in parallel
        self._recommender = load_recommender(folder)
        self._users = self._recommender.user_ids
        self._k, self._output = k, output

    def __call__(self, task: tuple[int, int, int]) -> int:
        part, first, end = task
        users_at_once = max(1, _SCORES_AT_ONCE // max(1, self._recommender.num_items))
        with new_part(part_path(self._output / RECOMMENDATIONS_FOLDER, part), _COLUMNS) as write:
            for start in range(first, end, users_at_once):
                write(self._best(self._users[start : min(start + users_at_once, end)]))
        return end - first

    def _best(self, users: NDArray[np.int64]) -> pa.Table:
        """Return the rows of users, by their ids."""
        ranked = self._recommender.recommend_ids(users, self._k)
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
            },
            schema=_COLUMNS,
        )

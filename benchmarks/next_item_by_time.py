"""Who finds the next item, where a moment divides all interactions: models beside popularity and item cosine.

    python -m benchmarks.next_item_by_time --data FOLDER [--only NAME ...] [--seeds 1]

FOLDER has the files `train.csv.gz`, `dev.csv.gz` and `test.csv.gz` of Amazon's groceries (user_id, item_id, time). The
latest tenth of the interactions is `test`, the tenth before `validation`, by which models choose their checkpoint. All
rank, for each held-out interaction, every item that the person did not have before; nothing is trained on later rows
than `train`, while histories have all that came before. Methods:

- `popularity`: how often `train` has an item.
- `item cosine`: the sum over a person's history of the cosines of the items' columns in `train` (Sarwar et al. 2001,
  "Item-based collaborative filtering recommendation algorithms").
- `mf`, `neumf`, `sasrec`: the recipes named in `RECIPES`, and what is changed of them.

`less popular`: the scores of `sasrec` less 0.25, 0.5 and 1 times the logarithm of how often `train` has an item, as
one list in so many has the same item otherwise.

Runs are added to benchmarks/results/next_item_by_time.json; a method and seed that is there is not run again.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

import rayrec
from benchmarks.in_process import train
from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from jobs.stored_model import stored_model
from rayrec.config import RankingConfig
from rayrec.inference.batch.pool import ScoringPool
from rayrec.inference.batch.scoring import score_next_items
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import Positives, num_item_rows
from rayrec.ingest.next_items import NextItems, item_counts
from rayrec.metrics.next_items import NextItemMetrics
from rayrec.models.common.held_out_events import HeldOutEvents

ROWS = ResultRows(
    Path(__file__).parent / "results" / "next_item_by_time.json",
    keys=("method", "seed"),
    printed=("method", "seed", "hr@10", "ndcg@10", "coverage@10", "top_share@10", "seconds"),
)
_FILES = ("train.csv.gz", "dev.csv.gz", "test.csv.gz")
_SPLIT = {"kind": "time", "test": 0.1, "validation": 0.1}
_RANKING = RankingConfig(k=(10,), metrics=("hr", "ndcg", "mrr"), candidates="next")
_EVALUATION: dict[str, Any] = {
    "source.timestamp": "time",
    "preprocess.split": _SPLIT,
    "evaluate.ranking": _RANKING.model_dump(),
    "train.evaluation_split": "validation",
    "train.evaluations_per_epoch": 1,
    "train.checkpoint.keep_best": "ndcg@10",
}
# Eight interactions a person are too few for MovieLens' penalty.
_SPARSE = {
    "train.global_batch_size": 9216,
    "train.epochs": 10,
    "train.embedding_l2": 0.0005,
    "train.embedding_optimizer.lr": 0.003,
    "train.dense_optimizer.lr": 0.003,
}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mf": ("mf-ml-1m", {**_SPARSE, "train.recency": None}),
    "neumf": ("neumf-ml-1m", _SPARSE),
    "sasrec": (
        "sasrec-debug",
        {
            "model": {"kind": "sasrec", "blocks": 1},
            "train.workers": 1,
            "train.epochs": 12,
            "train.loss.candidates": 512,
            "train.embedding_optimizer.lr": 0.001,
            "train.dense_optimizer.lr": 0.001,
        },
    ),
}
_PENALTIES = (0.25, 0.5, 1.0)
Score = Callable[[HeldOutEvents], torch.Tensor]
"""Returns the scores (n, items) of all items for n events."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["popularity", "item cosine", *RECIPES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [str(arguments.data / file) for file in _FILES]
        changes = {key: _EVALUATION[key] for key in ("source.timestamp", "preprocess.split", "evaluate.ranking")}
        rayrec.preprocess("mf-ml-1m", files, folder / "dataset", set=changes)
        dataset = Dataset.open(folder / "dataset")
        for method in arguments.only:
            for seed in arguments.seeds if method in RECIPES else [0]:
                if not ROWS.has(method=method, seed=seed):
                    _measure(method, seed, dataset, folder)
    columns = ("method", "seed", "hr@10", "ndcg@10", "mrr@10", "coverage@10", "top_share@10", "new people")
    print(text_table([{column: row.get(column) for column in columns} for row in ROWS.read()]))


def _measure(method: str, seed: int, dataset: Dataset, folder: Path) -> None:
    """Add the results of a method."""
    began = time.perf_counter()
    if method not in RECIPES:
        score = {"popularity": _popularity, "item cosine": _item_cosine}[method](dataset)
        ROWS.add({"method": method, "seed": seed, **_of_test(score, dataset), "seconds": time.perf_counter() - began})
        return
    recipe, changes = RECIPES[method]
    changes = {**changes, **_EVALUATION, "train.seed": seed}
    run = train(rayrec.load_recipe(recipe, changes), dataset, folder / f"{method}-{seed}")
    with stored_model(run.path) as model:
        scorer = ScoringPool().scorer(model)

        def score(events: HeldOutEvents) -> torch.Tensor:
            return score_next_items(scorer, events, num_item_rows(dataset.schema) - 1)

        found = _of_test(score, dataset)
        ROWS.add({"method": method, "seed": seed, **found, "seconds": time.perf_counter() - began, "changes": changes})
        if method == "sasrec":
            popularity = torch.from_numpy(np.log1p(item_counts(dataset)))
            for penalty in _PENALTIES:
                less = _of_test(_less(score, penalty * popularity), dataset)
                ROWS.add({"method": f"sasrec, less popular by {penalty:g}", "seed": seed, **less, "seconds": 0.0})


def _less(score: Score, penalties: torch.Tensor) -> Score:
    return lambda events: score(events) - penalties


def _of_test(score: Score, dataset: Dataset) -> dict[str, Any]:
    """Return the metrics on `test`, and NDCG of its slices."""
    items = NextItems.read(dataset, "test")
    metrics = NextItemMetrics(_RANKING, items.num_items)
    for events in items.batches():
        metrics.update(metrics.rank(score(events), events))
    errors = {f"error of {name}": found.error for name, found in metrics.estimates().items() if found is not None}
    slices = {part.name: part.metrics["ndcg@10"].value for part in metrics.slices()}
    return {**metrics.compute(), **errors, **slices}


def _popularity(dataset: Dataset) -> Score:
    scores = torch.from_numpy(item_counts(dataset))
    return lambda events: scores.expand(len(events), -1)


def _item_cosine(dataset: Dataset) -> Score:
    positives = Positives.read(dataset, "train", torch.device("cpu"), in_memory=True)
    known = (positives.users > 0) & (positives.items > 0)
    users, items = positives.users[known].numpy(), positives.items[known].numpy() - 1
    rows, columns = int(users.max()) + 1, num_item_rows(dataset.schema) - 1
    chosen = scipy.sparse.csr_matrix((np.ones(len(users), np.float32), (users, items)), (rows, columns))
    norms = np.sqrt(np.maximum(np.asarray(chosen.sum(axis=0)).ravel(), 1.0))
    scaled = chosen @ scipy.sparse.diags((1.0 / norms).astype(np.float32))
    cosines = (scaled.T @ scaled).tocsr()

    def score(events: HeldOutEvents) -> torch.Tensor:
        lengths = events.lengths
        past = np.concatenate([*events.histories, np.empty(0, np.int64)]).astype(np.int64) - 1
        row = np.repeat(np.arange(len(events)), lengths)
        histories = scipy.sparse.csr_matrix((np.ones(len(row), np.float32), (row, past)), (len(events), columns))
        return torch.from_numpy((histories @ cosines).toarray())

    return score


if __name__ == "__main__":
    main()

"""The recipe that `rayrec inspect` writes for users and items, beside item cosine and popularity.

    python -m benchmarks.recommend TABLE.csv [TABLE.csv ...] --output benchmarks/results/recommend.json [--seeds 1 2 3]

Each table has columns that `inspect` knows as user, item and perhaps time. A person's last choice is ranked among 99
other items, drawn anew for each seed. The recipe is trained twice: as it stands, with the best epoch by the choice
before, and then for as many epochs with that choice too; item cosine knows the same rows in both. Each also makes a
list of ten new items for everybody: how many lists have the item that most have, and how many items are in any list.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

import rayrec
from benchmarks.in_process import metrics, train
from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import num_item_rows, positive_pairs
from rayrec.training.run.history import read_history

K = 10
Scores = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""(n,) ids of users -> (n, items + 1) scores of all items."""


def known_matrix(dataset: Dataset) -> sparse.csr_matrix:
    """Return (users + 1, items + 1), with 1 where a user has an item in train."""
    items = num_item_rows(dataset.schema)
    (users,) = (f.cardinality for f in dataset.schema.categorical if f.name == "user")
    pairs = np.unique(np.concatenate(list(positive_pairs(dataset, "train"))))
    return sparse.csr_matrix((np.ones(len(pairs)), (pairs // items, pairs % items)), (users, items))


def item_cosine(known: sparse.csr_matrix) -> Scores:
    """Return an item's score: the sum of the cosines of its users' vector with those of the items that a user has."""
    lengths = np.sqrt(np.asarray(known.sum(0)).ravel())
    directions = known @ sparse.diags(1 / np.maximum(lengths, 1))
    cosines = (directions.T @ directions).tolil()
    cosines.setdiag(0)
    cosines = cosines.tocsr()
    return lambda users: (known[users] @ cosines).toarray()


def popularity(known: sparse.csr_matrix) -> Scores:
    """Return an item's score: how many users have it."""
    counts = np.asarray(known.sum(0)).ravel()
    return lambda users: np.tile(counts, (len(users), 1))


def ranked(dataset: Dataset, scores: Scores) -> dict[str, float]:
    """HR@10 and NDCG@10 of the test lists; ties count against the positive."""
    rows = np.concatenate([
        np.stack([batch[name].to_numpy() for name in ("user", "item", "label")], 1).astype(np.int64)
        for batch in dataset.rows("test", ["user", "item", "label"], 2**40)
    ])  # fmt: skip
    user, item, label = rows.T
    starts = np.flatnonzero(label)
    found = np.concatenate([
        scores(user[starts[at : at + 512]])[np.repeat(np.arange(len(lengths)), lengths), item[first:end]]
        for at in range(0, len(starts), 512)
        for lengths in [np.diff(np.append(starts, len(user))[at : at + 513])]
        for first, end in [(starts[at], starts[at] + lengths.sum())]
    ])  # fmt: skip
    lists = np.cumsum(label) - 1
    rank = np.bincount(lists, found >= found[starts][lists]) - 1
    is_hit = rank < K
    return {"hr@10": float(is_hit.mean()), "ndcg@10": float((is_hit / np.log2(rank + 2)).mean())}


def spread(top: NDArray[np.int64], users: int, items: int) -> dict[str, float]:
    """Return the share of users' lists that have the commonest item, and the share of items that are in any list."""
    counts = np.bincount(top, minlength=items)
    return {
        "lists with the commonest item": int(counts.max()) / users,
        "items in a list": np.count_nonzero(counts) / (items - 1),
    }


def new_items(known: sparse.csr_matrix, scores: Scores) -> NDArray[np.int64]:
    """Return (users, K) the best items for every user among those that the user does not have."""
    found = []
    for users in np.array_split(np.arange(1, known.shape[0]), max(1, known.shape[0] // 512)):
        of_users = scores(users)
        of_users[known[users].nonzero()] = -np.inf
        of_users[:, 0] = -np.inf
        found.append(np.argsort(-of_users, axis=1, kind="stable")[:, :K])
    return np.concatenate(found)


def measure(table: Path, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each model and for what it knows: all but the last two choices, or all but the last."""
    path = folder / "recipe.yaml"
    rayrec.inspect([str(table)], model="neumf", output=path)
    overrides: dict[str, Any] = {"preprocess.seed": seed, "train.seed": seed, "train.device": "cpu"}
    rows = []
    for knows in ("all but two", "all but one"):
        data, run_folder, model = (folder / f"{name} {knows}" for name in ("dataset", "run", "model"))
        rayrec.preprocess(path, [str(table)], data, set=overrides)
        dataset = Dataset.open(data)
        items = num_item_rows(dataset.schema)
        run = train(rayrec.load_recipe(str(path), overrides), dataset, run_folder)
        rayrec.export(run_folder, model)
        recommender = rayrec.load_recommender(model)
        users = recommender.user_ids
        parts = np.array_split(users, max(1, len(users) // 512))
        top = np.concatenate([ids for part in parts for ids, _ in recommender.recommend_ids(part, K)])
        found = metrics(run, "test")
        row = {"table": table.stem, "knows": knows, "seed": seed}
        learnt = {"hr@10": found["hr@10"], "ndcg@10": found["ndcg@10"], **spread(top, len(users), items)}
        rows.append({**row, "model": "recipe of inspect", **learnt})
        known = known_matrix(dataset)
        for name, scores in (("item cosine", item_cosine(known)), ("popularity", popularity(known))):
            spreads = spread(new_items(known, scores).ravel(), len(users), items)
            rows.append({**row, "model": name, **ranked(dataset, scores), **spreads})
        # The second time there is nothing to choose an epoch by.
        if hits := [record["hr@10"] for record in read_history(run.history) if record["event"] == "evaluate"]:
            overrides |= {"preprocess.split.validation": False, "train.epochs": int(np.argmax(hits)) + 1}
            overrides |= {"train.checkpoint.keep_best": None, "train.evaluations_per_epoch": 0}
    return rows


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the mean, and deviation of the metrics, over seeds."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["table"], row["knows"], row["model"]), []).append(row)
    table = []
    for (name, knows, model), of_group in groups.items():
        entry: dict[str, Any] = {"table": name, "knows": knows, "model": model, "seeds": len(of_group)}
        for metric in ("hr@10", "ndcg@10", "lists with the commonest item", "items in a list"):
            values = [row[metric] for row in of_group]
            deviation = f" ({statistics.stdev(values):.4f})" if len(values) > 1 else ""
            entry[metric] = f"{statistics.mean(values):.4f}{deviation}"
        table.append(entry)
    return text_table(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parser.parse_args()
    keys = ("table", "knows", "seed", "model")
    results = ResultRows(
        arguments.output, keys=keys, printed=(*keys, "hr@10", "ndcg@10", "lists with the commonest item")
    )
    for table in arguments.tables:
        for seed in arguments.seeds:
            if not results.has(table=table.stem, seed=seed):
                with tempfile.TemporaryDirectory() as folder:
                    for row in measure(table, seed, Path(folder)):
                        results.add(row)
    print(summary(results.read()))


if __name__ == "__main__":
    main()

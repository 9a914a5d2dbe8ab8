"""What attention over a history gains over its mean, and what it costs: `model.sequences` on a log with known truth.

    python -m benchmarks.sequences --folder DIR --output benchmarks/results/sequences.json

`rayrec generate interactions --drift 1` writes ratings of people who come and change; whether a rating is at least 4
depends on how many of the newest 20 liked items are of the item's hidden group. The newest tenth measures, the tenth
before chooses the epoch. The same recipe is trained without a history, with the list of the newest liked items
mean-pooled as other lists are, and with each kind of `model.sequences`, in turn, each as a process of its own. `truth`
is the AUC of the probabilities that ratings were drawn with; `counts` is a logistic regression that is told the number
of matches, which no model is.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import rayrec
from benchmarks.process_tree import Sampled, run_sampled
from benchmarks.result_rows import ResultRows
from rayrec.sources.interactions.people import CHANCES_FILE, LAST_LIKED, People
from rayrec.store.files import remove
from rayrec.training.run.folder import HISTORY_FILE

HELD_OUT = 0.1
KINDS = ("none", "pooled", "mean", "din", "transformer")
_HISTORY = "liked"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=240_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--set", nargs="*", default=[], help="changes to the recipe, as in `rayrec train --set`")
    parser.add_argument("--folder", type=Path, required=True, help="for all files")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    results = ResultRows(options.output, keys=("rows", "seed", "kind"), printed=("seed", "kind", "auc"))
    for seed in options.seeds:
        log = options.folder / f"log-{options.rows}-{seed}"
        if not log.exists():
            _run("generate", "interactions", "--rows", options.rows, "--drift", 1, "--seed", seed, "--output", log)
        if not results.has(rows=options.rows, seed=seed, kind="truth"):
            results.add({"rows": options.rows, "seed": seed, "kind": "truth", **_truth(log, seed)})
        for kind in options.kinds:
            if not results.has(rows=options.rows, seed=seed, kind=kind):
                measured = _measure(options.folder, log, kind, seed, options.set)
                results.add({"rows": options.rows, "seed": seed, "kind": kind, **measured})


def recipe(kind: str) -> dict[str, Any]:
    """Return the recipe, which differs in the history and in what reads it alone."""
    likes = {"column": "rating", "at_least": 4.0}
    take = [{"op": "last", "column": "movieId", "length": LAST_LIKED}]
    model: dict[str, Any] = {"kind": "dlrm", "embedding_dim": 16, "bottom_mlp": [32, 16], "top_mlp": [128, 64]}
    if kind == "none":
        model["interaction"] = "cat"  # of one vector there are no products
    if kind not in ("none", "pooled"):
        model["sequences"] = {_HISTORY: {"kind": kind}}
    return {
        "source": {
            "kind": "table",
            "label": likes,
            "time": {"column": "timestamp", "format": "s"},
            "features": [{"columns": ["movieId"], "kind": "categorical", "min_count": 5}],
            "histories": {} if kind == "none" else {_HISTORY: {"by": "userId", "where": likes, "take": take}},
            "ignore": ["userId"] if kind == "none" else [],
        },
        "preprocess": {"split": {"kind": "time", "test": HELD_OUT, "validation": HELD_OUT}},
        "model": model,
        "train": {
            "global_batch_size": 512,
            "epochs": 4,
            "precision": "fp32",
            "evaluation_split": "validation",
            "evaluations_per_epoch": 1,
            "checkpoint": {"keep_best": "auc"},
            "ingest": {"in_memory": True},
        },
    }


def _truth(log: Path, seed: int) -> dict[str, Any]:
    """Return the AUC of the truth on the newest rows, and that of a logistic regression on the numbers of matches."""
    ratings = pd.read_csv(log / "ratings.csv")
    chance = pd.read_parquet(log / CHANCES_FILE)["probability"].to_numpy()
    matches: list[Any] = []
    for block in People(seed, 1.0).blocks():
        matches.extend(block.matches)
        if len(matches) >= len(ratings):
            break
    counts = np.minimum(matches[: len(ratings)], 5)
    label = (ratings.rating >= 4).to_numpy()
    test = (ratings.timestamp >= ratings.timestamp.quantile(1 - HELD_OUT)).to_numpy()
    one_hot = np.eye(6)[counts]
    by_counts = LogisticRegression().fit(one_hot[~test], label[~test]).predict_proba(one_hot[test])[:, 1]
    return {
        "auc": round(float(roc_auc_score(label[test], chance[test])), 4),
        "auc_of_counts": round(float(roc_auc_score(label[test], by_counts)), 4),
        "rows_of_new_people": round(float(1 - ratings.userId[test].isin(ratings.userId[~test]).mean()), 3),
    }


def _measure(folder: Path, log: Path, kind: str, seed: int, changes: list[str]) -> dict[str, Any]:
    file, dataset, run = folder / f"{kind}.yaml", folder / f"dataset-{kind}", folder / f"run-{kind}"
    file.write_text(yaml.safe_dump(recipe(kind), sort_keys=False))
    for path in (dataset, run):
        remove(path)
    given = [word for change in [f"train.seed={seed}", *changes] for word in ("--set", change)]
    _run("preprocess", file, "--input", log / "ratings.csv", "--output", dataset, "--on", "process")
    spent = _run("train", file, "--data", dataset, "--output", run, "--on", "process", *given)
    records = map(json.loads, (run / HISTORY_FILE).read_text().splitlines())
    speeds = [record["samples_per_second"] for record in records if "samples_per_second" in record]
    metrics = rayrec.evaluate(run, dataset, split="test", on="process", progress=False).metrics["test"]
    assert metrics["auc"] is not None and metrics["log_loss"] is not None
    return {
        "auc": round(metrics["auc"], 4),
        "log_loss": round(metrics["log_loss"], 4),
        "rows_per_second": round(statistics.median(speeds[1:])),
        "cpu_seconds": round(sum(spent.cpu_seconds.values()), 1),
        "mib": spent.largest_mib["all processes"],
    }


def _run(*words: Any) -> Sampled:
    """Run a command of rayrec; return what its processes took."""
    return run_sampled(["rayrec.cli", *map(str, words)])


if __name__ == "__main__":
    main()

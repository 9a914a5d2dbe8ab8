"""What NeuMF and its parts reach on MovieLens-1M with the NCF paper's own split and candidates.

    python -m benchmarks.neumf_accuracy --data FOLDER validate [--configurations NAME ...] [--seeds 1]
    python -m benchmarks.neumf_accuracy --data FOLDER test [--configuration NAME] [--seeds 1 2 3 4 5]

FOLDER holds the paper's training interactions (`*.train.rating`, or pairs) and lists (`*.test.negative`). `validate`
trains without each user's last training item and ranks it among 99 drawn negatives: configurations are chosen by it.
`test` trains the chosen one on all of train for as many epochs as it had best there, and ranks the paper's candidates.

Runs are added to benchmarks/results/neumf_accuracy.json; a configuration and seed that is there is not run again.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

import rayrec
from benchmarks.in_process import metrics, train
from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from rayrec.config import RankingConfig
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import Positives
from rayrec.ingest.loader import open_batches
from rayrec.metrics.ranking import RankingMetrics
from rayrec.training.run.folder import RunFolder
from rayrec.training.run.history import read_history

ROWS = ResultRows(
    Path(__file__).parent / "results" / "neumf_accuracy.json",
    keys=("split", "configuration", "seed"),
    printed=("split", "configuration", "hr@10", "ndcg@10"),
)
RECIPE = "neumf-ml-1m"

_DECAY = "train.embedding_optimizer.weight_decay"
# Every table decays alike, by AdamW.
_DECAYED: dict[str, Any] = {
    "model.gmf_output": "learned",
    "model.factors": 32,
    "model.mlp": [64, 32, 16],
    "model.dropout": 0.0,
    "train.global_batch_size": 8192,
    "train.epochs": 8,
    "train.embedding_l2": 0.0,
    "train.embedding_optimizer": {"kind": "adam", "lr": 0.003, "weight_decay": 0.1},
    "train.dense_optimizer": {"kind": "adam", "lr": 0.003},
    "train.schedule": {},
    "train.negatives.per_positive": 4,
}
_STEP = {
    **_DECAYED,
    "train.global_batch_size": 4096,
    "train.embedding_optimizer.lr": 0.002,
    "train.dense_optimizer.lr": 0.002,
}
_GMF: dict[str, Any] = {**_STEP, "model.parts": ["gmf"], "model.factors": 64}
_LARGE: dict[str, Any] = {**_STEP, "model.factors": 64, "model.mlp": [128, 64, 32]}
# Rows of the tables are held back in proportion to how often they occur, by the recipe's penalty.
_MF: dict[str, Any] = {"model.parts": ["gmf"], "train.dense_optimizer.kind": "adam", "train.epochs": 12}
_MLP: dict[str, Any] = {
    "model.parts": ["mlp"],
    "model.mlp": [128, 64, 32, 16],
    "train.dense_optimizer.weight_decay": 0.3,
}
_EIGHT = {"train.negatives.per_positive": 8}


def _recency(half_life: int) -> dict[str, Any]:
    """Return overrides for users whose next choice resembles their last ones."""
    return {"train.recency.half_life": half_life}


# The recipe with these keys replaced; `gmf` and `mlp` name the configurations that a pre-trained one begins from.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "neumf, 128 factors, penalty 0.004, 16 epochs": {"train.epochs": 16},
    "neumf, 64 factors, penalty 0.003, no dropout, no decay": {
        "train.epochs": 12,
        "model.factors": 64,
        "model.mlp": [128, 64, 32],
        "model.dropout": 0.0,
        "train.embedding_l2": 0.003,
        "train.dense_optimizer": {"kind": "adam", "lr": 0.006},
    },
    "mf, 128 factors, penalty 0.004": _MF,
    "mf, 128 factors, penalty 0.004, 20 epochs": {**_MF, "train.epochs": 20},
    "mf, 128 factors, penalty 0.004, half-life 20": {**_MF, "train.epochs": 8, **_recency(20)},
    "mf, 128 factors, penalty 0.004, half-life 8": {**_MF, "train.epochs": 8, **_recency(8)},
    "mf, 128 factors, penalty 0.004, half-life 4": {**_MF, "train.epochs": 8, **_recency(4)},
    "the recipe, half-life 8": {"train.epochs": 8, **_recency(8)},
    "mf, 64 factors, penalty 0.003": {**_MF, "model.factors": 64, "train.embedding_l2": 0.003},
    "gmf, 128 factors, penalty 0.004": {**_MF, "train.epochs": 20, "model.gmf_output": "learned"},
    "mlp, penalty 0.001": {**_MLP, "train.embedding_l2": 0.001},
    "mlp, penalty 0.004": {**_MLP, "train.embedding_l2": 0.004},
    "neumf, 32 factors, decay 0.1": _DECAYED,
    "neumf, 32 factors": {**_STEP, _DECAY: 0.0},
    "neumf, 32 factors, decay 0.1, smaller batch": {
        **_STEP,
        "train.dense_optimizer": {"kind": "adamw", "lr": 0.002, "weight_decay": 0.01},
    },
    "neumf, 64 factors, decay 0.3": {**_LARGE, _DECAY: 0.3},
    "gmf, 64 factors, decay 0.05": {**_GMF, _DECAY: 0.05},
    "gmf, 64 factors, decay 0.3": {**_GMF, _DECAY: 0.3},
    "gmf, 64 factors, decay 0.1, 8 negatives": {**_GMF, **_EIGHT, "train.epochs": 6},
    "neumf, 64 factors, 8 negatives": {**_DECAYED, **_EIGHT, "model.factors": 64, "train.epochs": 7},
    "gmf, 96 factors, decay 0.2, 8 negatives": {
        **_DECAYED,
        **_EIGHT,
        "model.parts": ["gmf"],
        "model.factors": 96,
        "train.epochs": 7,
        _DECAY: 0.2,
    },
    "mlp, decay 0.1": {**_LARGE, "model.parts": ["mlp"], "train.epochs": 6},
    "neumf, 64 factors, pre-trained, 8 negatives": {
        **_LARGE,
        **_EIGHT,
        "train.epochs": 5,
        "train.embedding_optimizer.lr": 0.0005,
        "train.dense_optimizer.lr": 0.0005,
        "gmf": "gmf, 64 factors, decay 0.1, 8 negatives",
        "mlp": "mlp, decay 0.1",
        "alpha": 0.5,
    },
}


def validate(data: Path, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Train each configuration on the shortened train split and rank the items that were cut from it."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = _preprocess(data, Path(folder) / "dataset", validation=True)
        for name in names:
            for seed in seeds:
                if not ROWS.has(split="validation", configuration=name, seed=seed):
                    ROWS.add(_run(dataset, Path(folder), name, seed, split="validation"))


def test(data: Path, name: str, seeds: Sequence[int]) -> None:
    """Train a configuration on all of train and rank the paper's candidates; item popularity beside it."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = _preprocess(data, Path(folder) / "dataset", validation=False)
        for ties in ("pessimistic", "optimistic"):
            ROWS.add({"split": "test", "configuration": f"item popularity, {ties} ties", **_popularity(dataset, ties)})
        for seed in seeds:
            if not ROWS.has(split="test", configuration=name, seed=seed):
                ROWS.add(_run(dataset, Path(folder), name, seed, split="test"))


def _preprocess(data: Path, output: Path, *, validation: bool) -> Dataset:
    (train,) = [*data.glob("*.train.rating*"), *data.glob("*.train.pairs*")]
    (lists,) = data.glob("*.test.negative*")
    split = {"kind": "files", "validation": validation, "negatives": 99}
    rayrec.preprocess(RECIPE, [f"train={train}", f"test={lists}"], output, set={"preprocess.split": split})
    return Dataset.open(output)


def _run(
    dataset: Dataset, folder: Path, name: str, seed: int, *, split: Literal["validation", "test"]
) -> dict[str, Any]:
    started = time.perf_counter()
    run = _train(dataset, folder, name, seed, split)
    evaluations = [record for record in read_history(run.history) if record["event"] == "evaluate"]
    found = metrics(run, split)
    return {
        "split": split,
        "configuration": name,
        "seed": seed,
        "hr@10": found["hr@10"],
        "ndcg@10": found["ndcg@10"],
        "hr_by_epoch": [record["hr@10"] for record in evaluations],
        "seconds": time.perf_counter() - started,
        "overrides": CONFIGURATIONS[name],
    }


def _train(dataset: Dataset, folder: Path, name: str, seed: int, split: str) -> RunFolder:
    """Return the run of a configuration; on test nothing is chosen: it ends with the last epoch."""
    overrides = dict(CONFIGURATIONS[name])
    parts = {part: overrides.pop(part) for part in ("gmf", "mlp") if part in overrides}
    overrides |= {"train.seed": seed, "train.evaluation_split": split}
    if split == "test":
        overrides |= {"train.checkpoint.keep_best": None, "train.evaluations_per_epoch": 0}
    if parts:
        runs = {part: str(_train(dataset, folder, of, seed, split).path) for part, of in parts.items()}
        alpha = overrides.pop("alpha")
        overrides["train.initial_weights"] = {"sources": runs, "options": {"alpha": alpha}}
    path = folder / f"{split}-{name}-{seed}".replace(" ", "-").replace(",", "")
    return train(rayrec.load_recipe(RECIPE, overrides), dataset, path)


def _popularity(dataset: Dataset, ties: Literal["pessimistic", "optimistic"]) -> dict[str, Any]:
    """Rank by the items' counts in train, through rayrec's own evaluation: a check of the routine."""
    columns = dataset.schema.interactions
    assert columns is not None
    positives = Positives.read(dataset, "train", torch.device("cpu"), in_memory=True)
    counts = torch.bincount(positives.items.long(), minlength=int(positives.items.max()) + 1).float()
    config = rayrec.load_recipe(RECIPE)
    ranking = RankingMetrics(RankingConfig(k=(10,), metrics=("hr", "ndcg"), ties=ties))
    with open_batches(
        dataset, "test", config.train.ingest, global_batch_size=65_536, drop_last=False, shuffle="none", contiguous=True
    ) as batches:
        for batch in batches:
            item = batch.sparse[columns.item].values().long()
            assert batch.group is not None
            ranking.update(counts[item], batch.label, batch.group, batch.weight)
    found = ranking.compute()
    return {"hr@10": found["hr@10"], "ndcg@10": found["ndcg@10"]}


def summary() -> str:
    """Return the mean and deviation over the seeds of each configuration."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in ROWS.read():
        groups.setdefault((row["split"], row["configuration"]), []).append(row)
    table = []
    for (split, name), rows in groups.items():
        entry: dict[str, Any] = {"split": split, "configuration": name, "seeds": len(rows)}
        for metric in ("hr@10", "ndcg@10"):
            values = [row[metric] for row in rows]
            entry[metric] = f"{statistics.mean(values):.4f}"
            entry[f"deviation of {metric}"] = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
        table.append(entry)
    return text_table(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parts = parser.add_subparsers(dest="part", required=True)
    chosen_by = parts.add_parser("validate")
    chosen_by.add_argument("--configurations", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    chosen_by.add_argument("--seeds", type=int, nargs="+", default=[1])
    final = parts.add_parser("test")
    final.add_argument("--configuration", choices=CONFIGURATIONS, required=True)
    final.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    arguments = parser.parse_args()
    if arguments.part == "validate":
        validate(arguments.data, arguments.configurations, arguments.seeds)
    else:
        test(arguments.data, arguments.configuration, arguments.seeds)
    print(summary())


if __name__ == "__main__":
    main()

"""What the models reach: on real rows, and on generated rows whose best reachable AUC is known.

    python -m benchmarks.accuracy real --data FOLDER      FOLDER holds train.tsv.gz and dev.tsv in Criteo's layout
    python -m benchmarks.accuracy generated --rows 1000000

Results go to benchmarks/results/accuracy_<part>.json.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rayrec
from benchmarks.in_process import metrics, train
from jobs.command.result import text_table
from rayrec.common.machine import Machine
from rayrec.ingest.dataset import Dataset
from rayrec.store.files import write_json

RESULTS = Path(__file__).parent / "results"
MODELS = ("dlrm", "dcnv2")

# The debug recipes for a million rows: more of everything, and passes until the held-out loss stops falling.
GENERATED: dict[str, dict[str, Any]] = {
    model: {
        "preprocess.frequency_limit": 15,
        "preprocess.layout.rows_per_row_group": 16384,
        "model.top_mlp": [128, 64],
        "train.global_batch_size": 2048,
        "train.epochs": 2,
        "train.embedding_optimizer.kind": "adagrad",
        "train.embedding_optimizer.lr": 0.03,
        "train.schedule.warmup_steps": 50,
        "train.schedule.decay_start": 400,
        "train.schedule.decay_steps": 450,
        "train.evaluations_per_epoch": 2,
        "train.log_every_steps": 50,
        "train.workers": 1,
        "train.ingest.in_memory": True,
    }
    for model in MODELS
}


def measure_real(data: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """AUC on dev.tsv of the small recipes, trained on train.tsv.gz; the recipes were chosen on folds of the latter."""
    table = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        inputs = [f"train={data / 'train.tsv.gz'}", f"test={data / 'dev.tsv'}"]
        rayrec.preprocess("dlrm-criteo-small", inputs, dataset)
        for model in MODELS:
            values = []
            for seed in seeds:
                run = Path(folder) / f"{model}-{seed}"
                recipe = rayrec.load_recipe(f"{model}-criteo-small", {"train.seed": seed})
                values.append(metrics(train(recipe, Dataset.open(dataset), run), "test")["auc"])
            table.append({
                "recipe": f"{model}-criteo-small",
                "mean_auc": statistics.mean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
                "auc_by_seed": dict(zip(map(str, seeds), values, strict=True)),
            })  # fmt: skip
    return table


def measure_generated(rows: int, seed: int) -> list[dict[str, Any]]:
    """AUC on a held-out tenth of generated rows, beside the best that any model could reach on all of them."""
    table = []
    with tempfile.TemporaryDirectory() as folder:
        raw, dataset = Path(folder) / "raw", Path(folder) / "dataset"
        best = rayrec.generate("criteo", rows, raw, seed=seed).details["truth"]["best_auc"]
        preprocessed = rayrec.preprocess("dlrm-criteo-debug", str(raw / "criteo.tsv"), dataset, set=GENERATED["dlrm"])
        for model in MODELS:
            run = Path(folder) / model
            started = time.perf_counter()
            recipe = rayrec.load_recipe(f"{model}-criteo-debug", GENERATED[model])
            auc = metrics(train(recipe, Dataset.open(dataset), run), "test")["auc"]
            table.append({
                "recipe": f"{model}-criteo-debug",
                "rows": rows,
                "auc": auc,
                "best_auc": best,
                "share_of_the_way": (auc - 0.5) / (best - 0.5),
                "preprocess_seconds": preprocessed.seconds,
                "train_seconds": time.perf_counter() - started,
            })  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    real = parts.add_parser("real")
    real.add_argument("--data", type=Path, required=True)
    real.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    generated = parts.add_parser("generated")
    generated.add_argument("--rows", type=int, default=1_000_000)
    generated.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    machine = Machine()
    part = options.pop("part")
    table = measure_real(**options) if part == "real" else measure_generated(**options)
    write_json(RESULTS / f"accuracy_{part}.json", {"machine": machine.described(), "rows": table})
    print(text_table([{k: v for k, v in row.items() if not isinstance(v, dict)} for row in table]))


if __name__ == "__main__":
    main()

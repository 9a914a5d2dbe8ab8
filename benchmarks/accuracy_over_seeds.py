"""What the debug recipes of the four models reach on generated data: several seeds, in float32 and in bfloat16.

    python -m benchmarks.accuracy_over_seeds [--recipes NAME ...] [--seeds 1 2 3 4 5] [--rows 100000]

A run's held-out metric stands beside the best that the generator's truth allows, if that is known. Of each run in
float32 it is also measured how far bfloat16 moves the probabilities of the held-out rows (`rayrec evaluate --precision
bf16`). Runs are added to benchmarks/results/accuracy_over_seeds.json; one that is there is not run again.
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
from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from rayrec.config.evaluate import InferencePrecision
from rayrec.ingest.dataset import Dataset
from rayrec.sources.registry import source_of

ROWS = ResultRows(
    Path(__file__).parent / "results" / "accuracy_over_seeds.json",
    keys=("recipe", "rows", "precision", "seed"),
    printed=("recipe", "precision", "seed", "reached", "seconds"),
)
METRICS = {
    "dlrm-criteo-debug": "auc",
    "dcnv2-criteo-debug": "auc",
    "wide-deep-outbrain-debug": "map@12",
    "neumf-ml-1m-debug": "hr@10",
}
PRECISIONS: tuple[InferencePrecision, ...] = ("fp32", "bf16")


def measure(name: str, seeds: Sequence[int], rows: int) -> None:
    """Run what has no result yet of a recipe."""
    wanted = [
        (precision, seed)
        for precision in PRECISIONS
        for seed in seeds
        if not ROWS.has(recipe=name, rows=rows, precision=precision, seed=seed)
    ]
    if not wanted:
        return
    kind = rayrec.load_recipe(name).source.kind
    generated = source_of(kind).generated
    assert generated is not None
    with tempfile.TemporaryDirectory() as folder:
        raw, data = Path(folder) / "raw", Path(folder) / "dataset"
        truth = rayrec.generate(kind, rows, raw).details.get("truth", {})
        best = truth.get("best_auc") or truth.get("held_out", {}).get("best")
        rayrec.preprocess(name, str(raw / generated.path), data)
        dataset, split = Dataset.open(data), generated.evaluated
        for precision, seed in wanted:
            started = time.perf_counter()
            changes = {"precision": precision, "seed": seed, "workers": 1, "ingest.in_memory": True}
            recipe = rayrec.load_recipe(name, {f"train.{key}": value for key, value in changes.items()})
            run = train(recipe, dataset, Path(folder) / f"{precision}-{seed}")
            result: dict[str, Any] = {
                "recipe": name,
                "rows": rows,
                "precision": precision,
                "seed": seed,
                "metric": METRICS[name],
                "reached": metrics(run, split)[METRICS[name]],
                "best": best,
                "seconds": round(time.perf_counter() - started, 1),
            }
            if precision == "fp32":
                scored = {}
                for arithmetic in PRECISIONS:
                    measured = rayrec.evaluate(
                        run.path, data, split=split, checkpoint="latest", precision=arithmetic, on="process"
                    )
                    scored[arithmetic] = measured.metrics[split]
                result |= {key: scored["bf16"][key] for key in ("amp_error_max", "amp_error_mean")}
                result["moved_by_amp"] = (scored["bf16"][METRICS[name]] or 0.0) - (scored["fp32"][METRICS[name]] or 0.0)
            ROWS.add(result)


def summary(rows: int) -> str:
    """Return a line a recipe and precision: mean and deviation over seeds; of float32, what scoring in bf16 does.

    That is the greatest change of the metric, and the greatest and the largest mean change of probabilities.
    """
    table = []
    for name in METRICS:
        for precision in PRECISIONS:
            of = [
                row for row in ROWS.read() if (row["recipe"], row["precision"], row["rows"]) == (name, precision, rows)
            ]
            if not of:
                continue
            reached = [row["reached"] for row in of]
            line = {
                "recipe": name,
                "metric": of[0]["metric"],
                "trained in": precision,
                "seeds": len(of),
                "mean": f"{statistics.mean(reached):.4f}",
                "deviation": f"{statistics.stdev(reached):.4f}" if len(of) > 1 else "-",
                "best": "-" if of[0]["best"] is None else f"{of[0]['best']:.4f}",
            }
            for key in ("moved_by_amp", "amp_error_max", "amp_error_mean"):
                found = [row[key] for row in of if key in row]
                line[key] = f"{max(found, key=abs):.1e}" if found else "-"
            table.append(line)
    return text_table(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    for name in arguments.recipes:
        measure(name, arguments.seeds, arguments.rows)
    print(summary(arguments.rows))


if __name__ == "__main__":
    main()

"""What Wide & Deep reaches on generated displays, between ranking by popularity and the best that can be reached.

    python -m benchmarks.wide_deep_accuracy --rows 1000000 --folder FOLDER --without
    python -m benchmarks.wide_deep_accuracy --rows 1000000 --folder FOLDER --embedding-dim 32

The clicks of day 11 on are held out, for which the generator knows the best MAP@12. *Popularity* ranks the ads of a
display by their rate of clicks in train, smoothed as the features are. A run without a family of features (by default
one for each) trains the same model on the dataset less their columns; narrower tables make these runs shorter. FOLDER
keeps the tables, the dataset and the runs. Results are added to benchmarks/results/wide_deep_accuracy.json, and what is
there is not done again.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

import rayrec
from benchmarks.in_process import metrics, train
from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from rayrec.config import RankingConfig
from rayrec.features.schema import SCHEMA_FILE, Schema
from rayrec.ingest.dataset import Dataset
from rayrec.metrics.ranking import RankingMetrics
from rayrec.sources.generated_files import TRUTH_FILE
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.generator import OutbrainTruth
from rayrec.store.artifact import MANIFEST_FILE

ROWS = ResultRows(
    Path(__file__).parent / "results" / "wide_deep_accuracy.json",
    keys=("rows", "epochs", "embedding_dim", "without", "seed"),
    printed=("without", "seed", "map@12", "share_of_the_way"),
)
RECIPE = "wide-deep-outbrain-debug"

# The debug recipe for a million rows and more, and all features.
SETTINGS: dict[str, Any] = {
    "preprocess.feature_set": "full",
    "preprocess.split.held_out_share": 0.0,
    "model.mlp": [512, 256],
    "model.dropout": 0.4,
    "train.loss.listwise": 0.5,
    "train.workers": 1,
    "train.global_batch_size": 4096,
    "train.embedding_optimizer.lr": 0.02,
    "train.dense_optimizer": {"kind": "adam", "lr": 0.001},
    "train.ingest.in_memory": True,
    "train.log_every_steps": 50,
    "train.evaluations_per_epoch": 0,
    "train.checkpoint.keep_best": None,
}

# Features of the `full` set by what they know; each run leaves out one family.
_USER = ("user_views", "user_has_already_viewed_doc", "user_doc_ad_sim_")
_LANDING_SIMILARITY = ("doc_event_doc_ad_sim_",)
_CONTEXT = (
    "event_hour", "event_platform", "event_weekend", "event_geo_location", "event_country", "event_country_state",
    "traffic_source", "doc_event_hour",
)  # fmt: skip
_RATES = ("pop_", "ad_views", "doc_views")
_AD = ("ad_id", "doc_id", "doc_ad_", "ad_advertiser")
FAMILIES: dict[str, tuple[str, ...]] = {
    "user": _USER,
    "similarity of landing page and ad": _LANDING_SIMILARITY,
    "context": _CONTEXT,
    "click-through rates": _RATES,
    "ids of the ad": _AD,
    "ids of the ad and click-through rates": (*_AD, *_RATES),
}


def measure(
    folder: Path, rows: int, epochs: int, width: int, without: Sequence[str | None], seeds: Sequence[int]
) -> None:
    """Popularity, then a run for each family that is left out (None: none) and seed; `width` is that of the tables."""
    raw, output = folder / "raw", folder / "dataset"
    if not (raw / TRUTH_FILE).exists():
        rayrec.generate("outbrain", rows, raw)
    if not (output / MANIFEST_FILE).exists():
        rayrec.preprocess(RECIPE, str(raw), output, set=SETTINGS)
    dataset = Dataset.open(output)
    truth = OutbrainTruth.model_validate_json((raw / TRUTH_FILE).read_text()).held_out
    assert truth is not None, "too few rows reach day 11"
    popularity = _popularity(dataset)
    settings = {**SETTINGS, "model.embedding_dim": width, **_schedule(dataset.split("train").rows, epochs)}
    measured = {"rows": rows, "epochs": epochs, "embedding_dim": width}
    known = {**measured, "best": truth.best, "popularity": popularity, "random": truth.random}
    for family in without:
        for seed in seeds:
            if ROWS.has(**measured, without=family, seed=seed):
                continue
            seen = dataset if family is None else _less(dataset, FAMILIES[family])
            name = f"run-{epochs}-{width}-{'all' if family is None else family.replace(' ', '-')}-{seed}"
            recipe = rayrec.load_recipe(RECIPE, {**settings, "train.seed": seed})
            found = metrics(train(recipe, seen, folder / name), "validation")["map@12"]
            ROWS.add({
                "without": family,
                "seed": seed,
                **known,
                "map@12": found,
                "share_of_the_way": (found - popularity) / (truth.best - popularity),
                "overrides": settings,
            })  # fmt: skip


def _schedule(rows: int, epochs: int) -> dict[str, Any]:
    """Return a schedule that is constant for a quarter of the steps, then falls to 0 at the last one."""
    steps = epochs * (rows // int(SETTINGS["train.global_batch_size"]))
    falling = {"decay_start": steps // 4, "decay_steps": steps - steps // 4, "decay_power": 1.0}
    return {
        "train.epochs": epochs,
        "train.schedule": {"warmup_steps": 50, **falling},
        "train.parts.wide.schedule": falling,
    }


def _popularity(dataset: Dataset) -> float:
    """MAP@12 of ranking by the ads' smoothed click-through rates in train, through rayrec's own evaluation."""
    config = dataset.recipe.preprocess
    assert isinstance(config, DisplayPreprocessConfig)
    of_train, held_out = (_columns(dataset, split) for split in ("train", "validation"))
    ads = int(max(of_train["ad"].max(), held_out["ad"].max())) + 1
    views = torch.bincount(of_train["ad"], minlength=ads)
    clicks = torch.bincount(of_train["ad"], weights=of_train["label"].double(), minlength=ads)
    rates = (clicks + config.rates.smoothing * of_train["label"].double().mean()) / (views + config.rates.smoothing)
    ranking = RankingMetrics(RankingConfig(k=(12,), metrics=("map",)))
    ones = torch.ones(len(held_out["ad"]))
    ranking.update(rates[held_out["ad"]].float(), held_out["label"].float(), held_out["display"], ones)
    found = ranking.compute()["map@12"]
    assert found is not None
    return found


def _columns(dataset: Dataset, split: str) -> dict[str, torch.Tensor]:
    schema = dataset.schema
    assert schema.candidate is not None and schema.group is not None
    names = {"ad": schema.candidate, "display": schema.group, "label": schema.label}
    files = [dataset.folder / part.path for part in dataset.manifest.splits[split].parts]
    table = pq.read_table(files, columns=list(names.values()))
    return {name: torch.from_numpy(table[column].to_numpy().copy()) for name, column in names.items()}


def _less(dataset: Dataset, prefixes: tuple[str, ...]) -> Dataset:
    """Return the dataset without the features whose name begins so; its files keep the columns, which nothing reads."""
    kept = tuple(f for f in dataset.schema.features if not f.name.startswith(prefixes))
    schema = Schema.model_validate({**dataset.schema.model_dump(), "features": [f.model_dump() for f in kept]})
    folder = dataset.folder.with_name(f"less-{'-'.join(p.strip('_') for p in prefixes)}")
    folder.mkdir(exist_ok=True)
    for path in dataset.folder.iterdir():
        if path.name != SCHEMA_FILE and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    schema.save(folder)
    return Dataset.open(folder)


def summary() -> str:
    """Return the mean and deviation over the seeds, by what was left out."""
    groups: dict[tuple[int, int, int, str | None], list[dict[str, Any]]] = {}
    for row in ROWS.read():
        groups.setdefault((row["rows"], row["epochs"], row["embedding_dim"], row["without"]), []).append(row)
    table = []
    for (rows, epochs, width, family), found in groups.items():
        values = [row["map@12"] for row in found]
        table.append({
            "rows": rows,
            "epochs": epochs,
            "embedding_dim": width,
            "without": family or "-",
            "seeds": len(values),
            "map@12": f"{statistics.mean(values):.4f}",
            "deviation": f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-",
            "of the way": f"{statistics.mean(row['share_of_the_way'] for row in found):.3f}",
            "popularity": f"{found[0]['popularity']:.4f}",
            "best": f"{found[0]['best']:.4f}",
        })  # fmt: skip
    return text_table(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--embedding-dim", type=int, default=128)
    parser.add_argument("--without", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    measure(
        arguments.folder,
        arguments.rows,
        arguments.epochs,
        arguments.embedding_dim,
        [None, *arguments.without],
        arguments.seeds,
    )
    print(summary())


if __name__ == "__main__":
    main()

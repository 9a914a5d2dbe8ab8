"""Small real tables, five fixed folds each: a recipe of `rayrec inspect` beside logistic regression and LightGBM.

    python -m benchmarks.small_tables --data FOLDER --output benchmarks/results/small_tables.json [--only NAME ...]
    python -m benchmarks.small_tables ... --by-time

FOLDER has the public samples in sub-folders (see `TABLES`); rows given as train and dev files count as one table.
Logistic regression (scikit-learn) has one-hot categories and standardized numbers; its penalty, and the least count of
a category, are tuned on three folds of its train rows. LightGBM has categories as such, and is tuned likewise. rayrec
reads a file of the fold's train rows and is told the label alone; if the recipe that `rayrec inspect` writes has
validation rows, every tenth of these rows (or of their groups) measures the epochs. The recipe is trained as it was
written, in this process.

With `--by-time`, the recipe of each log holds out the latest rows, as it was written, and is trained by three seeds
with and without what it has of the past of each row; the results are added to those in the output.
"""

import argparse
import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import rayrec
from benchmarks.in_process import train as train_in_process
from cluster.ray_session import ray_session
from cluster.spark_session import spark_session
from rayrec.common.machine import Machine
from rayrec.config.preprocess import SparkConfig
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.spark import SparkEngine
from rayrec.sources.registry import preprocessing
from rayrec.store.files import write_json
from rayrec.training.run.folder import METRICS_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDS, SEEDS = 5, 3
_CRITEO = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


@dataclass(frozen=True)
class Table:
    """A table as a person would read it; the baselines need to be told what `rayrec inspect` finds out."""

    name: str
    files: tuple[str, ...]
    label: str
    numeric: tuple[str, ...]
    ignore: tuple[str, ...] = ()
    separator: str = ","
    names: tuple[str, ...] | None = None
    """Of files without a header."""
    positive_from: float | None = None
    """The least value of the label's column that is positive."""
    group: str | None = None
    """Rows of a group stay in one fold."""

    def read(self, folder: Path) -> pd.DataFrame:
        """Return all rows, the categories as text."""
        parts = [self._read(folder / file, is_first=index == 0) for index, file in enumerate(self.files)]
        rows = pd.concat(parts, ignore_index=True)
        label = rows[self.label].astype(float)
        rows[self.label] = (label >= self.positive_from if self.positive_from is not None else label).astype(int)
        for name in self.numeric:
            rows[name] = pd.to_numeric(rows[name])
        return rows

    def _read(self, path: Path, *, is_first: bool) -> pd.DataFrame:
        header = self.names
        if header is None and not is_first:
            with _open(path.parent / Path(self.files[0]).name) as first:
                header = tuple(first.readline().strip().split(self.separator))
        return pd.read_csv(
            path,
            sep=self.separator,
            names=None if header is None else list(header),
            header=0 if header is None else None,
            dtype=str,
            quoting=3,
        )


def _open(path: Path) -> Any:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


TABLES = (
    Table("avazu-9k", ("avazu-9k/train.csv.gz", "avazu-9k/dev.csv"), "click", (), ("id", "hour")),
    Table(
        "criteo-kaggle-8k",
        ("criteo-kaggle-8k/train.tsv.gz", "criteo-kaggle-8k/dev.tsv"),
        "label",
        tuple(_CRITEO[1:14]),
        separator="\t",
        names=tuple(_CRITEO),
    ),
    Table("criteo-kaggle-200", ("criteo-kaggle-200/criteo_sample.txt",), "label", tuple(_CRITEO[1:14])),
    Table(
        "ml-100k",
        ("ml-100k/u.data.gz",),
        "rating",
        ("timestamp",),
        separator="\t",
        names=("user_id", "item_id", "rating", "timestamp"),
        positive_from=4,
    ),
    Table("ml-latest-small", ("ml-latest-small/ratings.csv.gz",), "rating", ("timestamp",), positive_from=4),
    Table(
        "outbrain-10k",
        ("outbrain-10k/sample_train_dat.csv",),
        "clicked",
        (),
        ("display_id", "uuid", "timestamp_view", "day"),
        group="display_id",
    ),
    # Visits to a doctor, by persons who have several rows each (statsmodels.datasets.randhie). No column names them.
    Table(
        "randhie",
        ("randhie/randhie.csv",),
        "mdvis",
        ("lncoins", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp"),
        positive_from=1,
    ),
)


def folds(table: Table, rows: pd.DataFrame) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the positions of the rows of train and test of each fold."""
    label = rows[table.label]
    if table.group is not None:
        return GroupKFold(FOLDS, shuffle=True, random_state=0).split(rows, label, rows[table.group])
    return StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, label)


def logistic_regression(numeric: list[str], categorical: list[str]) -> GridSearchCV:
    """Return one-hot categories, standardized numbers with a mark where one is missing; the penalty is tuned."""
    logs = FunctionTransformer(lambda x: np.sign(x) * np.log1p(np.abs(x)))
    numbers = make_pipeline(logs, SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist")
    columns = ColumnTransformer([("numbers", numbers, numeric), ("categories", encoder, categorical)])
    steps = Pipeline([("columns", columns), ("regression", LogisticRegression(max_iter=1000))])
    grid = {
        "regression__C": [0.02, 0.06, 0.2, 0.6, 2.0],
        "columns__categories__min_frequency": [1, 5],
    }
    return GridSearchCV(steps, grid, scoring="roc_auc", cv=3)


def boosting() -> GridSearchCV:
    """Return the gradient boosted trees, whose leaves and rounds are tuned."""
    grid = {"num_leaves": [7, 31], "n_estimators": [60, 200]}
    model = lightgbm.LGBMClassifier(learning_rate=0.05, verbose=-1, n_jobs=1, random_state=0)
    return GridSearchCV(model, grid, scoring="roc_auc", cv=3)


def baselines(table: Table, rows: pd.DataFrame) -> dict[str, list[float]]:
    """Return the AUC of each fold by method."""
    features = [n for n in rows.columns if n != table.label and n not in table.ignore]
    categorical = [n for n in features if n not in table.numeric]
    found: dict[str, list[float]] = {"logistic_regression": [], "lightgbm": []}
    encoded = rows[features].copy()
    encoded[categorical] = encoded[categorical].astype("category")
    texts = rows[features].copy()
    texts[categorical] = texts[categorical].fillna("")
    label = rows[table.label]
    for train, test in folds(table, rows):
        for name, model, values in (
            ("logistic_regression", logistic_regression(list(table.numeric), categorical), texts),
            ("lightgbm", boosting(), encoded),
        ):
            model.fit(values.iloc[train], label.iloc[train])
            scores = model.predict_proba(values.iloc[test])[:, 1]
            found[name].append(float(roc_auc_score(label.iloc[test], scores)))
    return found


def rayrec_aucs(table: Table, rows: pd.DataFrame, spark: "SparkSession", folder: Path) -> list[float]:
    """Return the AUC of each fold by the recipe that `rayrec inspect` writes from the train rows alone."""
    found = []
    for number, (train, test) in enumerate(folds(table, rows)):
        fold = folder / f"{table.name}-{number}"
        fold.mkdir(parents=True)
        rows.iloc[train].to_csv(fold / "seen.csv", index=False)
        rayrec.inspect(fold / "seen.csv", label=table.label, output=fold / "recipe.yaml", progress=False)
        parts = {"train": train, "test": test}
        if "validation" in yaml.safe_load((fold / "recipe.yaml").read_text())["preprocess"]["split"]:
            numbers = pd.factorize(rows[table.group].iloc[train])[0] if table.group else np.arange(len(train))
            is_held_out = numbers % 10 == 0
            parts |= {"train": train[~is_held_out], "validation": train[is_held_out]}
        for split, chosen in parts.items():
            rows.iloc[chosen].to_csv(fold / f"{split}.csv", index=False)
        recipe = rayrec.load_recipe(
            fold / "recipe.yaml", {"preprocess.split": {"kind": "files"}, "train.precision": "fp32"}
        )
        inputs: dict[str | None, list[str]] = {split: [str(fold / f"{split}.csv")] for split in parts}
        preprocessing(recipe, inputs, fold / "dataset").run(SparkEngine(spark))
        run = train_in_process(recipe, Dataset.open(fold / "dataset"), fold / "run")
        best = json.loads((run.path / METRICS_FILE).read_text())
        found.append(float(best["test"]["auc"]))
    return found


def by_time(table: Table, rows: pd.DataFrame, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return AUC and log loss on the latest rows by seed, with and without `source.histories`; nothing of a table whose
    recipe holds out other rows.
    """
    folder.mkdir()
    rows.to_csv(folder / "log.csv", index=False)
    rayrec.inspect(folder / "log.csv", label=table.label, output=folder / "recipe.yaml", progress=False)
    if yaml.safe_load((folder / "recipe.yaml").read_text())["preprocess"]["split"]["kind"] != "time":
        return {}
    found: dict[str, dict[str, list[float]]] = {}
    ways: dict[str, dict[str, Any]] = {"as written": {}, "without histories": {"source.histories": {}}}
    for name, overrides in ways.items():
        recipe = rayrec.load_recipe(folder / "recipe.yaml", overrides)
        preprocessing(recipe, {None: [str(folder / "log.csv")]}, folder / name).run(EmbeddedEngine(2))
        found[name] = {"auc": [], "log_loss": []}
        for seed in range(SEEDS):
            recipe = rayrec.load_recipe(folder / "recipe.yaml", {**overrides, "train.seed": seed})
            run = train_in_process(recipe, Dataset.open(folder / name), folder / f"{name} {seed}")
            test = json.loads((run.path / METRICS_FILE).read_text())["test"]
            for metric, values in found[name].items():
                values.append(float(test[metric]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[table.name for table in TABLES])
    parser.add_argument("--by-time", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    machine = Machine()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rayrec-tables-") as temporary:
        if options.by_time:
            report = json.loads(options.output.read_text()) if options.output.exists() else {}
            of_time = report.setdefault("by_time", {"machine": machine.described()})
            for table in (table for table in TABLES if table.name in options.only):
                if found := by_time(table, table.read(options.data), Path(temporary) / table.name):
                    of_time[table.name] = found
                    print(table.name, found, flush=True)
            write_json(options.output, report)
            return
        for table in (table for table in TABLES if table.name in options.only):
            rows = table.read(options.data)
            aucs = baselines(table, rows)
            with ray_session(), spark_session(SparkConfig()) as spark:
                aucs["rayrec"] = rayrec_aucs(table, rows, spark, Path(temporary))
            report[table.name] = {
                name: {"mean": float(np.mean(values)), "folds": values} for name, values in aucs.items()
            }
            print(table.name, {name: round(found["mean"], 4) for name, found in report[table.name].items()}, flush=True)
            write_json(options.output, {"machine": machine.described(), **report})


if __name__ == "__main__":
    main()

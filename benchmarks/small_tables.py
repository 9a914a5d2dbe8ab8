"""Small real tables, five fixed folds each: a recipe of `rayrec inspect` beside logistic regression and LightGBM.

    python -m benchmarks.small_tables --data FOLDER --output benchmarks/results/small_tables.json [--only NAME ...]

FOLDER has the public samples in sub-folders (see `TABLES`); rows given as train and dev files count as one table.
Logistic regression (scikit-learn) has one-hot categories and standardised numbers; its penalty, and the least count of
a category, are tuned on three folds of its train rows. LightGBM has categories as such, and is tuned likewise.
"""

import argparse
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

FOLDS = 5
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
        """All rows, the categories as text."""
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
)


def folds(table: Table, rows: pd.DataFrame) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The positions of the rows of train and test of each fold."""
    label = rows[table.label]
    if table.group is not None:
        return GroupKFold(FOLDS, shuffle=True, random_state=0).split(rows, label, rows[table.group])
    return StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, label)


def logistic_regression(numeric: list[str], categorical: list[str]) -> GridSearchCV:
    """One-hot categories, standardised numbers with a mark where one is missing; the penalty is tuned."""
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
    """Gradient boosted trees, whose leaves and rounds are tuned."""
    grid = {"num_leaves": [7, 31], "n_estimators": [60, 200]}
    model = lightgbm.LGBMClassifier(learning_rate=0.05, verbose=-1, n_jobs=1, random_state=0)
    return GridSearchCV(model, grid, scoring="roc_auc", cv=3)


def baselines(table: Table, rows: pd.DataFrame) -> dict[str, list[float]]:
    """The AUC of each fold by method."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[table.name for table in TABLES])
    options = parser.parse_args()
    for table in TABLES:
        if table.name in options.only:
            found = baselines(table, table.read(options.data))
            print(
                table.name,
                {
                    name: (round(float(np.mean(values)), 4), np.round(values, 4).tolist())
                    for name, values in found.items()
                },
                flush=True,
            )


if __name__ == "__main__":
    main()

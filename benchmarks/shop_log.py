"""A generated shop's log: `rayrec inspect` and `rayrec run` beside LightGBM and logistic regression, by seeds.

    python -m benchmarks.shop_log --seeds 1 2 3 --output benchmarks/results/shop_log.json

A row is an offer that a person bought or not: user, category, price, device, time. What is bought depends on the user,
the category, what this user thinks of this category, the logarithm of the price (which is skewed), and the hour. The
newest tenth of the rows measures all; the rows before are what each gets. `rayrec run` trains the unedited recipe of
`inspect`, holds out rows of its own, and refits; its exported model is measured. LightGBM has its defaults and the
columns as they are, with the hour; logistic regression is told the truth's form: the logarithm of the price, and user x
category as one-hot values (C chosen on a tenth of its rows). `best` is the AUC of the probabilities that the labels
were drawn from.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import OneHotEncoder

import rayrec
from rayrec.common.machine import Machine
from rayrec.store.files import write_json

USERS, CATEGORIES, DEVICES, DAYS = 2_000, 12, 4, 60
_TEST = 0.1
Floats = NDArray[np.float64]


def shop_log(rows: int, seed: int) -> tuple[pd.DataFrame, Floats]:
    """Return the log, in the order of its times, and the probability that each label was drawn with."""
    rng = np.random.default_rng(seed)
    # Some users buy more often than others, and some categories are looked at more.
    user = rng.choice(USERS, rows, p=rng.dirichlet(np.full(USERS, 2.0)))
    category = rng.choice(CATEGORIES, rows, p=rng.dirichlet(np.full(CATEGORIES, 5.0)))
    device = rng.integers(DEVICES, size=rows)
    price = np.exp(rng.normal(3.0, 1.1, rows) + rng.normal(0, 0.4, CATEGORIES)[category]).round(2)
    seconds = np.sort(rng.integers(DAYS * 86_400, size=rows))
    odds = (
        -1.2
        + rng.normal(0, 0.4, USERS)[user]
        + rng.normal(0, 0.4, CATEGORIES)[category]
        + rng.normal(0, 0.9, (USERS, CATEGORIES))[user, category]
        + rng.normal(0, 0.2, DEVICES)[device]
        - 0.5 * (np.log(price + 0.01) - 3.0)
        + 0.2 * np.sin(seconds / 86_400 * 2 * np.pi)
    )
    chance = 1 / (1 + np.exp(-odds))
    log = pd.DataFrame({
        "user": [f"u{n}" for n in user],
        "category": [f"c{n}" for n in category],
        "price": price,
        "device": np.array(["phone", "tablet", "desktop", "app"])[device],
        "time": (pd.Timestamp("2026-01-01") + pd.to_timedelta(seconds, "s")).strftime("%Y-%m-%d %H:%M:%S"),
        "bought": (rng.random(rows) < chance).astype(int),
    })  # fmt: skip
    return log, chance


def measured(label: Floats, scores: Floats) -> dict[str, float]:
    """Return AUC, log loss, and the mean score by the rate of the label."""
    return {
        "auc": round(float(roc_auc_score(label, scores)), 4),
        "log_loss": round(float(log_loss(label, scores)), 4),
        "calibration": round(float(scores.mean() / label.mean()), 3),
    }


def by_boosting(log: pd.DataFrame, train: slice, test: slice) -> Floats:
    """Return the scores of LightGBM's defaults."""
    features = log.drop(columns=["bought", "time"]).astype(dict.fromkeys(("user", "category", "device"), "category"))
    features["hour"] = pd.to_datetime(log.time).dt.hour
    model = lightgbm.LGBMClassifier(verbose=-1, n_jobs=2, random_state=0)
    model.fit(features[train], log.bought[train])
    return np.asarray(model.predict_proba(features[test]))[:, 1]


def by_regression(log: pd.DataFrame, train: slice, test: slice) -> Floats:
    """Return the scores of a logistic regression with the logarithm of the price and user x category."""
    categories = log[["user", "category", "device"]].assign(
        pair=log.user + log.category, hour=pd.to_datetime(log.time).dt.hour
    )
    encoder = OneHotEncoder(handle_unknown="ignore").fit(categories[train])
    price = np.log(log.price.to_numpy() + 0.01)
    columns = sparse.csr_matrix(((price - price[train].mean()) / price[train].std())[:, None])
    inputs = sparse.hstack([encoder.transform(categories), columns]).tocsr()
    label = log.bought.to_numpy()
    part = slice(train.stop - train.stop // 10)
    rest = slice(part.stop, train.stop)

    def fitted(penalty: float, rows: slice) -> LogisticRegression:
        return LogisticRegression(C=penalty, max_iter=1000).fit(inputs[rows], label[rows])

    losses = {c: log_loss(label[rest], fitted(c, part).predict_proba(inputs[rest])[:, 1]) for c in (0.1, 0.3, 1.0)}
    return fitted(min(losses, key=losses.__getitem__), train).predict_proba(inputs[test])[:, 1]


def by_rayrec(log: pd.DataFrame, train: slice, test: slice, seed: int) -> Floats:
    """Return the scores of the model that `rayrec run` exports for the unedited recipe of `rayrec inspect`."""
    with tempfile.TemporaryDirectory(prefix="rayrec-shop-") as temporary:
        file, recipe, out = (str(Path(temporary) / name) for name in ("log.csv", "recipe.yaml", "out"))
        log[train].to_csv(file, index=False)
        cli = [sys.executable, "-m", "rayrec.cli"]
        subprocess.run([*cli, "inspect", file, "--label", "bought", "--output", recipe], check=True, stdout=2)
        run = [*cli, "run", recipe, "--input", file, "--output", out, "--set", f"train.seed={seed}"]
        subprocess.run(run, check=True, stdout=2)
        model = rayrec.load_model(f"{out}/model")
        return np.asarray(model.predict(log[test].drop(columns="bought")), np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": Machine().described(), "rows": options.rows}
    for seed in options.seeds:
        log, chance = shop_log(options.rows, seed)
        train, test = slice(0, round((1 - _TEST) * len(log))), slice(round((1 - _TEST) * len(log)), len(log))
        label = log.bought.to_numpy()[test]
        report[f"seed {seed}"] = {
            "best": measured(label, chance[test]),
            "logistic_regression": measured(label, by_regression(log, train, test)),
            "lightgbm": measured(label, by_boosting(log, train, test)),
            "rayrec": measured(label, by_rayrec(log, train, test, seed)),
        }
        print(json.dumps(report[f"seed {seed}"]), flush=True)
        write_json(options.output, report)


if __name__ == "__main__":
    main()

"""LightGBM from a CSV file of rows with a label to scores of another file's rows.

The argument is a JSON object of `train`, `held_out` and `scores` (files), `label` and `threads`. A tenth of the rows
says when to stop adding trees. Prints JSON: the seconds, and the number of trees.
"""

import json
import sys
import time

import lightgbm
import pandas as pd


def main() -> None:
    arguments = json.loads(sys.argv[1])
    began = time.perf_counter()
    rows = pd.read_csv(arguments["train"], engine="pyarrow")
    label = rows.pop(arguments["label"])
    texts = rows.select_dtypes(exclude="number").columns
    categories = {name: pd.CategoricalDtype(sorted(set(rows[name].dropna()))) for name in texts}
    rows = rows.astype(categories)
    is_held_out = rows.index % 10 == 0
    train = lightgbm.Dataset(rows[~is_held_out], label[~is_held_out])
    validation = lightgbm.Dataset(rows[is_held_out], label[is_held_out], reference=train)
    model = lightgbm.train(
        {"objective": "binary", "metric": "binary_logloss", "num_threads": arguments["threads"], "verbose": -1},
        train,
        num_boost_round=1000,
        valid_sets=[validation],
        callbacks=[lightgbm.early_stopping(20, verbose=False)],
    )
    held_out = pd.read_csv(arguments["held_out"], engine="pyarrow")
    for name, dtype in categories.items():
        held_out[name] = pd.Categorical(held_out[name].where(held_out[name].isin(dtype.categories)), dtype=dtype)
    pd.DataFrame({"score": model.predict(held_out[rows.columns])}).to_parquet(arguments["scores"])
    print(json.dumps({"seconds": time.perf_counter() - began, "trees": model.best_iteration}))


if __name__ == "__main__":
    main()

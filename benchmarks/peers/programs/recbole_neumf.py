"""NeuMF of RecBole, as its `run_recbole` trains it: dense Adam, negatives drawn on the CPU for each batch.

The argument is a JSON object of `ratings` (CSV file), `folder` (for RecBole's files), `factors`, `mlp`, `negatives`,
`batch`, `lr` and `threads`. Prints JSON: samples/s (positives and negatives) of the second epoch, and its mean loss.
"""

import csv
import json
import sys
import time
from logging import WARNING
from pathlib import Path

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.general_recommender.neumf import NeuMF
from recbole.trainer import Trainer


def main() -> None:
    arguments = json.loads(sys.argv[1])
    folder = Path(arguments["folder"])
    write_atomic_file(Path(arguments["ratings"]), folder / "ratings" / "ratings.inter")
    config = Config(
        model="NeuMF",
        dataset="ratings",
        config_dict={
            "data_path": str(folder),
            "checkpoint_dir": str(folder / "saved"),
            "field_separator": "\t",
            "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
            "USER_ID_FIELD": "user_id",
            "ITEM_ID_FIELD": "item_id",
            "TIME_FIELD": "timestamp",
            "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user", "mode": "uni99"},
            "metrics": ["Hit", "NDCG"],
            "valid_metric": "Hit@10",
            "mf_embedding_size": arguments["factors"],
            "mlp_embedding_size": arguments["mlp"][0] // 2,
            "mlp_hidden_size": arguments["mlp"][1:],
            "dropout_prob": 0.0,
            "train_batch_size": arguments["batch"],
            "train_neg_sample_args": {"distribution": "uniform", "sample_num": arguments["negatives"]},
            "learning_rate": arguments["lr"],
            "use_gpu": False,
            "state": "WARNING",
            "show_progress": False,
        },
    )
    torch.set_num_threads(arguments["threads"])
    train, _, _ = data_preparation(config, create_dataset(config))
    model = NeuMF(config, train.dataset)
    trainer = Trainer(config, model)
    trainer.logger.setLevel(WARNING)
    samples = len(train.dataset) * (1 + arguments["negatives"])
    for epoch in range(2):
        began = time.perf_counter()
        loss = trainer._train_epoch(train, epoch)
        seconds = time.perf_counter() - began
    print(json.dumps({"samples_per_second": samples / seconds, "loss": loss / len(train)}))


def write_atomic_file(ratings: Path, path: Path) -> None:
    """Write the format that RecBole reads, from a CSV file of users, items, ratings and timestamps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ratings.open(newline="") as source, path.open("w", newline="") as target:
        rows = csv.DictReader(source)
        target.write("user_id:token\titem_id:token\ttimestamp:float\n")
        target.writelines(f"{row['userId']}\t{row['movieId']}\t{row['timestamp']}\n" for row in rows)


if __name__ == "__main__":
    main()

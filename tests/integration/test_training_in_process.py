"""Training within the process of its caller: several at once, and with a batch of more rows than there are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rayrec
from rayrec.recipes import dump_recipe
from tests.builders import make_dataset
from tests.training_runs import recipe

Train = Callable[[str, dict[str, Any]], dict[str, dict[str, float | None]]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    make_dataset(tmp_path / "data", {"train": 300, "test": 200}, seed=3)
    (tmp_path / "r.yaml").write_text(dump_recipe(recipe(epochs=3, precision="fp32", device="cpu")))

    def run(name: str, changed: dict[str, Any]) -> dict[str, dict[str, float | None]]:
        values = {"recipe": tmp_path / "r.yaml", "data": tmp_path / "data", "output": tmp_path / name, "on": "process"}
        return rayrec.train(**values, set=changed, progress=False).metrics

    return run


def test_threads_of_a_process_train_one_after_the_other(train: Train) -> None:
    alone = [train(f"alone-{seed}", {"train.seed": seed}) for seed in (1, 2)]
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(train, f"run-{number}", {"train.seed": number % 2 + 1}) for number in range(4)]
    assert [run.result() for run in runs] == [*alone, *alone]


@pytest.mark.parametrize("batch", [301, 10**12])
def test_a_batch_of_more_rows_than_there_are_is_one_of_all(batch: int, train: Train) -> None:
    both = [
        train(f"batch-{size}", {"train.global_batch_size": size, "train.ingest.drop_last": False})
        for size in (300, batch)
    ]
    assert both[0] == both[1]

"""How many threads a worker has changes no bit of a model, and a large batch is shared out among them."""

from pathlib import Path

import pytest

from tests.builders import make_dataset
from tests.training_runs import Case, recipe, require_same_bits, run_cases

STEPS = 3
ADAGRAD = {"kind": "adagrad", "lr": 0.1}
# Large enough for eight micro-batches of a batch of 2,048, and for four of half of it.
DLRM = {"kind": "dlrm", "embedding_dim": 32, "bottom_mlp": [512, 32], "top_mlp": [1024, 1024]}
WIDE_DEEP = {"kind": "wide_deep", "embedding_dim": 32, "mlp": [1024, 1024], "dropout": 0.3}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads") / "data"
    return make_dataset(folder, 12_000, 3, 4, multi_hot=1, group_sizes=(3, 5), rows_per_part=12_000).folder


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"model": DLRM, "precision": "bf16"},
        {"model": WIDE_DEEP, "embedding_l2": 0.1},
        {"model": DLRM, "loss": {"listwise": 0.5}, "freeze": ["embeddings"]},
        {"model": DLRM, "precision": "fp16", "freeze": ["dense_network"]},
    ],
    ids=["dlrm, bf16", "wide_deep, dropout", "lists, frozen tables", "fp16, frozen network"],
)
def test_any_number_of_threads_trains_the_same_model(
    dataset: Path, tmp_path: Path, workers: int, settings: dict[str, object]
) -> None:
    common = {"global_batch_size": 2_048, "max_steps": STEPS, "embedding_optimizer": ADAGRAD, "epochs": 2}
    runs = [tmp_path / str(threads) for threads in (1, 3)]
    cases = [Case(run, recipe(**common, **settings, threads=int(run.name))) for run in runs]
    run_cases(workers, dataset, cases)
    require_same_bits(runs[1], runs[0], STEPS)


def test_a_run_goes_on_with_other_threads(dataset: Path, tmp_path: Path) -> None:
    common = {"model": WIDE_DEEP, "global_batch_size": 2_048, "embedding_optimizer": ADAGRAD}
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run_cases(1, dataset, [
        Case(whole, recipe(**common, max_steps=4, threads=2)),
        Case(resumed, recipe(**common, max_steps=2, threads=1)),
        Case(resumed, recipe(**common, max_steps=4, threads=3)),
    ])  # fmt: skip
    require_same_bits(resumed, whole, 4)

"""A run that goes on from another one: rows by value, any optimizer, workers and plan; each row measured before."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from rayrec.features.encoder import FeatureEncoder
from rayrec.ingest.dataset import Dataset
from rayrec.models.common.precision import resolve_precision
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.store.tensors import StoredTensors
from rayrec.training.loop.records import Checkpoints
from rayrec.training.loop.step import TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.run.folder import CheckpointManifest, RunFolder, checkpoint_name, read_progress
from rayrec.training.run.history import read_history
from rayrec.training.warm_start import WarmStart
from tests.builders import make_dataset
from tests.daily_datasets import NAMES, values_of, write_day
from tests.ranks import run_ranks
from tests.training_runs import (
    Case,
    join_ranks,
    logits_under,
    losses,
    recipe,
    require_same_training,
    run_cases,
    weights_of,
)

FIRST = {"shop": 10, "item": 8, "word": 20, "tags": 9}
MORE = {"shop": 16, "item": 13, "word": 24, "tags": 12}
STEPS = 12
SHARDED = {
    "shop": "row_wise",
    "item": "column_wise",
    "word": "data_parallel",
    "tags": "table_wise",
    "number": "row_wise",
}
IN_ROWS = {**SHARDED, "item": "row_wise"}
DENSE_ADAM = {"kind": "adam", "lr": 0.01}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd", "lr": 0.5},
    "adagrad": {"kind": "adagrad", "lr": 0.05, "initial_accumulator": 0.1},
    "rowwise_adagrad": {"kind": "rowwise_adagrad", "lr": 0.05, "initial_accumulator": 0.25},
    "rmsprop": {"kind": "rmsprop", "lr": 0.01},
    "ftrl": {"kind": "ftrl", "lr": 0.1, "initial_accumulator": 0.1},
    "adam": {"kind": "adam", "lr": 0.01},
}
MOMENTS = {
    "sgd": {},
    "adagrad": {"momentum1": 0.1},
    "rowwise_adagrad": {"momentum1": 0.25},
    "rmsprop": {"square_avg": 0.0},
    "ftrl": {"accumulator": 0.1, "linear": 0.0},
    "adam": {"momentum1": 0.0, "exp_avg_sq": 0.0},
}
"""The moments that an optimizer keeps of a table, and what those of new rows begin with."""


def _listed(counts: dict[str, int]) -> dict[str, list[str]]:
    return {name: values_of(name, count) for name, count in counts.items()}


def _recipe(optimizer: str, *, default: str = "table_wise", **train: Any) -> Recipe:
    tables = SHARDED if optimizer in {"sgd", "adagrad"} else IN_ROWS
    if optimizer == "adam" or default != "table_wise":
        tables = {}
    sharding = {
        "default": "data_parallel" if optimizer == "adam" else default,
        "tables": tables,
        "memory_per_worker": "1GB",
    }
    common = {"embedding_optimizer": OPTIMIZERS[optimizer], "dense_optimizer": DENSE_ADAM, "sharding": sharding}
    return recipe(**{**common, **train})


def _warm(optimizer: str, **train: Any) -> Recipe:
    """A recipe as `rayrec train --warm-start` resolves it; from memory, as it is for other tests to stream."""
    case = _recipe(optimizer, **train)
    return case.model_copy(update={"train": case.train.warm_started()})


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    write_day(folder / "one", _listed(FIRST), 1_000, 1, values=25, same_test=True)
    write_day(folder / "two", _listed(MORE), 500, 3, values=25, ids=27)
    renumbered = {name: values[::-1] for name, values in _listed(MORE).items()}
    write_day(folder / "renumbered", renumbered, 500, 3, values=25, ids=27)
    write_day(folder / "short", _listed(MORE), 30, 5, values=25, ids=27)
    return folder


@pytest.fixture(scope="module")
def runs(days: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the first day with each optimizer."""
    folder = tmp_path_factory.mktemp("runs")
    run_cases(2, days / "one", [Case(folder / name, _recipe(name, max_steps=STEPS)) for name in OPTIMIZERS])
    return folder


BEGUN = {"two": ("two", ()), "renumbered": ("renumbered", ("pair",)), "reset": ("two", ("other_shop",))}
"""Second days, and the features whose tables are reset: crosses of ids that are others now cannot be taken over."""


@pytest.fixture(scope="module")
def begun(days: Path, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of runs that have taken over and not yet trained: by workers and plan, second day and optimizer."""
    folder = tmp_path_factory.mktemp("begun")
    for workers, default in ((1, "table_wise"), (2, "table_wise"), (2, "row_wise")):
        target = folder / f"{workers}-{default}"
        target.mkdir()
        warm = {name: _warm(name, default=default).model_dump(mode="json") for name in OPTIMIZERS}
        run_ranks(_begin, workers, str(target / "rendezvous"), pickle.dumps((days, runs, target, warm)), ranks=workers)
    return folder


def _begin(rank: int, workers: int, rendezvous: str, arguments: bytes) -> None:
    context = join_ranks(rank, workers, workers, "cpu", rendezvous)
    days, runs, target, recipes = pickle.loads(arguments)
    for name, (day, reset) in BEGUN.items():
        dataset = Dataset.open(days / day)
        for optimizer, content in recipes.items():
            case, output = Recipe.model_validate(content), target / name / optimizer
            model = ParallelModel(case, dataset.schema, context)
            step = TrainStep(model, case.train, resolve_precision("fp32", "cpu"), steps_per_epoch=9)
            origin = RunFolder.open(runs / optimizer).as_origin(reset)
            progress = WarmStart.open(origin, output, case, dataset).fill(step)
            Checkpoints(output, case.train.checkpoint).save(step, progress)
    dist.destroy_process_group()


def _begun(begun: Path, day: str, optimizer: str, plan: str = "1-table_wise") -> Path:
    return begun / plan / day / optimizer / checkpoint_name(0)


def _tensors(checkpoint: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, undistributed."""
    stored = StoredTensors(checkpoint)
    tensors = {name: torch.empty(shape) for name, shape in stored.shapes.items()}
    stored.fill(tensors)
    return tensors


@pytest.mark.parametrize("day", ["two", "renumbered"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_are_those_of_the_same_values(days: Path, runs: Path, begun: Path, optimizer: str, day: str) -> None:
    """Compared by what the encoder makes of raw values on the two days."""
    before = _tensors(runs / optimizer / "checkpoints" / checkpoint_name(STEPS))
    now = _tensors(_begun(begun, day, optimizer))
    was, is_now = (_ids(days / name) for name in ("one", day))
    for feature, ids in is_now.items():
        new = {text for text in ids if _is_new(feature, text)}
        if feature == "word" and day == "renumbered":
            continue  # values share rows, other ones than before
        for key, initial in {
            f"model.embeddings.embedding_bags.{feature}.weight": None,
            **{f"table_optimizer.{feature}.{name}": initial for name, initial in MOMENTS[optimizer].items()},
        }.items():
            for text in ids.keys() - new:
                assert now[key][ids[text]].equal(before[key][was[feature][text]]), (key, text)
            rows = now[key][[ids[text] for text in new]] if feature != "word" else torch.empty(0)
            assert (rows != 0).all() if initial is None else (rows == initial).all(), key


def _is_new(feature: str, text: str) -> bool:
    if feature in NAMES:
        return text in values_of(feature, MORE[feature])[FIRST[feature] :]
    return feature == "number" and int(text) >= 20


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_else_is_taken_over_whole(runs: Path, begun: Path, optimizer: str) -> None:
    before = _tensors(runs / optimizer / "checkpoints" / checkpoint_name(STEPS))
    now = _tensors(_begun(begun, "two", optimizer))
    assert now.keys() == before.keys()
    whole = [name for name in now if name.startswith(("model.dense", "dense_optimizer")) or name.endswith(".step")]
    assert len(whole) > 10
    for name in whole:
        assert now[name].equal(before[name]), name
    assert now["dense_optimizer.main.state.top_mlp.0.weight.step"] == STEPS
    progress = read_progress(_begun(begun, "two", optimizer))
    assert (progress.step, progress.steps_before) == (0, STEPS)


def _ids(dataset: Path) -> dict[str, dict[str, int]]:
    """The id of each raw value that may be, by feature; the empty one is the missing value."""
    encoder = FeatureEncoder(Dataset.open(dataset).schema, dataset)
    ids: dict[str, dict[str, int]] = {}
    for name in NAMES:
        asked = ["", *values_of(name, 40)]
        column = pa.array([[text] for text in asked]) if name == "tags" else pa.array(asked)
        encoded = encoder.encode(pa.RecordBatch.from_pydict({name: column})).column(name).to_pylist()
        if name == "tags":
            asked, encoded = asked[1:], [row[0] for row in encoded[1:]]
        ids[name] = dict(zip(asked, encoded, strict=True))
    ids["number"] = {str(number): number for number in range(27)}
    ids["years"] = {str(number): number for number in range(5)}
    return ids


@pytest.mark.parametrize("day", BEGUN)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_neither_plan_nor_workers_matter(begun: Path, optimizer: str, day: str) -> None:
    expected = _tensors(_begun(begun, day, optimizer))
    for plan in ("2-table_wise", "2-row_wise"):
        found = _tensors(_begun(begun, day, optimizer, plan))
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert value.equal(expected[name]), name


def test_new_rows_do_not_depend_on_their_numbers(days: Path, begun: Path) -> None:
    for feature in ("shop", "item", "tags"):
        rows = []
        for day in ("two", "renumbered"):
            ids = _ids(days / day)[feature]
            table = _tensors(_begun(begun, day, "sgd"))[f"model.embeddings.embedding_bags.{feature}.weight"]
            rows.append(table[[ids[text] for text in values_of(feature, MORE[feature])]])
        assert rows[0].equal(rows[1])


def test_a_reset_table_begins_as_in_a_new_run(days: Path, begun: Path) -> None:
    """That of `shop`, which `other_shop` reads; all others are taken over."""
    kept, reset = (_tensors(_begun(begun, day, "ftrl")) for day in ("two", "reset"))
    case, table = _recipe("ftrl"), "embeddings.embedding_bags.shop.weight"
    fresh = build_model(case.model, Dataset.open(days / "two").schema, seed=case.train.seed).state_dict()
    differing = {name for name, value in reset.items() if not value.equal(kept[name])}
    assert differing == {f"model.{table}", "table_optimizer.shop.accumulator", "table_optimizer.shop.linear"}
    assert reset[f"model.{table}"].equal(fresh[table])
    assert (reset["table_optimizer.shop.accumulator"] == 0.1).all()


def test_the_same_rows_get_the_same_scores(days: Path, runs: Path, begun: Path, tmp_path: Path) -> None:
    """Rows of values that both days list, encoded by the vocabularies of each."""
    logits = []
    for day, listed, ids, checkpoint in (
        ("one", FIRST, 20, runs / "adagrad" / "checkpoints" / checkpoint_name(STEPS)),
        ("two", MORE, 27, _begun(begun, "two", "adagrad")),
        ("renumbered", MORE, 27, _begun(begun, "renumbered", "adagrad")),
    ):
        values = {name: texts[:: -1 if day == "renumbered" else 1] for name, texts in _listed(listed).items()}
        write_day(tmp_path / day, values, 200, 9, values=8, ids=ids)
        (tmp_path / f"{day}-logits").mkdir()
        logits += logits_under([_recipe("adagrad")], 1, tmp_path / day, checkpoint, tmp_path / f"{day}-logits")
    assert logits[0].std() > 0.1
    assert logits[1].equal(logits[0])
    # Its crosses are of other ids, so their table was reset.
    assert not logits[2].equal(logits[0])


@pytest.fixture(scope="module")
def continued(days: Path, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Second days of the run with Adagrad: on one worker and two, cut and continued, in parts, of few rows."""
    folder = tmp_path_factory.mktemp("continued")

    def case(name: str, **train: Any) -> Case:
        return Case(folder / name, _warm("adagrad", **train), runs / "adagrad")

    often = {"checkpoint": {"every_steps": 3, "every_minutes": None, "keep_last": 9}, "log_every_steps": 100}
    still = {"embedding_optimizer": {"kind": "sgd", "lr": 1e-30}, "dense_optimizer": {"kind": "adam", "lr": 1e-30}}
    run_cases(
        2,
        days / "two",
        [
            case("two"),
            case("cut", max_steps=3),
            case("cut"),
            case("often", **often),
            case("accumulated", gradient_accumulation=3),
            case("twice", warm_start={"epochs": 2, "shuffle": "rows"}),
        ],
    )
    # As a run that was killed when it had written a checkpoint and went on.
    shutil.copytree(folder / "often", folder / "killed")
    for step in (6, 8):
        shutil.rmtree(folder / "killed" / "checkpoints" / checkpoint_name(step))
    run_cases(2, days / "two", [case("killed", **often)])
    run_cases(1, days / "two", [case("one")])
    still_run = Case(folder / "still", _warm("sgd", **still), runs / "sgd")
    run_cases(2, days / "one", [still_run])
    for workers in (1, 2):
        run_cases(workers, days / "short", [case(f"short-{workers}")])
    run_cases(2, days / "short", [Case(folder / "third", _warm("adagrad"), folder / "two")])
    return folder


BATCHES = 8
"""Of 64 rows of 500, the last of 52."""


@pytest.mark.parametrize("run", ["two", "accumulated"])
def test_training_does_not_depend_on_the_workers(continued: Path, run: str) -> None:
    expected = losses(continued / "one")
    assert sorted(expected) == list(range(1, BATCHES + 1))
    require_same_training(continued / run, continued / "one", BATCHES)


@pytest.mark.parametrize(("run", "uninterrupted"), [("cut", "two"), ("killed", "often")])
def test_a_resumed_run_ends_in_the_same_weights_to_the_bit(continued: Path, run: str, uninterrupted: str) -> None:
    """Adam's count of steps, the earlier run's among them, is restored, too."""
    checkpoints = [continued / name / "checkpoints" / checkpoint_name(BATCHES) for name in (run, uninterrupted)]
    found, expected = map(_tensors, checkpoints)
    for name, value in found.items():
        assert value.equal(expected[name]), name
    assert found["dense_optimizer.main.state.top_mlp.0.weight.step"] == STEPS + BATCHES
    assert read_progress(checkpoints[0]).steps_before == STEPS
    metrics = [json.loads((continued / name / "metrics.json").read_text()) for name in (run, uninterrupted)]
    assert metrics[0]["progressive"]["rows"] == 500
    for name, value in metrics[1]["progressive"].items():
        # The rows of the records differ, so that of their AUCs another mean is taken.
        assert metrics[0]["progressive"][name] == pytest.approx(value, abs=0.2 if name == "auc" else 1e-9), name


def test_steps_of_all_runs_add_up(continued: Path) -> None:
    progress = read_progress(RunFolder.open(continued / "third").checkpoint("latest"))
    assert (progress.step, progress.steps_before) == (1, STEPS + BATCHES)


def test_the_rows_are_trained_on_once_in_their_order(days: Path, continued: Path) -> None:
    """The losses are those of the batches that the rows of the files make."""
    epochs = [r for r in read_history(continued / "two" / "history.jsonl") if r["event"] == "epoch"]
    assert [(r["batches"], r["rows_dropped"]) for r in epochs] == [(BATCHES, 0)]
    labels = pq.read_table(days / "two" / "train", columns=["label"])["label"].to_numpy()
    positives = {r["step"]: r["positives"] for r in _progressive(continued / "two")}
    assert positives == {step: labels[64 * (step - 1) : 64 * step].sum() for step in range(1, BATCHES + 1)}


@pytest.mark.parametrize("run", ["one", "two", "accumulated"])
def test_rows_are_measured_before_they_are_trained_on(continued: Path, run: str) -> None:
    """The loss of a step is that of its rows before the update."""
    measured = {r["step"]: r["log_loss"] for r in _progressive(continued / run)}
    assert measured == pytest.approx(losses(continued / run), rel=1e-5)
    assert sum(r["rows"] for r in _progressive(continued / run)) == 500


def test_metrics_of_the_pass_are_those_of_all_its_rows(days: Path, runs: Path, continued: Path, tmp_path: Path) -> None:
    """A model that does not move scores every row as the run that it goes on from; the held-out rows are the same."""
    metrics = json.loads((continued / "still" / "metrics.json").read_text())
    checkpoint = runs / "sgd" / "checkpoints" / checkpoint_name(STEPS)
    (logits,) = logits_under([_recipe("sgd")], 1, days / "one", checkpoint, tmp_path)
    labels = pq.read_table(days / "one" / "test", columns=["label"])["label"].to_numpy()
    scores = torch.sigmoid(logits.double()).numpy()
    rate = labels.mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    expected = {
        "log_loss": log_loss(labels, scores),
        "normalized_entropy": log_loss(labels, scores) / entropy,
        "calibration": scores.sum() / labels.sum(),
        "rows": 1_000,
        "positives": labels.sum(),
    }
    progressive = metrics["progressive"]
    assert {name: progressive[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert {name: metrics["test"][name] for name in expected} == pytest.approx(expected, rel=1e-6)
    starts = range(0, 1_000, 64)
    of_batches = [roc_auc_score(labels[start : start + 64], scores[start : start + 64]) for start in starts]
    records = _progressive(continued / "still")
    assert [record["auc"] for record in records] == pytest.approx(of_batches, abs=1e-9)
    assert progressive["auc"] == pytest.approx(np.average(of_batches, weights=[min(64, 1_000 - s) for s in starts]))


def test_only_the_first_epoch_is_of_rows_not_seen_yet(continued: Path) -> None:
    assert [record["step"] for record in _progressive(continued / "twice")] == list(range(1, BATCHES + 1))
    assert max(losses(continued / "twice")) == 2 * BATCHES
    assert json.loads((continued / "twice" / "metrics.json").read_text())["progressive"]["rows"] == 500


def test_a_day_may_be_smaller_than_a_batch(continued: Path) -> None:
    """The loss is the mean over its rows, on any number of workers."""
    one = losses(continued / "short-1")
    assert list(one) == [1]
    require_same_training(continued / "short-2", continued / "short-1", 1)
    (record,) = _progressive(continued / "short-1")
    assert record["rows"] == 30 and record["log_loss"] == pytest.approx(one[1], rel=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_last_batch_in_which_no_group_begins_changes_nothing(tmp_path: Path, workers: int) -> None:
    """Its two rows belong to the group that began in the batch before."""
    make_dataset(tmp_path / "data", {"train": 130, "test": 65}, group_sizes=[65], rows_per_row_group=130)
    case = recipe(
        loss={"listwise": 0.5},
        ingest={"in_memory": True, "shuffle": "none", "read_streams": 1, "drop_last": False},
        checkpoint={"every_steps": 1, "every_minutes": None, "keep_last": 9},
    )
    run_cases(workers, tmp_path / "data", [Case(tmp_path / "run", case)])
    found = losses(tmp_path / "run")
    assert found.keys() == {1, 2, 3} and found[3] == 0
    before = weights_of(tmp_path / "run", 2)
    for name, value in weights_of(tmp_path / "run", 3).items():
        assert value.equal(before[name]), name


def test_the_run_folder_says_what_it_goes_on_from(days: Path, runs: Path, continued: Path) -> None:
    origin = RunFolder.open(continued / "two").origin
    assert origin is not None
    assert (origin.run, origin.checkpoint, origin.reset) == (str(runs / "adagrad"), checkpoint_name(STEPS), ())
    parent = CheckpointManifest.load(RunFolder.open(runs / "adagrad").checkpoint("best"))
    assert (origin.id, parent.made_of["dataset"].id) == (parent.id, Dataset.open(days / "one").id)
    made_of = CheckpointManifest.load(RunFolder.open(continued / "two").checkpoint("latest")).made_of
    assert made_of["warm_start"].id == parent.id and made_of["dataset"].id == Dataset.open(days / "two").id
    assert RunFolder.open(runs / "adagrad").origin is None


def _progressive(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_history(run / "history.jsonl") if record["event"] == "progressive"]

"""`rayrec run --refit`, in this process: the exported model is trained on the held-out rows too."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.command import describe_result
from jobs.export import ExportRequest
from jobs.export import run as export
from jobs.run import RunRequest, run
from jobs.train import TrainRequest
from jobs.train import run as train
from rayrec import load_recommender
from rayrec.common.errors import ConfigError
from rayrec.common.progress import SilentProgress
from rayrec.inference.examples import load_held_out_rows
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.held_out_rows import read_held_out_rows
from rayrec.training.run.folder import RunFolder, read_progress

ROWS, TRAINED = 400, 280
RECIPE = """
name: orders
source:
  kind: table
  label: bought
  features: [{columns: shop, kind: categorical}]
preprocess: {split: {kind: fraction, validation: 0.1, test: 0.2}, frequency_limit: 1}
model: {kind: wide_deep, embedding_dim: 8, mlp: [8]}
train:
  global_batch_size: 20
  epochs: 4
  device: cpu
  dense_optimizer: {kind: adagrad, lr: 0.05}
  embedding_optimizer: {kind: adagrad, lr: 0.2}
  evaluations_per_epoch: 2
  checkpoint: {every_minutes: null, keep_best: log_loss}
  tracking: {tensorboard: false}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and a file whose last rows, which are held out, have a shop that buys always."""
    folder = tmp_path_factory.mktemp("orders")
    generator = np.random.default_rng(4)
    shops = [f"shop{number}" for number in generator.integers(0, 5, ROWS)]
    bought = generator.integers(0, 2, ROWS)
    shops[TRAINED:] = ["new" if place % 3 == 0 else shop for place, shop in enumerate(shops[TRAINED:])]
    rows = [f"{shop},{1 if shop == 'new' else label}" for shop, label in zip(shops, bought, strict=True)]
    (folder / "orders.csv").write_text("\n".join(["shop,bought", *rows, ""]))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder / "recipe.yaml", folder / "orders.csv"


def request(files: tuple[Path, Path], **options: Any) -> RunRequest:
    recipe, rows = files
    return RunRequest(recipe=str(recipe), input=(str(rows),), **options)


@pytest.fixture(scope="module")
def output(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refit") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        result = run(request(files, output=folder, refit=True), SilentProgress())
    assert result.metrics == json.loads((folder / "run" / "metrics.json").read_text())
    assert "held-out ones included" in describe_result(result)
    return folder


def test_the_model_knows_all_rows_and_shows_what_was_measured_without_some(output: Path) -> None:
    splits = Dataset.open(output / "refit" / "dataset").manifest.splits
    assert {name: split.rows for name, split in splits.items()} == {"train": ROWS}
    new = load_model(output / "model").predict([{"shop": "new"}])[0]
    assert new > 0.7, "a shop of held-out rows alone has an embedding of its own"
    judged = json.loads((output / "run" / "metrics.json").read_text())
    assert json.loads((output / "model" / "metrics.json").read_text()) == judged != {}
    held_out = load_held_out_rows(output / "model")
    assert held_out is not None and held_out.rows and held_out.trained_on
    assert not read_held_out_rows(output / "dataset")[held_out.split].trained_on
    card = (output / "model" / "MODEL_CARD.md").read_text()
    assert f"trained on {TRAINED} rows" in card and f"anew on all {ROWS} rows" in card


def test_it_is_trained_for_as_many_epochs_as_validation_chose(output: Path) -> None:
    first, anew = (RunFolder.open(output / name) for name in ("run", "refit/run"))
    chosen = int(first.checkpoint("best").name.removeprefix("step-"))
    reached = anew.progress()
    assert reached is not None and reached.step == round(chosen / (TRAINED // 20) * (ROWS // 20))


def test_metrics_are_those_of_the_exported_checkpoint(output: Path, tmp_path: Path) -> None:
    run_folder = RunFolder.open(output / "run")
    best, latest = run_folder.checkpoint("best"), run_folder.checkpoint("latest")
    assert best != latest
    for checkpoint, expected in (("best", json.loads((output / "run/metrics.json").read_text())), ("latest", None)):
        request = ExportRequest(run=output / "run", checkpoint=checkpoint, output=tmp_path / checkpoint)
        metrics = export(request, SilentProgress()).metrics
        assert metrics == (expected or {"validation": read_progress(latest).metrics})


def test_rows_of_another_split_are_shown_where_the_evaluation_split_is_missing(output: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(output, tmp_path / "out"))
    config = again / "refit" / "run" / "config.yaml"
    config.write_text(config.read_text().replace("evaluation_split: validation", "evaluation_split: later"))
    export(ExportRequest(run=again / "refit" / "run", output=tmp_path / "model"), SilentProgress())
    held_out = load_held_out_rows(tmp_path / "model")
    assert held_out is not None and held_out.split == "test"


def test_a_run_that_died_goes_on(files: tuple[Path, Path], output: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(output, tmp_path / "out"))
    for name in ("model", "refit/run/metrics.json"):
        path = again / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    phases = run(request(files, output=again, refit=True), SilentProgress()).details["phases"]
    assert [name for name, seconds in phases.items() if seconds is not None] == ["refit", "export"]
    asked = [{"shop": "shop1"}, {"shop": "new"}, {}]
    expected, found = (load_model(folder / "model").predict(asked) for folder in (output, again))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("given", "split", "expected"),
    [(None, "time", True), (None, "hash", False), (True, "hash", True), (False, "time", False)],
)
def test_when_it_is_done(
    files: tuple[Path, Path], tmp_path: Path, given: bool | None, split: str, expected: bool
) -> None:
    settings = ("source.time=when", f"preprocess.split={{kind: {split}}}")
    assert request(files, output=tmp_path, refit=given, set=settings).refits is expected


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ("dataset", (), "'train' of .* has 280 rows, and all splits of .* have 400"),
        ("refit/dataset", ("train.seed=3",), "train.seed differs"),
        ("refit/dataset", ("model.mlp=[4]",), "model differs"),
    ],
)
def test_only_the_same_recipe_on_all_rows(
    files: tuple[Path, Path], output: Path, tmp_path: Path, data: str, settings: tuple[str, ...], message: str
) -> None:
    given = TrainRequest(
        recipe=str(files[0]), set=settings, data=output / data, refit_of=output / "run", output=tmp_path / "run"
    )
    with pytest.raises(ConfigError, match=f"--refit-of: {message}"):
        train(given, SilentProgress())


def test_what_cannot_be_refitted(tmp_path: Path) -> None:
    lists = ("preprocess.split={kind: files}",)
    for recipe, settings in (("wide-deep-outbrain-debug", ()), ("neumf-ml-1m-debug", lists)):
        given = RunRequest(recipe=recipe, input=("x",), output=tmp_path, set=settings, refit=True)
        with pytest.raises(ConfigError, match="--refit: held-out rows of this recipe"):
            given.check()
        assert not given.model_copy(update={"refit": None}).refits


PAIRS = """
name: pairs
source: {kind: interactions, choices: {column: stars, at_least: 4}}
preprocess: {split: {kind: leave_one_out, min_interactions: 3, validation: true, negatives: 5}}
model: {kind: neumf, parts: [gmf], factors: 4}
train:
  global_batch_size: 32
  epochs: 3
  device: cpu
  sharding: {default: data_parallel}
  evaluations_per_epoch: 1
  checkpoint: {every_minutes: null, keep_best: hr@10}
  tracking: {tensorboard: false}
evaluate: {ranking: {k: [10], metrics: [hr]}}
"""


def test_interactions_are_refitted_on_the_latest_ones(tmp_path: Path) -> None:
    chosen = {f"u{user}": [f"i{(user * 5 + place * 3) % 23}" for place in range(4)] for user in range(30)}
    rows = [f"{user},{item},{place},5" for user, items in chosen.items() for place, item in enumerate(items)]
    rows += ["u0,only last,9,5", "u0,disliked,10,1", "rare,i1,1,5", "rare,i2,2,5"]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,item,timestamp,stars", *rows, ""]))
    (tmp_path / "recipe.yaml").write_text(PAIRS)
    output = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        result = run(request((tmp_path / "recipe.yaml", tmp_path / "ratings.csv"), output=output), SilentProgress())
    assert set(result.metrics) == {"validation", "test"}

    first, anew = (Dataset.open(output / name) for name in ("dataset", "refit/dataset"))
    assert first.manifest.splits["train"].rows == 61 and anew.manifest.splits["train"].rows == 121
    assert anew.evaluation_splits == [] and anew.manifest.dropped == first.manifest.dropped != {}
    best, end = (read_progress(RunFolder.open(output / name).checkpoint("best")) for name in ("run", "refit/run"))
    assert end.epoch == best.epoch >= 1
    assert "trained anew on all 121 rows" in (output / "model" / "MODEL_CARD.md").read_text()
    offered = set(load_recommender(output / "model").recommend("u0", 30).items)
    assert not offered & {*chosen["u0"], "only last", "disliked"} and {"i1", "i2"} & offered

"""What is known to be wrong is said before a Ray session starts, or anything is trained."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from jobs.benchmark import BenchmarkRequest
from jobs.benchmark import run as benchmark
from jobs.evaluate import EvaluateRequest
from jobs.evaluate import run as evaluate
from jobs.export import ExportRequest
from jobs.export import run as export
from jobs.train import TrainRequest
from jobs.train import run as train
from jobs.tune import TuneRequest
from jobs.tune import run as tune
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.recipes import dump_recipe
from rayrec.training.run.folder import RunFolder
from tests.builders import make_dataset, make_rows, write_dataset
from tests.model_folders import make_model_folder
from tests.training_runs import recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset of Criteo's form, `data`, whose test rows have one label; and a recipe for it."""

    def start(*_: object, **__: object) -> None:
        pytest.fail("a Ray session was about to start")

    monkeypatch.setattr("cluster.ray_session.ray_session", start)
    monkeypatch.setattr("cluster.ray_session.has_cluster", lambda: True)
    schema = make_dataset(tmp_path / "schema", 10).schema
    rows = {name: make_rows(schema, count, 1) for name, count in (("train", 300), ("validation", 60), ("test", 40))}
    label = rows["test"].schema.get_field_index("label")
    rows["test"] = rows["test"].set_column(label, "label", [[1.0] * 40])
    write_dataset(tmp_path / "data", schema, rows)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe(evaluations_per_epoch=1)))
    return tmp_path


TRAINING = {
    "a batch that a part does not fill": (
        ["train.rows=63"],
        "train.global_batch_size: 63 rows of split 'train' fill no batch of 64; lower it, or set train.ingest.drop",
    ),
    "ranks without groups": (["evaluate.ranking={k: [3]}"], "evaluate.ranking: the dataset has no group column"),
    "a sharding that the optimizer forbids": (
        ["train.sharding.default=column_wise", "train.embedding_optimizer.kind=rowwise_adagrad"],
        "train.sharding: table 'C1' cannot be column_wise under its optimizer 'rowwise_adagrad'; use one of table_wise",
    ),
    "a table that there is not": (
        ["train.sharding.tables={C99: row_wise}"],
        "train.sharding.tables.C99: no such table; the model has C1, C2",
    ),
    "another label": (
        ["source.label=I13"],
        "source.label: is 'I13', but {folder} was made with 'label'; set it back, or preprocess with this recipe",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), TRAINING.values(), ids=TRAINING)
def test_train_and_tune(folder: Path, overrides: list[str], message: str) -> None:
    message = message.replace("{folder}", str(folder / "data"))
    common: dict[str, Any] = {"recipe": str(folder / "recipe.yaml"), "data": folder / "data", "set": tuple(overrides)}
    with pytest.raises(ConfigError) as refused:
        train(TrainRequest(**common, output=folder / "run"), SilentProgress())
    assert message in str(refused.value)
    (folder / "space.yaml").write_text("train.dense_optimizer.lr: {choice: [0.1, 0.2]}\n")
    request = TuneRequest(**common, output=folder / "sweep", trials=2, space=str(folder / "space.yaml"))
    with pytest.raises(ConfigError) as refused:
        tune(request, SilentProgress())
    assert message in str(refused.value)
    assert not (folder / "run").exists()


def test_a_gpu_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.ray_session.has_cluster", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    (folder / "space.yaml").write_text("train.dense_optimizer.lr: {choice: [0.1, 0.2]}\n")
    common: dict[str, Any] = {
        "recipe": str(folder / "recipe.yaml"), "data": folder / "data",
        "set": ("train.device=cuda", "train.workers=2"), "output": folder / "run",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"^train\.device: 'cuda' needs a GPU, but none was found"):
        train(TrainRequest(**common), SilentProgress())
    with pytest.raises(ConfigError, match=r"^train\.device: 'cuda' needs a GPU, but none was found"):
        tune(TuneRequest(**common, trials=2, space=str(folder / "space.yaml")), SilentProgress())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"set": ("train.seed=7",)}, r"run: --resume cannot change train\.seed"),
        ({"set": ("model.top_mlp=[8]",)}, "run: --resume needs the same model section"),
        ({"data": "other"}, "run: was trained on another dataset"),
    ],
)
def test_resume_as_another_run(folder: Path, changed: dict[str, Any], message: str) -> None:
    trained = recipe(evaluations_per_epoch=1)
    dataset = Dataset.open(folder / "data")
    RunFolder.create(folder / "run", trained, dataset, build_model(trained.model, dataset.schema, "meta").schema)
    make_dataset(folder / "other", 200, seed=2)
    given = {**changed, "data": folder / changed.get("data", "data")}
    with pytest.raises(ConfigError, match=message):
        train(
            TrainRequest(recipe=str(folder / "recipe.yaml"), output=folder / "run", resume=True, **given),
            SilentProgress(),
        )


def test_a_target_that_is_undefined(folder: Path) -> None:
    overrides = ("train.early_stop={metric: normalized_entropy, target: 0.8}", "train.evaluation_split=test")
    request = TrainRequest(
        recipe=str(folder / "recipe.yaml"), data=folder / "data", output=folder / "run", set=overrides
    )
    message = r"every label of split 'test' of .*data is 1, so 'normalized_entropy' is undefined on it; use log_loss"
    with pytest.raises(ConfigError, match=rf"^train\.early_stop\.metric: {message}"):
        train(request, SilentProgress())


@pytest.mark.parametrize(
    ("key", "note"),
    [
        ("layout={rows_per_row_group: 77}", None),
        ("max_rejected_fraction=0.7", None),
        (
            "order=input",
            "preprocess.order: is 'input', but {folder} was made with 'total_random'; the dataset is used as it is",
        ),
        (
            "frequency_limit=8",
            "preprocess.frequency_limit: is 8, but {folder} was made with 15; the dataset is used as it is",
        ),
    ],
)
def test_other_preprocessing_is_told(folder: Path, key: str, note: str | None) -> None:
    request = TrainRequest(
        recipe=str(folder / "recipe.yaml"), data=folder / "data", output=folder / "run", set=(f"preprocess.{key}",)
    )
    told = Mock(SilentProgress())
    with pytest.raises(pytest.fail.Exception, match="a Ray session was about to start"):
        train(request, told)
    notes = [call.args[0] for call in told.message.call_args_list if call.args[0].startswith("note: preprocess")]
    assert notes == ([] if note is None else [f"note: {note.format(folder=folder / 'data')}"])


def test_tune_with_weights_of_nothing(folder: Path) -> None:
    (folder / "space.yaml").write_text("train.dense_optimizer.lr: {choice: [0.1, 0.2]}\n")
    sources = f"train.initial_weights={{sources: {{gmf: {folder / 'nowhere'}}}}}"
    request = TuneRequest(
        recipe=str(folder / "recipe.yaml"), data=folder / "data", output=folder / "sweep", trials=2, set=(sources,),
        space=str(folder / "space.yaml"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"^train\.initial_weights\.sources\.gmf: .*nowhere"):
        tune(request, SilentProgress())


def test_benchmark_of_another_dataset(folder: Path) -> None:
    request = BenchmarkRequest(
        what="train", recipe=str(folder / "recipe.yaml"), data=folder / "data", set=("source.label=I13",)
    )
    with pytest.raises(ConfigError, match=r"^source\.label: is 'I13', but .* was made with 'label'; set it back"):
        benchmark(request, SilentProgress())


def test_evaluate(folder: Path) -> None:
    make_model_folder(folder / "model")
    request = EvaluateRequest(source=folder / "model", data=folder / "data", checkpoint="latest")
    with pytest.raises(ConfigError, match=r"^--checkpoint: a model folder has only one checkpoint; leave it out"):
        evaluate(request, SilentProgress())
    with pytest.raises(UserError, match=r"feature 'I1' was not encoded as the model needs it; preprocess with"):
        evaluate(request.model_copy(update={"checkpoint": "best"}), SilentProgress())


def test_export_of_a_run_whose_dataset_is_another_one_now(folder: Path) -> None:
    """A table of as many values would take the weights of others."""
    trained = recipe()
    dataset = make_dataset(folder / "own", 100, seed=1)
    RunFolder.create(folder / "run", trained, dataset, build_model(trained.model, dataset.schema, "meta").schema)
    make_dataset(folder / "own-anew", 100, seed=2)
    (folder / "own").rename(folder / "gone")
    (folder / "own-anew").rename(folder / "own")
    with pytest.raises(UserError, match=r"run: was trained on another dataset than is now in .*own; bring"):
        export(ExportRequest(run=folder / "run", output=folder / "model"), SilentProgress())
    assert not (folder / "model").exists()

"""Export: the model folder holds the checkpoint's weights, whatever plan wrote the checkpoint."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.metrics import roc_auc_score
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingEnv, ShardingPlan

from jobs.command import Result, build_request, execute
from jobs.evaluate import EvaluateRequest
from jobs.evaluate import run as evaluate
from jobs.explain import COMMAND as EXPLAIN
from jobs.export import ExportRequest, exported
from jobs.export import run as export
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from rayrec.features.schema import Schema
from rayrec.inference.export import export_checkpoint
from rayrec.inference.folder.facts import REFERENCE_ROWS_FILE
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import Dataset, DatasetManifest
from rayrec.models.common.ranking import RankingModel
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from tests.builders import make_dataset, make_recipe
from tests.model_folders import MODELS, make_raw_schema, tables_of
from tests.ranks import run_ranks
from tests.training_runs import BASE, Case, recipe, run_cases

CONFIG = MODELS["dcnv2"]
WORLD = 2
SHARDINGS = {
    "C1": lambda: table_wise(rank=1),
    "C2": row_wise,
    "C3": lambda: column_wise(ranks=[0, 1]),
    "C4": data_parallel,
}


def _model(schema: Schema) -> RankingModel:
    """The model whose weights are those of the checkpoint: the same in every process."""
    model = build_model(CONFIG, schema, seed=3)
    generator = torch.Generator().manual_seed(7)
    for weights in tables_of(model).values():
        weights.data.copy_(torch.randn(weights.shape, generator=generator))
    return model


def _write_checkpoint(rank: int, folder: str, rendezvous: str) -> None:
    """One worker: shard the tables by four different ways and save as the trainer does."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    model = _model(Schema.load(Path(folder) / "data"))
    sharder = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        model.embeddings,
        {name: sharding() for name, sharding in SHARDINGS.items()},
        sharder,
        world_size=WORLD,
        local_size=WORLD,
        device_type="cpu",
    )
    whole = {name: weights.detach().clone() for name, weights in tables_of(model).items()}
    wrapper = torch.nn.Module()
    wrapper.embeddings = model.embeddings
    sharded = DistributedModelParallel(
        wrapper,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan({"embeddings": plan}),
        sharders=[sharder],
    )
    state = sharded.state_dict()
    for name, table in whole.items():
        value = state[f"embeddings.embedding_bags.{name}.weight"]
        if isinstance(value, torch.Tensor) and not hasattr(value, "local_shards"):
            value.copy_(table)
            continue
        for shard in value.local_shards():
            rows, columns = shard.metadata.shard_offsets
            height, width = shard.metadata.shard_sizes
            shard.tensor.copy_(table[rows : rows + height, columns : columns + width])
    dense = {f"dense_network.{name}": value for name, value in model.dense_network.state_dict().items()}
    dcp.save({"model": {**state, **dense}, "other": {"step": 5}}, checkpoint_id=Path(folder) / "checkpoint")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset (vocabularies, no rows) and a checkpoint of two workers."""
    folder = tmp_path_factory.mktemp("run")
    schema = make_raw_schema(folder / "data").with_embedding_dims(CONFIG.embedding_dim, {})
    schema.save(folder / "data")
    config = make_recipe(name="test", model=CONFIG).model_dump(mode="json")
    DatasetManifest(splits={}, rejected={}, sources=(), config=config).save(folder / "data")
    run_ranks(_write_checkpoint, str(folder), str(folder / "rendezvous"), ranks=WORLD)
    return folder


def _export(run: Path, output: Path, of: Recipe | None = None) -> None:
    of = of or make_recipe(name="test", model=CONFIG)
    dataset = Dataset.open(run / "data")
    export_checkpoint(run / "checkpoint", output, recipe=of, dataset=dataset, metrics={"test": {"auc": 0.8}})


def test_exported_weights_equal_the_checkpoints(run: Path, tmp_path: Path) -> None:
    _export(run, tmp_path / "model")
    folder = ModelFolder.open(tmp_path / "model")
    expected = _model(Schema.load(run / "data"))
    for table in folder.tables:
        assert torch.equal(folder.table(table), tables_of(expected)[table.name]), table.name
    dense = folder.dense()
    assert dense.keys() == expected.dense_network.state_dict().keys()
    for name, value in expected.dense_network.state_dict().items():
        assert torch.equal(dense[name], value), name
    assert folder.metrics == {"test": {"auc": 0.8}}
    assert load_model(tmp_path / "model").predict([{"C1": "C1-0"}]).shape == (1,)


def test_another_recipe_does_not_fit(run: Path, tmp_path: Path) -> None:
    wider = make_recipe(name="wider", model=CONFIG.model_copy(update={"embedding_dim": 16}))
    with pytest.raises(UserError, match=r"tensor '.*weight' is \(.*\), the run's recipe and schema make it") as raised:
        _export(run, tmp_path / "model", wider)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "model").exists()


def test_no_checkpoint(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a whole checkpoint"):
        export_checkpoint(
            run / "data",
            tmp_path / "model",
            recipe=make_recipe(name="test", model=CONFIG),
            dataset=Dataset.open(run / "data"),
            metrics={},
        )


def test_a_trained_run(tmp_path: Path) -> None:
    """From the run folder that the trainer wrote to a model; `serve` and `predict` take the run folder itself."""
    dataset = make_dataset(tmp_path / "data", {"train": 512, "test": 128}, multi_hot=1)
    run_cases(2, dataset.folder, [Case(tmp_path / "run", recipe(max_steps=4))])
    result = export(ExportRequest(run=tmp_path / "run", output=tmp_path / "model"), SilentProgress())
    assert result.details["checkpoint"] == "step-00000004"
    assert result.metrics.keys() == {"test"}
    folder = ModelFolder.open(tmp_path / "model")
    assert folder.schema == Schema.load(tmp_path / "run")
    assert folder.metrics == result.metrics
    rows = pq.read_table(dataset.folder / "test").combine_chunks().to_batches()[0]
    scores = load_model(tmp_path / "model").predict_encoded(rows)
    with exported(tmp_path / "run") as temporary:
        assert temporary.name == "run"
        np.testing.assert_array_equal(load_model(temporary).predict_encoded(rows), scores)
    assert not temporary.exists()
    reference = pq.read_table(tmp_path / "model" / REFERENCE_ROWS_FILE).to_pylist()
    of_test = rows.drop_columns([folder.schema.label]).to_pylist()
    assert len(reference) == 64 and all(row in of_test for row in reference)
    values = {"source": tmp_path / "run", "data": dataset.folder, "output": tmp_path / "explained"}
    assert execute(EXPLAIN, build_request(EXPLAIN.request, values), SilentProgress()).rows == 128
    untrained = build_model(folder.recipe.model, folder.schema, seed=folder.recipe.train.seed)
    assert not torch.equal(folder.table(folder.tables[0]), tables_of(untrained)["C1"])

    for tables, factor in (("fp16", 2), ("int8", 4)):
        smaller = export(ExportRequest(run=tmp_path / "run", output=tmp_path / tables, tables=tables), SilentProgress())
        assert smaller.details["table_bytes"] < result.details["table_bytes"]
        loss = smaller.details["precision_loss"]
        differences = np.abs(load_model(tmp_path / tables).predict_encoded(rows) - scores)
        assert (loss["split"], loss["rows"]) == ("test", 128)
        assert loss["max_score_difference"] == pytest.approx(float(differences.max()), abs=1e-7)
        assert 0 < loss["mean_score_difference"] <= loss["max_score_difference"] < 0.02 / factor
        labels = rows.column(folder.schema.label).to_numpy()
        assert loss["fp32"]["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)
        assert loss["stored"]["auc"] == pytest.approx(loss["fp32"]["auc"] + loss["auc_change"], abs=1e-12)
        card = (tmp_path / tables / "MODEL_CARD.md").read_text()
        assert f"Stored as {tables}" in card
        assert "on 128 rows of `test`: auc " in card

    with pytest.raises(UserError, match="no checkpoint '3'; it has latest, best, step-00000004"):
        export(ExportRequest(run=tmp_path / "run", output=tmp_path / "other", checkpoint="3"), SilentProgress())


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `run-1` and `run-2`, which trained some steps more, and `other`, of another model; on the same dataset."""
    folder = tmp_path_factory.mktemp("days")
    dataset = make_dataset(folder / "data", {"train": 1024, "test": 128}, multi_hot=1)
    wider = {**BASE["model"], "embedding_dim": 16, "bottom_mlp": [16]}
    cases = {"run-1": recipe(max_steps=4), "run-2": recipe(max_steps=6), "other": recipe(model=wider, max_steps=1)}
    run_cases(1, dataset.folder, [Case(folder / name, of_run) for name, of_run in cases.items()])
    return folder


def _do_export(output: Path, **request: object) -> Result:
    return export(ExportRequest.model_validate({"output": output, **request}), SilentProgress())


@pytest.mark.parametrize("tables", ["fp32", "int8"])
def test_a_delta_of_a_run_and_the_whole_that_it_makes(two_days: Path, tmp_path: Path, tables: str) -> None:
    _do_export(tmp_path / "ctr/1", run=two_days / "run-1", tables=tables)
    (tmp_path / "ctr/.2.unfinished-whole").mkdir()  # what a killed attempt left
    result = _do_export(tmp_path / "ctr/2", run=two_days / "run-2", delta_of=tmp_path / "ctr/1")
    whole = _do_export(tmp_path / "whole", run=two_days / "run-2", tables=tables)
    assert sorted(path.name for path in (tmp_path / "ctr").iterdir()) == ["1", "2"]
    changed = result.details["delta"]["tables"]
    assert 0 < changed["C3"]["changed"] <= 2 * 64, "no more than the rows that two global batches hold"
    assert result.details["tables"] == tables
    written = [path for path in (tmp_path / "ctr/2").rglob("*") if path.is_file()]
    listed = [path for path in written if path.name not in ("manifest.json", "result.json")]
    assert result.details["delta"]["bytes"] == sum(path.stat().st_size for path in listed)
    assert (result.metrics, result.details["table_bytes"]) == (whole.metrics, whole.details["table_bytes"])
    rows = pq.read_table(two_days / "data/test").combine_chunks().to_batches()[0]
    expected = load_model(tmp_path / "whole").predict_encoded(rows)
    np.testing.assert_array_equal(load_model(tmp_path / "ctr/2").predict_encoded(rows), expected)
    again = _do_export(tmp_path / "again", run=tmp_path / "ctr/2")
    assert again.metrics == whole.metrics
    files = {path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*") if path.is_file()}
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    evaluated = [
        evaluate(EvaluateRequest(source=tmp_path / model, data=two_days / "data"), SilentProgress()).metrics
        for model in ("ctr/2", "whole")
    ]
    assert evaluated[0] == evaluated[1]


NO_DELTA = {
    "another precision": (
        {"tables": "fp16"},
        r"--tables fp16: the tables of .*/1 are fp32, and its deltas must be, too",
    ),
    "another model": (
        {"run": "other"},
        "cannot be the base of this delta: model.embedding_dim is 8 there and 16 in the run; export",
    ),
    "another place": ({"output": "elsewhere"}, "--output .*/elsewhere: a delta must be beside its base .*/ctr/1"),
    "no parent": ({"delta_of": "ctr/7"}, "/ctr/7: not a model folder"),
    "a whole model to make whole": ({"run": "ctr/1", "delta_of": None}, "/ctr/1: already a whole model folder"),
    "tables of a delta": (
        {"run": "ctr/1", "tables": "int8"},
        "--tables, --delta-of, --register-as: only for a run folder",
    ),
}


@pytest.mark.parametrize("case", NO_DELTA)
def test_no_delta_can_be_made(two_days: Path, tmp_path: Path, case: str) -> None:
    changes, message = NO_DELTA[case]
    _do_export(tmp_path / "ctr/1", run=two_days / "run-1")
    request = {"run": "run-2", "output": "ctr/2", "delta_of": "ctr/1", **changes}
    paths = {
        name: two_days / path if name == "run" and "/" not in path else tmp_path / path
        for name, path in request.items()
        if path is not None and name != "tables"
    }
    with pytest.raises(UserError, match=message) as raised:
        _do_export(**{**request, **paths})
    assert "\n" not in str(raised.value)
    assert [path.name for path in (tmp_path / "ctr").iterdir()] == ["1"]

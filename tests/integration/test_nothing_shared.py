"""Three nodes that share nothing but a bucket: what they compute, and what each of them reads of it.

The staging folder of the first node, where commands run, is hidden from the others.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from cluster.local_cluster import ray_head, ray_nodes
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import Recipe, dump_recipe, load_recipe
from rayrec.sources.criteo.generator import generate
from rayrec.sources.generated_files import GeneratorOptions
from rayrec.sources.registry import preprocessing
from rayrec.store.files import copy
from rayrec.store.node_copy import on_this_node
from rayrec.store.paths import to_path
from rayrec.training.run.folder import checkpoint_steps
from tests.builders import make_dataset
from tests.environments import environment_of_open_cluster
from tests.faulty_store import Endpoint, Faults, Store, faulty_store
from tests.holding import run_module
from tests.ray_nodes import hiding
from tests.training_runs import Case, recipe, require_same_bits, run_cases

NODES, STEPS, TEST_ROWS = 3, 60, 60_000
FAULTS = Faults(seed=8, fail=0.02, reset=0.02, slow=0.02, cut=0.02, short=0.02)
SCORES = "scores"
DATA, RUN, MODEL = "s3://bucket/data", "s3://bucket/run", "s3://bucket/model"


def _recipe(*, in_memory: bool) -> Recipe:
    """Two epochs, and an evaluation after each; streamed through Ray Data, or the same from memory."""
    return recipe(
        workers=NODES,
        global_batch_size=12_000,
        epochs=2,
        evaluations_per_epoch=1,
        ingest={"in_memory": in_memory, "read_streams": 4},
        embedding_optimizer={"kind": "adagrad", "lr": 0.05},
        dense_optimizer={"kind": "adam", "lr": 0.01},
        checkpoint={"every_steps": 10, "every_minutes": None, "keep_last": 2},
        sharding={"tables": {"C3": "row_wise"}, "memory_per_worker": "1GB"},
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and the run without Ray and without a bucket."""
    folder = tmp_path_factory.mktemp("local")
    rows = {"train": 360_000, "validation": 60_000, "test": TEST_ROWS}
    # Long parts: beside a short one its footer, which every process reads for itself, would count.
    made = make_dataset(folder / "data", rows, 3, 4, rows_per_part=120_000, rows_per_row_group=12_000, seed=3)
    run_cases(NODES, made.folder, [Case(folder / "run", _recipe(in_memory=True))])
    return folder


@dataclass(frozen=True)
class Cluster:
    store: Store
    nodes: list[Endpoint]
    """By which each node, and the commands on the first one, find the bucket."""
    environment: dict[str, str]
    """Of a command on the first node."""
    folder: Path

    def copied(self, suffix: str) -> list[Path]:
        """Return the files of a kind among the copies of all nodes."""
        return list((self.folder / "staging").rglob(f"*{suffix}"))

    def fetch(self, uri: str) -> Path:
        """The whole of a folder of the bucket, as another machine fetches it."""
        self.store.faults = Faults()
        return on_this_node(to_path(uri))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("nothing-shared")
    own = {**environment_of_open_cluster(), "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}

    def of_node(number: int) -> dict[str, str]:
        # Nobody makes one of these folders for another node.
        return {**own, "AWS_ENDPOINT_URL": endpoints[number].url, "RAYREC_CACHE": str(folder / "staging" / str(number))}

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        store = stack.enter_context(faulty_store())
        endpoints = [stack.enter_context(store.endpoint()) for _ in range(NODES + 1)]
        for name, value in {**of_node(NODES), "RAYREC_CACHE": str(folder / "test")}.items():
            patch.setenv(name, value)
        head = stack.enter_context(ray_head(of_node(0), num_cpus=1))
        of_head = Path(of_node(0)["RAYREC_CACHE"])
        of_head.mkdir(parents=True, exist_ok=True)
        for number in range(1, NODES):
            stack.enter_context(ray_nodes(head, of_node(number), 1, within=hiding(of_head)))
        yield Cluster(store, endpoints[:NODES], {**of_node(0), "RAY_ADDRESS": head.address}, folder)


@pytest.fixture(scope="module")
def trained(cluster: Cluster, local: Path) -> Cluster:
    """The cluster, with the dataset of `local` in the bucket and a run that it trained."""
    copy(local / "data", to_path(DATA))
    cluster.store.faults = FAULTS
    config = cluster.folder / "recipe.yaml"
    config.write_text(dump_recipe(_recipe(in_memory=False)))
    run_module("jobs.train", config, "--data", DATA, "--output", RUN, environment=cluster.environment)
    return cluster


def _require_same_weights(model: Path, expected: Path) -> None:
    for path in (expected / "weights").rglob("*.safetensors"):
        found = load_file(model / path.relative_to(expected))
        for name, value in load_file(path).items():
            assert found[name].equal(value), (path.name, name)


@pytest.mark.minutes
def test_training_gives_the_same_weights(trained: Cluster, local: Path) -> None:
    assert sum(trained.store.met.values()) > 20
    assert not trained.copied(".parquet")
    assert not trained.copied(".distcp")
    run = trained.fetch(RUN)
    assert checkpoint_steps(run / "checkpoints") == checkpoint_steps(local / "run" / "checkpoints")
    require_same_bits(run, local / "run", STEPS)
    metrics, of_local = (json.loads((folder / "metrics.json").read_text()) for folder in (run, local / "run"))
    for split, wanted in of_local.items():
        assert metrics[split] == pytest.approx(wanted, rel=1e-12, abs=0)


@pytest.mark.minutes
def test_each_node_reads_its_share(trained: Cluster, local: Path) -> None:
    """Every row group of an epoch is read once among the nodes; what else is read is little."""
    manifest = Dataset.open(local / "data").manifest
    parts = {name: sum(part.bytes for part in split.parts) for name, split in manifest.splits.items()}
    needed = 2 * parts["train"] + 3 * parts["validation"] + parts["test"]
    read = [node.bytes_of(".parquet") for node in trained.nodes]
    assert all(0.1 * needed < size < 0.6 * needed for size in read), (read, needed)
    assert needed < sum(read) < 1.4 * needed, (read, needed)
    others = [sum(node.read.values()) - node.bytes_of(".parquet") for node in trained.nodes]
    assert all(size < needed / 2 for size in others), (others, needed)


@pytest.mark.minutes
def test_evaluation_export_and_prediction(trained: Cluster, local: Path) -> None:
    # What a node holds of the bucket is only a copy.
    trained.store.faults = FAULTS
    shutil.rmtree(trained.folder / "staging" / "1")
    printed = run_module("jobs.evaluate", RUN, "--data", DATA, "--json", environment=trained.environment)
    expected = json.loads((local / "run" / "metrics.json").read_text())["test"]
    assert json.loads(printed)["metrics"]["test"] == pytest.approx(expected, abs=1e-6)
    assert not trained.copied(".distcp")

    run_module("jobs.export", RUN, "--output", MODEL, environment=trained.environment)
    exported = trained.fetch(MODEL)
    run_module("jobs.export", local / "run", "--output", local / "model", environment=trained.environment)
    _require_same_weights(exported, local / "model")

    # Each node fetches the model, and writes its part of the scores.
    shutil.rmtree(trained.folder / "staging" / "2")
    scores = f"s3://bucket/{SCORES}"
    trained.store.faults = FAULTS
    run_module("jobs.predict", MODEL, "--input", DATA, "--output", scores, environment=trained.environment)
    names = trained.store.names(SCORES)
    assert names[:2] == ["manifest.json", "result.json"]
    assert len(names) == 7  # a part for each row group
    assert not list((trained.folder / "staging").rglob("part-*"))
    written = pq.read_table(f"{SCORES}/scores", filesystem=trained.store.filesystem)
    assert written["row"].to_numpy().tolist() == list(range(TEST_ROWS))
    predictor = load_model(local / "model")
    columns = [feature.name for feature in predictor.schema.features]
    rows = pq.read_table(local / "data" / "test", columns=columns).combine_chunks()
    expected_scores = predictor.predict_encoded(rows.to_batches()[0])
    np.testing.assert_allclose(written["score"].to_numpy(), expected_scores, atol=1e-6, rtol=0)


def test_raw_files_to_a_model(cluster: Cluster, tmp_path: Path) -> None:
    """Every node takes part in preprocessing, whose files are in the bucket alone, and in training."""
    generate(tmp_path / "raw", GeneratorOptions(20_000, seed=3), SilentProgress())
    for file in (tmp_path / "raw").glob("*.tsv"):
        with cluster.store.filesystem.open_output_stream(f"raw/{file.name}") as out:
            out.write(file.read_bytes())
    cluster.store.faults = FAULTS
    settings = [f"train.workers={NODES}", "train.epochs=1", "train.global_batch_size=510"]
    settings += ["preprocess.spark.executor_memory=1g"]
    options = [word for setting in settings for word in ("--set", setting)]
    away = ("--input", "s3://bucket/raw", "--output", "s3://bucket/out")
    run_module("jobs.run", "dlrm-criteo-debug", *options, *away, environment=cluster.environment)
    assert all(node.bytes_of("/out/dataset/.scratch") for node in cluster.nodes), "a node had no part in it"
    assert not [path for path in cluster.copied(".parquet") if path.name.startswith("part-")]
    assert not [name for name in cluster.store.names("out") if name.startswith(".")]
    # The same by threads and without Ray.
    made = load_recipe("dlrm-criteo-debug", [*settings, "train.ingest.in_memory=true"])
    dataset, run, model = (tmp_path / "here" / name for name in ("dataset", "run", "model"))
    preprocessing(made, {None: [str(tmp_path / "raw")]}, dataset).run(EmbeddedEngine(2))
    run_cases(NODES, dataset, [Case(run, made)], workers_per_node=1)
    run_module("jobs.export", run, "--output", model, environment={**cluster.environment, "RAY_ADDRESS": "local"})
    out = cluster.fetch("s3://bucket/out")
    _require_same_weights(out / "model", model)
    assert (out / "run" / "metrics.json").read_text() == (run / "metrics.json").read_text()

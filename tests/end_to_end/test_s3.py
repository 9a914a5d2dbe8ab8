"""The whole way by URIs, on moto's S3 server: what the local way gives, also after the machine was lost."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import rayrec
from rayrec.common.errors import UserError
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import load_recipe
from rayrec.store.node_copy import on_this_node
from rayrec.store.paths import to_path
from rayrec.training.run.folder import checkpoint_name
from tests.builders import make_dataset
from tests.end_to_end.conftest import RECIPE, Pipeline, environment, post, raw_features, run_rayrec, served, weights
from tests.holding import Hold


@pytest.fixture(scope="module")
def server() -> Iterator[fs.S3FileSystem]:
    """Yield an S3 that this process, those that it starts and the Ray cluster find by AWS_ENDPOINT_URL."""
    from moto.server import ThreadedMotoServer

    endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    server = ThreadedMotoServer("127.0.0.1", int(endpoint.partition(":")[2]), verbose=False)
    server.start()
    yield fs.S3FileSystem(endpoint_override=endpoint, scheme="http", allow_bucket_creation=True)
    server.stop()


@pytest.fixture
def bucket(server: fs.S3FileSystem) -> fs.SubTreeFileSystem:
    """`s3://bucket`, which is empty."""
    server.create_dir("bucket")
    server.delete_dir_contents("bucket")
    return fs.SubTreeFileSystem("bucket", server)


@pytest.fixture
def new_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`new_machine(name)`: run commands as on another machine, without copies; the cluster's are others."""
    return lambda name: monkeypatch.setenv("RAYREC_CACHE", str(tmp_path / name))


def has(bucket: fs.FileSystem, path: str) -> bool:
    return bucket.get_file_info(path).type == fs.FileType.File


def lose(staging: Path) -> None:
    """Take a machine's files away at once, as workers that the kill left behind may still write some."""
    staging.rename(staging.with_name(f"{staging.name}-lost"))


def test_a_model_and_its_scores_travel(
    bucket: fs.SubTreeFileSystem, new_machine: Callable[[str], None], pipeline: Pipeline, ray_cluster: str
) -> None:
    new_machine("one")
    exported = run_rayrec(ray_cluster, "export", pipeline.run, "--output", "s3://bucket/travels/model")
    assert exported.code == 0, exported.err
    assert "-> s3://bucket/travels/model\n" in exported.out

    new_machine("two")
    raw = pipeline.raw / "criteo.tsv"
    request = ("s3://bucket/travels/model", "--raw", "--input", raw, "--output", "s3://bucket/travels/scores")
    predicted = run_rayrec(ray_cluster, "predict", *request)
    assert predicted.code == 0, predicted.err
    assert has(bucket, "travels/scores/result.json")

    new_machine("three")
    model, scores = (on_this_node(to_path(f"s3://bucket/travels/{name}")) for name in ("model", "scores"))
    assert weights(model) == weights(pipeline.model)
    table = pq.read_table(scores / "scores")
    direct = rayrec.load_model(pipeline.model).predict(raw_features(raw, 200))
    np.testing.assert_allclose(table["score"].to_numpy()[:200], direct, atol=1e-6, rtol=0)
    assert len(table) == 20_000


@pytest.mark.minutes
def test_the_whole_way(
    bucket: fs.SubTreeFileSystem,
    new_machine: Callable[[str], None],
    pipeline: Pipeline,
    ray_cluster: str,
    tmp_path: Path,
) -> None:
    new_machine("one")
    rayrec.generate("criteo", 20_000, "s3://bucket/raw", progress=False)
    with bucket.open_input_file("raw/criteo.tsv") as raw:
        assert raw.read() == (pipeline.raw / "criteo.tsv").read_bytes()

    # Rank 0 waits as it has written the tenth checkpoint, but for what says that it is whole.
    command = ["run", RECIPE, "--input", "s3://bucket/raw/criteo.tsv", "--output", "s3://bucket/out", "--workers", "2",
               "--set", "train.checkpoint.every_steps=1"]  # fmt: skip
    hold = Hold(tmp_path / "hold", rf"/{checkpoint_name(10)}-\.metadata")
    with hold.held("tests.end_to_end.impatient", *command, environment=environment(ray_cluster)) as held:
        held.until(lambda: has(bucket, "out/run/checkpoints/index.json"))
        held.kill()
        assert has(bucket, "out/dataset/manifest.json")
        assert not has(bucket, "out/run/metrics.json")
        lose(tmp_path / "one")
        hold.end()

    new_machine("two")
    done = run_rayrec(ray_cluster, *command)
    assert done.code == 0, done.err
    assert "preprocess: already finished, in s3://bucket/out/dataset" in done.err
    assert done.out.startswith("run: done") and "-> s3://bucket/out\n" in done.out

    new_machine("three")
    model = on_this_node(to_path("s3://bucket/out/model"))
    assert weights(model) == weights(pipeline.model)
    evaluated = rayrec.evaluate("s3://bucket/out/run", "s3://bucket/out/dataset", progress=False)
    expected = pipeline.results["train"]["metrics"]["test"]
    assert evaluated.metrics["test"] == pytest.approx(expected, abs=1e-6)

    rayrec.export("s3://bucket/out/run", "s3://bucket/model", progress=False)
    predicted = rayrec.predict(
        "s3://bucket/model", "s3://bucket/scores", input="s3://bucket/raw/criteo.tsv", raw=True, progress=False
    )
    assert (predicted.rows, predicted.to_json().count('"s3://bucket/scores"')) == (20_000, 1)
    assert has(bucket, "scores/result.json")
    parts = [info.path for info in bucket.get_file_info(fs.FileSelector("scores/scores"))]
    scores = np.concatenate([pq.read_table(part, filesystem=bucket)["score"].to_numpy() for part in sorted(parts)])
    rows = raw_features(pipeline.raw / "criteo.tsv", 200)
    direct = rayrec.load_model(pipeline.model).predict(rows)
    np.testing.assert_allclose(scores[:200], direct, atol=1e-6, rtol=0)

    new_machine("four")
    # What the URI says stands before the variable.
    endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    with served(ray_cluster, f"s3://bucket/model?endpoint_override={endpoint}&scheme=http") as address:
        answer = post(f"{address}/model:predict", {"instances": rows})
    np.testing.assert_allclose(np.array(answer["predictions"], np.float32), direct, atol=1e-6, rtol=0)


@pytest.mark.minutes
def test_a_sweep_goes_on_on_another_machine(
    bucket: fs.SubTreeFileSystem, new_machine: Callable[[str], None], ray_cluster: str, tmp_path: Path
) -> None:
    rows = {"train": 6_000, "validation": 800, "test": 100}
    made = make_dataset(tmp_path / "data", rows, numeric=13, categorical=26, recipe=load_recipe(RECIPE))
    for path in made.folder.rglob("*.*"):
        with bucket.open_output_stream(f"data/{path.relative_to(made.folder)}") as sink:
            sink.write(path.read_bytes())

    def finished() -> dict[str, str]:
        """trial.json of those that are over, by path."""
        found = bucket.get_file_info(fs.FileSelector("sweep/trials", allow_not_found=True, recursive=True))
        texts = {info.path: text(info.path) for info in found if info.base_name == "trial.json"}
        return {path: content for path, content in texts.items() if json.loads(content)["state"] == "finished"}

    def text(path: str) -> str:
        with bucket.open_input_file(path) as file:
            return file.read().decode()

    new_machine("one")
    command = ["tune", RECIPE, "--data", "s3://bucket/data", "--output", "s3://bucket/sweep", "--trials", "3",
               "--search", "random", "--workers", "1", "--concurrent", "1"]  # fmt: skip
    # Each trial waits as it begins to write its first checkpoint; the first one is let go.
    hold = Hold(tmp_path / "hold", r"/step-")
    with hold.held("tests.end_to_end.impatient", *command, environment=environment(ray_cluster)) as held:
        (first,) = hold.waiting()
        hold.release(first)
        held.until(lambda: hold.waiting().keys() - {first})
        held.until(lambda: bool(finished()))
        held.kill()
        before = finished()
        assert len(before) == 1
        lose(tmp_path / "one")
        hold.end()

    new_machine("two")
    done = run_rayrec(ray_cluster, *command, "--resume")
    assert done.code == 0, done.err
    assert before.items() <= finished().items()
    assert len(text("sweep/trials.csv").splitlines()) == 4


UNUSABLE: dict[str, tuple[str, str]] = {
    "no such bucket": ("s3://missing", "no such bucket; make it, or correct the URI"),
    "misspelt option": ("s3://bucket?endpont_override=x", "unknown option 'endpont_override'"),
}


@pytest.mark.parametrize("case", UNUSABLE)
@pytest.mark.usefixtures("bucket")
def test_an_unusable_uri_is_told(case: str, new_machine: Callable[[str], None]) -> None:
    uri, message = UNUSABLE[case]
    new_machine("one")
    with pytest.raises(UserError, match=rf"^{re.escape(uri)}: cannot be (read|opened): {message}[^\n]*$"):
        on_this_node(to_path(uri))


@pytest.mark.usefixtures("bucket")
def test_wrong_credentials_are_told(new_machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    new_machine("one")
    # From now on the server takes users that it knows, and it knows none.
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
    with pytest.raises(UserError, match=r"^s3://bucket/run: cannot be read: access denied; check the credentials"):
        rayrec.generate("criteo", 10, "s3://bucket/run", progress=False)


@pytest.mark.minutes
def test_days_go_on_on_other_machines(
    bucket: fs.SubTreeFileSystem, new_machine: Callable[[str], None], tmp_path: Path, ray_cluster: str
) -> None:
    """A day on a cluster that has nothing of the day before gives the vocabularies and the model of the local way."""
    made = run_rayrec(None, "generate", "criteo", "--rows", "12000", "--days", "2", "--output", tmp_path / "raw")
    assert made.code == 0, made.err
    settings = ("preprocess.split={kind: hash, test: 0.2}", "train.global_batch_size=512", "publish.max_drift=null",
                "publish.max_loss_increase=100", "publish.max_miscalibration=100")  # fmt: skip
    options = [word for setting in settings for word in ("--set", setting)]
    for output, second in (("s3://bucket/days", ray_cluster), (str(tmp_path / "local"), None)):
        for day, ray in enumerate((None, second)):
            new_machine(f"{day}")
            done = run_rayrec(ray, "run", RECIPE, *options, "--workers", "1",
                              "--input", tmp_path / f"raw/day_{day}", "--continue", output)  # fmt: skip
            assert done.code == 0, done.err
    new_machine("reader")
    remote, local = (
        Dataset.open(to_path(f"{output}/days/0001/dataset")) for output in ("s3://bucket/days", tmp_path / "local")
    )
    assert [(f.path, f.sha256) for f in remote.manifest.files] == [(f.path, f.sha256) for f in local.manifest.files]
    rows = [{"I1": number, "C1": f"{number:08x}"} for number in range(20)]
    scores = [rayrec.load_model(f"{at}/models/2").predict(rows) for at in ("s3://bucket/days", tmp_path / "local")]
    np.testing.assert_array_equal(*scores)

"""From generated logs to scores and answers, by the command line alone."""

import json
import shutil
import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rayrec import load_model
from rayrec.ingest.dataset import Dataset
from rayrec.training.run.history import read_history
from tests.end_to_end import bad_tables
from tests.end_to_end.bad_inputs import REQUESTS
from tests.end_to_end.conftest import PROGRAM, Finished, Pipeline, post, raw_features, served
from tests.end_to_end.mistake import BadRequest
from tests.environments import environment_of_a_user
from tests.model_folders import write_table_model

Rayrec = Callable[..., Finished]


def test_every_command_leaves_its_result(pipeline: Pipeline) -> None:
    outputs = {"generate": "raw", "preprocess": "dataset", "train": "run", "export": "model"}
    for command, output in outputs.items():
        saved = json.loads((pipeline.folder / output / "result.json").read_text())
        assert saved == pipeline.results[command]
        assert (saved["command"], saved["status"]) == (command, "done")
        assert saved["seconds"] > 0


def test_no_row_is_lost(pipeline: Pipeline) -> None:
    dataset = Dataset.open(pipeline.dataset)
    splits = {name: split.rows for name, split in dataset.manifest.splits.items()}
    assert sum(splits.values()) == 20_000
    assert dataset.manifest.rejected == {}
    for name, rows in splits.items():
        assert sum(pq.read_metadata(p).num_rows for p in (pipeline.dataset / name).glob("*.parquet")) == rows


def test_training_learns(pipeline: Pipeline) -> None:
    best = pipeline.results["generate"]["details"]["truth"]["best_auc"]
    for metrics in pipeline.results["train"]["metrics"].values():
        assert 0.55 < metrics["auc"] < best + 0.05
        assert metrics["normalized_entropy"] < 1.0
    shares = [r["data_wait_share"] for r in read_history(pipeline.run / "history.jsonl") if r["event"] == "train"]
    assert shares and all(0 <= share <= 1 for share in shares)


def test_the_model_folder_evaluates_like_the_run(pipeline: Pipeline, rayrec: Rayrec) -> None:
    done = rayrec("evaluate", pipeline.model, "--data", pipeline.dataset, "--json")
    assert done.code == 0, done.err
    assert done.result["metrics"]["test"] == pytest.approx(pipeline.results["train"]["metrics"]["test"], abs=1e-6)


def test_one_machine_evaluates_and_scores_without_a_ray_session(pipeline: Pipeline, tmp_path: Path) -> None:
    alone = {**environment_of_a_user(), "RAY_TMPDIR": str(tmp_path / "ray")}

    def result(*arguments: str | Path) -> dict[str, Any]:
        command = [PROGRAM, *map(str, arguments), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    evaluated = result("evaluate", pipeline.run, "--data", pipeline.dataset)
    assert evaluated["metrics"]["test"] == pytest.approx(pipeline.results["train"]["metrics"]["test"], rel=1e-9)
    scored = result("predict", pipeline.model, "--input", pipeline.dataset, "--output", tmp_path / "scores")
    assert scored["rows"] == evaluated["rows"] == pq.read_table(tmp_path / "scores/scores").num_rows
    assert not (tmp_path / "ray").exists()


@pytest.fixture(scope="module")
def server(ray_cluster: str, pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `rayrec serve FOLDER`, with the pipeline's model and `table`, one of a table of all kinds."""
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(pipeline.model, models / "model")
    table = tmp_path_factory.mktemp("made") / "table"
    write_table_model(table)
    shutil.move(table, models)
    with served(ray_cluster, models) as address:
        yield address


def test_http_batch_and_python_give_the_same_scores(
    pipeline: Pipeline, server: str, rayrec: Rayrec, tmp_path: Path
) -> None:
    rows = raw_features(pipeline.raw / "criteo.tsv", 200)
    sample = tmp_path / "sample.tsv"
    sample.write_text("".join(f"{line}\n" for line in (pipeline.raw / "criteo.tsv").read_text().splitlines()[:200]))

    done = rayrec("predict", pipeline.model, "--input", sample, "--output", tmp_path / "scores", "--raw", "--json")
    assert done.code == 0, done.err
    assert done.result["rows"] == 200
    files = sorted((tmp_path / "scores").rglob("part-*.parquet"))
    batch = np.concatenate([pq.read_table(file)["score"].to_numpy() for file in files if "scores" in file.parent.name])

    direct = load_model(pipeline.model).predict(rows)
    http = np.array(post(f"{server}/model:predict", {"instances": rows})["predictions"], np.float32)
    np.testing.assert_allclose(batch, direct, atol=1e-6, rtol=0)
    np.testing.assert_allclose(http, direct, atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", [*REQUESTS, *bad_tables.REQUESTS], ids=lambda case: case.title)
def test_a_bad_request_is_told_what_is_wrong(case: BadRequest, server: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as answer:
        post(f"{server}/{case.model}:{case.verb}", case.body)
    assert answer.value.code == case.status
    assert json.loads(answer.value.read()) == {"error": case.message}

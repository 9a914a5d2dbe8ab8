"""A command does the same in its own process and on Ray, and says which it was."""

import json
from pathlib import Path

import pyarrow.parquet as pq

import rayrec
from rayrec.training.run.folder import RunFolder

RECIPE = "dlrm-criteo-debug"
SETTINGS = {"train.epochs": 1, "train.ingest.in_memory": False, "train.global_batch_size": 128}


def _files(folder: Path, *, without: set[str]) -> dict[str, bytes]:
    names = (path for path in folder.rglob("*") if path.is_file() and path.name not in without)
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def test_both_ways_give_the_same_bits(ray_cluster: str, no_spark: None, tmp_path: Path) -> None:
    rayrec.generate("criteo", 3_000, tmp_path / "raw", progress=False)
    rayrec.preprocess(RECIPE, tmp_path / "raw" / "criteo.tsv", tmp_path / "data", on="process", progress=False)
    found, metrics = {}, {}
    for on in "process", "ray":
        run, model, scores = (tmp_path / f"{name}-{on}" for name in ("run", "model", "scores"))
        given = {"on": on, "progress": False}
        trained = rayrec.train(RECIPE, tmp_path / "data", run, workers=1, set=SETTINGS, **given)
        rayrec.export(run, model, progress=False)
        evaluated = rayrec.evaluate(run, tmp_path / "data", **given)
        predicted = rayrec.predict(model, scores, input=tmp_path / "data", **given)
        recorded = [result.execution for result in (trained, evaluated, predicted)]
        assert RunFolder.open(run).execution == trained.execution
        assert json.loads((run / "result.json").read_text())["execution"]["on"] == on
        assert [execution.on for execution in recorded] == [on] * 3
        if on == "ray":
            assert [execution.engine for execution in recorded] == ["Ray Train", "Ray Data", "Ray Data"]
            assert [execution.reads for execution in recorded] == ["Ray Data", None, None]
        # The manifest names the checkpoint, which says how long the training took, as the results do.
        found[on] = _files(model, without={"manifest.json", "result.json"})
        found[on]["scores"] = pq.read_table(scores / "scores")
        metrics[on] = (trained.metrics, evaluated.metrics)
    assert found["process"] == found["ray"]
    assert metrics["process"] == metrics["ray"]

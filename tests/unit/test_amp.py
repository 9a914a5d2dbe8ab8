"""Scores in mixed precision: near those of float32, by as much as is said, wherever a model scores."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rayrec
from jobs.predict import PredictRequest, run
from rayrec.common.errors import ConfigError
from rayrec.common.progress import SilentProgress
from rayrec.config import ServeConfig
from rayrec.config.evaluate import InferencePrecision
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.predictor import load_model
from rayrec.models.common.precision import resolve_precision
from serve.metrics import ServingMetrics
from serve.models import ServedVersion
from tests.builders import make_rows, write_dataset
from tests.model_folders import MODELS, make_model_folder, make_raw_rows, make_recommender_folder

MOST: dict[InferencePrecision, float] = {"bf16": 0.02, "fp16": 0.002}
"""Eight and eleven bits of every number, in networks of random weights."""


@pytest.mark.parametrize("precision", MOST)
@pytest.mark.parametrize("kind", [*MODELS, "neumf"])
def test_the_error_is_that_of_the_scores(tmp_path: Path, kind: str, precision: InferencePrecision) -> None:
    if kind == "neumf":
        make_recommender_folder(tmp_path / "model")
        rows = [{"user": f"u-{number % 7}", "item": f"i-{number % 5}"} for number in range(60)]
    else:
        make_model_folder(tmp_path / "model", model=kind)
        rows = make_raw_rows(load_model(tmp_path / "model").schema, 60)
    predictor = load_model(tmp_path / "model")
    encoded = predictor.encode(predictor.columns_of(rows))
    exact = predictor.predict_encoded(encoded)
    assert predictor.amp_error(encoded).rows == 0
    predictor.precision = resolve_precision(precision, "cpu")
    differences = np.abs(predictor.predict_encoded(encoded).astype(np.float64) - exact)
    error = predictor.amp_error(encoded)
    assert (error.rows, error.largest) == (60, differences.max())
    assert error.total == pytest.approx(differences.sum())
    # Nothing but sums of embeddings, of which autocast changes nothing.
    assert (error.largest == 0) == (kind == "wide") and error.largest < MOST[precision]


PRECISIONS: tuple[InferencePrecision, ...] = ("fp32", "bf16")


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "dataset"])
def test_predict_says_how_far_it_moves_scores(tmp_path: Path, raw: bool) -> None:
    make_model_folder(tmp_path / "model", numeric=13, categorical=26)
    schema = load_model(tmp_path / "model").schema
    if raw:
        names = [feature.name for feature in schema.features]
        lines = ("\t".join(str(row.get(name) or "") for name in names) for row in make_raw_rows(schema, 90))
        (tmp_path / "input").write_text("\n".join(line.replace(".0\t", "\t") for line in lines) + "\n")
    else:
        write_dataset(tmp_path / "input", schema, {"test": make_rows(schema, 90, 4)})
    scores, details = {}, {}
    for precision in PRECISIONS:
        output = tmp_path / precision
        request = PredictRequest(
            model=tmp_path / "model", input=str(tmp_path / "input"), output=output, raw=raw, precision=precision
        )
        details[precision] = run(request, SilentProgress()).details
        scores[precision] = pq.read_table(output / "scores")["score"].to_numpy().astype(np.float64)
    differences = np.abs(scores["bf16"] - scores["fp32"])
    assert "amp_error_max" not in details["fp32"] and differences.max() > 0
    assert details["bf16"]["amp_error_max"] == differences.max()
    assert details["bf16"]["amp_error_mean"] == pytest.approx(differences.mean())


def test_an_evaluation_states_its_error(tmp_path: Path) -> None:
    """Of the probabilities; what the metrics differ by is within it."""
    make_model_folder(tmp_path / "model", numeric=13, categorical=26)
    schema = load_model(tmp_path / "model").schema
    write_dataset(tmp_path / "data", schema, {"test": make_rows(schema, 300, 4)})
    exact, mixed = (
        rayrec.evaluate(
            tmp_path / "model", tmp_path / "data", precision=precision, on="process", progress=False
        ).metrics["test"]
        for precision in PRECISIONS
    )
    assert mixed.keys() - exact.keys() == {"amp_error_max", "amp_error_mean"}
    largest, mean = mixed["amp_error_max"], mixed["amp_error_mean"]
    assert largest is not None and mean is not None and 0 < mean < largest < 0.02
    assert exact["log_loss"] is not None and mixed["log_loss"] != exact["log_loss"]
    assert mixed["log_loss"] == pytest.approx(exact["log_loss"], abs=0.02)


def test_lists_are_in_float32(tmp_path: Path) -> None:
    request = PredictRequest(model=tmp_path, output=tmp_path / "out", top_k=3, precision="bf16")
    with pytest.raises(ConfigError, match="--precision: --top-k computes in float32"):
        request.check()


def test_a_server_checks_in_float32_and_scores_in_mixed_precision(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("ray.serve.rayrec")
    log.addHandler(handler)
    settings, memory = ServeConfig(precision="bf16"), TableMemory(2**30)
    try:
        with ThreadPoolExecutor(1) as executor:
            version = ServedVersion("shop", "3", tmp_path / "model", executor, settings, ServingMetrics(), memory)
    finally:
        log.removeHandler(handler)
    assert "model 'shop', version 3: bf16 moves the scores of its 16 examples by" in lines[0]
    rows = make_raw_rows(version.predictor.schema, 40)
    differences = np.abs(version.predictor.predict(rows) - load_model(tmp_path / "model").predict(rows))
    assert 0 < differences.max() < MOST["bf16"]

"""`:explain` in a server: the explainer's answer, in passes between which other requests get theirs."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from rayrec.config import ServeConfig
from rayrec.features.stacked_columns import StackedColumns
from rayrec.inference.explanation import Explainer, explainer_of
from rayrec.inference.folder.facts import REFERENCE_ROWS_FILE
from rayrec.inference.folder.table_files import TableMemory
from serve.admission import Admission
from serve.metrics import ServingMetrics
from serve.models import RequestRows, ServedModel, ServedModels, ServedVersion
from serve.openapi import document
from serve.requests import RequestError
from serve.v1 import MOST_EXPLAINED, VERBS
from tests.model_folders import finish, make_model_folder, make_raw_rows

METRICS = ServingMetrics()
ADMISSION = Admission(ServeConfig(), frozenset(), METRICS)


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def serve(folder: Path, executor: ThreadPoolExecutor) -> ServedVersion:
    return ServedVersion("m", "1", folder, executor, ServeConfig(max_batch_size=4), METRICS, TableMemory(2**30))


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory, executor: ThreadPoolExecutor) -> ServedVersion:
    folder = tmp_path_factory.mktemp("served") / "m"
    make_model_folder(folder, categorical=30, multi_hot=1)
    return serve(folder, executor)


def ask(version: ServedVersion, body: Any) -> dict[str, Any]:
    model = ServedModel("m", {"1": version}, {"1": 1.0})
    answer = asyncio.run(VERBS["explain"](model, version, json.dumps(body).encode(), ADMISSION, {}))
    content: dict[str, Any] = json.loads(answer)
    return content


def test_the_answer_is_the_explainers(version: ServedVersion) -> None:
    rows = make_raw_rows(version.predictor.schema, 3)
    answer = ask(version, {"instances": rows})
    explainer = explainer_of(version.predictor)
    assert explainer is not None
    assert (answer["model"], answer["version"], len(answer["explanations"])) == ("m", "1", 3)
    for found, expected in zip(answer["explanations"], explainer.explain(rows), strict=True):
        assert found == {
            "score": expected.score,
            "logit": expected.logit,
            "base": expected.base,
            "parts": expected.parts,
        }
    assert ask(version, rows[0])["explanations"] == answer["explanations"][:1], "an object alone"


def test_the_answer_is_as_described(version: ServedVersion) -> None:
    models = ServedModels()
    models.current = {"m": ServedModel("m", {"1": version}, {"1": 1.0})}
    described = document(models, 100)
    operation = described["paths"]["/v1/models/m:explain"]["post"]
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator(described | answer).validate(ask(version, {}))
    instances = described["components"]["schemas"]["m.explain.Instances"]["properties"]["instances"]
    assert (instances["minItems"], instances["maxItems"]) == (1, MOST_EXPLAINED)


BAD = {
    "too many rows": ({"instances": [{}] * (MOST_EXPLAINED + 1)}, 413, "instances: 9 rows, at most 8 a request"),
    "no rows": ({"instances": []}, 422, "instances: empty"),
    "unknown feature": ({"C99": "a"}, 422, "row 0: unknown feature 'C99'"),
    "another top level": ([], 422, "the body must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests(version: ServedVersion, case: str) -> None:
    body, status, message = BAD[case]
    with pytest.raises(RequestError) as raised:
        ask(version, body)
    assert (raised.value.status, message in raised.value.message) == (status, True)


def test_a_score_beyond_numbers(version: ServedVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = np.full(1, np.inf, np.float32)
    monkeypatch.setattr(version.predictor, "logits_encoded", lambda rows: np.repeat(infinite, rows.num_rows))
    with pytest.raises(RequestError) as raised:
        ask(version, {})
    assert (raised.value.status, raised.value.message.partition(":")[0]) == (422, "row 0")


def test_a_model_without_rows_to_compare_with(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    make_model_folder(tmp_path / "m")
    (tmp_path / "m" / REFERENCE_ROWS_FILE).unlink()
    finish(tmp_path / "m")
    version = serve(tmp_path / "m", executor)
    with pytest.raises(RequestError) as raised:
        ask(version, {})
    assert raised.value.status == 404
    assert raised.value.message == (
        "model 'm' was exported without reference rows, so it cannot explain; use /v1/models/m:predict"
    )
    models = ServedModels()
    models.current = {"m": ServedModel("m", {"1": version}, {"1": 1.0})}
    assert "/v1/models/m:explain" not in document(models, 100)["paths"]


def test_scores_come_between_the_passes_of_explanations(version: ServedVersion) -> None:
    """However many explanations are asked for, a request for scores waits for one pass of them at most."""
    columns = version.predictor.columns_of(make_raw_rows(version.predictor.schema, 100))
    done: list[str] = []

    async def explain() -> None:
        await version.explain(columns.slice(0, MOST_EXPLAINED))
        done.append("explained")

    async def score() -> None:
        await asyncio.sleep(0.02)
        await version.score(RequestRows(StackedColumns.of(columns)))
        done.append("scored")

    async def both() -> None:
        await asyncio.gather(*(explain() for _ in range(6)), score())

    asyncio.run(both())
    assert isinstance(version.explainer, Explainer)
    assert done == ["scored", *["explained"] * 6]

"""`:recommend` and `:similar` in a server: the recommender's answers, and what cannot be answered."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from jobs.serve import example
from rayrec.config import ServeConfig
from rayrec.inference.examples import Examples
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.recommender import load_recommender
from rayrec.models.sasrec.config import SASRecConfig
from serve.admission import Admission
from serve.metrics import ServingMetrics
from serve.models import ServedModel, ServedModels, ServedVersion
from serve.openapi import document
from serve.requests import RequestError
from serve.v1 import VERBS
from tests.model_folders import make_model_folder, make_recommender_folder

METRICS = ServingMetrics()
ADMISSION = Admission(ServeConfig(max_rows_per_request=20), frozenset(), METRICS)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServedVersion]]:
    base = tmp_path_factory.mktemp("served")
    make_recommender_folder(base / "neumf")
    make_recommender_folder(base / "sasrec", config=SASRecConfig(embedding_dim=8, length=6))
    make_model_folder(base / "dlrm")
    with ThreadPoolExecutor(1) as pool:
        yield {
            name: ServedVersion(name, "1", base / name, pool, ServeConfig(), METRICS, TableMemory(2**30))
            for name in ("neumf", "sasrec", "dlrm")
        }


def ask(version: ServedVersion, verb: str, body: Any) -> dict[str, Any]:
    model = ServedModel(version.name, {"1": version}, {"1": 1.0})
    answer = asyncio.run(VERBS[verb](model, version, json.dumps(body).encode(), ADMISSION))
    content: dict[str, Any] = json.loads(answer)
    return content


def test_the_answer_is_the_recommenders(versions: dict[str, ServedVersion]) -> None:
    recommender = load_recommender(versions["sasrec"].predictor.folder)
    given = {"events": ["i-30", "i-7", "new"], "exclude_known": False, "deny": ["i-1", "new"], "allow": None}
    expected = recommender.recommend("u-9", 4, **given)
    found = ask(versions["sasrec"], "recommend", {"user": "u-9", "k": 4, **given})
    items = [
        {"item": item, "score": score} for item, score in zip(expected.items, expected.scores.tolist(), strict=True)
    ]
    assert found == {"model": "sasrec", "version": "1", "user": "u-9", "items": items, "unknown_events": ["new"]}
    assert ask(versions["sasrec"], "recommend", {})["user"] is None


@pytest.mark.parametrize("name", ["neumf", "sasrec"])
def test_items_like_an_item(versions: dict[str, ServedVersion], name: str) -> None:
    expected = load_recommender(versions[name].predictor.folder).similar("i-3", 2, deny=["i-4"])
    found = ask(versions[name], "similar", {"item": "i-3", "k": 2, "deny": ["i-4"]})
    pairs = zip(expected.items, expected.scores.tolist(), strict=True)
    items = [{"item": item, "cosine": cosine} for item, cosine in pairs]
    assert found == {"model": name, "version": "1", "item": "i-3", "items": items}


@pytest.mark.parametrize(
    ("name", "verb", "body", "status", "message"),
    [
        ("neumf", "recommend", {"user": "x"}, 404, "no user 'x' .*; models that read histories, such as 'sasrec'"),
        ("neumf", "recommend", {}, 422, "user: missing; a model of kind 'neumf' recommends to users of its training"),
        ("neumf", "recommend", {"user": "u-1", "events": ["i-1"]}, 422, "events: .* 'neumf' reads no history"),
        ("neumf", "similar", {"item": "x"}, 404, "no item 'x' in the model's training data"),
        ("sasrec", "similar", {}, 422, "item: must be a string or a number"),
        ("sasrec", "recommend", {"k": 21}, 422, "k: must be a whole number from 1 to 20"),
        ("sasrec", "recommend", {"events": ["i-1"] * 21}, 422, "events: must be a list of at most 20 strings or"),
        (
            "sasrec",
            "predict",
            {"instances": [{}]},
            404,
            "scores the next items of people, and no rows; use .*:recommend",
        ),
        ("sasrec", "rank", {"candidates": [{}]}, 404, "scores the next items of people, and no rows; use .*:recommend"),
        ("sasrec", "explain", {"instances": [{}]}, 404, "scores the next items of people, and no rows"),
        ("dlrm", "recommend", {"user": "1"}, 404, "needs more features than a user and an item, .*; use .*:predict"),
        ("dlrm", "similar", {"item": "1"}, 404, "has no vectors of items, so none is like another; use .*:predict"),
    ],
)
def test_what_cannot_be_answered(
    versions: dict[str, ServedVersion], name: str, verb: str, body: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        ask(versions[name], verb, body)
    assert caught.value.status == status and "\n" not in str(caught.value)


def test_the_document_says_what_a_model_of_next_items_takes(versions: dict[str, ServedVersion]) -> None:
    models = ServedModels()
    models.current = {"sasrec": ServedModel("sasrec", {"1": versions["sasrec"]}, {"1": 1.0})}
    described = json.loads(json.dumps(document(models, 100)))
    posts = {path for path, operations in described["paths"].items() if "post" in operations}
    assert posts == {"/v1/models/sasrec:recommend", "/v1/models/sasrec:similar"}
    content = described["paths"]["/v1/models/sasrec:recommend"]["post"]["requestBody"]["content"]["application/json"]
    validator = Draft202012Validator(described | content["schema"])
    for body, is_valid in (
        ({"events": ["i-1", 7], "allow": ["a"], "deny": []}, True),
        ({}, True),
        ({"events": ["i-1"] * 101}, False),
        ({"events": [None]}, False),
        ({"allow": "a"}, False),
    ):
        assert validator.is_valid(body) == is_valid


def test_the_line_to_try_it_asks_for_somebody_new(versions: dict[str, ServedVersion]) -> None:
    folder = versions["sasrec"].predictor.folder
    assert example("http://here", "m", folder) == (
        'curl -s http://here/v1/models/m:recommend -d \'{"events": ["i-0", "i-1"], "k": 5}\''
    )
    examples = Examples.load(folder)
    assert 0 < examples.tolerance < 0.01 * min(examples.scores)

"""`:recommend` and `:similar` in a server: the recommender's answers, and what cannot be answered."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from jobs.serve import example
from rayrec.common.errors import UserError
from rayrec.config import ServeConfig
from rayrec.inference.examples import Examples
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.recommender import load_recommender
from rayrec.models.sasrec.config import SASRecConfig
from serve.admission import Admission
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.models import ServedModel, ServedModels, ServedVersion, why_not_ranked
from serve.openapi import document
from serve.requests import RequestError
from serve.updates import Updates
from serve.v1 import VERBS
from tests.model_folders import make_model_folder, make_recommender_folder, set_lists

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


def ask(version: ServedVersion, verb: str, body: Any, *others: ServedVersion) -> dict[str, Any]:
    served = {one.name: ServedModel(one.name, {"1": one}, {"1": 1.0}) for one in (version, *others)}
    answer = asyncio.run(VERBS[verb](served[version.name], version, json.dumps(body).encode(), ADMISSION, served))
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


@pytest.fixture(scope="module")
def ranked(versions: dict[str, ServedVersion], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedVersion]:
    """A model of next items whose best 12 `neumf` ranks again."""
    folder = tmp_path_factory.mktemp("ranked") / "sasrec"
    shutil.copytree(versions["sasrec"].predictor.folder, folder)
    set_lists(folder, rank="neumf", retrieve=12)
    with ThreadPoolExecutor(1) as pool:
        yield ServedVersion("ranked", "1", folder, pool, ServeConfig(), METRICS, TableMemory(2**30))


@pytest.mark.parametrize("user", ["u-9", "somebody new", None])
def test_another_model_ranks_the_same_candidates(
    versions: dict[str, ServedVersion], ranked: ServedVersion, user: str | None
) -> None:
    given = {"user": user, "events": ["i-30", "i-7", "new"], "deny": ["i-1"]}
    neumf = versions["neumf"]
    candidates = [entry["item"] for entry in ask(versions["sasrec"], "recommend", {**given, "k": 12})["items"]]
    rows = [{"item": item} for item in candidates]
    expected = ask(neumf, "rank", {"context": {} if user is None else {"user": user}, "candidates": rows, "k": 5})
    found = ask(ranked, "recommend", {**given, "k": 5}, neumf)
    assert [entry["item"] for entry in found["items"]] == [one["candidate"]["item"] for one in expected["candidates"]]
    assert [entry["score"] for entry in found["items"]] == [one["score"] for one in expected["candidates"]]
    assert found["items"] != ask(versions["sasrec"], "recommend", {**given, "k": 5})["items"]
    assert found["ranked_by"] == {"model": "neumf", "version": "1"} and found["unknown_events"] == ["new"]
    # The ranker gets as many as are asked for, if these are more; an empty list stays empty.
    assert len(ask(ranked, "recommend", {**given, "k": 20}, neumf)["items"]) == 20
    assert ask(ranked, "recommend", {**given, "allow": []}, neumf)["items"] == []


def test_who_cannot_rank_is_said(versions: dict[str, ServedVersion], ranked: ServedVersion) -> None:
    for others, body, status, message in (
        ([], {}, 503, "has its items ranked by 'neumf' .*, which does not answer"),
        ([versions["neumf"]], {"context": {"colour": "red"}}, 422, "unknown .*'colour'"),
        ([versions["neumf"]], {"context": ["red"]}, 422, "context: must be an object"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            ask(ranked, "recommend", {"user": "u-9", **body}, *others)
        assert caught.value.status == status
    with pytest.raises(RequestError, match="context: no other model ranks the items"):
        ask(versions["sasrec"], "recommend", {"context": {"user": "u-9"}})
    one = {"m": ServedModel("m", {"1": versions["sasrec"]}, {"1": 1.0})}
    assert why_not_ranked(versions["sasrec"], one) is None
    for ranker, message in (("sasrec", "scores the next items of people"), ("dlrm", "does not read the item's column")):
        model = ServedModel("neumf", {"1": versions[ranker]}, {"1": 1.0})
        assert message in (why_not_ranked(ranked, {"neumf": model}) or "")


def test_a_server_does_not_start_without_the_model_that_ranks(
    versions: dict[str, ServedVersion], ranked: ServedVersion, tmp_path: Path
) -> None:
    def load(name: str, version: str, folder: Path) -> ServedVersion:
        return ranked if name == "next" else versions["neumf"]

    log = JsonLog("shadow", tmp_path, "test")
    folders = {name: version.predictor.folder for name, version in (("next", ranked), ("neumf", versions["neumf"]))}
    Updates(folders, load, ServedModels(), log, METRICS).load_all()
    del folders["neumf"]
    with pytest.raises(UserError, match=r"model 'next' has its items ranked by 'neumf' \(serve.recommend.rank\)"):
        Updates(folders, load, ServedModels(), log, METRICS).load_all()


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

"""The OpenAPI document: valid, and each of its examples is a request that the model answers."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from rayrec.config import ServeConfig
from rayrec.inference.folder.table_files import TableMemory
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE, HeldOutRows
from rayrec.store.files import write_json
from serve.metrics import ServingMetrics
from serve.models import ServedModel, ServedModels, ServedVersion
from serve.openapi import document
from serve.requests import RequestError
from serve.v1 import VERBS, parse_instances
from tests.display_models import ADS, CONTEXT, make_ranker
from tests.model_folders import make_model_folder, make_raw_rows, make_recommender_folder, write_table_model

HELD_OUT = HeldOutRows(
    split="test",
    rows=({"I1": 3, "C2": "C2-1"}, {"C1": "C1-1"}),
    labels=(1.0, None),
    looked_at=9,
    ranges={"I1": (-2, 40)},
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ServedModels:
    base = tmp_path_factory.mktemp("models")
    make_model_folder(base / "dlrm", multi_hot=1)
    write_json(base / "dlrm" / HELD_OUT_ROWS_FILE, HELD_OUT.model_dump(mode="json"))
    make_recommender_folder(base / "neumf")
    make_ranker(base / "displays")
    write_table_model(base / "table")
    folders = {name: base / name for name in ("dlrm", "neumf", "table")} | {"ads": base / "displays" / "model"}
    models = ServedModels()
    with ThreadPoolExecutor(1) as executor:
        loaded = {
            name: ServedVersion(name, "1", folder, executor, ServeConfig(), ServingMetrics(), TableMemory(2**30))
            for name, folder in folders.items()
        }
    models.current = {name: ServedModel(name, {"1": version}, {"1": 1.0}) for name, version in loaded.items()}
    return models


@pytest.fixture(scope="module")
def described(models: ServedModels) -> dict[str, Any]:
    return json.loads(json.dumps(document(models, 100), allow_nan=False))


def test_what_it_describes(described: dict[str, Any]) -> None:
    posts = {path for path, operations in described["paths"].items() if "post" in operations}
    assert {path.rpartition(":")[2] for path in posts if ":" in path} == set(VERBS)
    assert posts == {
        "/v1/models/ads:explain",
        "/v1/models/ads:predict",
        "/v1/models/ads:rank",
        "/v2/models/ads/infer",
        "/v1/models/dlrm:explain",
        "/v1/models/dlrm:predict",
        "/v1/models/dlrm:rank",
        "/v1/models/neumf:explain",
        "/v1/models/neumf:predict",
        "/v1/models/neumf:rank",
        "/v1/models/neumf:recommend",
        "/v1/models/neumf:similar",
        "/v1/models/table:explain",
        "/v1/models/table:predict",
        "/v1/models/table:rank",
        "/v2/models/dlrm/infer",
        "/v2/models/neumf/infer",
        "/v2/models/table/infer",
    }


@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        ({"context": CONTEXT, "candidates": ADS}, True),
        ({"candidates": [1], "k": 3}, True),
        ({"context": {**CONTEXT, "platform": None}, "candidates": [1]}, True),
        ({"candidates": []}, False),
        ({"candidates": [["1"]]}, False),
        ({"context": {"uuid": ["a"]}, "candidates": [1]}, False),
        ({"context": {"user": "ann"}, "candidates": [1]}, False),
        ({"context": CONTEXT}, False),
    ],
)
def test_the_body_of_a_ranking(described: dict[str, Any], body: dict[str, Any], is_valid: bool) -> None:
    content = described["paths"]["/v1/models/ads:rank"]["post"]["requestBody"]["content"]["application/json"]
    assert Draft202012Validator(described | content["schema"]).is_valid(body) == is_valid


def validator(described: dict[str, Any], name: str) -> Draft202012Validator:
    return Draft202012Validator(described | described["components"]["schemas"][name])


def test_rows_have_the_models_features(described: dict[str, Any], models: ServedModels) -> None:
    version = models.model("dlrm").version()
    row = described["components"]["schemas"]["dlrm.Row"]
    Draft202012Validator.check_schema(row)
    assert list(row["properties"]) == [feature.name for feature in version.predictor.schema.features]
    assert row["properties"]["C2"]["examples"][:3] == ["C2-0", "C2-1", "C2-2"]
    assert row["properties"]["C2"]["description"].startswith("33 values are known")
    assert row["properties"]["M1"]["type"] == ["array", "null"]
    for example in row["examples"]:
        assert version.predictor.predict([example]).shape == (1,)


def test_examples_are_held_out_rows_where_there_are_some(described: dict[str, Any]) -> None:
    row, made_up = (described["components"]["schemas"][f"{name}.Row"] for name in ("dlrm", "neumf"))
    assert (row["examples"], row["x-split"], row["x-labels"]) == (list(HELD_OUT.rows), "test", [1.0, None])
    assert row["properties"]["I1"]["x-range"] == [-2, 40]
    assert (row["properties"]["C2"]["x-known-values"], len(row["properties"]["C2"]["examples"])) == (33, 33)
    assert row["properties"]["M1"]["x-known-values"] == 72, "a long vocabulary is counted"
    assert row["properties"]["M1"]["examples"] == [], "and not listed"
    assert "x-split" not in made_up and made_up["examples"]


@pytest.mark.parametrize(
    "row", [{"I1": [3]}, {"I1": 1e39}, {"C1": ["a"]}, {"M1": "a"}, {"M1": [["a"]]}, {"C11": "a"}, 3], ids=str
)
def test_the_schema_refuses_what_the_server_refuses(described: dict[str, Any], models: ServedModels, row: Any) -> None:
    assert not validator(described, "dlrm.Row").is_valid(row)
    with pytest.raises(RequestError):
        parse_instances(json.dumps({"instances": [row]}).encode(), models.model("dlrm").version().predictor.raw_rows, 9)


def test_weights_of_lists(described: dict[str, Any], models: ServedModels) -> None:
    predictor = models.model("table").version().predictor
    weights = described["components"]["schemas"]["table.Row"]["properties"]["weights"]
    assert weights["description"] == "A weight for each value of texts; by default 1."
    assert weights["examples"][0] == [1, 1]
    for row in described["components"]["schemas"]["table.Row"]["examples"]:
        assert predictor.predict([row]).shape == (1,)
    for value, is_valid in (([0, 2.5], True), ("1|2", True), (None, True), ([-1, 1], False), ([None, 1], False)):
        row = {"texts": ["a", "b"], "weights": value}
        assert validator(described, "table.Row").is_valid(row) == is_valid
        body = json.dumps(row).encode()
        if is_valid:
            parse_instances(body, predictor.raw_rows, 9)
            continue
        with pytest.raises(RequestError) as raised:
            parse_instances(body, predictor.raw_rows, 9)
        assert raised.value.status == 422


def test_the_schema_takes_what_the_server_takes(described: dict[str, Any], models: ServedModels) -> None:
    raw_rows = models.model("dlrm").version().predictor.raw_rows
    for row in make_raw_rows(models.model("dlrm").version().predictor.schema, 100):
        assert validator(described, "dlrm.Row").is_valid(row)
        parse_instances(json.dumps({"instances": [row]}).encode(), raw_rows, 9)

"""Requests: the body of a POST becomes checked rows, or one line with a status; models get names."""

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.config import ServeConfig
from rayrec.config.transforms import Cross, Hash, TimePart
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature, Schema, VectorFeature
from rayrec.inference.examples import example_row
from rayrec.inference.predictor import load_model
from rayrec.inference.raw_rows import RawRows
from rayrec.store.paths import to_path
from serve.arguments import ServeArguments, named_folders
from serve.requests import RequestError
from serve.v1 import Predictions, parse_instances
from tests.model_folders import make_model_folder

OF_TEXT = Hash(buckets=10, of="strings")
SCHEMA = Schema(
    label="label",
    group="user",
    features=(
        NumericFeature(name="I1"),
        NumericFeature(name="price"),
        CategoricalFeature(name="C1", cardinality=10, transforms=(OF_TEXT,)),
        CategoricalFeature(name="id", cardinality=10),
        MultiHotFeature(name="tags", cardinality=10, transforms=(OF_TEXT,)),
        CategoricalFeature(name="hour", inputs=("time",), cardinality=25, transforms=(TimePart(part="hour"),)),
        VectorFeature(name="vector", size=2),
        MultiHotFeature(name="weighed", inputs=("tags", "weights"), cardinality=10, transforms=(OF_TEXT,)),
        CategoricalFeature(name="C1_x_id", inputs=("C1", "id"), cardinality=9, transforms=(Cross(buckets=9),)),
    ),
    columns=(
        RawColumn(name="I1", type="number"),
        RawColumn(name="price", type="number"),
        RawColumn(name="C1", type="text"),
        RawColumn(name="id", type="integer"),
        RawColumn(name="tags", type="texts", separator="|"),
        RawColumn(name="time", type="time", time_format="s"),
        RawColumn(name="vector", type="numbers", separator=" "),
        RawColumn(name="weights", type="numbers", separator="|"),
    ),
)
COLUMNS = pa.schema(
    [
        ("I1", pa.float64()),
        ("price", pa.float64()),
        ("C1", pa.string()),
        ("id", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("time", pa.timestamp("us", "UTC")),
        ("vector", pa.list_(pa.float64())),
        ("weights", pa.list_(pa.float64())),
    ]
)
RAW_ROWS = RawRows(SCHEMA)
NOTHING = dict.fromkeys(COLUMNS.names)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)

GOOD_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole": (
        {"I1": 3, "price": 2.5, "C1": "68fd1e64", "id": 7, "tags": ["a", None], "time": 0, "vector": [1, 2.5]},
        {"I1": 3.0, "price": 2.5, "C1": "68fd1e64", "id": 7, "tags": ["a", None]}
        | {"time": datetime(1970, 1, 1, tzinfo=UTC), "vector": [1.0, 2.5], "weights": None},
    ),
    "left out": ({}, NOTHING),
    "the label and the group": ({"label": 1, "user": "ann"}, NOTHING),
    "null": (NOTHING, NOTHING),
    "beyond float64's integers": ({"I1": 2**60 + 1}, {**NOTHING, "I1": 2.0**60}),
    "not ASCII": ({"C1": "é\u2028"}, {**NOTHING, "C1": "é"}),
    "number as text": ({"I1": " 3.5 "}, {**NOTHING, "I1": 3.5}),
    "number as boolean": ({"I1": True}, {**NOTHING, "I1": 1.0}),
    "NaN": ({"I1": math.nan, "C1": math.nan, "time": math.nan}, NOTHING),
    "fractions as texts": ({"C1": 5.5, "tags": [1.5, 2.0]}, {**NOTHING, "C1": "5.5", "tags": ["1.5", "2"]}),
    "boolean as text": ({"C1": True}, {**NOTHING, "C1": "true"}),
    "id as a whole float of text": (
        {"id": "7.0", "time": 0.0},
        {**NOTHING, "id": 7, "time": datetime(1970, 1, 1, tzinfo=UTC)},
    ),
    "integers as texts": ({"C1": -7, "tags": [2**64 - 1, "a"]}, {**NOTHING, "C1": "-7", "tags": [str(2**64 - 1), "a"]}),
    "time as text": ({"time": str(NOON.timestamp())}, {**NOTHING, "time": NOON}),
    "time as float": ({"time": NOON.timestamp()}, {**NOTHING, "time": NOON}),
    "time of Python": ({"time": NOON}, {**NOTHING, "time": NOON}),
    "time as nothing": ({"time": ""}, NOTHING),
    "delimited lists": (
        {"tags": "a||b", "vector": "1 -2e3"},
        {**NOTHING, "tags": ["a", None, "b"], "vector": [1, -2e3]},
    ),
    "empty lists": ({"tags": [], "vector": ""}, {**NOTHING, "tags": []}),
    "weights": ({"tags": ["a", None], "weights": [0, 2]}, {**NOTHING, "tags": ["a", None], "weights": [0.0, 2.0]}),
    "delimited weights": ({"tags": "a|b", "weights": "1|.5"}, {**NOTHING, "tags": ["a", "b"], "weights": [1.0, 0.5]}),
    "weights of nothing": ({"tags": [], "weights": []}, {**NOTHING, "tags": [], "weights": []}),
    "a vector with gaps": ({"vector": [None, 1]}, {**NOTHING, "vector": [None, 1.0]}),
}


@pytest.mark.parametrize("case", GOOD_ROWS)
def test_good_rows(case: str) -> None:
    row, expected = GOOD_ROWS[case]
    checked = RAW_ROWS.from_rows([{}, row])
    assert checked.schema == COLUMNS
    assert checked.to_pylist()[1] == expected


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "row is null": (None, "row 1: null; a row is an object of feature names and values"),
    "number as object": ({"I1": {}}, "row 1, 'I1': an object; needs a number, or null if it is missing"),
    "infinity": ({"I1": -math.inf}, "row 1, 'I1': a number is out of range; numbers go up to 3.4e+38"),
    "beyond float64": ({"I1": 10**400}, "row 1, 'I1': a number is out of range; numbers go up to 3.4e+38"),
    "category of many digits": (
        {"C1": 10**5000},
        "row 1, 'C1': an integer of more than 38 digits; needs a text, or null if it is missing",
    ),
    "category no Unicode": (
        {"C1": "\ud800"},
        "row 1, 'C1': the string '\\ud800'; needs a text, or null if it is missing",
    ),
    "list as number": (
        {"tags": 3},
        "row 1, 'tags': the number 3; needs a list of texts (or a text of them with '|' between), or null if it is "
        "missing",
    ),
    "list no Unicode": (
        {"tags": "\ud800"},
        "row 1, 'tags': the string '\\ud800'; needs a list of texts (or a text of them with '|' between), "
        "or null if it is missing",
    ),
    "vector of text": (
        {"vector": "1 x"},
        "row 1, 'vector': the string '1 x'; needs a list of numbers (or a text of them with ' ' between), "
        "or null if it is missing",
    ),
    "vector beyond float32": (
        {"vector": [1, 1e300]},
        "row 1, 'vector': a number is out of range; numbers go up to 3.4e+38",
    ),
    "weights without values": (
        {"weights": "1|2"},
        "row 1, 'weights': a list of 2 weights; 'tags' has 0 values; give one for each, or null if all weigh the same",
    ),
    "weight null": (
        {"tags": "a|b", "weights": [1, None]},
        "row 1, 'weights': the weight null; needs a number of at least 0 for each value",
    ),
    "weight infinite": (
        {"tags": "a", "weights": [math.inf]},
        "row 1, 'weights': a number is out of range; numbers go up to 3.4e+38",
    ),
    "time as boolean": (
        {"time": True},
        "row 1, 'time': true (a boolean); needs a time in s since 1970, or null if it is missing",
    ),
    "time of many digits": (
        {"time": 10**5000},
        "row 1, 'time': an integer of more than 38 digits; needs a time in s since 1970, or null if it is missing",
    ),
    "cross": (
        {"C1_x_id": 3},
        "row 1: unknown feature 'C1_x_id'; features: I1, price, C1, id, tags, time, vector, weights",
    ),
}


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0, None])
def test_weights_in_columns(weight: float | None) -> None:
    batch = pa.record_batch({"tags": [["a"], ["a", "b"]], "weights": [[1.0], [0.5, weight]]})
    with pytest.raises(
        UserError, match=r"row 1, 'weights': the weight .*; needs a number of at least 0 for each value"
    ):
        RAW_ROWS.from_batch(batch)


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows(case: str) -> None:
    row, message = BAD_ROWS[case]
    with pytest.raises(UserError) as raised:
        RAW_ROWS.from_rows([{"I1": 1, "C1": "a", "id": 3, "tags": ["x"], "time": 5, "vector": [1, 2]}, row])
    assert str(raised.value) == message


GOOD_BODIES = {
    "a list": (b'{"instances": [{"I1": 3}, {}]}', [3.0, None]),
    "one object": (b'{"I1": 3, "C1": "a"}', [3.0]),
    "an empty object": (b"{}", [None]),
    "a byte order mark": (b'\xef\xbb\xbf{"I1": 3}', [3.0]),
    "white space": (b' \n{"instances" : [ {"I1":\t3} ] }\n', [3.0]),
}


@pytest.mark.parametrize("case", GOOD_BODIES)
def test_good_bodies(case: str) -> None:
    body, numbers = GOOD_BODIES[case]
    assert parse_instances(body, RAW_ROWS, 8).columns.batch().column("I1").to_pylist() == numbers


BAD_BODIES: dict[str, tuple[bytes, int, str]] = {
    "not JSON": (b"I1=3", 400, "not valid JSON"),
    "cut short": (b'{"instances": [{"I1": 3}', 400, "not valid JSON"),
    "not UTF-8": (b'{"C1": "\xff"}', 400, "not valid JSON"),
    "lone surrogate": (b'{"C1": "\\ud800"}', 400, "not valid JSON"),
    "Infinity": (b'{"I1": -Infinity}', 400, "not valid JSON"),
    "1e999": (b'{"I1": 1e999}', 422, "row 0, 'I1': a number is out of range"),
    "thousands of digits": (b'{"I1": ' + b"9" * 4000 + b"}", 422, "row 0, 'I1': a number is out of range"),
    "beyond Python's digits": (b'{"I1": ' + b"9" * 100_000 + b"}", 400, "not valid JSON"),
    "deep": (b"[" * 100_000, 400, "not valid JSON: recursion limit exceeded"),
    "a number": (b"3", 422, "the body must be"),
    "a list": (b"[]", 422, "the body must be"),
    "null": (b"null", 422, "the body must be"),
    "instances is null": (b'{"instances": null}', 422, "instances: must be a list"),
    "another key": (b'{"instances": [{}], "x": 1}', 422, "unknown key 'x' beside 'instances'"),
    "too many": (json.dumps({"instances": [{}] * 9}).encode(), 413, "instances: 9 rows, at most 8 a request"),
    "a row is a number": (b'{"instances": [3]}', 422, "row 0: the number 3"),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_bad_bodies(case: str) -> None:
    body, status, message = BAD_BODIES[case]
    with pytest.raises(RequestError) as raised:
        parse_instances(body, RAW_ROWS, 8)
    assert raised.value.status == status
    assert message in raised.value.message
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 300


def test_scores_keep_their_value() -> None:
    scores = np.array([0.1, 1e-8, 0.99999994], np.float32)
    content = json.loads(Predictions(model="m", version="1", predictions=scores.tolist()).model_dump_json())
    assert content["model"] == "m"
    np.testing.assert_array_equal(np.array(content["predictions"], np.float32), scores)


NAMES: dict[str, tuple[list[str], dict[str, str]]] = {
    "by folder": (["/models/dlrm"], {"dlrm": "/models/dlrm"}),
    "by name": (["a=/models/dlrm", "b=/models/dlrm"], {"a": "/models/dlrm", "b": "/models/dlrm"}),
    "of a bucket": (
        ["s3://b/models/dlrm?region=x", "a=s3://b/m"],
        {"dlrm": str(to_path("s3://b/models/dlrm?region=x")), "a": str(to_path("s3://b/m"))},
    ),
    "what a URL encodes": (
        ["20% off; #1?=/models/m", "/models/ä 'b'"],
        {"20% off; #1?": "/models/m", "ä 'b'": "/models/ä 'b'"},
    ),
    "versions of a daily model": (
        ["/days/ctr/models", "s3://b/ads/models", "s3://clicks/models"],
        {
            "ctr": "/days/ctr/models",
            "ads": str(to_path("s3://b/ads/models")),
            "clicks": str(to_path("s3://clicks/models")),
        },
    ),
    "several models": (["/models", "of=/days/ctr/models"], {"models": "/models", "of": "/days/ctr/models"}),
    "equals sign in a path": (["/models/x=1/dlrm"], {"dlrm": "/models/x=1/dlrm"}),
}


@pytest.mark.parametrize("case", NAMES)
def test_names(case: str) -> None:
    arguments, expected = NAMES[case]
    assert {name: str(path) for name, path in named_folders(arguments).items()} == expected


def test_a_relative_folder_of_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ctr" / "models").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "ctr")
    assert [*named_folders(["models"])] == [*named_folders(["../ctr/models"])] == ["ctr"]
    make_model_folder(tmp_path / "export" / "models")
    assert [*named_folders([str(tmp_path / "export" / "models")])] == ["models"]


@pytest.mark.parametrize(
    "arguments", [["/a/m", "/b/m"], ["x:y=/a"], ["=/a"], ["..=/a"], ["a\tb=/a"], ["/"], ["/models/caf\udce9"]]
)
def test_unfit_names(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="give NAME=FOLDER"):
        named_folders(arguments)


def test_arguments_from_the_command_line() -> None:
    """`serve run serve.app:build model=a=/x,b=/y replicas=2` hands over strings."""
    arguments = ServeArguments.model_validate({"model": "a=/x,b=/y", "replicas": "2"})
    assert arguments.model == {"a": Path("/x"), "b": Path("/y")}
    settings = arguments.settings(ServeConfig(max_batch_size=7))
    assert (settings.replicas, settings.max_batch_size) == (2, 7)


def test_example_row_is_known_to_the_model(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model", multi_hot=1, categorical=2)
    predictor = load_model(tmp_path / "model")
    row = example_row(predictor.folder)
    assert row == {"I1": 0, "I2": 0, "I3": 0, "C1": "C1-0", "C2": "C2-0", "M1": ["M1-0", "M1-0"]}
    assert predictor.predict([row]).shape == (1,)


def test_a_name_of_megabytes_is_answered_at_once() -> None:
    """To compare all of it with the features would take minutes and gigabytes."""
    began = time.perf_counter()
    with pytest.raises(RequestError, match=r"unknown feature 'a{100}'; ") as refused:
        parse_instances(b'{"%s":1}' % (b"a" * 10**7), RAW_ROWS, 8)
    assert time.perf_counter() - began < 5
    assert len(refused.value.message) < 1000

"""The Open Inference Protocol: tensors in JSON and in bytes give the predictor's scores; what is wrong is one line."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.inference.predictor import Predictor
from serve.models import score_together
from serve.requests import RequestError
from serve.v2 import answer, metadata, parse_infer
from tests.model_folders import make_raw_rows

ROWS = 30


def tensor(name: str, datatype: str, data: list[Any], width: int | None = None) -> dict[str, Any]:
    shape = [len(data)] if width is None else [len(data), width]
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def padded(rows: list[list[Any]], padding: Any) -> tuple[list[list[Any]], int]:
    width = max(1, *map(len, rows))
    return [row + [padding] * (width - len(row)) for row in rows], width


def raw_inputs(predictor: Predictor, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    inputs = []
    for field in predictor.raw_rows.columns:
        values = [row.get(field.name) for row in rows]
        if pa.types.is_list(field.type):
            data, width = padded([value or [] for value in values], "")
            inputs.append(tensor(field.name, "BYTES", data, width))
        else:
            inputs.append(tensor(field.name, "FP64" if field.type == pa.float64() else "BYTES", values))
    return inputs


def encoded_inputs(predictor: Predictor, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    encoded = predictor.encode(predictor.raw_rows.from_rows(rows))
    inputs = []
    for field in encoded.schema:
        values = encoded.column(field.name).to_pylist()
        if pa.types.is_list(field.type):
            data, width = padded(values, -1)
            inputs.append(tensor(field.name, "INT32", data, width))
        else:
            inputs.append(tensor(field.name, "FP32" if field.type == pa.float32() else "INT64", values))
    return inputs


def as_bytes(inputs: list[dict[str, Any]], nan: float = float("nan")) -> tuple[list[dict[str, Any]], bytes]:
    """The same tensors by the binary extension."""
    moved, content = [], b""
    for entry in inputs:
        flat = [value for row in entry["data"] for value in (row if isinstance(row, list) else [row])]
        if entry["datatype"] == "BYTES":
            texts = [(value or "").encode() for value in flat]
            data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        else:
            dtype = {"FP64": "<f8", "FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}[entry["datatype"]]
            data = np.array([nan if value is None else value for value in flat]).astype(dtype).tobytes()
        kept = {key: value for key, value in entry.items() if key != "data"}
        moved.append({**kept, "parameters": {"binary_data_size": len(data)}})
        content += data
    return moved, content


FORMS: dict[str, tuple[Callable[..., list[dict[str, Any]]], bool, bool]] = {
    "raw, JSON": (raw_inputs, False, False),
    "raw, bytes": (raw_inputs, False, True),
    "encoded, JSON": (encoded_inputs, True, False),
    "encoded, bytes": (encoded_inputs, True, True),
}


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_the_predictors(predictor: Predictor, form: str) -> None:
    make, encoded, binary = FORMS[form]
    rows = make_raw_rows(predictor.schema, ROWS)
    inputs, content = make(predictor, rows), b""
    if binary:
        inputs, content = as_bytes(inputs)
    head = json.dumps({"id": "7", "inputs": inputs, "parameters": {"encoded": encoded}}).encode()
    request = parse_infer(head + content, str(len(head)) if binary else None, predictor, ROWS)
    assert (request.id, request.binary, request.rows.encoded) == ("7", False, encoded)
    ((scores,), *_) = score_together(predictor, [request.rows])
    np.testing.assert_allclose(scores, predictor.predict(rows), rtol=0, atol=1e-6)


def test_raw_and_encoded_rows_share_a_pass(predictor: Predictor) -> None:
    rows = [make_raw_rows(predictor.schema, size) for size in (3, 5, 2)]
    bodies = [
        json.dumps({"inputs": make(predictor, some), "parameters": {"encoded": encoded}}).encode()
        for some, (make, encoded, _) in zip(rows, [FORMS["encoded, JSON"], *2 * [FORMS["raw, JSON"]]], strict=True)
    ]
    together, *_ = score_together(predictor, [parse_infer(body, None, predictor, ROWS).rows for body in bodies])
    for scores, some in zip(together, rows, strict=True):
        np.testing.assert_allclose(scores, predictor.predict(some), rtol=0, atol=1e-6)


def test_features_left_out_are_missing(predictor: Predictor) -> None:
    body = json.dumps({"inputs": [tensor("C2", "BYTES", ["C2-1"])]}).encode()
    ((scores,), *_) = score_together(predictor, [parse_infer(body, None, predictor, 1).rows])
    np.testing.assert_array_equal(scores, predictor.predict([{"C2": "C2-1"}]))


def test_every_number_type_is_read(predictor: Predictor) -> None:
    expected = predictor.predict([{"I1": 3}, {"I1": 7}])
    for datatype, dtype in {"FP16": "<f2", "FP32": "<f4", "INT8": "i1", "UINT64": "<u8", "INT16": "<i2"}.items():
        data = np.array([3, 7]).astype(dtype).tobytes()
        entry = {"name": "I1", "datatype": datatype, "shape": [2, 1], "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [entry]}).encode()
        request = parse_infer(head + data, str(len(head)), predictor, 2)
        np.testing.assert_array_equal(score_together(predictor, [request.rows])[0][0], expected)


OUTPUTS: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing said": ({}, False),
    "binary for all": ({"parameters": {"binary_data_output": True}}, True),
    "binary for one": ({"outputs": [{"name": "score", "parameters": {"binary_data": True}}]}, True),
    "one not": (
        {
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "score", "parameters": {"binary_data": False}}],
        },
        False,
    ),
    "named": ({"outputs": [{"name": "score"}]}, False),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_answers(predictor: Predictor, case: str) -> None:
    content, binary = OUTPUTS[case]
    request = parse_infer(
        json.dumps({"inputs": [tensor("I1", "INT64", [1])], **content}).encode(), None, predictor, ROWS
    )
    scores = np.array([0.1, 0.25], np.float32)
    body, length = answer("m", "3", request, scores)
    assert (length is not None) == binary
    head = json.loads(body[:length])
    assert (head["model_name"], head["model_version"]) == ("m", "3")
    (output,) = head["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("score", "FP32", [2])
    found = np.frombuffer(body[length:], "<f4") if binary else np.array(output["data"], np.float32)
    np.testing.assert_array_equal(found, scores)


def test_metadata(predictor: Predictor) -> None:
    told = metadata("m", ["1", "2"], predictor)
    inputs = {entry["name"]: (entry["datatype"], entry["shape"]) for entry in told["inputs"]}
    assert inputs == {
        **{f"I{i}": ("FP64", [-1]) for i in (1, 2, 3)},
        **{f"C{i}": ("BYTES", [-1]) for i in (1, 2, 3, 4)},
        "M1": ("BYTES", [-1, -1]),
    }
    assert told["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1]}]
    assert told["versions"] == ["1", "2"]


I1 = tensor("I1", "FP64", [1.0])
BAD: dict[str, tuple[Any, int, str]] = {
    "not an object": ([], 422, "inputs: missing or empty"),
    "no inputs": ({"inputs": []}, 422, "inputs: missing or empty"),
    "an input that is no object": ({"inputs": [3]}, 422, "inputs[0]: must be an object"),
    "no name": ({"inputs": [{}]}, 422, "inputs[0]: has no name"),
    "unknown feature": ({"inputs": [tensor("I11", "FP64", [1.0])]}, 422, "unknown feature 'I11'; did you mean 'I1'?"),
    "unknown datatype": ({"inputs": [{**I1, "datatype": "FP8"}]}, 422, "datatype must be one of"),
    "a list as datatype": ({"inputs": [{**I1, "datatype": []}]}, 422, "datatype must be one of"),
    "no shape": ({"inputs": [{**I1, "shape": None}]}, 422, "shape must be"),
    "negative shape": ({"inputs": [{**I1, "shape": [-1]}]}, 422, "shape must be"),
    "huge shape": ({"inputs": [{**I1, "shape": [2**31 - 1]}]}, 422, "data must be a list of the 2147483647 values"),
    "three dimensions": ({"inputs": [{**I1, "shape": [1, 1, 1]}]}, 422, "shape must be"),
    "no data": ({"inputs": [{**I1, "data": None}]}, 422, "data must be a list of the 1 values"),
    "ragged data": ({"inputs": [{**I1, "shape": [2, 2], "data": [[1, 2], [3]]}]}, 422, "data must be a list of the 4"),
    "strings for numbers": ({"inputs": [{**I1, "data": ["x"]}]}, 422, "row 0, 'I1': the string 'x'; needs a number"),
    "two values of one": ({"inputs": [tensor("I1", "FP64", [[1, 2]], 2)]}, 422, "2 values a row; the feature has one"),
    "other rows": ({"inputs": [I1, tensor("I2", "FP64", [1, 2])]}, 422, "2 rows, but input 'I1' has 1"),
    "twice": ({"inputs": [I1, I1]}, 422, "given twice"),
    "no rows": ({"inputs": [tensor("I1", "FP64", [])]}, 422, "no rows"),
    "too many rows": ({"inputs": [tensor("I1", "FP64", [1] * 31)]}, 413, "31 rows, at most 30"),
    "unknown output": ({"inputs": [I1], "outputs": [{"name": "x"}]}, 422, "the model has one, 'score'"),
    "outputs no list": ({"inputs": [I1], "outputs": 3}, 422, "outputs: must be a list"),
    "parameters no object": ({"inputs": [I1], "parameters": [1]}, 422, "parameters an object"),
    "encoded no boolean": ({"inputs": [I1], "parameters": {"encoded": 1}}, 422, "must be true or false"),
    "encoded, not all": ({"inputs": [I1], "parameters": {"encoded": True}}, 422, "input 'I2': missing; encoded rows"),
    "binary beyond the body": (
        {"inputs": [{**I1, "parameters": {"binary_data_size": 9}}]}, 422, "up to the 0 bytes left"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies(predictor: Predictor, case: str) -> None:
    content, status, message = BAD[case]
    with pytest.raises(RequestError) as raised:
        parse_infer(json.dumps(content).encode(), None, predictor, ROWS)
    assert raised.value.status == status
    assert message in raised.value.message
    assert "\n" not in raised.value.message


BAD_BYTES: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "too few": ({"datatype": "FP64", "shape": [2], "name": "I1"}, b"12345678", "8 bytes for 2 values of FP64"),
    "infinity": ({"datatype": "FP64", "shape": [1], "name": "I1"}, struct.pack("<d", np.inf), "row 0, input 'I1': out"),
    "no length": ({"datatype": "BYTES", "shape": [1], "name": "C1"}, b"a", "are not 1 strings"),
    "length beyond": ({"datatype": "BYTES", "shape": [1], "name": "C1"}, b"\xff\xff\xff\xffab", "are not 1 strings"),
    "bytes over": ({"datatype": "BYTES", "shape": [1], "name": "C1"}, b"\1\0\0\0abc", "are not 1 strings"),
    "not UTF-8": ({"datatype": "BYTES", "shape": [1], "name": "C1"}, b"\1\0\0\0\xff", "a string is not UTF-8"),
    "cut inside a character": (
        {"datatype": "BYTES", "shape": [2], "name": "C1"}, b"\1\0\0\0\xc3\1\0\0\0\xa4", "a string is not UTF-8"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_BYTES)
def test_bad_bytes(predictor: Predictor, case: str) -> None:
    entry, data, message = BAD_BYTES[case]
    head = json.dumps({"inputs": [{**entry, "parameters": {"binary_data_size": len(data)}}]}).encode()
    with pytest.raises(RequestError, match=message) as raised:
        parse_infer(head + data, str(len(head)), predictor, ROWS)
    assert raised.value.status == 422


@pytest.mark.parametrize("length", ["", "-1", "x", "1e3", "99999999", "9" * 5000, "\u0663"])
def test_bad_lengths(predictor: Predictor, length: str) -> None:
    with pytest.raises(RequestError, match="Inference-Header-Content-Length") as raised:
        parse_infer(json.dumps({"inputs": [I1]}).encode(), length, predictor, ROWS)
    assert raised.value.status == 400


BAD_ENCODED: dict[str, tuple[str, list[Any], str]] = {
    "an id beyond the table": ("C2", [34], "encoded ids must be from 0 to 33"),
    "a negative id": ("C2", [-1], "encoded ids must be from 0 to 33"),
    "a huge id": ("C2", [2**70], "out of range"),
    "a fraction": ("C2", [1.5], "a value of another type than INT64"),
    "a string": ("C2", ["a"], "a value of another type"),
    "null": ("C2", [None], "a value of another type"),
    "a list beyond the table": ("M1", [[1, 500]], "encoded ids must be from 0"),
}


@pytest.mark.parametrize("case", BAD_ENCODED)
def test_bad_encoded_rows(predictor: Predictor, case: str) -> None:
    name, data, message = BAD_ENCODED[case]
    inputs = [
        tensor(name, "INT64", data, 2 if name == "M1" else None) if entry["name"] == name else entry
        for entry in encoded_inputs(predictor, make_raw_rows(predictor.schema, 1))
    ]
    body = json.dumps({"inputs": inputs, "parameters": {"encoded": True}}).encode()
    with pytest.raises(RequestError, match=message):
        parse_infer(body, None, predictor, ROWS)

"""The Open Inference Protocol over gRPC: the messages are those of Triton's client, the scores the predictor's."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import InferInput, service_pb2

from rayrec.config import ServeConfig
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.predictor import Predictor
from serve import grpc_server
from serve.admission import Admission
from serve.grpc_app import GrpcMethods, infer_request, infer_response
from serve.grpc_server import METHODS, proto
from serve.metrics import ServingMetrics
from serve.models import ServedModel, ServedModels, ServedVersion, score_together
from serve.requests import RequestError
from serve.tokens import read_tokens
from serve.v2 import metadata
from tests.model_folders import make_raw_rows

ROWS = 30
TOKEN = "0123456789abcdef"


def _fields(message: Any) -> dict[str, Any]:
    """Number, type and cardinality of every field, those of inner messages too."""
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.containing_oneof and field.containing_oneof.name,
            _fields(field.message_type) if field.message_type else None,
        )
        for field in message.fields
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["Request", "Response"])
def test_messages_are_those_of_tritons_client(method: str, kind: str) -> None:
    """Both live in this process, though they have the same names."""
    ours = getattr(proto, f"{method}{kind}").DESCRIPTOR
    theirs = getattr(service_pb2, f"{method}{kind}").DESCRIPTOR
    assert ours.full_name == theirs.full_name
    assert _fields(ours) == _fields(theirs)


def _declared(text: str) -> dict[str, dict[str, tuple[str, int, str]]]:
    """Label (empty, or the group of alternatives), number and type of the fields of each message in a .proto file."""
    messages: dict[str, dict[str, tuple[str, int, str]]] = {}
    blocks: list[tuple[str, str]] = []
    for line in re.sub(r"//.*", "", text).splitlines():
        if block := re.match(r"\s*(message|oneof|service) (\w+) {(})?", line):
            blocks.append((block[1], block[2]))
            if block[1] == "message":
                messages[".".join(name for _, name in blocks)] = {}
            if block[3]:
                blocks.pop()
        elif field := re.match(r"\s*(repeated )?([\w<>, ]+) (\w+) = (\d+);", line):
            group = blocks[-1][1] if blocks[-1][0] == "oneof" else (field[1] or "").strip()
            message = ".".join(name for kind, name in blocks if kind == "message")
            messages[message][field[3]] = (group, int(field[4]), field[2])
        elif line.strip() == "}":
            blocks.pop()
    return messages


def _compiled(messages: Any, prefix: str = "") -> dict[str, dict[str, tuple[str, int, str]]]:
    """The same of the messages of a descriptor."""
    found: dict[str, dict[str, tuple[str, int, str]]] = {}
    for message in messages:
        maps = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
        fields = found[prefix + message.name] = {}
        for field in message.field:
            label = "repeated" if field.label == field.LABEL_REPEATED else ""
            kind = field.type_name.rpartition(".")[2] or field.Type.Name(field.type).removeprefix("TYPE_").lower()
            if kind in maps:
                label, kind = "", f"map<string, {maps[kind].field[1].type_name.rpartition('.')[2]}>"
            if field.HasField("oneof_index"):
                label = message.oneof_decl[field.oneof_index].name
            fields[field.name] = (label, field.number, kind)
        nested = [entry for entry in message.nested_type if entry.name not in maps]
        found |= _compiled(nested, f"{prefix}{message.name}.")
    return found


def test_the_descriptor_is_that_of_the_proto_file() -> None:
    """Fails if only one of the two is changed; the docstring of `serve.grpc_server` has the command that compiles."""
    text = Path(grpc_server.__file__).with_name("open_inference.proto").read_text()
    compiled = Path(grpc_server.__file__).with_name("open_inference.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    assert _declared(text) == _compiled(file.message_type)
    assert len(_declared(text)) == 26
    calls = [(call.name, call.input_type, call.output_type) for call in file.service[0].method]
    assert re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", text) == [
        (name, asked.rpartition(".")[2], answered.rpartition(".")[2]) for name, asked, answered in calls
    ]
    assert f"package {file.package};" in text


def raw_request(rows: list[dict[str, Any]]) -> Any:
    """As Triton's client makes it: raw bytes."""
    inputs = []
    for name in ("I1", "I2", "I3"):
        numbers = np.array([np.nan if row.get(name) is None else row[name] for row in rows])
        inputs.append(InferInput(name, [len(rows)], "FP64").set_data_from_numpy(numbers))
    for name in ("C1", "C2", "C3", "C4"):
        texts = np.array([(row.get(name) or "").encode() for row in rows], object)
        inputs.append(InferInput(name, [len(rows)], "BYTES").set_data_from_numpy(texts))
    bags = [(row.get("M1") or [])[:4] for row in rows]
    padded = np.array([[text.encode() for text in bag] + [b""] * (4 - len(bag)) for bag in bags], object)
    inputs.append(InferInput("M1", [len(rows), 4], "BYTES").set_data_from_numpy(padded))
    message = service_pb2.ModelInferRequest(model_name="m", id="7")
    for one in inputs:
        message.inputs.append(one._get_tensor())
        message.raw_input_contents.append(one._get_content())
    return message


def typed_request(rows: list[dict[str, Any]]) -> Any:
    """As KServe's documentation shows it: typed values."""
    message = raw_request(rows)
    del message.raw_input_contents[:]
    for entry in message.inputs:
        values = [row.get(entry.name) for row in rows]
        if entry.datatype == "FP64":
            entry.contents.fp64_contents.extend([np.nan if value is None else value for value in values])
        elif entry.name == "M1":
            bags = [(value or [])[:4] for value in values]
            entry.contents.bytes_contents.extend(t.encode() for bag in bags for t in bag + [""] * (4 - len(bag)))
        else:
            entry.contents.bytes_contents.extend((value or "").encode() for value in values)
    return message


def as_received(message: Any) -> Any:
    return proto.ModelInferRequest.FromString(message.SerializeToString())


@pytest.mark.parametrize("make", [raw_request, typed_request])
def test_scores_are_the_predictors(predictor: Predictor, make: Any) -> None:
    rows = make_raw_rows(predictor.schema, ROWS)
    asked = infer_request(as_received(make(rows)), predictor, ROWS)
    ((scores,), *_) = score_together(predictor, [asked.rows])
    np.testing.assert_allclose(scores, predictor.predict(rows), rtol=0, atol=1e-6)
    told = service_pb2.ModelInferResponse.FromString(infer_response("m", "3", asked, scores).SerializeToString())
    assert (told.model_name, told.model_version, told.id) == ("m", "3", "7")
    (output,) = told.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("score", "FP32", [ROWS])
    raw = make is raw_request
    found = np.frombuffer(told.raw_output_contents[0], "<f4") if raw else np.array(output.contents.fp32_contents)
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("datatype", "field"), [("INT8", "int_contents"), ("UINT64", "uint64_contents"),
                                                 ("INT64", "int64_contents"), ("FP32", "fp32_contents"),
                                                 ("UINT16", "uint_contents")])  # fmt: skip
def test_every_number_type_is_read(predictor: Predictor, datatype: str, field: str) -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="I1", datatype=datatype, shape=[2, 1])
    getattr(tensor.contents, field).extend([3, 7])
    asked = infer_request(as_received(message), predictor, ROWS)
    expected = predictor.predict([{"I1": 3}, {"I1": 7}])
    np.testing.assert_array_equal(score_together(predictor, [asked.rows])[0][0], expected)


def test_encoded_rows(predictor: Predictor) -> None:
    encoded = predictor.encode(predictor.raw_rows.from_rows([{"I1": 3, "C2": "C2-1", "M1": ["M1-2"]}]))
    message = service_pb2.ModelInferRequest(model_name="m")
    message.parameters["encoded"].bool_param = True
    for name in encoded.schema.names:
        value = encoded.column(name).to_pylist()[0]
        number = isinstance(value, float)
        entry = message.inputs.add(name=name, datatype="FP32" if number else "INT32", shape=[1])
        content = entry.contents.fp32_contents if number else entry.contents.int_contents
        content.extend(value if isinstance(value, list) else [value])
    asked = infer_request(as_received(message), predictor, ROWS)
    expected = predictor.predict_encoded(encoded)
    np.testing.assert_array_equal(score_together(predictor, [asked.rows])[0][0], expected)


def test_metadata(predictor: Predictor) -> None:
    expected = metadata("m", ["1", "2"], predictor)
    told = proto.ModelMetadataResponse(**expected)
    assert (told.name, list(told.versions), told.platform) == ("m", ["1", "2"], "rayrec")
    for field in ("inputs", "outputs"):
        found = [{"name": e.name, "datatype": e.datatype, "shape": list(e.shape)} for e in getattr(told, field)]
        assert found == expected[field]


def one(name: str = "I1", datatype: str = "FP64", shape: tuple[int, ...] = (1,)) -> Any:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name=name, datatype=datatype, shape=shape).contents.fp64_contents.append(1.0)
    return message


def changed(message: Any, **fields: Any) -> Any:
    message.MergeFrom(service_pb2.ModelInferRequest(**fields))
    return message


BAD: dict[str, tuple[Any, int, str]] = {
    "no inputs": (service_pb2.ModelInferRequest(), 422, "inputs: empty"),
    "too few bytes": (changed(one(), raw_input_contents=[b"1", b"2"]), 422, "2 for 1 inputs"),
    "bytes of another length": (changed(one(), raw_input_contents=[b"123"]), 422, "3 bytes for 1 values of FP64"),
    "strings that are none": (changed(one("C1", "BYTES"), raw_input_contents=[b"\x09\x00\x00\x00a"]), 422, "not 1 str"),
    "a shape beyond memory": (
        changed(one("C1", "BYTES", (2**31 - 1, 2**31 - 1)), raw_input_contents=[b"abcd"]), 422, "are not 46116"
    ),
    "unknown feature": (one("I11"), 422, "unknown feature 'I11'; did you mean 'I1'?"),
    "unknown data type": (one(datatype="FP8"), 422, "datatype must be one of"),
    "a type without values": (one(datatype="FP16"), 422, "FP16 has no typed values"),
    "negative shape": (one(shape=(-1,)), 422, "shape must be"),
    "no shape": (one(shape=()), 422, "shape must be"),
    "too many rows": (one(shape=(31,)), 422, "data must be a list of the 31 values"),
    "another output": (
        changed(one(), outputs=[service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="x")]), 422, "'score'"
    ),
    "encoded, not a boolean": (
        changed(one(), parameters={"encoded": service_pb2.InferParameter(int64_param=1)}), 422, "must be true or false"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told(predictor: Predictor, case: str) -> None:
    message, status, text = BAD[case]
    with pytest.raises(RequestError) as refused:
        infer_request(as_received(message), predictor, ROWS)
    assert refused.value.status == status
    assert text in refused.value.message
    assert "\n" not in refused.value.message


class Context:
    """What the service uses of Serve's context of a call."""

    def __init__(self, **sent: str) -> None:
        self.sent, self.code, self.details = sent, grpc.StatusCode.OK, ""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return list(self.sent.items())

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


CALLS: dict[str, tuple[str, Any, dict[str, str], grpc.StatusCode, str]] = {
    "live": ("ServerLive", proto.ServerLiveRequest(), {}, grpc.StatusCode.OK, ""),
    "scored": ("ModelInfer", one(), {"authorization": f"Bearer {TOKEN}"}, grpc.StatusCode.OK, ""),
    "no token": ("ModelInfer", one(), {}, grpc.StatusCode.UNAUTHENTICATED, "no valid token"),
    "wrong": ("ModelInfer", one("x"), {"authorization": f"Bearer {TOKEN}"}, grpc.StatusCode.INVALID_ARGUMENT, "'x'"),
    "no such model": (
        "ModelReady",
        proto.ModelReadyRequest(name="other"),
        {"authorization": f"Bearer {TOKEN}"},
        grpc.StatusCode.NOT_FOUND,
        "no model 'other'",
    ),
    "too large": (
        "ModelInfer",
        changed(one(), raw_input_contents=[b" " * 3000]),
        {"authorization": f"Bearer {TOKEN}"},
        grpc.StatusCode.INVALID_ARGUMENT,
        "larger than",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(predictor: Predictor, case: str) -> None:
    method, request, sent, code, details = CALLS[case]
    metrics, models, context = ServingMetrics(), ServedModels(), Context(**sent)
    settings = ServeConfig(max_rows_per_request=10, max_body_mib=2000 / 2**20, request_timeout_seconds=20)
    tokens = read_tokens(None, {"RAYREC_SERVE_TOKENS": TOKEN})
    methods = GrpcMethods(models, Admission(settings, tokens, metrics), Mock())
    with ThreadPoolExecutor(1) as pool:
        version = ServedVersion("m", "1", predictor.folder, pool, ServeConfig(), metrics, TableMemory(2**30))
        models.current = {"m": ServedModel("m", {"1": version}, {"1": 1.0})}
        answer = asyncio.run(getattr(methods, method)(request.SerializeToString(), grpc_context=context))
    assert context.code == code
    assert details in context.details
    assert type(answer) is getattr(proto, f"{method}Response")
    if case == "scored":
        scores = np.array(answer.outputs[0].contents.fp32_contents)
        np.testing.assert_allclose(scores, predictor.predict([{"I1": 1.0}]), rtol=0, atol=1e-6)

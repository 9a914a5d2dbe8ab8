"""Values of gRPC's requests are counted as they are parsed, before they are."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serve import grpc_app
from serve.grpc_app import require_few_values
from serve.grpc_server import proto
from serve.requests import RequestError


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_app, "MOST_VALUES", 1000)


HOSTILE: dict[str, bytes] = {
    "tensors": b"\x2a\x00",
    "outputs": b"\x32\x00",
    "bytes": b"\x3a\x00",
    "parameters": b"\x22\x00",
    "parameters of tensors": b"\x2a\x02\x22\x00",
    "parameters of outputs": b"\x32\x02\x12\x00",
    "contents": b"\x2a\x02\x2a\x00",
    "strings": b"\x2a\x04\x2a\x02\x42\x00",
    "unknown fields": b"\xf8\x07\x01",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_small_fields_are_refused(case: str) -> None:
    require_few_values(HOSTILE[case] * 300)
    with pytest.raises(RequestError, match="more than 1000 values") as refused:
        require_few_values(HOSTILE[case] * 1001)
    assert refused.value.status == 413


@pytest.mark.parametrize("field", [1, 2, 3, 4, 5, 6, 7])
def test_packed_numbers_are_values(field: int) -> None:
    message = proto.ModelInferRequest()
    name = proto.ModelInferRequest.DESCRIPTOR.fields_by_name["inputs"].message_type.fields_by_name["contents"]
    contents = message.inputs.add().contents
    getattr(contents, name.message_type.fields_by_number[field].name).extend([1] * 5_000)
    with pytest.raises(RequestError):
        require_few_values(message.SerializeToString())


def test_bytes_are_no_values() -> None:
    """Numbers and strings in their binary form take the memory that they are."""
    message = proto.ModelInferRequest(model_name="m" * 2**20, raw_input_contents=[bytes(2**23)] * 2)
    message.inputs.add().contents.bytes_contents.append(bytes(2**23))
    require_few_values(message.SerializeToString())


def _messages() -> st.SearchStrategy[Any]:
    text = st.text(max_size=5)
    contents = st.builds(
        dict,
        int_contents=st.lists(st.integers(-100, 100), max_size=20),
        fp64_contents=st.lists(st.floats(), max_size=20),
        bytes_contents=st.lists(st.binary(max_size=5), max_size=20),
    )
    tensor = st.builds(dict, name=text, datatype=text, shape=st.lists(st.integers(0, 9), max_size=2), contents=contents)
    return st.builds(
        proto.ModelInferRequest,
        model_name=text,
        id=text,
        inputs=st.lists(tensor, max_size=5),
        raw_input_contents=st.lists(st.binary(max_size=9), max_size=5),
    )


@given(_messages())
@settings(max_examples=40)
def test_honest_messages_have_no_more_than_their_values(message: Any) -> None:
    values = len(message.raw_input_contents) + 2
    for tensor in message.inputs:
        contents = tensor.contents
        strings = sum(len(text.encode()) for text in (tensor.name, tensor.datatype))
        values += 8 + strings + len(contents.bytes_contents)
        values += 3 * len(contents.int_contents) + 2 * len(contents.fp64_contents)
    assert grpc_app._count(memoryview(message.SerializeToString()), 0, 0) <= values


@given(st.binary(max_size=200))
@example(b"\x2a\x05\x00\x00\x02\x80\x20")  # a field that says that it is longer than the message
@example(b"\xff" * 2**24)  # a number without an end, of which the time must not grow with the square
def test_any_bytes_are_counted(message: bytes) -> None:
    require_few_values(message)

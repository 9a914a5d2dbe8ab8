"""Bodies of `/v2/models/NAME/infer` that a fuzzer makes: each is scored or refused with one line, never an accident."""

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rayrec.inference.predictor import Predictor
from serve.models import score_together
from serve.request_tensors import DATA_TYPES
from serve.requests import RequestError
from serve.v2 import answer, parse_infer

FUZZ = settings(max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True)
ROWS = 50


FEATURES = ("I1", "I2", "I3", "C1", "C2", "C3", "C4", "M1")
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def rarely(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 9)) == 9


@st.composite
def tensors(draw: st.DrawFn, name: str, rows: int) -> tuple[dict[str, Any], bytes]:
    """An input that is right but for a part now and then, which may be anything."""
    width = draw(st.integers(0, 3))
    shape = [rows, width] if name == "M1" or rarely(draw) else draw(st.sampled_from([[rows], [rows, 1]]))
    count = int(np.prod(shape))
    entry: dict[str, Any] = {"name": name, "shape": shape}
    entry["datatype"] = "FP64" if name.startswith("I") else "BYTES"
    if rarely(draw):
        entry["datatype"] = draw(st.sampled_from(DATA_TYPES))
    texts = draw(st.lists(st.text(max_size=5), min_size=count, max_size=count))
    data = b""
    if draw(st.booleans()):
        if entry["datatype"] == "BYTES":
            data = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
        else:
            data = draw(st.binary(min_size=8 * count, max_size=8 * count))
        if rarely(draw):
            data = draw(st.binary(max_size=40))
        entry["parameters"] = {"binary_data_size": len(data) if not rarely(draw) else draw(st.integers(-2, 99))}
    else:
        numbers = st.lists(st.integers(-5, 50) | st.floats(allow_nan=False), min_size=count, max_size=count)
        entry["data"] = texts if entry["datatype"] == "BYTES" else draw(numbers)
    if rarely(draw):
        entry[draw(st.sampled_from([*entry]))] = draw(ANYTHING)
    return entry, data


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, str | None]:
    rows = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(FEATURES), min_size=1, max_size=4, unique=True))
    parts = [draw(tensors(name, rows if not rarely(draw) else 7)) for name in names]
    content: dict[str, Any] = {"inputs": [entry for entry, _ in parts]}
    if rarely(draw):
        content["parameters"] = draw(st.fixed_dictionaries({"encoded": st.booleans()}) | ANYTHING)
    if rarely(draw):
        content[draw(st.sampled_from(["id", "outputs", "inputs", "more"]))] = draw(ANYTHING)
    head = json.dumps(content).encode()
    length = str(len(head)) if not rarely(draw) else draw(st.none() | st.text(max_size=6))
    return head + b"".join(data for _, data in parts), length


def infer(predictor: Predictor, body: bytes, length: str | None) -> None:
    refused = None
    try:
        request = parse_infer(body, length, predictor, ROWS)
    except RequestError as error:
        refused = error
    if refused is not None:
        event(f"refused with {refused.status}")
        assert refused.status in {400, 413, 422}
        assert "\n" not in refused.message
        assert len(refused.message) < 500
        return
    event("scored")
    ((scores,), *_) = score_together(predictor, [request.rows])
    assert scores.shape == (request.rows.columns.num_rows,)
    if np.isfinite(scores).all():
        assert ((scores >= 0) & (scores <= 1)).all()
        answer("m", "1", request, scores)


@FUZZ
@given(body=bodies())
def test_nearly_right_bodies(predictor: Predictor, body: tuple[bytes, str | None]) -> None:
    infer(predictor, *body)


@FUZZ
@given(content=ANYTHING)
def test_any_json(predictor: Predictor, content: Any) -> None:
    infer(predictor, json.dumps(content).encode(), None)
    infer(predictor, json.dumps({"inputs": content}).encode(), None)


@FUZZ
@given(body=st.binary(max_size=200), length=st.none() | st.integers(0, 250).map(str))
def test_any_bytes(predictor: Predictor, body: bytes, length: str | None) -> None:
    infer(predictor, body, length)

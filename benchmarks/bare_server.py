"""A server of one model and nothing else: a bare ASGI function, orjson, NumPy, a dictionary a vocabulary.

    MODEL_FOLDER=model uvicorn benchmarks.bare_server:app --port 8001

It reads the model folder of a DLRM with logarithms, vocabularies and `hash_ids`, and shares no code with rayrec. It
checks nothing, logs nothing, counts nothing and has one version of one model: what an answer costs at least in Python.
"""

import json
import math
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson  # type: ignore[import-not-found]
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file

Message = MutableMapping[str, Any]

_folder = Path(os.environ["MODEL_FOLDER"])
_features = json.loads((_folder / "schema.json").read_text())["features"]
_numbers = [feature["name"] for feature in _features if feature["kind"] == "numeric"]
_offsets = [feature["transforms"][0]["offset"] for feature in _features if feature["kind"] == "numeric"]
_categories: list[tuple[str, dict[str, int]]] = []
_first_rows: list[int] = []
_tables: list[NDArray[np.float32]] = []
for feature in _features:
    if feature["kind"] == "numeric":
        continue
    vocabulary, *hashed = feature["transforms"]
    listed = pq.read_table(_folder / vocabulary["file"])
    ids = dict(zip(listed["value"].to_pylist(), listed["id"].to_pylist(), strict=True))
    for transform in hashed:
        ids = {value: 1 + (id_ - 1) % (transform["buckets"] - 1) for value, id_ in ids.items()}
    _categories.append((feature["name"], ids))
    _first_rows.append(sum(map(len, _tables)))
    _tables.append(load_file(_folder / "weights" / "tables" / f"{feature['name']}.safetensors")["weight"])
_embeddings = np.concatenate(_tables)
_first = np.array(_first_rows)
_dense = load_file(_folder / "weights" / "dense.safetensors")
_layers = {
    name: [
        (np.ascontiguousarray(_dense[f"{name}.{place}.weight"].T), _dense[f"{name}.{place}.bias"])
        for place in sorted(int(key.split(".")[1]) for key in _dense if key.startswith(name) and key.endswith("weight"))
    ]
    for name in ("bottom_mlp", "top_mlp")
}
_vectors = 1 + len(_categories)
_lower = np.tril_indices(_vectors, -1)
_pairs = _lower[0] * _vectors + _lower[1]


def scores(rows: list[dict[str, Any]]) -> NDArray[np.float32]:
    """Return (n,) probabilities of n rows of raw features."""
    numbers = np.array([
        [
            math.log(value + offset) if (value := row.get(name)) is not None and value > -offset else 0.0
            for name, offset in zip(_numbers, _offsets, strict=True)
        ]
        for row in rows
    ], np.float32)  # fmt: skip
    ids = np.array([[listed.get(row.get(name), 0) for name, listed in _categories] for row in rows])  # type: ignore[arg-type]
    hidden = numbers
    for weight, bias in _layers["bottom_mlp"]:
        hidden = np.maximum(hidden @ weight + bias, 0.0)
    vectors = np.concatenate([hidden[:, None], _embeddings[ids + _first]], axis=1)
    products = (vectors @ vectors.transpose(0, 2, 1)).reshape(len(rows), -1)[:, _pairs]
    hidden = np.concatenate([hidden, products], axis=1)
    *inner, (last, last_bias) = _layers["top_mlp"]
    for weight, bias in inner:
        hidden = np.maximum(hidden @ weight + bias, 0.0)
    logits: NDArray[np.float32] = (hidden @ last + last_bias)[:, 0]
    found: NDArray[np.float32] = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
    return found


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer {"instances": [ROW, ...]} with {"predictions": [SCORE, ...]}."""
    assert scope["type"] == "http"
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message.get("more_body"):
            break
    answer = orjson.dumps({"predictions": scores(orjson.loads(body)["instances"])}, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})

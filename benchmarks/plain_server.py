"""A server as one writes it by hand: FastAPI, a dictionary a vocabulary, the torch module. Nothing is batched.

    MODEL_FOLDER=model uvicorn benchmarks.plain_server:app --port 8001

It reads rayrec's model folder, and shares with rayrec only the module of the network.
"""

import math
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from rayrec.config.transforms import HashIds, Vocabulary
from rayrec.features.schema import MultiHotFeature
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.models.common.batch import Batch
from rayrec.models.registry import build_model

torch.set_num_threads(1)
folder = ModelFolder.open(Path(os.environ["MODEL_FOLDER"]))
schema = folder.schema
model = build_model(folder.recipe.model, schema, seed=0).eval()
model.dense_network.load_state_dict(folder.dense())
tables = {table.name: table for table in model.tables}
vocabularies: dict[str, dict[str, int]] = {}
buckets: dict[str, int] = {}
for feature in schema.categorical:
    assert not isinstance(feature, MultiHotFeature)
    model.embeddings.embedding_bags[feature.name].weight.data.copy_(folder.table(tables[feature.name]))
    for transform in feature.transforms:
        if isinstance(transform, Vocabulary):
            listed = pq.read_table(folder.folder / transform.file)
            vocabularies[feature.name] = dict(zip(listed["value"].to_pylist(), listed["id"].to_pylist(), strict=True))
        elif isinstance(transform, HashIds):
            buckets[feature.name] = transform.buckets
keys = [feature.name for feature in schema.categorical]
numbers = [feature.name for feature in schema.numeric]


class Request(BaseModel):
    instances: list[dict[str, Any]]


def number(value: float | None) -> float:
    """Return log(x + 3), 0 where it is missing or undefined."""
    return math.log(value + 3) if value is not None and value > -3 else 0.0


def identify(name: str, value: str | None) -> int:
    found = vocabularies[name].get(value, 0) if value else 0
    return 1 + (found - 1) % (buckets[name] - 1) if found and name in buckets else found


app = FastAPI()


@app.post("/predict")
def predict(request: Request) -> dict[str, list[float]]:
    rows = request.instances
    dense = torch.tensor([[number(row.get(name)) for name in numbers] for row in rows])
    ids = torch.tensor([identify(name, row.get(name)) for name in keys for row in rows])
    sparse = KeyedJaggedTensor.from_lengths_sync(keys, ids, torch.ones(len(ids), dtype=torch.int32))
    with torch.inference_mode():
        logits = model(Batch(dense, sparse, torch.zeros(len(rows)), torch.ones(len(rows))))
        return {"predictions": torch.sigmoid(logits).tolist()}

"""`rayrec export --vectors`: what an index needs to recommend as the model does."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rayrec
from rayrec.common.errors import ConfigError, UserError
from rayrec.inference.batch import vectors
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.sasrec.config import SASRecConfig
from tests.model_folders import make_recommender_folder


def test_the_products_of_vectors_rank_items_as_the_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_AT_ONCE", 7)
    config = SASRecConfig(embedding_dim=8, length=6)
    make_recommender_folder(tmp_path / "model", users=20, config=config, withdrawn=[5])
    result = rayrec.export(tmp_path / "model", tmp_path / "vectors", vectors=True)
    assert result.details["vectors"] == {"items": 49, "users": 20}
    items, users = (pq.read_table(tmp_path / "vectors" / name) for name in ("items", "users"))
    assert items.column_names == ["item", "vector"] and "i-5" not in items["item"].to_pylist()
    products = np.array(users["vector"].to_pylist()) @ np.array(items["vector"].to_pylist()).T
    recommender = rayrec.load_recommender(tmp_path / "model")
    for user, of_user in zip(users["user"].to_pylist()[1:], products[1:], strict=True):
        best = [items["item"][place].as_py() for place in np.argsort(-of_user)[:9].tolist()]
        assert best == recommender.recommend(user, 9, exclude_known=False).items
    assert not products[0].any(), "u-0 has no event"
    assert rayrec.verify(tmp_path / "vectors").details["files"] == 2


def test_other_models_have_vectors_of_items_or_none(tmp_path: Path) -> None:
    make_recommender_folder(tmp_path / "neumf", items=12)
    rayrec.export(tmp_path / "neumf", tmp_path / "vectors", vectors=True)
    found = pq.read_table(tmp_path / "vectors/items")
    assert found["item"].to_pylist() == [f"i-{item}" for item in range(12)]
    recommender = rayrec.load_recommender(tmp_path / "neumf")
    assert np.array_equal(np.array(found["vector"].to_pylist(), np.float32), recommender.predictor.item_vectors)
    assert not (tmp_path / "vectors/users").exists()
    make_recommender_folder(tmp_path / "mlp", config=NeuMFConfig(parts=("mlp",), mlp=(8, 4)))
    with pytest.raises(UserError, match="the model has no vectors of items"):
        rayrec.export(tmp_path / "mlp", tmp_path / "none", vectors=True)
    with pytest.raises(ConfigError, match=r"--vectors: .* leave out --checkpoint, --tables"):
        rayrec.export(tmp_path / "neumf", tmp_path / "none", vectors=True, tables="int8")

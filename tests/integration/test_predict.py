"""Batch prediction: every row's score is the predictor's, in the order of the input, with its place in it."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.predict import PredictRequest, run
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.features.schema import Schema
from rayrec.inference.batch import prediction
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.recommender import load_recommender
from tests.builders import make_rows, write_dataset
from tests.model_folders import make_model_folder, make_raw_rows, make_recommender_folder, set_lists

Row = dict[str, object]


@pytest.fixture(params=["actors", "threads"], autouse=True)
def workers(request: pytest.FixtureRequest, ray_cluster: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the pool has: actors, as on a cluster, or threads of this process."""
    monkeypatch.setattr("cluster.ray_session.has_cluster", lambda: request.param == "actors")
    return str(request.param)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("criteo") / "model"
    make_model_folder(folder, numeric=13, categorical=26)
    return load_model(folder)


def _line(schema: Schema, row: Row, label: int | None) -> str:
    fields = ["" if row.get(f.name) is None else str(row[f.name]) for f in schema.features]
    return "\t".join(fields if label is None else [str(label), *fields])


def _rows(predictor: Predictor, count: int, seed: int) -> list[Row]:
    """Raw rows as Criteo has them: numbers are integers."""
    rows = make_raw_rows(predictor.schema, count, seed)
    return [{k: int(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def test_raw_files(predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files in many chunks: plain with bad rows, gzip, plain without labels."""
    monkeypatch.setattr(prediction, "_CHUNK_BYTES", 20_000)
    rows = _rows(predictor, 1_000, 1)
    labels = [index % 3 == 0 for index in range(1_000)]
    lines = [_line(predictor.schema, row, int(label)) for row, label in zip(rows, labels, strict=True)]
    lines[1] = "2" + lines[1][1:]  # its label cannot be read, and is not needed
    # Lines (from 1) of the first file that cannot be used.
    bad = {300: ("1\t2", "wrong column count"), 500: (lines[0].replace("\t", "\tx", 1), "not a number")}
    first = lines[:600]
    for line in sorted(bad):
        first.insert(line - 1, bad[line][0])
    unlabelled = [_line(predictor.schema, row, None) for row in rows[900:]]
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "day_0").write_text("\n".join(first) + "\n")
    (folder / "day_1.gz").write_bytes(gzip.compress(("\r\n".join(lines[600:900]) + "\r\n").encode()))
    (folder / "day_2").write_text("\n".join(unlabelled))

    request = PredictRequest(model=predictor.folder, input=str(folder), output=tmp_path / "out", raw=True)
    result = run(request, SilentProgress())

    scores = pq.read_table(tmp_path / "out/scores")
    assert scores.schema.names == ["file", "line", "label", "score"]
    np.testing.assert_allclose(scores["score"], predictor.predict(rows), rtol=0, atol=1e-6)
    places = [("day_0", line) for line in range(1, len(first) + 1) if line not in bad]
    places += [("day_1.gz", line) for line in range(1, 301)] + [("day_2", line) for line in range(1, 101)]
    found = zip(scores["file"].to_pylist(), scores["line"].to_pylist(), strict=True)
    assert [(Path(file).name, line) for file, line in found] == places
    readable = [float(labels[0]), None, *map(float, labels[2:900])]
    assert scores["label"].to_pylist() == readable + [None] * 100

    rejected = pq.read_table(tmp_path / "out/rejected").to_pylist()
    assert [(Path(r["file"]).name, r["line"], r["reason"], r["text"]) for r in rejected] == [
        ("day_0", line, bad[line][1], bad[line][0]) for line in sorted(bad)
    ]
    assert result.rows == 1_000
    assert result.details["rejected"] == {bad[line][1]: 1 for line in bad}


def test_a_split(predictor: Predictor, tmp_path: Path) -> None:
    schema = _dataset_schema(predictor)
    table = make_rows(schema, 2_500, 3)
    write_dataset(tmp_path / "data", schema, {"test": table}, rows_per_part=900, rows_per_row_group=100)
    request = PredictRequest(model=predictor.folder, input=str(tmp_path / "data"), output=tmp_path / "out")
    result = run(request, SilentProgress())
    scores = pq.read_table(tmp_path / "out/scores")
    (batch,) = table.combine_chunks().to_batches()
    assert scores["row"].to_pylist() == list(range(2_500))
    assert scores["label"].to_pylist() == table["label"].to_pylist()
    np.testing.assert_allclose(scores["score"], predictor.predict_encoded(batch), rtol=0, atol=1e-6)
    assert result.rows == 2_500
    assert not (tmp_path / "out/rejected").exists()


def test_the_best_items_of_every_user(tmp_path: Path) -> None:
    make_recommender_folder(tmp_path / "neumf", users=30, items=50)
    request = PredictRequest(model=tmp_path / "neumf", output=tmp_path / "out", top_k=7)
    assert run(request, SilentProgress()).rows == 30
    rows = pq.read_table(tmp_path / "out/recommendations").to_pylist()
    recommender = load_recommender(tmp_path / "neumf")
    expected = [
        {"user": f"u-{user}", "rank": rank, "item": item}
        for user in range(30)
        for rank, item in enumerate(recommender.recommend(f"u-{user}", 7).items, start=1)
    ]
    assert [{name: row[name] for name in ("user", "rank", "item")} for row in rows] == expected
    assert all(a["score"] >= b["score"] for a, b in itertools.pairwise(rows) if b["rank"] > 1)
    # A server has a second model rank them; files have what they had.
    set_lists(tmp_path / "neumf", rank="likes")
    result = run(request.model_copy(update={"output": tmp_path / "again"}), SilentProgress())
    assert pq.read_table(tmp_path / "again/recommendations").to_pylist() == rows
    assert "'likes' ranks them over HTTP alone" in " ".join(result.details["notes"])


def test_a_dataset_encoded_otherwise(predictor: Predictor, tmp_path: Path) -> None:
    schema = _dataset_schema(predictor)
    first = schema.categorical[0]
    larger = first.model_copy(update={"cardinality": first.cardinality + 1})
    other = schema.model_copy(update={"features": tuple(larger if f is first else f for f in schema.features)})
    write_dataset(tmp_path / "data", other, {"test": make_rows(other, 10, 0)})
    request = PredictRequest(model=predictor.folder, input=str(tmp_path / "data"), output=tmp_path / "out")
    with pytest.raises(UserError, match="feature 'C1' was not encoded as the model needs it"):
        run(request, SilentProgress())
    assert not (tmp_path / "out").exists()


def test_raw_rows_of_another_kind(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n")
    request = PredictRequest(model=predictor.folder, input=str(tmp_path / "in.csv"), output=tmp_path / "out", raw=True)
    with pytest.raises(UserError, match=r"nothing to score \(wrong column count: 1\); give files of kind 'criteo'"):
        run(request, SilentProgress())
    assert not (tmp_path / "out").exists()


def test_a_damaged_file(predictor: Predictor, tmp_path: Path) -> None:
    """What a task of Ray Data raises for the user arrives as the one line that it is."""
    content = gzip.compress(("\n".join(_line(predictor.schema, {}, 0) for _ in range(2_000))).encode())
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 0xFF
    (tmp_path / "a.gz").write_bytes(bytes(damaged[: len(content) - 20]))
    request = PredictRequest(model=predictor.folder, input=str(tmp_path / "a.gz"), output=tmp_path / "out", raw=True)
    with pytest.raises(UserError, match=r"a\.gz: damaged gzip file") as raised:
        run(request, SilentProgress())
    assert "\n" not in str(raised.value)


def test_wrong_requests(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    wrong: list[tuple[dict[str, object], type[UserError], str]] = [
        ({}, ConfigError, "input: missing; give what to score, or --top-k"),
        ({"input": str(tmp_path / "file"), "top_k": 3}, ConfigError, "reads no --input; leave one of them out"),
        ({"top_k": 3}, UserError, "needs more features than a user and an item"),
    ]
    for values, kind, message in wrong:
        request = PredictRequest.model_validate({"model": predictor.folder, "output": tmp_path / "out", **values})
        with pytest.raises(kind, match=message):
            request.check()
            request.require_outputs()
            run(request, SilentProgress())


def _dataset_schema(predictor: Predictor) -> Schema:
    schema = predictor.schema
    features = tuple(
        f.model_copy(update={"embedding_dim": None}) if f in schema.categorical else f for f in schema.features
    )
    return schema.model_copy(update={"features": features})

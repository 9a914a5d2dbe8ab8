"""A model of every kind of feature, from its folder: raw rows in any form get the scores of the model's own pass."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from rayrec.inference.predictor import Predictor, load_model
from rayrec.models.common.ranking import RankingModel
from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.sources.table.source import SOURCE
from serve.models import score_together
from serve.requests import RequestError
from serve.v2 import metadata, parse_infer
from tests.model_folders import scores_of_the_model, write_table_model

ROWS: list[dict[str, Any]] = [
    {
        "number": 2.5,
        "integer": 7,
        "text": "red",
        "time": "2024-03-31T02:30:00",
        "seconds": 1_700_000_000,
        "texts": ["red", "unseen"],
        "weights": [0.25, 3],
        "integers": [3, None, 1],
        "numbers": [-1.0, 2.0, 0.5],
    },
    {"text": "unseen", "numbers": [3, -1, 4], "users_city": "red", "rate_text": 0.9, "time": "2024-07-01"},
    {"text": "\u00e9", "number": -3, "integer": 40, "integers": [], "texts": ["7"]},
    {"texts": ["red", "", "7", "-3", "unseen"], "weights": [0.5, 9.0, 0, 2, 1e-9]},
    {"texts": ["red", "7"], "weights": [0, 0.0]},
    {},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictor, RankingModel]:
    folder = tmp_path_factory.mktemp("table") / "model"
    model = write_table_model(folder)
    return load_model(folder), model


def test_equals_the_models_forward(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, model = pair
    scores = predictor.predict(ROWS)
    assert scores.std() > 0.01
    np.testing.assert_allclose(scores, scores_of_the_model(model, predictor, ROWS), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_files_to_score_may_lack_the_weights(pair: tuple[Predictor, RankingModel], tmp_path: Path, name: str) -> None:
    predictor, _ = pair
    rows = [{"text": "red", "texts": "red|7"}, {"text": "7", "texts": "unseen"}]
    others = dict.fromkeys(
        [column.name for column in predictor.schema.given_columns if column.name not in {"text", "texts", "weights"}]
    )
    table = pa.Table.from_pylist([{**others, **row} for row in rows])
    match Path(name).suffix:
        case ".csv":
            csv.write_csv(table, tmp_path / name)
        case ".jsonl":
            (tmp_path / name).write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
        case ".parquet":
            pq.write_table(table, tmp_path / name)
    files = list_inputs([str(tmp_path / name)])
    # Lists of delimited text need a separator.
    columns = [c.model_copy(update={"separator": c.separator or " "}) for c in predictor.schema.columns]
    schema = predictor.schema.model_copy(update={"columns": tuple(columns)})
    reader = SOURCE.reader(predictor.recipe.source, schema, files)
    found = [block.rows for chunk in plan_chunks(files, 2**20) for block in reader.read(chunk)]
    ones = [{**row, "weights": [1.0] * (1 + row["texts"].count("|"))} for row in rows]
    np.testing.assert_array_equal(predictor.predict(pa.concat_batches(found)), predictor.predict(ones))


def test_a_shared_table_lies_in_one_file(pair: tuple[Predictor, RankingModel]) -> None:
    files = {path.stem for path in (pair[0].folder / "weights/tables").iterdir()}
    assert {"listed", "listed_wide"} < files and not {"city", "city_wide"} & files


def test_what_a_row_leaves_out_is_looked_up_and_what_it_gives_stays(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    known = {"users_age": 0.0, "users_city": "red", "rate_text": (9 + 20 * 0.3) / (40 + 20)}
    ids_alone, told, other = predictor.predict(
        [{"text": "red"}, {"text": "red", **known}, {"text": "red", "users_age": 60}]
    )
    assert ids_alone == pytest.approx(told, abs=1e-6)
    assert abs(other - told) > 1e-3


def test_forms_of_rows_agree(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    expected = predictor.predict(ROWS)
    frame = pd.DataFrame(ROWS)
    frame["time"] = pd.to_datetime(frame["time"], format="ISO8601")
    assert frame["integer"].dtype == np.float64  # for its gaps
    np.testing.assert_array_equal(predictor.predict(frame), expected)
    lists = ("texts", "weights")
    texts = [{**row, **{n: "|".join(map(str, row[n])) for n in lists if n in row}} for row in ROWS]
    texts = [{**row, **{n: " ".join(map(str, row[n])) for n in ("numbers",) if n in row}} for row in texts]
    np.testing.assert_array_equal(predictor.predict(texts), expected)


DATATYPES = {"number": "FP64", "integer": "INT64", "text": "BYTES", "time": "BYTES", "seconds": "INT64"}


def test_tensors(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    row = ROWS[0]
    inputs: list[dict[str, Any]] = [
        {"name": name, "datatype": datatype, "shape": [1], "data": [row[name]]} for name, datatype in DATATYPES.items()
    ]
    inputs.append({"name": "numbers", "datatype": "FP64", "shape": [1, 3], "data": [row["numbers"]]})
    request = parse_infer(json.dumps({"inputs": inputs}).encode(), None, predictor, 8)
    ((scores,), *_) = score_together(predictor, [request.rows])
    given = {name: row[name] for name in (*DATATYPES, "numbers")}
    np.testing.assert_array_equal(scores, predictor.predict([given]))


def test_encoded_tensors(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    encoded = predictor.encode(predictor.raw_rows.from_rows(ROWS[:1]))
    inputs: list[dict[str, Any]] = []
    for field in encoded.schema:
        (value,) = encoded.column(field.name).to_pylist()
        kind = field.type if not pa.types.is_nested(field.type) else field.type.value_type
        shape = [1, len(value)] if isinstance(value, list) else [1]
        if pa.types.is_struct(kind):
            weights = [[element["weight"] for element in value]]
            inputs.append({"name": f"{field.name} (weights)", "datatype": "FP32", "shape": shape, "data": weights})
            value = [element["id"] for element in value]
        datatype = "FP32" if kind == pa.float32() else "INT64"
        inputs.append({"name": field.name, "datatype": datatype, "shape": shape, "data": [value]})
    body = {"inputs": inputs, "parameters": {"encoded": True}}
    request = parse_infer(json.dumps(body).encode(), None, predictor, 8)
    ((scores,), *_) = score_together(predictor, [request.rows])
    np.testing.assert_allclose(scores, predictor.predict(ROWS[:1]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"name": "numbers", "datatype": "FP64", "shape": [1, 2], "data": [[1, 2]]}, "a list of 2 numbers; needs 3"),
        ({"name": "time", "datatype": "BYTES", "shape": [1], "data": ["noon"]}, "the string 'noon'; needs a time"),
        ({"name": "cross", "datatype": "INT64", "shape": [1], "data": [3]}, "unknown feature 'cross'"),
    ],
)
def test_wrong_tensors(pair: tuple[Predictor, RankingModel], tensor: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_infer(json.dumps({"inputs": [tensor]}).encode(), None, pair[0], 8)
    assert raised.value.status == 422 and message in raised.value.message


def test_metadata(pair: tuple[Predictor, RankingModel]) -> None:
    inputs = {entry["name"]: entry for entry in metadata("m", ["1"], pair[0])["inputs"]}
    assert list(inputs) == pair[0].raw_rows.columns.names
    assert inputs["time"] == {"name": "time", "datatype": "BYTES", "shape": [-1]}
    assert inputs["numbers"] == {"name": "numbers", "datatype": "FP64", "shape": [-1, -1]}

"""Scoring leaves out what it does not need, whatever way it comes, and says what it loses and does not know."""

import copy
import json
import logging
import pickle
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

import rayrec
from jobs.predict import PredictRequest, describe, run
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.config.preprocess import ColumnSplitConfig, RowsPreprocessConfig
from rayrec.config.table import LabelCondition
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.rank import Ranker
from rayrec.inference.raw_rows import RawRows
from rayrec.inference.unknown_values import UnknownValues, count_unknown
from rayrec.sources.table.config import TableConfig
from serve.arrow import parse_columns, stream_of
from serve.grpc_app import infer_request
from serve.grpc_server import proto
from serve.metrics import ServingMetrics, VersionStatistics
from serve.models import RequestRows, score_together
from serve.requests import RequestError
from serve.v1 import parse_instances
from serve.v2 import parse_infer
from tests.model_folders import finish, make_model_folder, make_recommender_folder, write_table_model
from tests.table_schema import SCHEMA, WORDS, write_statistics

Rows = list[dict[str, Any]]
SOURCE = TableConfig(
    label="bought",
    weight="counts",
    group="session",
    candidate="text",
    time="shown at",
    ignore=("row id", "debug_*"),
    features=(),
)
ROWS: Rows = [
    {"number": 2.5, "integer": 7, "text": "red"},
    {"number": -3.0, "integer": 40, "text": "\u00e9"},
    {"number": 0.25, "integer": 3, "text": "unseen"},
]
EXTRAS: dict[str, dict[str, Sequence[Any]]] = {
    "the label": {"bought": [1, 0, 1]},
    "a label without a value": {"bought": [None, None, 1]},
    "labels of another form": {"bought": ["yes", "no", "2"]},
    "a weight below 0": {"counts": [-1.0, 1e300, 2.0]},
    "a weight that is no number": {"counts": ["many", "few", ""]},
    "the group": {"session": ["a", "a", "b"]},
    "times that are none": {"shown at": ["noon", "later", "x"]},
    "the split": {"fold": [1, 2, 3]},
    "an ignored column": {"row id": [1, 2, 3]},
    "two by a pattern": {"debug_a": ["x", "", "y"], "debug_b": [0.5, 1.5, 1e39]},
}
EXTRAS["all of them"] = {name: values for extra in EXTRAS.values() for name, values in extra.items()}


def _scored(predictor: Predictor, rows: Any) -> NDArray[np.float32]:
    ((scores,), _) = score_together(predictor, [rows])
    return scores


def _by_body(predictor: Predictor, rows: Rows) -> NDArray[np.float32]:
    body = json.dumps({"instances": rows}).encode()
    return predictor.predict(parse_instances(body, predictor.raw_rows, 8).columns.batch())


def _one_by_one(predictor: Predictor, rows: Rows) -> NDArray[np.float32]:
    """A row alone is the body of a request."""
    parsed = [parse_instances(json.dumps(row).encode(), predictor.raw_rows, 8).columns.batch() for row in rows]
    return np.concatenate([predictor.predict(row) for row in parsed])


def _by_stream(predictor: Predictor, rows: Rows) -> NDArray[np.float32]:
    return predictor.predict(parse_columns(stream_of(pa.RecordBatch.from_pylist(rows)), predictor.raw_rows, 8, 2**20))


def _by_tensors(predictor: Predictor, rows: Rows) -> NDArray[np.float32]:
    inputs = []
    for name in rows[0]:
        values = [row[name] for row in rows]
        datatype = "BYTES" if any(isinstance(value, str) for value in values) else "FP64"
        datatype = "INT64" if name == "integer" else datatype
        inputs.append({"name": name, "datatype": datatype, "shape": [len(rows)], "data": values})
    return _scored(predictor, parse_infer(json.dumps({"inputs": inputs}).encode(), None, predictor, 8).rows)


def _by_grpc(predictor: Predictor, rows: Rows) -> NDArray[np.float32]:
    message = service_pb2.ModelInferRequest(model_name="m")
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == "integer":
            message.inputs.add(name=name, datatype="INT64", shape=[len(rows)]).contents.int64_contents.extend(values)
        elif any(isinstance(value, str) for value in values):
            texts = [str(value).encode() for value in values]
            message.inputs.add(name=name, datatype="BYTES", shape=[len(rows)]).contents.bytes_contents.extend(texts)
        else:
            numbers = [np.nan if value is None else value for value in values]
            message.inputs.add(name=name, datatype="FP64", shape=[len(rows)]).contents.fp64_contents.extend(numbers)
    asked = infer_request(proto.ModelInferRequest.FromString(message.SerializeToString()), predictor, 8)
    return _scored(predictor, asked.rows)


def _by_candidates(predictor: Predictor, rows: Rows) -> NDArray[np.float32]:
    """Each row is a candidate, and what its context has beside it the columns that are not needed."""
    context = {name: value for name, value in rows[0].items() if name not in ROWS[0]}
    return Ranker(predictor, None, "text").scores(context, rows)


def _by_file(name: str) -> Callable[[Predictor, Rows, Path], NDArray[np.float32]]:
    def score(predictor: Predictor, rows: Rows, folder: Path) -> NDArray[np.float32]:
        path, output = folder / name, folder / "scores of files"
        _write(path, predictor, rows)
        assert run(PredictRequest(model=predictor.folder, input=str(path), output=output, raw=True), SilentProgress())
        scores: NDArray[np.float32] = pq.read_table(output / "scores")["score"].to_numpy()
        return scores

    return score


def _write(path: Path, predictor: Predictor, rows: Rows) -> None:
    """Write rows with every column that files must have."""
    needed = [column.name for column in predictor.schema.given_columns if column.name != "weights"]
    frame = pd.DataFrame([{**dict.fromkeys(needed), **row} for row in rows])
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".jsonl":
            frame.to_json(path, orient="records", lines=True)
        case ".parquet":
            frame.to_parquet(path, index=False)


WAYS: dict[str, Any] = {
    "rows": lambda predictor, rows: predictor.predict(rows),
    "a frame": lambda predictor, rows: predictor.predict(pd.DataFrame(rows)),
    "Arrow columns": lambda predictor, rows: predictor.predict(pa.RecordBatch.from_pylist(rows)),
    "a body of JSON": _by_body,
    "one row a body": _one_by_one,
    "an Arrow stream": _by_stream,
    "tensors": _by_tensors,
    "tensors by gRPC": _by_grpc,
    "candidates": _by_candidates,
}
FILES = ("rows.csv", "rows.jsonl", "rows.parquet")


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("table") / "model"
    split = RowsPreprocessConfig(split=ColumnSplitConfig(column="fold"))
    write_table_model(folder, source=SOURCE, preprocess=split)
    # A text of numbers has no list without a separator.
    return load_model(_with_separators(folder))


def _with_separators(folder: Path) -> Path:
    content = json.loads((folder / "schema.json").read_text())
    for column in content["columns"]:
        column["separator"] = column["separator"] or " "
    (folder / "schema.json").write_text(json.dumps(content))
    finish(folder)
    return folder


def _with(extra: dict[str, Sequence[Any]]) -> Rows:
    return [{**row, **{name: values[place] for name, values in extra.items()}} for place, row in enumerate(ROWS)]


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("way", [*WAYS, *FILES])
def test_what_scoring_does_not_need_is_left_out(predictor: Predictor, tmp_path: Path, way: str, extra: str) -> None:
    rows = _with(EXTRAS[extra])
    if way in FILES:
        found = _by_file(way)(predictor, rows, tmp_path)
    else:
        found = WAYS[way](predictor, rows)
    expected = [predictor.predict([row]) for row in ROWS] if way == "one row a body" else [predictor.predict(ROWS)]
    np.testing.assert_array_equal(found, np.concatenate(expected))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "nearest"), [("numbr", "number"), ("row_id_2", ""), ("debu_a", ""), ("[", "")], ids=lambda value: value
)
def test_unknown_names_are_refused(predictor: Predictor, way: str, name: str, nearest: str) -> None:
    hint = f"; did you mean '{nearest}'?" if nearest else "; "
    with pytest.raises((UserError, RequestError)) as refused:
        WAYS[way](predictor, _with({name: [1, 2, 3]}))
    message = getattr(refused.value, "message", str(refused.value))
    assert f"unknown feature '{name}'{hint}" in message and "\n" not in message


def test_rows_of_nothing_but_the_label_miss_every_feature(predictor: Predictor) -> None:
    expected = predictor.predict([{}, {}])
    for rows in ([{"bought": 1}] * 2, pd.DataFrame({"bought": [1, 0]}), pa.record_batch({"bought": [1, 0]})):
        np.testing.assert_array_equal(predictor.predict(rows), expected)
    for way in (_by_stream, _by_tensors):
        np.testing.assert_array_equal(way(predictor, [{"bought": 1}, {"bought": 0}]), expected)


def test_frames_may_hold_anything_that_is_not_needed(predictor: Predictor) -> None:
    frame = pd.DataFrame(ROWS)
    frame["debug_objects"] = [object(), {"a": 1}, 5]
    frame["debug_mixed"] = ["a", 1, None]
    two = pd.DataFrame([[1, 2]] * 3, columns=["debug_twice", "debug_twice"])
    np.testing.assert_array_equal(predictor.predict(pd.concat([frame, two], axis=1)), predictor.predict(ROWS))
    stream = pa.RecordBatch.from_pydict(
        {"text": ["red"], "debug_lists": [[[1]]], "debug_text": pa.array(["a"], pa.string_view())}
    )
    np.testing.assert_array_equal(
        predictor.predict(parse_columns(stream_of(stream), predictor.raw_rows, 8, 2**20)),
        predictor.predict([{"text": "red"}]),
    )


@pytest.mark.parametrize("name", FILES)
def test_labels_that_can_be_read_are_beside_the_scores(predictor: Predictor, tmp_path: Path, name: str) -> None:
    _write(tmp_path / name, predictor, _with({"bought": ["1", "", "maybe"]}))
    request = PredictRequest(model=predictor.folder, input=str(tmp_path / name), output=tmp_path / "out", raw=True)
    assert run(request, SilentProgress()).rows == 3
    assert pq.read_table(tmp_path / "out/scores")["label"].to_pylist() == [1.0, None, None]


@pytest.mark.parametrize("labels", [[0.5, 3.5, None], [["a"], [], None], [True, False, None]], ids=str)
@pytest.mark.parametrize(
    "label", ["bought", LabelCondition(column="bought", at_least=3), LabelCondition(column="bought", equals=("x",))]
)
def test_no_column_of_labels_stops_scoring(tmp_path: Path, label: Any, labels: list[Any]) -> None:
    source = SOURCE.model_copy(update={"label": label})
    write_table_model(tmp_path / "model", source=source)
    predictor = load_model(_with_separators(tmp_path / "model"))
    _write(tmp_path / "rows.parquet", predictor, _with({"bought": labels}))
    request = PredictRequest(
        model=predictor.folder, input=str(tmp_path / "rows.parquet"), output=tmp_path / "out", raw=True
    )
    assert run(request, SilentProgress()).rows == 3


def test_files_differ_in_what_is_not_needed(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    _write(tmp_path / "raw/a.csv", predictor, _with(EXTRAS["all of them"]))
    _write(tmp_path / "raw/b.csv", predictor, _with({"more": [1, 2, 3]}))
    request = PredictRequest(model=predictor.folder, input=str(tmp_path / "raw"), output=tmp_path / "out", raw=True)
    result = run(request, SilentProgress())
    assert result.rows == 6 and result.details["unread"] == ("more",)
    assert "column 'more': ignored, because the recipe does not name it" in describe(result)


@pytest.mark.parametrize("lacking", [{"bought"}, {"bought", "counts", "session", "row id"}])
def test_files_without_a_header_lack_the_label_or_all_that_is_not_needed(tmp_path: Path, lacking: set[str]) -> None:
    raw = ("number", "integer", "text", "time", "seconds", "texts", "integers", "numbers", "weights")
    header = ("row id", "bought", *raw, "counts", "session")
    source = SOURCE.model_copy(update={"header": header})
    write_table_model(tmp_path / "model", source=source)
    predictor = load_model(_with_separators(tmp_path / "model"))
    rows = _with({"bought": [1, 0, 1], "row id": [1, 2, 3], "counts": [1, 1, 1], "session": ["a", "b", "c"]})
    names = [name for name in header if name not in lacking]
    pd.DataFrame(rows, columns=names).to_csv(tmp_path / "rows.csv", index=False, header=False)
    output = tmp_path / "out"
    run(
        PredictRequest(model=predictor.folder, input=str(tmp_path / "rows.csv"), output=output, raw=True),
        SilentProgress(),
    )
    np.testing.assert_array_equal(pq.read_table(output / "scores")["score"].to_numpy(), predictor.predict(ROWS))


def test_a_file_that_brings_what_is_looked_up_counts_as_a_request(predictor: Predictor, tmp_path: Path) -> None:
    rows = _with({"users_city": ["7", None, "red"], "rate_text": [0.9, 0.1, None]})
    np.testing.assert_array_equal(_by_file("rows.csv")(predictor, rows, tmp_path), predictor.predict(rows))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("times.csv", "userId,movieId,rating,timestamp\nu-3,i-2,x,soon\nu-1,i-7,,\n"),
        ("no-times.csv", "rated,user_id,item_id\n1,u-3,i-2\n0,u-1,i-7\n"),
        ("u.data", "u-3\ti-2\t5\t-\nu-1\ti-7\t4\t8.5\n"),
    ],
)
def test_interactions_need_a_user_and_an_item(tmp_path: Path, name: str, text: str) -> None:
    make_recommender_folder(tmp_path / "model")
    (tmp_path / name).write_text(text)
    request = PredictRequest(model=tmp_path / "model", input=str(tmp_path / name), output=tmp_path / "out", raw=True)
    run(request, SilentProgress())
    pairs = [{"user": "u-3", "item": "i-2"}, {"user": "u-1", "item": "i-7"}]
    predictor = load_model(tmp_path / "model")
    scores = pq.read_table(tmp_path / "out/scores")["score"].to_numpy()
    np.testing.assert_array_equal(scores, predictor.predict(pairs))
    frame = pd.DataFrame([{**pair, "rating": "?", "timestamp": None} for pair in pairs])
    np.testing.assert_array_equal(scores, predictor.predict(frame))


@pytest.fixture
def lossy(predictor: Predictor, tmp_path: Path) -> PredictRequest:
    """Two files of 60 rows, in which the third row of the second and 11 others have no number."""
    (tmp_path / "raw").mkdir()
    for place, name in enumerate(("a.csv", "b.csv")):
        rows: Rows = [{"number": str(n), "text": "red"} for n in range(60)]
        for bad in range(2, 2 + 12 * place):
            rows[bad]["number"] = "n/a"
        _write(tmp_path / "raw" / name, predictor, rows)
    return PredictRequest(model=predictor.folder, input=str(tmp_path / "raw"), output=tmp_path / "out", raw=True)


def test_rows_without_a_score_are_an_error_above_the_share(lossy: PredictRequest) -> None:
    with pytest.raises(UserError) as raised:
        run(lossy, SilentProgress())
    for part in ("12 of 120 rows have no score (not a number: 12)", "b.csv, line 4", "column 'number': 'n/a'", "0.01"):
        assert part in str(raised.value)
    assert not lossy.output.exists()


def test_datasets_have_no_rows_without_a_score(lossy: PredictRequest) -> None:
    with pytest.raises(ConfigError, match="only for raw rows; add --raw"):
        lossy.model_copy(update={"raw": False, "max_rejected_fraction": 0.1}).check()


def test_rows_without_a_score_are_counted_below_the_share(lossy: PredictRequest) -> None:
    result = run(lossy.model_copy(update={"max_rejected_fraction": 0.1}), SilentProgress())
    assert (result.rows, result.details["rejected"]) == (108, {"not a number": 12})
    assert f"12 of 120 rows have no score (not a number: 12); see {lossy.output}/rejected" in describe(result)
    assert pq.read_table(lossy.output / "rejected").num_rows == 12


def test_scores_that_are_no_numbers_are_lost_rows(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model", model="dcnv2", numeric=1, categorical=1)
    content = json.loads((tmp_path / "model/schema.json").read_text())
    content["features"][0]["transforms"] = []
    (tmp_path / "model/schema.json").write_text(json.dumps(content))
    finish(tmp_path / "model")
    (tmp_path / "rows.tsv").write_text("I1\tC1\n1\tC1-1\n3e38\tC1-2\nx\tC1-3\n-1\tC1-4\n")
    request = PredictRequest(
        model=tmp_path / "model", input=str(tmp_path / "rows.tsv"), output=tmp_path / "out", raw=True
    )
    result = run(request.model_copy(update={"max_rejected_fraction": 0.5}), SilentProgress())
    assert pq.read_table(tmp_path / "out/scores")["line"].to_pylist() == [2, 5]
    reason = "values so large that the score is not a number"
    rejected = pq.read_table(tmp_path / "out/rejected").to_pylist()
    assert [(row["line"], row["reason"]) for row in rejected] == [(3, reason), (4, "not a number")]
    assert result.details["rejected"] == {reason: 1, "not a number": 1}


UNKNOWN: dict[str, tuple[Rows, dict[str, tuple[int, int]]]] = {
    "mostly unknown texts": (
        [{"text": "News"}] * 80 + [{"text": "Sport"}] * 60 + [{"text": "red"}] * 20 + [{"text": ""}, {}] * 20,
        {"text": (160, 140)},
    ),
    "unknown values of lists": (
        [{"texts": ["red", "", "new"]}] * 50 + [{"texts": ["other", None]}] * 70 + [{"texts": []}] * 9,
        {"texts": (170, 120)},
    ),
    "integers that no feature lists": ([{"integer": 7}] * 40 + [{"integer": 60}] * 30 + [{}], {"integer": (70, 30)}),
    "integers that one feature lists": ([{"integer": 7}] * 40 + [{"integer": 30}] * 50 + [{}], {"integer": (90, 0)}),
    "nothing": ([{}] * 150, {}),
}


def _counts(predictor: Predictor, rows: Rows) -> dict[str, tuple[int, int]]:
    raw = predictor.columns_of(rows)
    found = count_unknown(predictor.schema, raw, predictor.encode(raw))
    return {column: (one.values, one.unknown) for column, one in found.items() if one.values}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_values_are_counted(predictor: Predictor, case: str) -> None:
    rows, expected = UNKNOWN[case]
    assert _counts(predictor, rows) == expected
    assert _counts(predictor, rows[::-1]) == expected


def test_ids_beyond_the_table_are_unknown_and_0_is_missing(tmp_path: Path) -> None:
    schema = Schema(label="y", features=(CategoricalFeature(name="id", cardinality=50),))
    raw = pa.record_batch({"id": pa.array([0, 1, 49, 50, None, -1, 7000], pa.int64())})
    found = count_unknown(schema, raw, FeatureEncoder(schema, tmp_path).encode(raw))
    assert found == {"id": UnknownValues(5, 3, ("50", "-1", "7000"))}


@pytest.mark.parametrize("name", ["listed", "unlisted", "tags"])
def test_counts_are_those_of_looking_up_each_value(tmp_path: Path, name: str) -> None:
    """Of a vocabulary alone, of one whose other values are hashed, and of lists."""
    write_statistics(tmp_path)
    (feature,) = (feature for feature in SCHEMA.features if feature.name == name)
    kind: Any = "texts" if name == "tags" else "text"
    schema = Schema(label="y", columns=(RawColumn(name=kind, type=kind),), features=(feature,))
    values = [*WORDS, "", None, "new", "newer", "0"]
    drawn = np.random.default_rng(3).integers(0, len(values), (400, 3))
    rows = [[values[place] for place in row] for row in drawn] if name == "tags" else [[values[n]] for n in drawn[:, 0]]
    raw = RawRows(schema).from_rows([{kind: row if name == "tags" else row[0]} for row in rows])
    found = count_unknown(schema, raw, FeatureEncoder(schema, tmp_path).encode(raw))[kind]
    given = [value for row in rows for value in row if value]
    assert (found.values, found.unknown) == (len(given), sum(value not in WORDS for value in given))
    assert found.examples and set(found.examples) <= {"0", "new", "newer"}


def test_the_server_logs_once_that_most_of_a_column_is_unknown(predictor: Predictor) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("ray.serve.rayrec")
    log.addHandler(handler)
    try:
        statistics = VersionStatistics(ServingMetrics(), "shop", "3", predictor.model_folder)
        for text in ("red", "News", "Sport", "News"):
            for _ in range(12):
                requests = [RequestRows(predictor.raw_rows.stacked([{"text": text}] * rows)) for rows in (1, 8)]
                encoded = RequestRows(predictor.encode_stacked(requests[1].columns), encoded=True)
                statistics.note(score_together(predictor, [encoded, *requests])[1])
            statistics.count()
    finally:
        log.removeHandler(handler)
    unknown = "100% of 108 values are unknown to the model (such as 'News')"
    # The column, and the key of a side table.
    assert lines == [f"model 'shop', version 3: column '{name}': {unknown}" for name in ("text", "text (users)")]


def test_predictions_in_python_warn_once_a_column(predictor: Predictor) -> None:
    other = load_model(predictor.folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.predict(UNKNOWN["mostly unknown texts"][0][:99])
        assert not caught
        for _ in range(3):
            other.predict(UNKNOWN["mostly unknown texts"][0])
    warning, of_key = caught
    assert "column 'text (users)': 88%" in str(of_key.message)
    assert "column 'text': 88% of 160 values are unknown to the model (such as 'News', 'Sport')" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("name", FILES)
def test_predict_says_that_most_of_a_column_is_unknown(predictor: Predictor, tmp_path: Path, name: str) -> None:
    _write(tmp_path / name, predictor, UNKNOWN["mostly unknown texts"][0])
    request = PredictRequest(model=predictor.folder, input=str(tmp_path / name), output=tmp_path / "out", raw=True)
    result = run(request, SilentProgress())
    assert result.details["unknown"]["text"] == {"values": 160, "unknown": 140, "examples": ("News", "Sport")}
    assert "column 'text': 88% of 160 values are unknown to the model" in describe(result)


def _structured(rows: Rows) -> NDArray[Any]:
    return np.array([tuple(row.values()) for row in rows], [("number", "f8"), ("integer", "i8"), ("text", "U9")])


@pytest.mark.parametrize(
    "given",
    [iter, lambda rows: (row for row in rows), _structured, lambda rows: dict(enumerate(rows)).values(),
     lambda rows: pa.Table.from_pylist(rows).to_reader()],
)  # fmt: skip
def test_rows_come_in_any_form_that_names_its_values(predictor: Predictor, given: Callable[[Rows], Any]) -> None:
    assert predictor.predict(given(ROWS)).tolist() == predictor.predict(ROWS).tolist()


@pytest.mark.parametrize("given", [None, 7, np.zeros((2, 3)), pd.Series([1.0, 2.0]), pd.Series({"number": 1.0})])
def test_what_names_no_values_is_refused_in_a_line(predictor: Predictor, given: Any) -> None:
    with pytest.raises(UserError, match=r"^rows: .*; give a list of rows .* whose columns are named as the features$"):
        predictor.predict(given)


def test_a_model_shows_what_it_is_and_travels_by_its_path(predictor: Predictor) -> None:
    assert str(predictor.folder) in repr(predictor) and predictor.recipe.model.kind in repr(predictor)
    for other in (pickle.loads(pickle.dumps(predictor)), copy.copy(predictor), copy.deepcopy(predictor)):
        assert other.predict(ROWS).tolist() == predictor.predict(ROWS).tolist()


def test_a_model_is_found_in_the_folder_of_a_pipeline(predictor: Predictor, tmp_path: Path) -> None:
    shutil.copytree(predictor.folder, tmp_path / "out" / "model")
    assert rayrec.load_model(tmp_path / "out").folder == tmp_path / "out" / "model"
    for version in ("9", "10"):
        shutil.copytree(predictor.folder, tmp_path / "days" / "models" / version)
    assert rayrec.load_model(tmp_path / "days").folder.name == "10"

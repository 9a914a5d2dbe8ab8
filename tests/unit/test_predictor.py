"""The predictor gives the scores of the model's own forward pass, whatever the form and the number of rows."""

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.schema import MultiHotFeature
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.scorer import CHUNK_ROWS
from rayrec.models.common.ranking import RankingModel
from tests.model_folders import make_model_folder, make_raw_rows, scores_of_the_model

MODELS = {
    "dlrm": {"model": "dlrm"},
    "dcnv2": {"model": "dcnv2"},
    "dlrm, multi-hot": {"model": "dlrm", "multi_hot": 2},
    "dcnv2, multi-hot": {"model": "dcnv2", "multi_hot": 2},
    "wide_deep": {"model": "wide_deep"},
    "wide_deep, multi-hot": {"model": "wide_deep", "multi_hot": 2},
    "wide, multi-hot": {"model": "wide", "multi_hot": 2},
    "deep, multi-hot": {"model": "deep", "multi_hot": 2},
    "wide_deep without numbers": {"model": "wide_deep", "numeric": 0},
    "dlrm without numbers": {"model": "dlrm", "numeric": 0},
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictor, RankingModel]:
    folder = tmp_path_factory.mktemp("models") / "model"
    model = make_model_folder(folder, **MODELS[request.param])
    return load_model(folder), model


def test_equals_the_models_forward(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, model = pair
    rows = make_raw_rows(predictor.schema, 200)
    scores = predictor.predict(rows)
    assert scores.shape == (200,)
    assert scores.dtype == np.float32
    assert scores.std() > 0.01
    np.testing.assert_allclose(scores, scores_of_the_model(model, predictor, rows), rtol=0, atol=1e-6)


def test_a_rows_score_does_not_depend_on_the_others(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    rows = (make_raw_rows(predictor.schema, 100) * CHUNK_ROWS)[: CHUNK_ROWS + 77]
    together = predictor.predict(rows)
    for index in [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 76]:
        np.testing.assert_allclose(predictor.predict([rows[index]]), together[index : index + 1], rtol=0, atol=1e-6)


def test_forms_of_rows_agree(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    rows = make_raw_rows(predictor.schema, 50)
    scores = predictor.predict(rows)
    batch = pa.RecordBatch.from_pylist(rows, predictor.raw_rows.columns)
    np.testing.assert_array_equal(predictor.predict(batch), scores)
    np.testing.assert_array_equal(predictor.predict(pd.DataFrame(rows)), scores)
    np.testing.assert_array_equal(predictor.predict(tuple(rows)), scores)
    encoded = FeatureEncoder(predictor.schema, predictor.folder).encode(batch)
    np.testing.assert_array_equal(predictor.predict_encoded(encoded), scores)
    reordered = encoded.select(list(reversed(encoded.schema.names)))
    # To rounding: a matrix product sums in another order for another number of rows.
    np.testing.assert_allclose(predictor.predict_encoded(reordered.slice(10, 20)), scores[10:30], rtol=0, atol=1e-6)


def test_missing_null_and_left_out_are_the_same(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    nulls = {feature.name: None for feature in predictor.schema.features}
    nan = pd.DataFrame([{feature.name: float("nan") for feature in predictor.schema.numeric}])
    left_out = predictor.predict([{}])
    np.testing.assert_array_equal(predictor.predict([nulls]), left_out)
    if predictor.schema.numeric:
        np.testing.assert_array_equal(predictor.predict(nan), left_out)
    unknown = {f.name: ["?"] if isinstance(f, MultiHotFeature) else "?" for f in predictor.schema.categorical}
    if not any(isinstance(f, MultiHotFeature) for f in predictor.schema.categorical):
        np.testing.assert_array_equal(predictor.predict([unknown]), left_out)


def test_no_rows(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    assert predictor.predict([]).shape == (0,)


def test_threads_agree(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    rows = make_raw_rows(predictor.schema, 64)
    expected = predictor.predict(rows)
    with ThreadPoolExecutor(4) as pool:
        for scores in pool.map(lambda _: predictor.predict(rows), range(40)):
            np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


WRONG = {
    "one row alone": ({"I1": 1}, "give a list of rows"),
    "a string": ("I1", "give a list of rows"),
    "unknown column": (pd.DataFrame({"I11": [1]}), "unknown feature 'I11'; did you mean 'I1'"),
    "texts for numbers": (pd.DataFrame({"I1": ["1", "1,5"]}), "row 1, 'I1': the string '1,5'; needs a number, or null"),
    "lists for texts": (pa.record_batch({"C1": [["a"]]}), "column 'C1': holds list<item: string>, needs a text"),
    "infinity in a frame": (pd.DataFrame({"I1": [1, math.inf]}), "row 1, 'I1': a number is out of range"),
    "infinity in a text": (pd.DataFrame({"I1": ["1", "-inf"]}), "row 1, 'I1': a number is out of range"),
    "infinity in Arrow": (pa.table({"I1": [-math.inf]}), "row 0, 'I1': a number is out of range"),
    "infinity in a batch": (pa.record_batch({"I1": [1e39]}), "row 0, 'I1': a number is out of range"),
    "infinity in a row": ([{"I1": math.inf}], "row 0, 'I1': a number is out of range"),
    "None as a name": ([{"I1": 1}, {None: 1}], "row 1: unknown feature 'None'"),
    "periods in Arrow": (
        pa.Table.from_pandas(pd.DataFrame({"C1": pd.period_range("2024-05", periods=2, freq="M")})),
        r"column 'C1': holds periods, .*; give them as texts, by astype\(str\)",
    ),
    "mixed column": (
        pd.DataFrame({"I1": pd.Series([1, "a"], dtype=object)}),
        "row 1, 'I1': the string 'a'; needs a num",
    ),
    "dates for numbers": (pa.record_batch({"I1": [date(2026, 1, 1)]}), "column 'I1': holds date32.*, needs a number"),
}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("wrong") / "model"
    make_model_folder(folder)
    return load_model(folder)


def test_a_feature_may_be_the_index_of_a_frame(predictor: Predictor) -> None:
    frame = pd.DataFrame(make_raw_rows(predictor.schema, 50))
    scores = predictor.predict(frame)
    assert len(set(scores)) > 1
    for index in (["C1"], ["I1", "C1"]):
        np.testing.assert_array_equal(predictor.predict(frame.set_index(index)), scores)
        np.testing.assert_array_equal(predictor.predict(frame.set_index(index, drop=False)), scores)
    np.testing.assert_array_equal(predictor.predict(frame.rename_axis("row")), scores)


def test_periods_are_the_texts_that_pandas_shows(predictor: Predictor) -> None:
    periods = pd.Series(pd.period_range("2024-05-01", periods=3, freq="D")).mask([False, False, True])
    columns = predictor.columns_of(pd.DataFrame({"C1": periods}))
    assert columns["C1"].to_pylist() == ["2024-05-01", "2024-05-02", None]


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows(predictor: Predictor, case: str) -> None:
    rows, message = WRONG[case]
    with pytest.raises(UserError, match=message) as raised:
        predictor.predict(rows)
    assert "\n" not in str(raised.value)


def test_encoded_rows_must_be_whole(pair: tuple[Predictor, RankingModel]) -> None:
    predictor, _ = pair
    with pytest.raises(UserError, match="missing; rows must have every feature"):
        predictor.predict_encoded(pa.record_batch({"I1": pa.array([1.0], pa.float32())}))

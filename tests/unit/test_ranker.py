"""The ranker: scores are those of the looked-up features, ads come by score, and wrong requests are named."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.inference.rank import Ranker
from rayrec.sources.outbrain.feature_sets import raw_features
from rayrec.sources.outbrain.features import ROW_SCHEMA
from rayrec.sources.registry import load_ranker
from tests.display_models import ADS, CONTEXT, make_ranker
from tests.model_folders import finish, make_model_folder, make_raw_rows


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return make_ranker(tmp_path_factory.mktemp("ranker"))


def test_scores_are_those_of_the_looked_up_features(ranker: Ranker) -> None:
    rows = pa.RecordBatch.from_pylist([{**CONTEXT, "ad_id": ad} for ad in ADS], schema=ROW_SCHEMA)
    expected = ranker.predictor.predict(raw_features(ranker.lookup.statistics, rows))
    np.testing.assert_allclose(ranker.scores(CONTEXT, ADS), expected, rtol=0, atol=1e-6)
    assert len(set(expected.tolist())) == len(ADS)


def test_best_first(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = ranker.scores(CONTEXT, ADS)
    order = np.argsort(-scores)
    for k in (None, 1, 3, 10):
        found = ranker.rank(CONTEXT, ADS, k)
        assert found.candidates == [ADS[i] for i in order[:k]]
        np.testing.assert_allclose(found.scores, scores[order[:k]], rtol=0, atol=1e-6)
    monkeypatch.setattr(ranker.predictor, "predict", lambda rows: np.float32([0.5, 0.9, 0.5, 0.9]))
    assert ranker.rank(CONTEXT, ADS).candidates == [2, 999, 1, 3]
    assert ranker.rank(CONTEXT, ADS, 3).candidates == [2, 999, 1]


def test_any_field_may_be_missing(ranker: Ranker) -> None:
    nothing = ranker.scores({}, ADS)
    assert np.array_equal(ranker.scores(dict.fromkeys(CONTEXT), ADS), nothing)
    for name in CONTEXT:
        without = ranker.scores({**CONTEXT, name: None}, ADS)
        assert not np.array_equal(without, ranker.scores(CONTEXT, ADS)), name
        assert not np.array_equal(ranker.scores({name: CONTEXT[name]}, ADS), nothing), name
    assert ranker.rank(CONTEXT, []).candidates == []


def test_unknown_values_are_as_missing_ones(ranker: Ranker) -> None:
    assert np.array_equal(
        ranker.scores({**CONTEXT, "platform": 9}, ADS), ranker.scores({**CONTEXT, "platform": None}, ADS)
    )
    assert np.array_equal(ranker.scores({"geo_location": ""}, ADS), ranker.scores({}, ADS))
    with_stranger = ranker.scores({**CONTEXT, "uuid": "eve"}, ADS)
    assert np.array_equal(with_stranger, ranker.scores({**CONTEXT, "uuid": None}, ADS))


def test_what_scoring_does_not_need_is_left_out(ranker: Ranker) -> None:
    context = {**CONTEXT, "display_id": 7, "clicked": "?"}
    assert np.array_equal(ranker.scores(context, ADS), ranker.scores(CONTEXT, ADS))


@pytest.mark.parametrize(
    ("context", "ads", "message"),
    [
        ({"user": "ann"}, [1], "context: unknown field 'user'; fields: uuid, document_id, timestamp"),
        ({"documentid": 5}, [1], "context: unknown field 'documentid'; did you mean 'document_id'?"),
        ({"uuid": ["a"]}, [1], "context.uuid: a list; needs a text"),
        ({"uuid": "\ud800"}, [1], "context.uuid: the string .*; needs a text"),
        ({"document_id": "x"}, [1], "context.document_id: the string 'x'; needs an integer"),
        ({"timestamp": 1.5}, [1], "context.timestamp: the number 1.5; needs an integer"),
        ({"timestamp": 2**63}, [1], "context.timestamp: the number 9223372036854775808; needs an integer"),
        ({}, [1, "two"], r"candidates\[1\]: the string 'two'; needs an integer$"),
        ({}, [None], r"candidates\[0\]: null; needs an integer$"),
        (["ann"], [1], "context: give an object with uuid"),
    ],
)
def test_wrong_requests_are_named(context: Any, ads: Any, message: str, ranker: Ranker) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        ranker.rank(context, ads)


def test_any_model_ranks_objects_of_raw_features(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "dlrm")
    ranker = load_ranker(tmp_path / "dlrm")
    rows = make_raw_rows(ranker.predictor.schema, 5)
    context = {"I1": 7, "C1": rows[0]["C1"]}
    candidates = [{name: value for name, value in row.items() if name not in context} for row in rows]
    candidates[3]["I1"] = 9  # a candidate's own value counts, not the context's
    expected = ranker.predictor.predict([{**context, **candidate} for candidate in candidates])
    assert np.array_equal(ranker.scores(context, candidates), expected)
    order = np.argsort(-expected, kind="stable")
    assert ranker.rank(context, candidates, 2).candidates == [candidates[i] for i in order[:2]]
    for wrong, message in [
        ([1], r"candidates\[0\]: give an object of raw features"),
        ([{}, "x"], r"candidates\[1\]: give an object"),
        ([{"I99": 1}], r"candidates\[0\]: unknown feature 'I99'"),
    ]:
        with pytest.raises(UserError, match=message):
            ranker.rank(context, wrong)


def test_damaged_statistics_are_named(tmp_path: Path) -> None:
    ranker = make_ranker(tmp_path)
    (ranker.lookup.statistics.folder / "constants.json").write_text("{}")
    finish(tmp_path / "model")
    with pytest.raises(UserError, match=r"constants\.json: damaged"):
        load_ranker(tmp_path / "model")

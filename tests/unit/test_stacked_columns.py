"""Stacked columns are read, encoded and scored to the same bits and with the same errors as single ones."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.schema import Schema
from rayrec.features.stacked_columns import StackedColumns
from rayrec.inference.folder.table_files import TablePrecision, quantise_tables
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.raw_rows import RawRows
from serve.models import RequestRows, score_together
from tests.model_folders import MODELS, finish, make_model_folder, make_raw_rows, write_table_model
from tests.table_schema import SCHEMA, WORDS, write_statistics

# What a request gives itself, as nothing is looked up.
WITHOUT_LOOKUPS = Schema.model_validate({**SCHEMA.model_dump(), "lookups": ()})
RAW_ROWS = RawRows(WITHOUT_LOOKUPS)
TEXTS = st.sampled_from([*WORDS, "", " ", " red ", "unseen", "7.0", "true", "+7", "a|b", "1 2 3", "\ud800"]) | st.text()
NUMBERS = st.integers(-5, 60) | st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers()
PLAIN = {
    "number": st.integers(-5, 60) | st.floats(-1e15, 1e15),
    "integer": st.integers(-5, 60),
    "text": st.sampled_from([*WORDS, "", " ", " red ", "unseen", "7.0", "true", "+7"])
    | st.text("ab \x00é", max_size=5),
    "time": st.sampled_from(["2026-01-02T03:04:05", "2026-07-08 09:10:11+02:00", ""]),
    "seconds": st.integers(0, 2**31),
    "texts": st.lists(st.none() | st.sampled_from([*WORDS, ""]), max_size=5),
    "integers": st.lists(st.none() | st.integers(-2, 60), max_size=5),
    "numbers": st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    "users_age": st.floats(0, 99),
    "users_city": st.sampled_from(WORDS),
    "rate_text": st.floats(0, 1),
}
ROWS = st.lists(
    st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in PLAIN.items()}),
    min_size=1,
    max_size=5,
)
ANYTHING = st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS | st.lists(NUMBERS | TEXTS, max_size=3)
ANY_ROWS = st.lists(st.dictionaries(st.sampled_from([*PLAIN, "weights"]), ANYTHING, max_size=6), min_size=1, max_size=3)


def _alone(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Read each column alone."""
    columns = {column.name: [row.get(column.name) for row in rows] for column in WITHOUT_LOOKUPS.raw_columns}
    return RAW_ROWS.from_columns(columns, len(rows))


def _read(read: Callable[[list[dict[str, Any]]], pa.RecordBatch], rows: list[dict[str, Any]]) -> pa.RecordBatch | str:
    try:
        return read(rows)
    except UserError as error:
        return str(error)


@settings(max_examples=300)
@given(rows=ANY_ROWS | ROWS)
def test_what_is_read_and_what_is_refused(rows: list[dict[str, Any]]) -> None:
    found, expected = _read(RAW_ROWS.from_rows, rows), _read(_alone, rows)
    assert found == expected if isinstance(expected, str) else expected.equals(found)


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 + 1, 2**63, 10**400, 1e300, math.inf, math.nan, 1e-320])
def test_numbers_that_float64_may_not_hold(number: float) -> None:
    found, expected = _read(RAW_ROWS.from_rows, [{"number": number}]), _read(_alone, [{"number": number}])
    assert found == expected if isinstance(expected, str) else expected.equals(found)


def test_columns_that_are_read_alike_are_stacked() -> None:
    row = {"number": 1, "integer": 5, "text": "red", "texts": ["red"], "numbers": [1, 2, 3]}
    assert ("number", "users_age", "rate_text") in RAW_ROWS.stacked([row]).stacks
    assert ("number",) in RAW_ROWS.stacked([{**row, "number": "1"}]).stacks


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> FeatureEncoder:
    folder = tmp_path_factory.mktemp("statistics")
    write_statistics(folder)
    return FeatureEncoder(WITHOUT_LOOKUPS, folder)


@settings(max_examples=100)
@given(rows=ROWS)
def test_every_transform_has_the_same_bits(encoder: FeatureEncoder, rows: list[dict[str, Any]]) -> None:
    stacked = encoder.encode_stacked(RAW_ROWS.stacked(rows))
    raw = RAW_ROWS.from_rows(rows)
    # A column that is not expected makes it encode column by column, as tables are.
    alone = encoder.encode(raw.append_column("other", pa.nulls(len(rows))))
    assert stacked.batch().equals(encoder.encode(raw)) and stacked.batch().equals(alone)
    singly = [RAW_ROWS.stacked([row]) for row in rows]
    assert StackedColumns.joined(singly).batch().equals(raw)
    assert StackedColumns.joined([encoder.encode_stacked(row) for row in singly]).batch().equals(alone)
    assert StackedColumns.joined([StackedColumns.of(raw), *singly]).batch().equals(pa.concat_batches([raw, raw]))


def _require_same_scores(predictor: Predictor, rows: list[dict[str, Any]]) -> None:
    for some in ([rows[0]], [rows[1]], rows[:5], rows[:32]):
        raw = predictor.raw_rows.stacked(some)
        # A column that is not expected makes it encode column by column, as tables are.
        alone = predictor.encode(raw.batch().append_column("other", pa.nulls(len(some))))
        found = predictor.predict_encoded(predictor.encode_stacked(raw))
        np.testing.assert_array_equal(found, predictor.predict_encoded(alone))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_scores_have_the_same_bits(tmp_path: Path, model: str, precision: TablePrecision) -> None:
    tables = make_model_folder(tmp_path / "model", model=model, multi_hot=2).tables
    if precision != "fp32":
        quantise_tables(tmp_path / "model", tables, precision)
        finish(tmp_path / "model")
    predictor = load_model(tmp_path / "model")
    _require_same_scores(predictor, make_raw_rows(predictor.schema, 40))


def test_looked_up_columns_have_the_same_bits(tmp_path: Path) -> None:
    write_table_model(tmp_path / "model")
    rows = [{"number": place, "text": word, "integer": place, "texts": [word]} for place, word in enumerate(WORDS)]
    _require_same_scores(load_model(tmp_path / "model"), rows)


def test_requests_of_both_kinds_are_scored_in_one_pass(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model", multi_hot=1)
    predictor = load_model(tmp_path / "model")
    rows = make_raw_rows(predictor.schema, 6)
    raw = predictor.raw_rows.from_rows(rows)
    few = [RequestRows(predictor.raw_rows.stacked(some)) for some in (rows[:1], rows[1:3])]
    encoded = predictor.encode(raw[5:])
    others = [RequestRows(StackedColumns.of(raw[3:5])), RequestRows(StackedColumns.of(encoded), encoded=True)]
    expected = predictor.predict_encoded(predictor.encode(raw))
    for requests, until in ((few, 3), ([*few, *others], 6)):
        answers, scored = score_together(predictor, requests)
        np.testing.assert_allclose(np.concatenate(answers), expected[:until], rtol=0, atol=1e-6)
        assert [len(answer) for answer in answers] == [1, 2, 2, 1][: len(requests)]
        assert scored.requests == len(requests) and len(scored.scores) == until

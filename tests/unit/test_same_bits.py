"""A row has the same bits as one of many, read from Parquet as Spark's tasks read it, and alone in a request."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.raw_values import read_column
from rayrec.inference.raw_rows import RawRows
from tests.table_schema import SCHEMA, WORDS, write_statistics

TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.sampled_from([UTC, None]))
TEXTS = st.sampled_from([*WORDS, "", "unseen", " red", "null", "nan", "\x00"]) | st.text() | st.just("long" * 500)
INTEGERS = st.integers(-5, 60) | st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(-5, 9) | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": NUMBERS,
    "integer": INTEGERS,
    "text": TEXTS,
    "time": TIMES.map(lambda time: time.isoformat()),
    "seconds": st.integers(-(10**10), 10**11),
    "texts": st.lists(st.none() | TEXTS, max_size=5),
    "integers": st.lists(st.none() | INTEGERS, max_size=5),
    "numbers": st.lists(st.none() | NUMBERS, min_size=3, max_size=3),
    "users_age": NUMBERS,
    "users_city": TEXTS,
    "rate_text": st.floats(0, 1),
}
WEIGHTS = st.integers(0, 3) | st.floats(0, float(np.finfo(np.float32).max)) | st.just(5e-324)
NAMES = (*VALUES, "weights")


@st.composite
def row_of(draw: st.DrawFn) -> dict[str, Any]:
    """A row; if it has weights, they are as many as the texts that they weigh."""
    row = draw(st.fixed_dictionaries({}, optional={n: st.none() | v for n, v in VALUES.items()}))
    count = len(row.get("texts") or ())
    weights = draw(st.just(()) | st.none() | st.lists(WEIGHTS, min_size=count, max_size=count))
    return row if weights == () else {**row, "weights": weights}


ROWS = st.lists(row_of(), min_size=1, max_size=6)
_OF_A_TABLE = 1_100
"""More rows than those of a request, so that every fast path for few rows is compared with another one."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> FeatureEncoder:
    folder = tmp_path_factory.mktemp("model")
    write_statistics(folder)
    return FeatureEncoder(SCHEMA, folder)


def of_a_table(encoder: FeatureEncoder, columns: Mapping[str, Sequence[Any]], path: Path) -> pa.RecordBatch:
    """The encoded rows of values as files hold them, repeated to a large batch and read back from Parquet."""
    raw = {}
    for column in SCHEMA.columns:
        values, unreadable = read_column(pa.array(columns[column.name]), column)
        assert not unreadable.any()
        raw[column.name] = values
    count = len(raw["number"])
    repeated = pa.table(raw).take(pa.array(np.arange(_OF_A_TABLE) % count))
    pq.write_table(repeated, path)
    texts = [name for name in encoder.string_columns if name != "text"]
    (batch,) = pq.read_table(path, read_dictionary=texts).combine_chunks().to_batches()
    encoded = encoder.encode(batch)
    first = encoded.slice(0, count)
    last = _OF_A_TABLE // count * count - count
    assert encoded.slice(last, count).equals(first)
    return first


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS)
def test_a_request_and_a_row_of_a_table(
    encoder: FeatureEncoder, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    columns = {name: [row.get(name) for row in rows] for name in NAMES}
    table = of_a_table(encoder, columns, tmp_path_factory.getbasetemp() / "rows.parquet")
    requests = RawRows(SCHEMA)
    for index, row in enumerate(rows):
        _assert_same_bits(encoder.encode(requests.from_rows([row])), table.slice(index, 1))


@settings(max_examples=20)
@given(numbers=st.lists(st.none() | st.floats(), min_size=1, max_size=8))
def test_any_float_of_a_table(
    encoder: FeatureEncoder, numbers: list[float | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """NaN and infinities are missing, which is what a request gives for them."""
    nothing = {name: [None] * len(numbers) for name in NAMES}
    table = of_a_table(
        encoder, {**nothing, "number": numbers, "users_age": numbers}, tmp_path_factory.getbasetemp() / "floats.parquet"
    )
    requests = RawRows(SCHEMA)
    for index, number in enumerate(numbers):
        frame = pa.record_batch({"number": pa.array([number]), "users_age": pa.array([number])})
        _assert_same_bits(encoder.encode(requests.from_batch(frame)), table.slice(index, 1))
        if number is None or not math.isfinite(number):
            alone = encoder.encode(requests.from_rows([{}])).select(["n0", "n8", "range"])
            _assert_same_bits(alone, table.slice(index, 1).select(["n0", "n8", "range"]))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(NAMES)), value=JSON)
def test_a_wrong_type_is_an_error_of_one_line_that_names_it(encoder: FeatureEncoder, name: str, value: Any) -> None:
    error = ""
    try:
        encoded = encoder.encode(RawRows(SCHEMA).from_rows([{}, {name: value}]))
    except UserError as raised:
        error = str(raised)
    assert (error.startswith(f"row 1, '{name}': ") and "\n" not in error) if error else encoded.num_rows == 2


def _assert_same_bits(one: pa.RecordBatch, other: pa.RecordBatch) -> None:
    for name in one.schema.names:
        left, right = one.column(name), other.column(name)
        if pa.types.is_list(left.type):
            assert left.to_pylist() == right.to_pylist(), name
        elif pa.types.is_fixed_size_list(left.type):
            assert left.flatten().to_numpy().tobytes() == right.flatten().to_numpy().tobytes(), name
        else:
            assert left.to_numpy().tobytes() == right.to_numpy().tobytes(), name

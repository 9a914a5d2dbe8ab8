"""Arrow streams: their raw columns are those of the stream, and what is wrong with one is a line with a status."""

import io
import random
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather

from rayrec.config.transforms import Hash
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature, Schema
from rayrec.inference.raw_rows import RawRows
from serve.arrow import MEDIA_TYPE, parse_columns, scores_stream, stream_of
from serve.requests import MOST_VALUES, RequestError

OF_TEXT = Hash(buckets=10, of="strings")
RAW_ROWS = RawRows(
    Schema(
        label="label",
        features=(
            NumericFeature(name="I1"),
            CategoricalFeature(name="C1", cardinality=10, transforms=(OF_TEXT,)),
            MultiHotFeature(name="tags", cardinality=10, transforms=(OF_TEXT,)),
        ),
        columns=(
            RawColumn(name="I1", type="number"),
            RawColumn(name="C1", type="text"),
            RawColumn(name="tags", type="texts"),
        ),
    )
)
MOST_ROWS, MOST_BYTES = 100, 2**24


def rows_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def stream(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def file_of(rows: Any, compression: str | None = None) -> bytes:
    """As `pandas.DataFrame.to_feather` writes it, which packs columns if nothing is said."""
    sink = io.BytesIO()
    feather.write_feather(pa.table(rows) if isinstance(rows, dict) else pa.Table.from_pandas(rows), sink, compression)
    return sink.getvalue()


VIEWS = {"C1": pa.array(["a view of many letters", None], pa.string_view()), "I1": pa.array([1.5, None])}
VIEWS["tags"] = pa.ListArray.from_arrays([0, 1, 2], pa.array(["x", "one of many letters"], pa.string_view()))
VIEWED = [{"I1": 1.5, "C1": "a view of many letters", "tags": ["x"]}]
VIEWED += [{"I1": None, "C1": None, "tags": ["one of many letters"]}]
SHOPS = pa.array(["b", None, "a", "b"])
SHOP_ROWS = [{"I1": None, "C1": shop, "tags": None} for shop in SHOPS.to_pylist()]
LONG = pa.DictionaryArray.from_arrays(np.zeros(MOST_ROWS, np.int8), pa.array(["x" * 2**19]))
WHOLE = rows_of(I1=[1.5, None], C1=["a", None], tags=[["x", None], None])
GOOD = {
    "whole": (stream(WHOLE), WHOLE.to_pylist()),
    "two batches": (stream(WHOLE, WHOLE), WHOLE.to_pylist() * 2),
    "an empty batch": (stream(WHOLE.slice(0, 0), WHOLE), WHOLE.to_pylist()),
    "other types": (
        stream(rows_of(C1=pa.array(["b", None], pa.large_string()), I1=pa.array([True, False]))),
        [{"I1": 1.0, "C1": "b", "tags": None}, {"I1": 0.0, "C1": None, "tags": None}],
    ),
    "the label, out of range": (stream(rows_of(label=[np.inf], I1=[2])), [{"I1": 2.0, "C1": None, "tags": None}]),
    "a dictionary": (stream(rows_of(C1=SHOPS.dictionary_encode())), SHOP_ROWS),
    "dictionaries that differ": (
        stream(rows_of(C1=SHOPS[:2].dictionary_encode()), rows_of(C1=SHOPS[2:].dictionary_encode())),
        SHOP_ROWS,
    ),
    "a dictionary of views": (
        stream(rows_of(C1=pa.DictionaryArray.from_arrays([1, None, 0, 1], pa.array(["a", "b"], pa.string_view())))),
        SHOP_ROWS,
    ),
    "views": (stream(rows_of(**VIEWS)), VIEWED),
    "a slice of views": (stream(rows_of(**VIEWS).slice(1)), VIEWED[1:]),
    "views, packed": (file_of(VIEWS, "zstd"), VIEWED),
    "bytes": (stream(rows_of(C1=SHOPS.cast(pa.large_binary()))), SHOP_ROWS),
    "views of bytes": (stream(rows_of(C1=SHOPS.cast(pa.binary()).cast(pa.binary_view()))), SHOP_ROWS),
    "packed": (stream(WHOLE, compression="zstd"), WHOLE.to_pylist()),
    "a file": (file_of({"C1": SHOPS}, "uncompressed"), SHOP_ROWS),
    "a file, packed": (file_of({"C1": SHOPS.dictionary_encode()}, "lz4"), SHOP_ROWS),
    "a frame with an index": (
        file_of(pd.DataFrame({"C1": pd.Categorical(SHOPS.to_pylist())}, index=[7, 5, 3, 1])),
        SHOP_ROWS,
    ),
    "the most rows": (stream(rows_of(I1=[2] * MOST_ROWS)), [{"I1": 2.0, "C1": None, "tags": None}] * MOST_ROWS),
}


@pytest.mark.parametrize("case", GOOD)
def test_columns_of_a_stream(case: str) -> None:
    body, rows = GOOD[case]
    read = parse_columns(body, RAW_ROWS, MOST_ROWS, MOST_BYTES)
    assert read.schema == RAW_ROWS.columns
    assert read.to_pylist() == rows


MANY = MOST_VALUES + 1
BAD = {
    "empty": (b"", 400, f"the body is empty; send an Arrow IPC stream of raw columns ({MEDIA_TYPE})"),
    "JSON": (b'{"instances": []}', 400, "the body is not a valid Arrow IPC stream: "),
    "cut off": (stream(WHOLE)[:500], 400, "the body is not a valid Arrow IPC stream: "),
    "no schema": (stream(WHOLE)[-8:], 400, "the body is not a valid Arrow IPC stream: it ends before its schema"),
    "no rows": (stream(WHOLE.slice(0, 0)), 422, "the stream has no rows; send at least one"),
    "too many rows": (
        stream(rows_of(C1=pa.nulls(10**9)), rows_of(C1=pa.nulls(10**9))),
        413,
        "1000000000 rows, at most 100 a request; send several requests",
    ),
    "too many rows in all": (stream(*[WHOLE] * 51), 413, "102 rows, at most 100 a request; send several requests"),
    "too many batches": (
        stream(*[WHOLE.slice(0, 1)] * 65),
        413,
        "more than 64 record batches; join them, or send several requests",
    ),
    "a text again and again": (stream(rows_of(C1=LONG)), 413, "the columns take 52428"),
    "a view again and again": (
        stream(rows_of(C1=LONG.cast(pa.string()).cast(pa.string_view())), compression="zstd"),
        413,
        "the columns take 52",
    ),
    "packed too well": (stream(rows_of(C1=["x" * 2**25]), compression="zstd"), 413, "the columns take 335"),
    "unknown": (stream(rows_of(C2=["a"])), 422, "unknown feature 'C2'; features: I1, C1, tags"),
    "given twice": (
        stream(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["I1", "I1"])),
        422,
        "column 'I1': given 2 times",
    ),
    "text for a number": (
        stream(rows_of(I1=["1", "x"])),
        422,
        "row 1, 'I1': the string 'x'; needs a number, or null if it is missing",
    ),
    "beyond float32": (
        stream(WHOLE, rows_of(I1=[0.0, 1e39], C1=["", ""], tags=[["x"], ["x"]])),
        422,
        "row 3, 'I1': a number is out of range; numbers go up to 3.4e+38",
    ),
    "lists of lists": (stream(rows_of(tags=[[["a"]]])), 422, "column 'tags': type list<item: list<item: string>>; "),
    "a list of too many": (
        stream(rows_of(tags=pa.ListArray.from_arrays([0, MANY], pa.array(np.ones(MANY, np.int8))))),
        413,
        f"column 'tags': {MANY} values, at most {MOST_VALUES} a request; send several requests",
    ),
    "too large a schema": (
        stream(rows_of(I1=[1]).replace_schema_metadata({"a": "b" * 100_000})),
        413,
        "the schema has 100",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_stream(case: str) -> None:
    body, status, message = BAD[case]
    with pytest.raises(RequestError) as raised:
        parse_columns(body, RAW_ROWS, MOST_ROWS, MOST_BYTES)
    assert (raised.value.status, raised.value.message[: len(message)]) == (status, message)
    assert "\n" not in raised.value.message


def test_damaged_streams_are_refused_or_read() -> None:
    """Arrow itself is tested so; what the server reads beside Arrow must not fail in another way either."""
    drawn, answers = random.Random(7), Counter[int]()
    packed = file_of({**VIEWS, "C1": SHOPS[:2].dictionary_encode()}, "lz4")
    for number in range(3000):
        body = (stream(WHOLE), stream(rows_of(**VIEWS)), packed)[number % 3]
        damaged = bytearray(body)
        for _ in range(drawn.randint(1, 4)):
            damaged[drawn.randrange(len(body))] = drawn.randrange(256)
        try:
            parse_columns(bytes(damaged), RAW_ROWS, MOST_ROWS, MOST_BYTES)
            answers[200] += 1
        except RequestError as error:
            answers[error.status] += 1
    assert set(answers) <= {200, 400, 413, 415, 422} and answers[400] > 100


def test_scores_are_a_column() -> None:
    table = pa.ipc.open_stream(scores_stream("ctr", "2", np.array([0.25, 0.5], np.float32))).read_all()
    assert table.to_pydict() == {"score": [0.25, 0.5]} and table.schema.field("score").type == pa.float32()
    assert table.schema.metadata == {b"model": b"ctr", b"version": b"2"}
    assert stream_of(WHOLE) == stream(WHOLE)


def test_a_client_sends_the_same_schema_again_and_again() -> None:
    """What is known of a schema does not outlive its model, and a wrong one is refused each time."""
    others = RawRows(Schema(label="label", features=(NumericFeature(name="x"),)))
    for _ in range(2):
        assert parse_columns(stream(WHOLE), RAW_ROWS, MOST_ROWS, MOST_BYTES).to_pylist() == WHOLE.to_pylist()
        with pytest.raises(RequestError, match="unknown feature 'I1'"):
            parse_columns(stream(WHOLE), others, MOST_ROWS, MOST_BYTES)

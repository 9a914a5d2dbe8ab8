"""The encoder: values by hand, the rules one by one, and independence of a row from its batch."""

import math
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.config.transforms import (
    Buckets,
    Clip,
    Cross,
    Elapsed,
    Fill,
    Hash,
    HashIds,
    HashUnlisted,
    Log,
    Log2,
    MinMax,
    NumericTransform,
    Quantile,
    Standardize,
    TimePart,
    Vocabulary,
)
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.hashes import hash_key, hash_string
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature, Schema, VectorFeature
from rayrec.features.transforms import encode_categorical, encode_numeric, encode_vector, fold_ids, weighted_type
from rayrec.random.arrays import hash_integers
from tests.vocabularies import write_vocabulary

WORDS = ["red", "green", "blue", "cyan", "a rather long value"]
SCHEMA = Schema(
    label="label",
    features=(
        NumericFeature(name="I1", transforms=(Log(), Fill())),
        NumericFeature(name="I2", transforms=(Fill(value=-1.0),)),
        CategoricalFeature(name="C1", transforms=(Vocabulary(file="vocabulary/C1.parquet", size=5),), cardinality=6),
        CategoricalFeature(
            name="C2", transforms=(Vocabulary(file="vocabulary/C1.parquet", size=5), HashIds(buckets=3)), cardinality=3
        ),
        MultiHotFeature(
            name="M1", transforms=(Vocabulary(file="vocabulary/C1.parquet", size=5),), cardinality=6, hotness=3
        ),
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schema")
    write_vocabulary(folder / "vocabulary" / "C1.parquet", WORDS, [9, 8, 7, 6, 5])
    return folder


@pytest.fixture(scope="module")
def encoder(folder: Path) -> FeatureEncoder:
    return FeatureEncoder(SCHEMA, folder)


@settings(max_examples=50)
@given(st.lists(st.tuples(*5 * [st.none() | st.floats(width=64)]), min_size=1, max_size=20))
def test_numbers_of_a_request_are_those_of_a_table(rows: list[tuple[float | None, ...]]) -> None:
    """Few rows, all columns of which come as the schema has them, go another way, to the same bits."""
    chains: list[tuple[NumericTransform, ...]] = [(Log(), Fill()), (Log2(), Fill()), (Log(), Fill()), (), (Log(),)]
    features = tuple(NumericFeature(name=f"I{i}", transforms=chain) for i, chain in enumerate(chains))
    encoder = FeatureEncoder(Schema(label="label", features=features), Path())
    columns = {f"I{i}": pa.array(values, pa.float64()) for i, values in enumerate(zip(*rows, strict=True))}
    together = encoder.encode(pa.record_batch(columns))
    alone = encoder.encode(pa.record_batch({**columns, "other": pa.nulls(len(rows))}))
    assert together.equals(alone)


def test_rows_by_hand(encoder: FeatureEncoder) -> None:
    raw = pa.record_batch(
        {
            "M1": [["blue", None, "red", "", "pink", "cyan"], None, []],
            "C2": ["cyan", "red", None],
            "C1": ["green", "unseen", ""],
            "I2": [1.5, None, float("nan")],
            "I1": [1, None, -3],
            "ignored": [True, False, True],
        }
    )
    encoded = encoder.encode(raw)
    assert encoded.schema == encoder.encoded_schema
    assert encoded.schema.names == ["I1", "I2", "C1", "C2", "M1"]
    assert [encoded.schema.field(n).type for n in ("I1", "C1")] == [pa.float32(), pa.int32()]
    assert encoded.schema.field("M1").type.value_type == pa.int32()
    assert encoded.to_pydict() == {
        "I1": [float(np.float32(math.log(4.0))), 0.0, 0.0],
        "I2": [1.5, -1.0, -1.0],
        "C1": [2, 0, 0],
        "C2": [2, 1, 0],  # cyan is 4 of 5; 3 buckets keep 1 and 2 apart: 4 -> 1 + 3 % 2
        "M1": [[3, 1, 0], [], []],
    }


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0, 1, 2**40], pa.int64(), [math.log(3), math.log(4), math.log(2**40 + 3)]),
        ([-1, -2, -3, -4, None], pa.int32(), [math.log(2), 0.0, 0.0, 0.0, 0.0]),
        ([200, None], pa.uint8(), [math.log(203), 0.0]),
        ([2**64 - 1], pa.uint64(), [math.log(2.0**64)]),
        ([2**53 + 1, None], pa.int64(), [math.log(2.0**53), 0.0]),
        ([-2.5, float("nan"), float("inf"), float("-inf")], pa.float64(), [math.log(0.5), 0.0, 0.0, 0.0]),
        ([1.0, None], pa.float32(), [math.log(4), 0.0]),
        ([None, None], pa.null(), [0.0, 0.0]),
        ([], pa.int64(), []),
    ],
)
def test_log_and_fill(values: list, kind: pa.DataType, expected: list[float]) -> None:
    result = encode_numeric("I1", pa.array(values, kind), (Log(), Fill()))
    assert result.dtype == np.float32
    assert result.tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        ((), [5.0, 0.0, 0.0]),
        ((Fill(value=7.0),), [5.0, 7.0, 7.0]),
        ((Log(offset=0.0),), [math.log(5), 0.0, 0.0]),
        ((Fill(value=1.0), Log(offset=0.0)), [math.log(5), 0.0, 0.0]),
        ((Log(offset=-5.0), Fill(value=2.0)), [2.0, 2.0, 2.0]),
    ],
)
def test_transforms_apply_in_order_and_leave_no_hole(transforms: tuple, expected: list[float]) -> None:
    result = encode_numeric("I1", pa.array([5.0, None, float("nan")]), transforms)
    assert result.tolist() == np.array(expected, np.float32).tolist()


def test_a_number_beyond_float32_is_missing() -> None:
    assert encode_numeric("I1", pa.array([1e300, -1e300, 1.0]), ()).tolist() == [0.0, 0.0, 1.0]


RAW_ROWS = st.fixed_dictionaries(
    {
        "I1": st.none() | st.integers(-5, 2**53),
        "I2": st.none() | st.floats(width=32),
        "C1": st.none() | st.sampled_from([*WORDS, "", "unseen", "re"]),
        "C2": st.none() | st.text(max_size=3) | st.sampled_from(WORDS),
        "M1": st.none() | st.lists(st.none() | st.sampled_from([*WORDS, "", "unseen"]), max_size=6),
    }
)


@given(rows=st.lists(RAW_ROWS, min_size=1, max_size=8), cut=st.integers(0, 8), copies=st.sampled_from([1, 20]))
def test_a_row_has_the_same_bits_in_any_batch(encoder: FeatureEncoder, rows: list[dict], cut: int, copies: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows * copies, schema=encoder.raw_schema)
    whole = encoder.encode(batch)
    singly = [encoder.encode(batch.slice(i, 1)) for i in range(len(rows))] * copies
    assert pa.Table.from_batches(singly).equals(pa.Table.from_batches([whole]))
    halves = [encoder.encode(batch.slice(0, cut)), encoder.encode(batch.slice(cut))]
    assert pa.Table.from_batches(halves).equals(pa.Table.from_batches([whole]))


def test_equal_strings_of_any_arrow_type_have_equal_ids(encoder: FeatureEncoder) -> None:
    values = ["blue", None, "unseen", "", "a rather long value"] * 30
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    results = [
        encoder.encode(pa.record_batch({"C1": pa.array(values, pa.string()).cast(k)})).column("C1") for k in kinds
    ]
    assert results[0].to_pylist() == [3, 0, 0, 0, 5] * 30
    assert all(r.equals(results[0]) for r in results)


def test_absent_columns_and_columns_of_nulls_are_missing(encoder: FeatureEncoder) -> None:
    absent = encoder.encode(pa.record_batch({"other": pa.array([1, 2])}))
    nulls = encoder.encode(pa.record_batch({f.name: pa.nulls(2) for f in SCHEMA.features}))
    assert absent.equals(nulls)
    assert absent.to_pydict() == {"I1": [0.0] * 2, "I2": [-1.0] * 2, "C1": [0] * 2, "C2": [0] * 2, "M1": [[], []]}


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("I1", pa.array(["3"]), "needs numbers, got string"),
        ("I1", pa.array([True]), "needs numbers, got bool"),
        ("C1", pa.array([3]), "needs strings, got int64"),
        ("C1", pa.array([b"red"]), "needs strings, got binary"),
        ("C1", pa.array([["red"]]), "needs strings, got list"),
        ("M1", pa.array(["red"]), "needs a list of values in each row, got string"),
        ("M1", pa.array([[1, 2]]), "needs strings, got int64"),
    ],
)
def test_a_column_of_another_type_is_named(encoder: FeatureEncoder, name: str, column: pa.Array, message: str) -> None:
    with pytest.raises(UserError, match=f"^feature '{name}': {message}"):
        encoder.encode(pa.record_batch({name: column}))


@given(st.lists(st.integers(1, 2**62), max_size=20), st.integers(2, 2**31))
def test_folding_keeps_frequent_ids_and_stays_in_the_table(ids: list[int], buckets: int) -> None:
    folded = fold_ids(np.array(ids, np.int64), buckets).tolist()
    for before, after in zip(ids, folded, strict=True):
        assert 1 <= after < buckets
        assert (before - after) % (buckets - 1) == 0
        if before < buckets:
            assert after == before


def test_features_without_vocabulary_take_ids() -> None:
    schema = Schema(
        label="y",
        features=(
            CategoricalFeature(name="user", cardinality=4),
            CategoricalFeature(name="item", cardinality=3, transforms=(HashIds(buckets=3),)),
            MultiHotFeature(name="tags", cardinality=4, hotness=2),
        ),
    )
    encoder = FeatureEncoder(schema, Path("unread"))
    raw = pa.record_batch(
        {
            "user": pa.array([3, 4, -1, None], pa.int16()),
            "item": [0, 2, 5, -7],
            "tags": pa.array([[1, None, 9, 3], [], None, [0]], pa.large_list(pa.int32())),
        }
    )
    assert encoder.encode(raw).to_pydict() == {
        "user": [3, 0, 0, 0],
        "item": [0, 2, 1, 0],
        "tags": [[1, 0], [], [], [0]],
    }
    with pytest.raises(UserError, match="'user': needs integer ids, got string"):
        encoder.encode(pa.record_batch({"user": ["3"]}))


@pytest.mark.parametrize(("cardinality", "kind"), [(2**31, pa.int32()), (2**31 + 1, pa.int64())])
def test_ids_widen_where_the_table_needs_it(cardinality: int, kind: pa.DataType) -> None:
    feature = CategoricalFeature(name="user", cardinality=cardinality)
    ids = encode_categorical(feature, pa.array([cardinality - 1, cardinality]), None)
    assert pa.array(ids).type == kind
    assert ids.tolist() == [cardinality - 1, 0]


def test_cached_builds_once_for_equal_arguments(folder: Path) -> None:
    first = FeatureEncoder.cached(SCHEMA, folder)
    again = FeatureEncoder.cached(Schema.model_validate_json(SCHEMA.model_dump_json()), Path(str(folder)))
    assert first is again
    without_last = SCHEMA.model_copy(update={"features": SCHEMA.features[:-1]})
    assert FeatureEncoder.cached(without_last, folder) is not first


def test_a_vocabulary_of_another_size_than_the_schema_says_is_named(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocabulary" / "C1.parquet", WORDS[:3], [3, 2, 1])
    with pytest.raises(UserError, match=r"C1\.parquet: lists 3 values, schema\.json says 5"):
        FeatureEncoder(SCHEMA, tmp_path)


@pytest.mark.parametrize(
    ("transforms", "values", "expected"),
    [
        ((Log2(scale=1000.0),), [0.0, 0.001, None, -0.001, -1.0], [0.0, 1.0, 0.0, 0.0, 0.0]),
        ((Log2(), MinMax(min=1.0, max=3.0)), [1, 3, 7, 0, 15, None], [0.0, 0.5, 1.0, 0.0, 1.0, 0.0]),
        ((Log2(), MinMax(min=1.0, max=3.0, clip=False)), [1, 0, 15], [0.0, -0.5, 1.5]),
        ((MinMax(min=2.0, max=2.0),), [2.0, 5.0, None], [0.0, 0.0, 0.0]),
        ((Fill(value=0.0), Log(offset=1.0), Standardize(mean=1.0, deviation=2.0)), [None, 0], [-0.5, -0.5]),
        ((Standardize(mean=1.0, deviation=2.0),), [7.0, None], [3.0, 0.0]),
        ((Standardize(mean=1.0, deviation=0.0),), [7.0, 1.0], [0.0, 0.0]),
    ],
)
def test_scalings(transforms: tuple[NumericTransform, ...], values: list[float | None], expected: list[float]) -> None:
    encoded = encode_numeric("x", pa.array(values, pa.float64()), transforms)
    np.testing.assert_allclose(encoded, np.float32(expected), rtol=1e-6)


def test_hashed_values() -> None:
    """The ids of docs/outbrain.md, whatever the type that Arrow has the values in; missing ones are 0."""
    integers = CategoricalFeature(name="C", transforms=(Hash(buckets=1000, of="integers"),), cardinality=1000)
    strings = CategoricalFeature(name="C", transforms=(Hash(buckets=1000, of="strings"),), cardinality=1000)
    numbers = [5, None, 0, -7, 5]
    by_hand = [0 if n is None else 1 + int(hash_integers(np.array([n]))[0]) % 999 for n in numbers]
    assert len(set(by_hand)) == 4
    for kind in (pa.int64(), pa.int8()):
        assert encode_categorical(integers, pa.array(numbers, kind), None).tolist() == by_hand
    texts = ["US>CA>807", None, "", "GB", "US>CA>807"]
    by_hand = [1 + hash_string(text) % 999 if text else 0 for text in texts]
    assert len(set(by_hand)) == 3
    for column in (pa.array(texts), pa.array(texts, pa.large_string()), pa.array(texts).dictionary_encode()):
        assert encode_categorical(strings, column, None).tolist() == by_hand
    assert encode_categorical(strings, pa.nulls(2), None).tolist() == [0, 0]
    with pytest.raises(UserError, match="needs strings, got int64"):
        encode_categorical(strings, pa.array([1]), None)
    with pytest.raises(UserError, match="needs integer ids, got string"):
        encode_categorical(integers, pa.array(["1"]), None)


@pytest.mark.parametrize("of", ["integers", "strings"])
def test_hashed_lists(of: Literal["integers", "strings"], folder: Path) -> None:
    feature = MultiHotFeature(name="M", transforms=(Hash(buckets=50, of=of),), cardinality=50, hotness=2)
    schema = Schema(label="label", features=(feature,))
    encoder = FeatureEncoder(schema, folder)
    values: list[Any] = [1, None, 2, 3] if of == "integers" else ["a", None, "", "b"]
    kept = [1, 2] if of == "integers" else ["a", "b"]
    raw = pa.RecordBatch.from_arrays([pa.array([values, None, []], encoder.raw_schema.field("M").type)], names=["M"])
    one_hot = CategoricalFeature(name="M", transforms=feature.transforms, cardinality=50)
    expected = encode_categorical(one_hot, pa.array(kept), None).tolist()
    assert encoder.encode(raw).column("M").to_pylist() == [expected, [], []]
    assert encoder.string_columns == []


WEIGHTED = Schema(
    label="label",
    features=(
        MultiHotFeature(
            name="M",
            inputs=("words", "weights"),
            transforms=(Vocabulary(file="vocabulary/C1.parquet", size=5),),
            cardinality=6,
            hotness=3,
        ),
        MultiHotFeature(name="N", inputs=("ids", "weights"), cardinality=2**33, hotness=2),
    ),
    columns=(
        RawColumn(name="words", type="texts"),
        RawColumn(name="ids", type="integers"),
        RawColumn(name="weights", type="numbers"),
    ),
)


def pairs(*lists: dict[int, float]) -> list[list[dict[str, float]]]:
    return [[{"id": id_, "weight": weight} for id_, weight in of_row.items()] for of_row in lists]


def test_weights_go_with_their_values(folder: Path) -> None:
    encoder = FeatureEncoder(WEIGHTED, folder)
    raw = pa.record_batch(
        {
            "words": [["green", "", "unseen", None, "red", "blue"], ["red", "blue"], None, []],
            "ids": [[2**32, None, 7, 7, 9, 1], [1, 5], None, None],
            "weights": pa.array([[0.1, 9, 2, 9, 0, 1], None, None, []], pa.list_(pa.float64())),
        }
    )
    tenth = float(np.float32(0.1))
    found = encoder.encode(raw)
    assert found.column("M").to_pylist() == pairs({2: tenth, 0: 2.0, 1: 0.0}, {1: 1.0, 3: 1.0}, {}, {})
    assert found.column("N").to_pylist() == pairs({2**32: tenth, 7: 2.0}, {1: 1.0, 5: 1.0}, {}, {})
    kinds = [encoder.encoded_schema.field(name).type.value_type for name in ("M", "N")]
    assert kinds == [weighted_type(pa.int32()), weighted_type(pa.int64())]
    alone = encoder.encode(raw.select(["words"]))
    assert alone.column("M").to_pylist()[0] == pairs({2: 1.0, 0: 1.0, 1: 1.0})[0]
    assert (encoder.reads, encoder.raw_schema.names) == (["words", "weights", "ids", "weights"], raw.schema.names)


@pytest.mark.parametrize("weights", [[1.0], [1.0, None], [1.0, -0.5], [1.0, math.nan], [1.0, math.inf], [1.0, 1e39]])
def test_weights_that_are_none(folder: Path, weights: list[float | None]) -> None:
    raw = pa.record_batch({"words": [["red"], ["red", "blue"]], "weights": [[1.0], weights]})
    with pytest.raises(UserError, match="feature 'M': needs a weight of at least 0 for each value"):
        FeatureEncoder(WEIGHTED, folder).encode(raw)


@pytest.mark.parametrize(
    ("transforms", "values", "expected"),
    [
        ((Clip(min=-1.0, max=2.0),), [-5.0, 0.5, 9.0, None, math.nan], [-1.0, 0.5, 2.0, 0.0, 0.0]),
        (
            (Clip(min=-1.0, max=2.0, outside="missing"), Fill(value=7.0)),
            [-1e300, -1.0, 2.0, math.nextafter(2.0, 3.0), None],
            [7.0, -1.0, 2.0, 7.0, 7.0],
        ),
        ((Clip(max=2.0), Fill(value=1.0)), [-5.0, 9.0, math.inf], [-5.0, 2.0, 1.0]),
        ((Quantile(boundaries=(0.0, 10.0, 30.0)),), [-1, 0, 5, 10, 20, 30, 31, None], [0, 0, 0.25, 0.5, 0.75, 1, 1, 0]),
        # Half of the values are 0: none lies below it, and half of them below everything else.
        ((Quantile(boundaries=(0.0, 0.0, 0.0, 1.0, 3.0)),), [-1, 0, 1e-9, 1, 2, 3], [0, 0, 0.5, 0.75, 0.875, 1]),
        ((Quantile(boundaries=(2.0,)),), [1, 2, 3], [0, 0, 1]),
    ],
)
def test_clipped_values_and_quantiles(
    transforms: tuple[NumericTransform, ...], values: list[float | None], expected: list[float]
) -> None:
    encoded = encode_numeric("x", pa.array(values, pa.float64()), transforms)
    np.testing.assert_allclose(encoded, np.float32(expected), rtol=1e-6, atol=1e-9)


@given(
    st.lists(st.floats(-1e9, 1e9, width=32), min_size=2, max_size=20, unique=True).map(sorted),
    st.lists(st.floats(-2e9, 2e9), max_size=20),
)
def test_quantiles_interpolate_as_numpy_does(boundaries: list[float], values: list[float]) -> None:
    encoded = encode_numeric("x", pa.array(values, pa.float64()), (Quantile(boundaries=tuple(boundaries)),))
    np.testing.assert_allclose(encoded, np.interp(values, boundaries, np.linspace(0, 1, len(boundaries))), atol=1e-6)


TIMES = pa.array(
    [datetime(2024, 3, 31, 0, 59), datetime(2024, 3, 31, 1), datetime(2023, 12, 31, 23), None],
    pa.timestamp("us", "UTC"),
)


def test_elapsed_time() -> None:
    later = pa.array([datetime(2024, 3, 31, 6, 59), datetime(2024, 3, 30), None, None], pa.timestamp("us", "UTC"))
    for per, expected in {
        "second": [21600, -90000, -7, -7],
        "hour": [6, -25, -7, -7],
        "day": [0.25, -25 / 24, -7, -7],
    }.items():
        transforms = (Elapsed.model_validate({"per": per}), Fill(value=-7.0))
        assert encode_numeric("age", later, transforms, TIMES).tolist() == np.float32(expected).tolist()
    with pytest.raises(UserError, match=r"feature 'age': needs times, got string"):
        encode_numeric("age", pa.array(["2024"] * 4), (Elapsed(),), TIMES)


@pytest.mark.parametrize(
    ("part", "zone", "expected"),
    [
        ("hour", "UTC", [1, 2, 24, 0]),
        ("hour", "Europe/Vienna", [2, 4, 1, 0]),  # clocks go from 2 to 3
        ("weekday", "UTC", [7, 7, 7, 0]),
        ("weekday", "Europe/Vienna", [7, 7, 1, 0]),
        ("day", "UTC", [31, 31, 31, 0]),
        ("month", "Europe/Vienna", [3, 3, 1, 0]),
    ],
)
def test_parts_of_local_times(part: str, zone: str, expected: list[int]) -> None:
    transform = TimePart.model_validate({"part": part, "zone": zone})
    feature = CategoricalFeature(name="t", transforms=(transform,), cardinality=transform.cardinality)
    assert encode_categorical(feature, TIMES, None).tolist() == expected
    with pytest.raises(UserError, match="feature 't': needs times, got int64"):
        encode_categorical(feature, pa.array([1]), None)


def test_buckets() -> None:
    feature = CategoricalFeature(name="b", transforms=(Buckets(boundaries=(0.0, 1.5)),), cardinality=4)
    column = pa.array([-9.0, -0.0, 0.0, 1.4, 1.5, 1e300, math.inf, math.nan, None])
    assert encode_categorical(feature, column, None).tolist() == [1, 2, 2, 2, 3, 3, 0, 0, 0]


def test_unlisted_values_are_hashed_before_the_vocabulary(folder: Path) -> None:
    vocabulary = Vocabulary(file="vocabulary/C1.parquet", size=5)
    features = (
        CategoricalFeature(name="C", transforms=(vocabulary, HashUnlisted(buckets=7)), cardinality=13),
        CategoricalFeature(
            name="D", transforms=(vocabulary, HashUnlisted(buckets=7), HashIds(buckets=4)), cardinality=4
        ),
        MultiHotFeature(name="M", transforms=(vocabulary, HashUnlisted(buckets=7)), cardinality=13, hotness=3),
    )
    encoder = FeatureEncoder(Schema(label="label", features=features), folder)
    texts = ["blue", "unseen", None, "", "another"]
    hashed = [1 + hash_string(text) % 7 for text in ("unseen", "another")]
    expected = [10, hashed[0], 0, 0, hashed[1]]
    raw = {"C": texts * 300, "D": texts * 300, "M": [["unseen", "", "red"], None, [], [None], ["cyan"]] * 300}
    encoded = encoder.encode(pa.record_batch(raw)).to_pydict()
    assert encoded["C"] == expected * 300
    assert encoded["D"] == [0 if i == 0 else 1 + (i - 1) % 3 for i in expected] * 300
    assert encoded["M"] == [[hashed[0], 8], [], [], [], [11]] * 300


def test_crosses_of_encoded_ids() -> None:
    cross = Cross(buckets=1000)
    schema = Schema(
        label="label",
        features=(
            CategoricalFeature(name="a", cardinality=10),
            CategoricalFeature(name="b", cardinality=10),
            CategoricalFeature(name="ab", inputs=("a", "b"), transforms=(cross,), cardinality=1000),
            CategoricalFeature(name="ba", inputs=("b", "a"), transforms=(cross,), cardinality=1000),
            CategoricalFeature(name="abab", inputs=("ab", "ba"), transforms=(cross,), cardinality=1000),
        ),
    )
    encoder = FeatureEncoder(schema, Path())
    assert encoder.raw_schema.names == ["a", "b"]
    found = encoder.encode(pa.record_batch({"a": [1, 2, 1, 0, 0, None], "b": [2, 1, 2, 3, 0, 99]})).to_pydict()
    by_hand = 1 + hash_key(np.array([1, 2, 1, 0]), np.array([2, 1, 2, 3])).view(np.uint64) % np.uint64(999)
    assert found["ab"] == [*by_hand.tolist(), 0, 0]
    assert found["ab"][0] == found["ba"][1] == found["ab"][2] != found["ab"][1]
    assert found["abab"][3] > 0 and found["abab"][4:] == [0, 0]


def test_vectors() -> None:
    plain, unit = VectorFeature(name="v", size=2), VectorFeature(name="v", size=2, normalize=True)
    lists = pa.array([[3.0, 4.0], None, [None, -2.0], [math.inf, math.nan], [1e-30, 0.0]])
    assert encode_vector(plain, lists).to_pylist() == [[3, 4], [0, 0], [0, -2], [0, 0], [np.float32(1e-30), 0]]
    assert encode_vector(unit, lists[:4]).to_pylist() == [[np.float32(0.6), np.float32(0.8)], [0, 0], [0, -1], [0, 0]]
    assert encode_vector(unit, lists[4:]).to_pylist() == [[1, 0]]
    assert encode_vector(plain, pa.array([[1, 2]], pa.large_list(pa.int64()))).to_pylist() == [[1, 2]]
    assert encode_vector(plain, pa.nulls(1)).type == pa.list_(pa.float32(), 2)
    with pytest.raises(UserError, match=r"^feature 'v': a list of 3 numbers; needs 2$"):
        encode_vector(plain, pa.array([[1.0, 2.0], None, [1.0, 2.0, 3.0]]))
    with pytest.raises(UserError, match=r"^feature 'v': needs a list of numbers in each row, got double$"):
        encode_vector(plain, pa.array([1.0]))

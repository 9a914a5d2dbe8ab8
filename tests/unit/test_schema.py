"""The schema: saved and loaded unchanged, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from rayrec.common.errors import UserError
from rayrec.config.transforms import Buckets, Elapsed, Fill, Hash, HashIds, HashUnlisted, Log, TimePart, Vocabulary
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import (
    SCHEMA_FILE,
    CategoricalFeature,
    MultiHotFeature,
    NumericFeature,
    Schema,
    VectorFeature,
)

SCHEMA = Schema(
    label="click",
    group="query",
    weight="importance",
    features=(
        NumericFeature(name="price", transforms=(Log(offset=1.0), Fill(value=2.0))),
        CategoricalFeature(
            name="ad",
            transforms=(Vocabulary(file="vocabulary/ad", size=9), HashIds(buckets=5)),
            cardinality=5,
            embedding_dim=4,
        ),
        MultiHotFeature(name="topics", cardinality=7, pooling="mean", hotness=3),
    ),
)


def test_saved_and_loaded_it_is_equal(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path)
    loaded = Schema.load(tmp_path)
    assert loaded == SCHEMA
    assert [type(f) for f in loaded.features] == [NumericFeature, CategoricalFeature, MultiHotFeature]
    assert [type(t) for f in loaded.features for t in f.transforms] == [Log, Fill, Vocabulary, HashIds]


def test_a_dataset_must_be_encoded_as_the_model_reads_it() -> None:
    price, ad, topics = SCHEMA.features
    data = Path("data")

    def require(*features: NumericFeature | CategoricalFeature) -> None:
        SCHEMA.require_same_features(SCHEMA.model_copy(update={"features": features}), data)

    require(price, ad.model_copy(update={"embedding_dim": None}), topics)
    wrong = {
        "data: has no feature 'ad'": (price, topics),
        "data: feature 'ad' was not encoded as": (price, ad.model_copy(update={"cardinality": 6}), topics),
        "data: feature 'price' was not encoded as": (NumericFeature(name="price"), ad, topics),
        "data: feature 'ad' was not encoded as .*vocabulary": (
            price,
            ad.model_copy(
                update={"transforms": (Vocabulary(file="vocabulary/ad", size=9, content_hash="1"), HashIds(buckets=5))}
            ),
            topics,
        ),
        "data: has its features in another order": (price, topics, ad),
        "data: has a feature 'hour' that the model does not have": (price, NumericFeature(name="hour"), ad, topics),
    }
    for message, features in wrong.items():
        with pytest.raises(UserError, match=message):
            require(*features)


def test_embedding_dims() -> None:
    resolved = SCHEMA.with_embedding_dims(16, {"topics": 8})
    assert [f.embedding_dim for f in resolved.categorical] == [16, 8]
    assert [f.embedding_dim for f in SCHEMA.categorical] == [4, None]
    assert isinstance(resolved.categorical[1], MultiHotFeature)
    with pytest.raises(UserError, match="no categorical feature 'price'; the dataset has ad, topics"):
        SCHEMA.with_embedding_dims(16, {"price": 8})


@pytest.mark.parametrize(
    ("transforms", "cardinality", "fits"),
    [
        ((Vocabulary(file="v", size=9),), 10, True),
        ((Vocabulary(file="v", size=9),), 9, False),
        ((Vocabulary(file="v", size=9), HashIds(buckets=4)), 4, True),
        ((Vocabulary(file="v", size=9), HashIds(buckets=4)), 3, False),
        ((Vocabulary(file="v", size=2), HashIds(buckets=40)), 3, True),
        ((), 1, True),
    ],
)
def test_ids_fit_the_table(transforms: tuple, cardinality: int, fits: bool) -> None:
    if fits:
        CategoricalFeature(name="ad", transforms=transforms, cardinality=cardinality)
    else:
        with pytest.raises(ValidationError, match="feature 'ad': transforms give ids up to"):
            CategoricalFeature(name="ad", transforms=transforms, cardinality=cardinality)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "click"), ("a", "query"), ("importance", "b")])
def test_a_name_is_used_once(names: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="names used twice: "):
        Schema(
            label="click",
            group="query",
            weight="importance",
            features=tuple(NumericFeature(name=name) for name in names),
        )


@pytest.mark.parametrize(
    ("user", "item", "message"),
    [
        ("ad", "place", None),
        ("ad", "adverts", "interactions.item: 'adverts' is not a categorical feature"),
        ("price", "ad", "interactions.user: 'price' is not a categorical feature"),
        ("topics", "ad", "interactions.user: 'topics' is not a categorical feature"),
        ("ad", "ad", "user and item are both 'ad'"),
    ],
)
def test_interactions_are_two_categorical_features(user: str, item: str, message: str | None, tmp_path: Path) -> None:
    content = SCHEMA.model_dump()
    content["features"] += ({"kind": "categorical", "name": "place", "cardinality": 3},)
    content["interactions"] = {"user": user, "item": item}
    if message is None:
        schema = Schema.model_validate(content)
        schema.save(tmp_path)
        assert Schema.load(tmp_path) == schema and schema.interactions is not None
    else:
        with pytest.raises(ValidationError, match=message):
            Schema.model_validate(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "missing; give a dataset or model folder"),
        ('{"label": "y", "features": [], "labl": 1}', "unknown key 'labl'; did you mean 'label'?"),
        ('{"label": "y", "features": [], "version": 1}', "written by another version of rayrec"),
        (
            '{"label": "y", "features": [{"kind": "numeric", "nme": "I1"}]}',
            "unknown key 'features.0.nme'; did you mean 'name'? (and 1 more)",
        ),
        (
            '{"label": "y", "features": [{"kind": "numeric", "name": "I", "transforms": [{"op": "log", "offst": 1}]}]}',
            "unknown key 'features.0.transforms.0.offst'; did you mean 'offset'?",
        ),
        (
            '{"label": "y", "features": [{"kind": "categorical", "name": "C1", "cardinality": 0}]}',
            "features.0.cardinality",
        ),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / SCHEMA_FILE
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=re.escape(f"{path}: ") + ".*" + re.escape(message)) as caught:
        Schema.load(tmp_path)
    assert "\n" not in str(caught.value)


WORDS = Vocabulary(file="v", size=9)
TIME, NUMBER, TEXT = (
    RawColumn.model_validate({"name": f"a_{kind}", "type": kind}) for kind in ("time", "number", "text")
)
LIST = RawColumn(name="a_list", type="integers")


def one(**settings: object) -> dict[str, object]:
    return {"kind": "categorical", "name": "c", "cardinality": 40, **settings}


def cross(*inputs: str, **settings: object) -> dict[str, object]:
    return one(name="x", inputs=inputs, transforms=[{"op": "cross", "buckets": 40}], **settings)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            [one(transforms=[WORDS, HashUnlisted(buckets=31)])],
            "'c': transforms give ids up to 40, but cardinality is 40",
        ),
        ([one(transforms=[Buckets(boundaries=tuple(range(39)))])], "transforms give ids up to 40"),
        ([one(transforms=[TimePart(part="month")], cardinality=12)], "transforms give ids up to 12"),
        ([one(transforms=[Hash(buckets=9, of="strings"), WORDS])], "'vocabulary' cannot follow 'hash'"),
        ([one(transforms=[HashUnlisted(buckets=3)])], "'hash_unlisted' must follow 'vocabulary'"),
        ([one(transforms=[WORDS, HashIds(buckets=4), HashUnlisted(buckets=3)])], "cannot follow 'hash_ids'"),
        ([one(kind="multi_hot", transforms=[Buckets(boundaries=(1.0,))])], "'buckets' is for one value a row"),
        ([{"kind": "numeric", "name": "n", "transforms": [Log(), Elapsed()]}], "'elapsed' must be its first"),
        ([one(), cross("c")], "'x': its inputs must be two or more categorical features before it"),
        ([one(), cross("c", "d"), one(name="d")], "'x': its inputs must be two or more categorical features before it"),
        ([one(), one(kind="multi_hot", name="d"), cross("c", "d")], "two or more categorical features before it"),
        ([one(), one(name="d", table="e")], "'d': table 'e' is no categorical feature with a table of its own"),
        ([one(), one(name="d", table="c"), one(name="e", table="d")], "'e': table 'd' is no categorical feature with"),
        ([one(), one(name="d", table="c", cardinality=41)], "'d': its cardinality must be that of 'c'"),
        ([one(), one(name="d", table="c", transforms=[WORDS])], "'d': its transforms must be that of 'c'"),
        ([one(), one(name="d", table="c", embedding_dim=3)], "'d': its embedding_dim must be that of 'c'"),
        ([one(inputs=["b"])], "'c': its inputs need `columns`"),
    ],
)
def test_features_that_do_not_fit(features: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Schema.model_validate({"label": "y", "features": features})


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (one(inputs=["b"]), "feature 'c': no column 'b'"),
        (one(inputs=["a_number"]), "feature 'c': needs integer, column 'a_number' is number"),
        (one(inputs=["a_number"], transforms=[WORDS]), "needs text, column 'a_number' is number"),
        (one(inputs=["a_text"], transforms=[TimePart(part="hour")]), "needs time, column 'a_text' is text"),
        (one(inputs=["a_text", "a_text"], transforms=[WORDS]), "feature 'c': has 2 inputs, needs 1"),
        ({"kind": "numeric", "name": "n", "inputs": ["a_time"], "transforms": [Elapsed()]}, "has 1 inputs, needs 2"),
        (one(kind="multi_hot", inputs=["a_list", "a_text"]), "feature 'c': needs numbers, column 'a_text' is text"),
        (one(kind="multi_hot", inputs=["a_list", "b"]), "feature 'c': no column 'b'"),
        (one(kind="multi_hot", inputs=["a_list"] * 3), "feature 'c': has 3 inputs, needs 1"),
        (one(inputs=["a_text", "a_list"], transforms=[WORDS]), "feature 'c': has 2 inputs, needs 1"),
        (
            {"kind": "vector", "name": "v", "inputs": ["a_number"], "size": 3},
            "needs numbers, column 'a_number' is number",
        ),
    ],
)
def test_columns_that_do_not_fit(feature: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Schema.model_validate({"label": "y", "features": [feature], "columns": [TIME, NUMBER, TEXT, LIST]})


def test_lists_with_weights() -> None:
    weighted = one(kind="multi_hot", inputs=["a_list", "a_list"])
    vector = {"kind": "vector", "name": "v", "inputs": ["a_list"], "size": 3}
    features = [weighted, one(kind="multi_hot", name="d", inputs=["a_list"]), vector]
    schema = Schema.model_validate({"label": "y", "features": features, "columns": [LIST]})
    assert [(feature.name, feature.weights) for feature in schema.weighted] == [("c", "a_list")]
    assert schema.list_lengths == (("a_list", 3), ("a_list", "a_list"))


def test_a_list_without_weights_is_written_as_ever(tmp_path: Path) -> None:
    """Datasets and models of other data sets stay the same to the byte."""
    SCHEMA.save(tmp_path)
    (topics,) = (f for f in json.loads((tmp_path / SCHEMA_FILE).read_text())["features"] if f["name"] == "topics")
    assert list(topics) == [
        *("name", "inputs", "kind", "transforms", "cardinality", "embedding_dim", "table", "pooling", "hotness")
    ]


def test_raw_columns() -> None:
    features = (NumericFeature(name="n", inputs=("a_number",)), VectorFeature(name="v", size=3))
    lacking = {"label": "y", "features": features, "columns": [NUMBER]}
    with pytest.raises(ValidationError, match="feature 'v': no column 'v'"):
        Schema.model_validate(lacking)
    schema = Schema.model_validate({**lacking, "columns": [NUMBER, RawColumn(name="v", type="numbers")]})
    assert ([f.name for f in schema.dense], schema.dense_width) == (["n", "v"], 4)
    by_name = {column.name: column.type for column in SCHEMA.raw_columns}
    assert by_name == {"price": "number", "ad": "text", "topics": "integers"}


def test_the_width_of_a_shared_table_is_its_owners() -> None:
    schema = Schema.model_validate({"label": "y", "features": [one(), one(name="d", table="c")]})
    assert [f.embedding_dim for f in schema.with_embedding_dims(8, {"c": 3}).categorical] == [3, 3]
    with pytest.raises(UserError, match=r"model\.embedding_dims: 'd' shares the table of 'c'; set that one"):
        schema.with_embedding_dims(8, {"d": 3})

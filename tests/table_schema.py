"""A schema with every kind of feature, every transform and every type of raw column, and what it looks up."""

from pathlib import Path

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
from rayrec.features.raw_columns import Rate, RawColumn, SideTable
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature, Schema, VectorFeature
from tests.lookup_tables import write_rate, write_side_table
from tests.vocabularies import write_vocabulary

WORDS = ["red", "7", "é", "\U0001f9a5", "x" * 500, "-3"]
LISTED = Vocabulary(file="vocabulary/text.parquet", size=len(WORDS))
UNLISTED = (LISTED, HashUnlisted(buckets=5))
OF_TEXT, OF_INTEGERS = Hash(buckets=100, of="strings"), Hash(buckets=100, of="integers")
CHAINS: list[tuple[NumericTransform, ...]] = [
    (),
    (Fill(value=3.5),),
    (Log(), Fill()),
    (Log2(scale=100.0), MinMax(min=-1.0, max=7.0)),
    (Log2(), MinMax(min=1.0, max=3.0, clip=False)),
    (Standardize(mean=0.3, deviation=1.7),),
    (Clip(min=-2.0, max=1e6), Log(offset=3.0)),
    (Clip(max=0.0),),
    (Quantile(boundaries=(-1.5, 0.0, 0.0, 0.1, 7.0, 1e12)),),
]
SCHEMA = Schema(
    label="label",
    columns=(
        RawColumn(name="number", type="number"),
        RawColumn(name="integer", type="integer"),
        RawColumn(name="text", type="text"),
        RawColumn(name="time", type="time", zone="Europe/Vienna"),
        RawColumn(name="seconds", type="time", time_format="s"),
        RawColumn(name="texts", type="texts", separator="|"),
        RawColumn(name="integers", type="integers"),
        RawColumn(name="numbers", type="numbers", separator=" "),
        RawColumn(name="weights", type="numbers", separator="|"),
        RawColumn(name="users_age", type="number"),
        RawColumn(name="users_city", type="text"),
        RawColumn(name="rate_text", type="number"),
    ),
    lookups=(
        SideTable(name="users", key="text", columns=("users_age", "users_city")),
        Rate(name="rate_text", keys=("text",), smoothing=20.0, mean=0.3),
    ),
    features=(
        *(NumericFeature(name=f"n{i}", inputs=("number",), transforms=chain) for i, chain in enumerate(CHAINS)),
        NumericFeature(name="whole", inputs=("integer",), transforms=(Log(offset=1.0),)),
        NumericFeature(name="age", inputs=("time", "seconds"), transforms=(Elapsed(per="day"), Clip(min=0.0), Log())),
        NumericFeature(name="users_age", transforms=(Standardize(mean=30.0, deviation=9.0),)),
        NumericFeature(name="rate_text", transforms=(Standardize(mean=0.3, deviation=0.1),)),
        VectorFeature(name="vector", inputs=("numbers",), size=3),
        VectorFeature(name="direction", inputs=("numbers",), size=3, normalize=True),
        CategoricalFeature(name="listed", inputs=("text",), transforms=(LISTED,), cardinality=7),
        CategoricalFeature(name="city", inputs=("users_city",), transforms=(LISTED,), cardinality=7, table="listed"),
        CategoricalFeature(name="unlisted", inputs=("text",), transforms=UNLISTED, cardinality=12),
        CategoricalFeature(name="folded", inputs=("text",), transforms=(*UNLISTED, HashIds(buckets=4)), cardinality=4),
        CategoricalFeature(name="hashed", inputs=("text",), transforms=(OF_TEXT,), cardinality=100),
        CategoricalFeature(name="digits", inputs=("integer",), transforms=UNLISTED, cardinality=12),
        CategoricalFeature(name="ids", inputs=("integer",), cardinality=50),
        CategoricalFeature(name="hashed_ids", inputs=("integer",), transforms=(OF_INTEGERS,), cardinality=100),
        CategoricalFeature(
            name="range", inputs=("number",), transforms=(Buckets(boundaries=(-1.0, 0.0, 2.5)),), cardinality=5
        ),
        *(
            CategoricalFeature(name=part, inputs=("time",), transforms=(transform,), cardinality=transform.cardinality)
            for part in ("hour", "weekday", "day", "month")
            for transform in (TimePart.model_validate({"part": part, "zone": "Australia/Lord_Howe"}),)
        ),
        CategoricalFeature(
            name="cross", inputs=("unlisted", "hour", "range"), transforms=(Cross(buckets=1000),), cardinality=1000
        ),
        MultiHotFeature(name="tags", inputs=("texts",), transforms=UNLISTED, cardinality=12, hotness=3),
        MultiHotFeature(name="codes", inputs=("integers",), cardinality=50, hotness=3),
        MultiHotFeature(name="digit_list", inputs=("integers",), transforms=(OF_TEXT,), cardinality=100, hotness=3),
        MultiHotFeature(name="weighed", inputs=("texts", "weights"), transforms=UNLISTED, cardinality=12, hotness=3),
        MultiHotFeature(
            name="weighed_mean",
            inputs=("texts", "weights"),
            transforms=(OF_TEXT,),
            cardinality=100,
            hotness=4,
            pooling="mean",
        ),
    ),
)


def write_statistics(folder: Path) -> None:
    """Write the vocabulary, the side table and the rates of `SCHEMA` into `folder`."""
    write_vocabulary(folder / LISTED.file, WORDS, range(len(WORDS), 0, -1))
    users = {word: {"users_age": 7.5 * place, "users_city": WORDS[-place]} for place, word in enumerate(WORDS)}
    users["unseen"] = {"users_age": None, "users_city": "nowhere"}
    write_side_table(folder, SCHEMA, "users", users)
    write_rate(folder, SCHEMA, "rate_text", {(word,): (40 + place, 9) for place, word in enumerate(WORDS)})

"""Datasets of days that tests share: raw values that are encoded by vocabularies, which change from day to day."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.config.transforms import Buckets, Cross, HashIds, HashUnlisted, Vocabulary
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature, Schema
from rayrec.features.vocabulary import content_hash
from rayrec.ingest.dataset import Dataset
from tests.builders import write_dataset
from tests.vocabularies import write_vocabulary

NAMES = ("shop", "item", "word", "tags")
"""The features that have vocabularies: plain, with buckets of unlisted values, capped, and of lists."""
BUCKETS, CAP = 3, 12


def values_of(name: str, count: int) -> list[str]:
    """Return the first `count` values that ever are of a feature."""
    return [f"{name}-{number}" for number in range(count)]


def vocabulary_of(folder: Path, name: str, values: Sequence[str]) -> Vocabulary:
    """Write a vocabulary into a dataset folder, as preprocessing does."""
    file = f"vocabulary/{name}.parquet"
    write_vocabulary(folder / file, values, [1] * len(values))
    word = content_hash(pa.array(values, pa.string()), 1)
    return Vocabulary(file=file, size=len(values), content_hash=f"{word:016x}")


def daily_schema(folder: Path, listed: Mapping[str, Sequence[str]], *, ids: int = 20) -> Schema:
    """Features of every kind; `listed`: the values of the vocabularies, which are written to `folder`.

    `ids`: the cardinality of a feature of integer ids.
    """
    vocabularies = {name: vocabulary_of(folder, name, listed[name]) for name in NAMES}
    shop = {"transforms": (vocabularies["shop"],), "cardinality": 1 + vocabularies["shop"].size}
    hashed = (vocabularies["item"], HashUnlisted(buckets=BUCKETS))
    capped = (vocabularies["word"], HashIds(buckets=CAP))
    sizes = {name: vocabulary.size for name, vocabulary in vocabularies.items()}
    return Schema(
        label="label",
        columns=(
            RawColumn(name="age", type="number"),
            *(RawColumn(name=name, type="text") for name in ("shop", "other_shop", "item", "word")),
            RawColumn(name="tags", type="texts"),
            RawColumn(name="number", type="integer"),
        ),
        features=(
            NumericFeature(name="age"),
            CategoricalFeature(name="shop", **shop),
            CategoricalFeature(name="other_shop", table="shop", **shop),
            CategoricalFeature(name="item", transforms=hashed, cardinality=1 + BUCKETS + sizes["item"]),
            CategoricalFeature(name="word", transforms=capped, cardinality=min(CAP, 1 + sizes["word"])),
            MultiHotFeature(name="tags", transforms=(vocabularies["tags"],), cardinality=1 + sizes["tags"], hotness=3),
            CategoricalFeature(name="number", cardinality=ids),
            CategoricalFeature(
                name="years", inputs=("age",), transforms=(Buckets(boundaries=(-1.0, 0.0, 1.0)),), cardinality=5
            ),
            CategoricalFeature(name="pair", inputs=("shop", "years"), transforms=(Cross(buckets=9),), cardinality=9),
        ),
    )


def raw_rows(schema: Schema, rows: int, seed: int, *, values: int) -> pa.RecordBatch:
    """Raw rows with the first `values` values of each feature, and missing ones."""
    rng = np.random.default_rng([seed, rows])

    def texts(name: str, count: int) -> pa.Array:
        drawn = [f"{name}-{number}" for number in (values * rng.random(count) ** 2).astype(int)]
        return pa.array(drawn, mask=rng.random(count) < 0.1)

    lists = texts("tags", 3 * rows).to_pylist()
    columns = {
        "age": pa.array(rng.standard_normal(rows)),
        "shop": texts("shop", rows),
        "other_shop": texts("shop", rows),
        "item": texts("item", rows),
        "word": texts("word", rows),
        "tags": pa.array([lists[3 * i : 3 * i + n] for i, n in enumerate(rng.integers(0, 4, rows))]),
        "number": pa.array(rng.integers(0, values, rows)),
    }
    return pa.RecordBatch.from_pydict(columns).select([column.name for column in schema.columns])


def write_day(
    folder: Path,
    listed: Mapping[str, Sequence[str]],
    rows: int,
    seed: int,
    *,
    values: int,
    ids: int = 20,
    same_test: bool = False,
) -> Dataset:
    """Return a dataset of `raw_rows`, half as many of them held out, or all again with `same_test`."""
    schema = daily_schema(folder, listed, ids=ids)
    encoder = FeatureEncoder(schema, folder)
    tables = {}
    for split, count, own_seed in (("train", rows, seed), ("test", rows // 2, seed + 1)):
        if split == "test" and same_test:
            tables[split] = tables["train"]
            continue
        raw = raw_rows(schema, count, own_seed, values=values)
        encoded = pa.Table.from_batches([encoder.encode(raw)])
        signs = [1.0 if (text or "-0")[-1] in "02468" else -1.0 for text in raw.column("item").to_pylist()]
        score = np.array(signs) + raw.column("age").to_numpy()
        label = np.random.default_rng([own_seed, 1]).random(count) < 1 / (1 + np.exp(-score))
        tables[split] = encoded.append_column("label", pa.array(label.astype(np.float32)))
    return write_dataset(folder, schema, tables, rows_per_row_group=100)

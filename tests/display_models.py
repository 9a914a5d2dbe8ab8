"""Model folders that rank ads, with statistics of a few documents, ads and users."""

from itertools import takewhile
from pathlib import Path
from typing import Any

from rayrec.config.transforms import Hash
from rayrec.features.schema import CategoricalFeature, Feature, NumericFeature, Schema
from rayrec.inference.rank import Ranker
from rayrec.preprocessing.numbers import Fit
from rayrec.sources.outbrain.feature_sets import features_of
from rayrec.sources.outbrain.statistics import Constants
from rayrec.sources.registry import load_ranker
from tests.model_folders import write_display_model
from tests.outbrain_statistics import Ad, Count, Document, Profile, make_constants, make_statistics

CONTEXT = {
    "uuid": "ann", "document_id": 3, "timestamp": 10**9, "platform": 2, "geo_location": "US>CA>807", "traffic_source": 1
}  # fmt: skip
ADS = [1, 2, 3, 999]


def make_ranker(folder: Path, **constants: Any) -> Ranker:
    settings = make_constants(**constants)
    make_statistics(
        folder / "statistics",
        settings,
        documents={n: Document(source=n % 3, topic={n % 4: 0.5, 9: 0.2}) for n in range(9)},
        ads={n: Ad(n, n % 2, n % 3) for n in range(5)},
        rates={"ad": {n: Count(20 + n, n) for n in range(5)}, "campaign": {1: Count(30, 9)}},
        profiles={"ann": Profile(4, (2, 5), topic={1: 0.5, 2: 2.0})},
    )
    write_display_model(folder / "model", display_schema(settings), folder / "statistics")
    return load_ranker(folder / "model")


def display_schema(constants: Constants, largest: int = 500) -> Schema:
    """Return the schema of all features of a set, with tables of at most `largest` rows."""
    features: tuple[Feature, ...] = tuple(
        NumericFeature(name=d.name, transforms=tuple(takewhile(lambda step: not isinstance(step, Fit), d.steps)))
        if d.feature is None
        else _with_rows(d.feature, min(d.feature.cardinality, largest))
        for d in features_of(constants.feature_set)
    )
    return Schema(label="clicked", group="display_id", candidate="candidate", features=features)


def _with_rows(feature: CategoricalFeature, rows: int) -> CategoricalFeature:
    hashed = tuple(
        Hash(buckets=rows, of=transform.of) for transform in feature.transforms if isinstance(transform, Hash)
    )
    return feature.model_copy(update={"cardinality": rows, "transforms": hashed})

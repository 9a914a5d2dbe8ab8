"""Small statistics folders, written from Python values.

statistics = make_statistics(folder, make_constants(), documents={7: Document(source=1)}, ads={1: Ad(7)})
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.lookup_table import HASH, write_file
from rayrec.features.lookups import RATES_FOLDER
from rayrec.sources.outbrain.statistics import (
    AD_SCHEMA,
    ASPECTS,
    DOCUMENT_SCHEMA,
    KEY,
    PROFILE_SCHEMA,
    RATE_KEYS,
    Constants,
    Statistics,
)

Values = Mapping[int, float]
"""Confidence (of a document) or weight (of a profile) by value."""


@dataclass(frozen=True)
class Document:
    source: int | None = None
    publisher: int | None = None
    published: int | None = None
    """Milliseconds since the Unix epoch."""
    category: Values = field(default_factory=dict)
    topic: Values = field(default_factory=dict)
    entity: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Ad:
    document: int | None = None
    campaign: int | None = None
    advertiser: int | None = None


@dataclass(frozen=True)
class Profile:
    views: int
    viewed: tuple[int, ...] = ()
    category: Values = field(default_factory=dict)
    topic: Values = field(default_factory=dict)
    entity: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Count:
    views: int
    clicks: int


def make_constants(**changed: Any) -> Constants:
    values = {
        "feature_set": "full", "documents": 100, "values": dict.fromkeys(ASPECTS, 10),
        "mean_rate": 0.2, "smoothing": 20.0, **changed,
    }  # fmt: skip
    return Constants.model_validate(values)


def make_statistics(
    folder: Path,
    constants: Constants,
    *,
    documents: Mapping[int, Document] | None = None,
    ads: Mapping[int, Ad] | None = None,
    rates: Mapping[str, Mapping[int, Count]] | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> Statistics:
    """Write and open them; values have the weights that follow from `documents`."""
    folder.mkdir(parents=True, exist_ok=True)
    constants.save(folder)
    documents = documents or {}
    frequency = {a: [v for d in documents.values() for v in getattr(d, a)] for a in ASPECTS}
    rows: list[dict[str, Any]] = []
    for number, document in documents.items():
        row: dict[str, Any] = {
            HASH: _hash(number), "document_id": number, "source_id": document.source,
            "publisher_id": document.publisher, "publish_time": document.published,
        }  # fmt: skip
        for aspect in ASPECTS:
            confidences: Values = getattr(document, aspect)
            row[aspect] = [
                {"value": v, "confidence": c, "weight": _weight(c, frequency[aspect].count(v), constants)}
                for v, c in sorted(confidences.items())
            ]
            row[f"{aspect}_list"] = sorted(confidences, key=lambda v, c=confidences: (-c[v], v))
        rows.append(row)
    _write(folder / "documents", DOCUMENT_SCHEMA, rows)
    _write(
        folder / "ads",
        AD_SCHEMA,
        [
            {HASH: _hash(n), "ad_id": n, "document_id": a.document, "campaign_id": a.campaign,
             "advertiser_id": a.advertiser}
            for n, a in (ads or {}).items()
        ],
    )  # fmt: skip
    for name, counts in (rates or {}).items():
        rows = [
            {HASH: _hash(of), KEY: of, "views": count.views, "clicks": count.clicks, "ads": 1, "confidence": 1.0}
            for of, count in counts.items()
        ]
        _write(folder / RATES_FOLDER / name, RATE_KEYS[name].schema, rows)
    _write_profiles(folder / "profiles", profiles or {})
    return Statistics.open(folder)


def _write_profiles(folder: Path, profiles: Mapping[str, Profile]) -> None:
    rows = []
    for user, profile in profiles.items():
        row: dict[str, Any] = {
            HASH: int(hash_texts(pa.array([user]))[0]), "uuid": user, "views": profile.views,
            "viewed": sorted(profile.viewed),
        }  # fmt: skip
        for aspect in ASPECTS:
            weights: Values = getattr(profile, aspect)
            row[aspect] = [{"value": v, "weight": w} for v, w in sorted(weights.items())]
            row[f"{aspect}_norm"] = float(np.sqrt(sum(w * w for w in weights.values())))
        rows.append(row)
    _write(folder, PROFILE_SCHEMA, rows)


def _weight(confidence: float, frequency: int, constants: Constants) -> float:
    return max(float(np.log(constants.documents / frequency)), 0.0) * confidence if constants.documents else 0.0


def _hash(key: int) -> int:
    return int(hash_key(np.array([key]))[0])


def _write(folder: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    rows = sorted(rows, key=lambda row: row[HASH])
    write_file(folder, schema, pa.Table.from_pylist(rows, schema=schema).combine_chunks().to_batches())

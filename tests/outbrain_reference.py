"""Outbrain's features a second time: what docs/outbrain.md says, in plain Python and pandas, row by row.

Nothing here is shared with the pipeline but the table of time zones, so that a mistake in one is a difference between
the two. Meant for a few thousand clicks.

    tables = read_tables(folder)
    reference = compute(tables, "full")
    reference.raw["train"], reference.numeric["train"]
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from rayrec.sources.outbrain.places import DEFAULT_OFFSET, OFFSET_BY_COUNTRY, OFFSET_BY_STATE

Value = Any
"""An id (int or str); None is null."""
Row = dict[str, Value]
Tables = dict[str, list[Row]]
Key = tuple[Value, ...]

DAY = 86_400_000
EPOCH = 1_465_876_799_998
COLUMNS = {
    "page_views": ("uuid", "document_id", "timestamp", "platform", "geo_location", "traffic_source"),
    "clicks_train": ("display_id", "ad_id", "clicked"),
    "clicks_test": ("display_id", "ad_id"),
    "events": ("display_id", "uuid", "document_id", "timestamp", "platform", "geo_location"),
    "promoted_content": ("ad_id", "document_id", "campaign_id", "advertiser_id"),
    "documents_meta": ("document_id", "source_id", "publisher_id", "publish_time"),
    "documents_topics": ("document_id", "topic_id", "confidence_level"),
    "documents_entities": ("document_id", "entity_id", "confidence_level"),
    "documents_categories": ("document_id", "category_id", "confidence_level"),
}
ASPECTS = ("categories", "topics", "entities")
TOP = {"full": {"categories": 3, "topics": 3, "entities": 6}, "lean": dict.fromkeys(ASPECTS, 3)}
TEXTS = {"uuid", "geo_location", "entity_id"}
CODES = {"platform", "traffic_source"}


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    held_out_share: float = 0.2
    held_out_from_day: int = 11
    folds: int = 5
    smoothing: float = 20.0


@dataclass
class Reference:
    """Frames by split (`train`, `validation`, `test`), rows in the order of the clicks, a column a feature.

    The index is (display_id, ad_id, copy): copy counts rows of the same display and ad from 0.
    """

    raw: dict[str, pd.DataFrame]
    """Features before hashing and transforms: ids and texts (None where missing), lists of these, codes as they are
    encoded, numbers (NaN where missing); `clicked` beside them, but in `test`."""
    numeric: dict[str, pd.DataFrame]
    """The numeric features after their transforms."""


# Reading.


def read_tables(folder: Path) -> Tables:
    """Return the tables of a folder, plain or packed; those that are absent are empty."""
    tables: Tables = {}
    for name, columns in COLUMNS.items():
        paths = sorted(folder.glob(f"{name}.csv*")) + sorted(folder.glob(f"{name}_sample.csv*"))
        if not paths:
            tables[name] = []
            continue
        text = pd.read_csv(paths[0], dtype=str, keep_default_na=False)
        values = [[_read(column, value) for value in text[column].tolist()] for column in columns]
        tables[name] = [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    return tables


def _read(column: str, text: str) -> Value:
    if text in ("", "\\N"):
        return None
    if column in TEXTS:
        return text
    if column == "confidence_level":
        return float(text)
    if column == "publish_time":
        passed = datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return passed // timedelta(milliseconds=1)
    number = int(text)
    return number if column not in CODES or number in (1, 2, 3) else None


# The tables without repeated keys.


def _smallest_by(rows: Iterable[Row], key: str) -> dict[Value, Row]:
    """By key the smallest line, null before any value."""

    def order(row: Row) -> list[tuple[bool, Value]]:
        return [(value is not None, 0 if value is None else value) for value in row.values()]

    best: dict[Value, Row] = {}
    for row in rows:
        if row[key] not in best or order(row) < order(best[row[key]]):
            best[row[key]] = row
    return best


def _with_publishers(meta: dict[Value, Row]) -> dict[Value, Row]:
    """Documents with a source; sources of which no document has a publisher get one."""
    kept = {d: row for d, row in meta.items() if row["source_id"] is not None}
    known = {row["source_id"] for row in kept.values() if row["publisher_id"] is not None}
    last = max((row["publisher_id"] for row in kept.values() if row["publisher_id"] is not None), default=0)
    new = {s: last + 1 + i for i, s in enumerate(sorted({row["source_id"] for row in kept.values()} - known))}
    return {d: {**row, "publisher_id": new.get(row["source_id"], row["publisher_id"])} for d, row in kept.items()}


Values = dict[Value, float]
"""Of one document: confidence by value of an aspect."""


def _aspect(rows: Iterable[Row]) -> dict[Value, Values]:
    """By document; a repeated value keeps its highest confidence."""
    documents: dict[Value, Values] = defaultdict(dict)
    for row in rows:
        document, value, confidence = row.values()
        documents[document][value] = max(confidence, documents[document].get(value, -math.inf))
    return dict(documents)


# A click with all that other tables say of it.


@dataclass
class Click:
    display: int
    ad: int
    clicked: int | None
    split: str
    fold: int
    event: Row
    promoted: Row
    landing_meta: Row
    ad_meta: Row
    copy: int = 0
    traffic: int | None = None

    @property
    def landing(self) -> Value:
        return self.event["document_id"]

    @property
    def ad_document(self) -> Value:
        return self.promoted["document_id"]


def uniform(x: int, seed: int) -> float:
    word = 2**64
    z = (x + (seed + 1) * 0x9E3779B97F4A7C15) % word
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % word
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % word
    return (z ^ (z >> 31)) / word


def _split(display: int, event: Row, settings: Settings) -> str:
    if event["timestamp"] is None:
        return "train"
    if event["timestamp"] // DAY >= settings.held_out_from_day:
        return "validation"
    return "validation" if uniform(display, settings.seed) < settings.held_out_share else "train"


class Data:
    """The tables, cleaned and joined."""

    def __init__(self, tables: Tables, settings: Settings) -> None:
        self.settings = settings
        self.events = _smallest_by(tables["events"], "display_id")
        self.meta = _with_publishers(_smallest_by(tables["documents_meta"], "document_id"))
        self.aspects = {aspect: _aspect(tables[f"documents_{aspect}"]) for aspect in ASPECTS}
        self.page_views = tables["page_views"]
        promoted = _smallest_by(tables["promoted_content"], "ad_id")
        nothing = {name: dict.fromkeys(columns) for name, columns in COLUMNS.items()}
        self.clicks: list[Click] = []
        for name in ("clicks_train", "clicks_test"):
            for row in tables[name]:
                display, ad = row["display_id"], row["ad_id"]
                event = self.events.get(display, nothing["events"])
                ad_row = promoted.get(ad, nothing["promoted_content"])
                self.clicks.append(
                    Click(
                        display=display,
                        ad=ad,
                        clicked=row.get("clicked"),
                        split="test" if name == "clicks_test" else _split(display, event, settings),
                        fold=int(uniform(display, settings.seed + 1) * settings.folds),
                        event=event,
                        promoted=ad_row,
                        landing_meta=self.meta.get(event["document_id"], nothing["documents_meta"]),
                        ad_meta=self.meta.get(ad_row["document_id"], nothing["documents_meta"]),
                    )
                )
        self.train = [click for click in self.clicks if click.split == "train"]

    def frequency(self, aspect: str) -> Counter[Value]:
        """df: documents that have a value."""
        return Counter(value for values in self.aspects[aspect].values() for value in values)

    def inverse_frequency(self, aspect: str) -> dict[Value, float]:
        """N / df."""
        return {value: len(self.meta) / df for value, df in self.frequency(aspect).items()}


# Rates of clicks.


@dataclass
class Counts:
    views: int = 0
    clicks: int = 0
    ads: set[int] = field(default_factory=set)
    views_of_fold: Counter[int] = field(default_factory=Counter)
    clicks_of_fold: Counter[int] = field(default_factory=Counter)
    confidence: float = 0.0
    """Sum of the confidences of a value of an aspect."""


class Rates:
    """Of one kind of key: `keys` gives those of a row, each with its confidence."""

    def __init__(
        self, data: Data, keys: Callable[[Click], Mapping[Key, float]], least: int, *, is_aspect: bool = False
    ) -> None:
        self._settings, self._keys, self._is_aspect = data.settings, keys, is_aspect
        self._least = least
        self._prior = float(np.mean([click.clicked for click in data.train])) if data.train else math.nan
        self.counts: dict[Key, Counts] = defaultdict(Counts)
        for click in data.train:
            for key, confidence in keys(click).items():
                if None in key:
                    continue
                counts = self.counts[key]
                counts.views += 1
                counts.clicks += click.clicked or 0
                counts.ads.add(click.ad)
                counts.views_of_fold[click.fold] += 1
                counts.clicks_of_fold[click.fold] += click.clicked or 0
                counts.confidence += confidence

    def of(self, click: Click) -> tuple[float, float]:
        """Rate and confidence of a row."""
        unknown = (self._prior, 0.0)
        found = []
        for key, confidence in self._keys(click).items():
            one = self._of_key(key, click)
            if one is not None:
                found.append((one[0], one[1], confidence))
        if not self._is_aspect:
            return (found[0][0], found[0][1]) if found else unknown
        total = sum(conf * c for _, conf, c in found)
        if total == 0.0:
            return unknown
        return sum(rate * conf * c for rate, conf, c in found) / total, max(conf * c for _, conf, c in found)

    def _of_key(self, key: Key, click: Click) -> tuple[float, float] | None:
        counts = self.counts.get(key)
        if counts is None:
            return None
        views, clicks = counts.views, counts.clicks
        if click.split == "train":
            views -= counts.views_of_fold[click.fold]
            clicks -= counts.clicks_of_fold[click.fold]
        if views <= self._least:
            return None
        scale = views / len(counts.ads)
        m = self._settings.smoothing
        rate = (clicks + m * self._prior) / (views + m)
        confidence = min(1.0, math.log(1 + scale) / math.log(100_001))
        if self._is_aspect:
            confidence *= counts.confidence / counts.views
        return rate, confidence

    def views(self, click: Click) -> float:
        """V of the row's key over all folds."""
        (key,) = self._keys(click)
        views = self.counts[key].views if key in self.counts else 0
        return float(views) if views > 0 else math.nan


def _plain(of: Callable[[Click], Value]) -> Callable[[Click], Mapping[Key, float]]:
    return lambda click: {(of(click),): 1.0}


# Similarities.


def _log_weights(data: Data, aspect: str) -> dict[Value, float]:
    """Return the weights of values in a document, to be multiplied by their confidences."""
    ratios = data.inverse_frequency(aspect)
    return {value: max(0.0, math.log(ratio)) if ratio > 0 else 0.0 for value, ratio in ratios.items()}


def _vector(values: Values, weights: Mapping[Value, float]) -> Values:
    return {value: weights[value] * confidence for value, confidence in values.items()}


def _cosine(a: Values, b: Values) -> float:
    if not a or not b:
        return math.nan
    norm = math.sqrt(sum(x * x for x in a.values())) * math.sqrt(sum(x * x for x in b.values()))
    if norm == 0.0:
        return 0.0
    return sum(a[value] * b[value] for value in a.keys() & b.keys()) / norm


def _cosine_confidence(a: Values, b: Values, distinct: int) -> float:
    if not a or not b:
        return math.nan
    p, q, common = len(a) / distinct, len(b) / distinct, len(a.keys() & b.keys())
    return 1 - p**common * q**common if common else p * q


# Profiles.


@dataclass
class Profile:
    views: int
    viewed: set[int]
    vectors: dict[str, Values]


def _profiles(data: Data) -> dict[str, Profile]:
    users = {click.event["uuid"] for click in data.clicks} - {None}
    first: dict[str, int] = {}
    for event in data.events.values():
        if event["uuid"] is not None and event["timestamp"] is not None:
            first[event["uuid"]] = min(event["timestamp"], first.get(event["uuid"], event["timestamp"]))
    views: dict[str, list[int]] = defaultdict(list)
    for view in data.page_views:
        user, document = view["uuid"], view["document_id"]
        if user not in users or not any(document in data.aspects[aspect] for aspect in ASPECTS):
            continue
        if user in first and view["timestamp"] < first[user]:
            views[user].append(document)
    ratios = {aspect: data.inverse_frequency(aspect) for aspect in ASPECTS}
    return {user: _profile(data, documents, ratios) for user, documents in views.items()}


def _profile(data: Data, documents: list[int], ratios: Mapping[str, Mapping[Value, float]]) -> Profile:
    viewed = set(documents)
    vectors: dict[str, Values] = {}
    for aspect in ASPECTS:
        confidences: dict[Value, list[float]] = defaultdict(list)
        for document in viewed:
            for value, confidence in data.aspects[aspect].get(document, {}).items():
                confidences[value].append(confidence)
        vectors[aspect] = {}
        for value, found in confidences.items():
            ratio = ratios[aspect][value]
            weight = max(0.0, math.log(ratio)) if ratio > 0 else 0.0
            vectors[aspect][value] = len(found) * weight * float(np.mean(found))
    return Profile(len(documents), viewed, vectors)


# Time and traffic.


def local_time(event: Row) -> datetime | None:
    if event["timestamp"] is None:
        return None
    place = event["geo_location"] or ""
    country = OFFSET_BY_COUNTRY.get(place[:2], DEFAULT_OFFSET)
    minutes = OFFSET_BY_STATE.get(place[:5], country)
    return datetime(1970, 1, 1) + timedelta(milliseconds=event["timestamp"] + EPOCH, minutes=minutes)


def hour_bin(event: Row) -> int | None:
    time = local_time(event)
    if time is None:
        return None
    starts = (5, 8, 11, 14, 19, 22)
    return next((i for i in range(5) if starts[i] <= time.hour < starts[i + 1]), 5)


def is_weekend(event: Row) -> int | None:
    time = local_time(event)
    return None if time is None else int(time.weekday() >= 5)


def days_since(event: Row, meta: Row) -> float:
    """Days from the publication of a document to the event; NaN beyond 0 ... 3650."""
    if event["timestamp"] is None or meta["publish_time"] is None:
        return math.nan
    days = (event["timestamp"] + EPOCH - meta["publish_time"]) // DAY
    return float(days) if 0 <= days <= 3650 else math.nan


def _add_traffic(data: Data) -> list[Click]:
    """Return the rows with the traffic source of their events."""
    views: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for view in data.page_views:
        key = (view["uuid"], view["document_id"], view["platform"], view["geo_location"], view["timestamp"] // DAY)
        if None not in key and view["traffic_source"] is not None:
            views[key].append((view["timestamp"], view["traffic_source"]))
    rows: list[Click] = []
    for click in data.clicks:
        event = click.event
        time = event["timestamp"]
        place = (event["uuid"], event["document_id"], event["platform"], event["geo_location"])
        found = sorted(views[(*place, time // DAY)]) if time is not None and None not in place else []
        source = min(found, key=lambda view: (abs(view[0] - time), view))[1] if found else None
        rows.append(Click(**{**vars(click), "traffic": source}))
    return rows


# Rows of features.


def code(value: int | None, first: int) -> int:
    """Return the code of a value that counts from `first`: codes count from 1, and missing is 0."""
    return 0 if value is None else value - first + 1


def _top(data: Data, aspect: str, document: Value, most: int) -> list[Value]:
    values = data.aspects[aspect].get(document, {})
    return sorted(values, key=lambda value: (-values[value], value))[:most]


def _number_copies(rows: list[Click]) -> None:
    seen: Counter[tuple[str, int, int]] = Counter()
    for row in rows:
        row.copy = seen[(row.split, row.display, row.ad)]
        seen[(row.split, row.display, row.ad)] += 1


def compute(tables: Tables, features: Literal["full", "lean"], **settings: Any) -> Reference:
    """Return all features of all rows; `settings` as the fields of `Settings`."""
    data = Data(tables, Settings(**settings))
    rows = _add_traffic(data) if features == "full" else data.clicks
    _number_copies(rows)
    make = _full(data) if features == "full" else _lean(data)
    transform = _full_transform if features == "full" else _lean_transform
    frames = {}
    for split in ("train", "validation", "test"):
        chosen = [row for row in rows if row.split == split]
        if not chosen:
            continue
        index = pd.MultiIndex.from_tuples(
            [(row.display, row.ad, row.copy) for row in chosen], names=["display_id", "ad_id", "copy"]
        )
        columns: dict[str, list[Any]] = defaultdict(list)
        for row in chosen:
            for name, value in make(row).items():
                columns[name].append(value)
            if split != "test":
                columns["clicked"].append(row.clicked)
        frames[split] = pd.DataFrame({name: pd.Series(v, index, dtype=_dtype(v)) for name, v in columns.items()})
    return Reference(frames, transform(frames))


def _dtype(values: list[Any]) -> type | None:
    """Ids with missing ones, texts and lists stay Python's."""
    return object if any(value is None or isinstance(value, (str, list)) for value in values) else None


FULL_NUMERIC = (
    *(f"pop_{of}_id" for of in ("document", "publisher", "source", "entity", "topic", "category")),
    *(f"pop_{of}_id_conf" for of in ("document", "publisher", "source", "entity", "topic", "category")),
    "user_views",
    "doc_views",
    "doc_event_days_since_published",
    "doc_event_hour",
    "pop_ad_id",
    "pop_ad_id_conf",
    "pop_advertiser_id",
    "pop_advertiser_id_conf",
    "pop_campain_id_conf_multipl",
    "pop_campain_id",
    *(f"user_doc_ad_sim_{aspect}" for aspect in ASPECTS),
    "user_doc_ad_sim_categories_conf",
    "user_doc_ad_sim_topics_conf",
    *(f"doc_event_doc_ad_sim_{aspect}" for aspect in ASPECTS),
    "ad_views",
    "doc_ad_days_since_published",
)
_COUNTS = {"user_views", "doc_views", "ad_views", "doc_event_days_since_published", "doc_ad_days_since_published"} | {
    "doc_event_hour"
}


def _full(data: Data) -> Callable[[Click], dict[str, Any]]:
    def rates(of: Callable[[Click], Value], least: int) -> Rates:
        return Rates(data, _plain(of), least)

    def aspect_rates(aspect: str, least: int) -> Rates:
        def keys(click: Click) -> Mapping[Key, float]:
            return {(v,): c for v, c in data.aspects[aspect].get(click.ad_document, {}).items()}

        return Rates(data, keys, least, is_aspect=True)

    by = {
        "document": rates(lambda c: c.ad_document, 5),
        "publisher": rates(lambda c: c.ad_meta["publisher_id"], 10),
        "source": rates(lambda c: c.ad_meta["source_id"], 10),
        "entity": aspect_rates("entities", 5),
        "topic": aspect_rates("topics", 10),
        "category": aspect_rates("categories", 10),
        "ad": rates(lambda c: c.ad, 5),
        "advertiser": rates(lambda c: c.promoted["advertiser_id"], 10),
        "campain": rates(lambda c: c.promoted["campaign_id"], 10),
    }
    weights = {aspect: _log_weights(data, aspect) for aspect in ASPECTS}
    distinct = {aspect: len(data.frequency(aspect)) for aspect in ASPECTS}
    profiles = _profiles(data)

    def listed(aspect: str, document: Value) -> list[Value]:
        return _top(data, aspect, document, TOP["full"][aspect])

    def row(click: Click) -> dict[str, Any]:
        event, place = click.event, click.event["geo_location"]
        profile = profiles.get(event["uuid"]) if event["uuid"] is not None else None
        hour = hour_bin(event)
        is_viewed = None if profile is None or click.ad_document is None else int(click.ad_document in profile.viewed)
        rate = {name: found.of(click) for name, found in by.items()}
        landing, ad = (
            {a: _vector(data.aspects[a].get(document, {}), weights[a]) for a in ASPECTS}
            for document in (click.landing, click.ad_document)
        )
        user = profile.vectors if profile is not None else {aspect: {} for aspect in ASPECTS}
        values: dict[str, Any] = {
            "doc_event_id": click.landing,
            "doc_id": click.ad_document,
            "doc_event_source_id": click.landing_meta["source_id"],
            "event_geo_location": place,
            "event_country_state": place and place[:5],
            "doc_event_publisher_id": click.landing_meta["publisher_id"],
            "event_country": place and place[:2],
            "event_hour": code(hour, 0),
            "event_platform": code(event["platform"], 1),
            "traffic_source": code(click.traffic, 1),
            "event_weekend": code(is_weekend(event), 0),
            "user_has_already_viewed_doc": code(is_viewed, 0),
            "doc_event_entity_id": listed("entities", click.landing),
            "doc_event_topic_id": listed("topics", click.landing),
            "doc_event_category_id": listed("categories", click.landing),
            "ad_id": click.ad,
            "doc_ad_source_id": click.ad_meta["source_id"],
            "ad_advertiser": click.promoted["advertiser_id"],
            "doc_ad_publisher_id": click.ad_meta["publisher_id"],
            "doc_ad_topic_id": listed("topics", click.ad_document),
            "doc_ad_entity_id": listed("entities", click.ad_document),
            "doc_ad_category_id": listed("categories", click.ad_document),
        }
        numbers = {
            "user_views": math.nan if profile is None else float(profile.views),
            "doc_views": by["document"].views(click),
            "ad_views": by["ad"].views(click),
            "doc_event_days_since_published": days_since(event, click.landing_meta),
            "doc_ad_days_since_published": days_since(event, click.ad_meta),
            "doc_event_hour": math.nan if hour is None else float(hour),
            "pop_campain_id_conf_multipl": rate["campain"][0] * rate["campain"][1],
        }
        for name, (value, confidence) in rate.items():
            numbers[f"pop_{name}_id"], numbers[f"pop_{name}_id_conf"] = value, confidence
        for a in ASPECTS:
            numbers[f"user_doc_ad_sim_{a}"] = _cosine(user[a], ad[a])
            numbers[f"user_doc_ad_sim_{a}_conf"] = _cosine_confidence(user[a], ad[a], distinct[a])
            numbers[f"doc_event_doc_ad_sim_{a}"] = _cosine(landing[a], ad[a])
        return values | {name: numbers[name] for name in FULL_NUMERIC}

    return row


def _full_transform(raw: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    fitted_on = [raw["train"]] if "train" in raw else []
    result = {split: pd.DataFrame(index=frame.index) for split, frame in raw.items()}
    for name in FULL_NUMERIC:
        factor = 1.0 if name in _COUNTS else 1000.0
        is_plain = name.endswith("_conf")

        def spread(frame: pd.DataFrame, name: str = name, factor: float = factor) -> np.ndarray:
            inner = 1.0 + factor * frame[name].to_numpy(float)
            return np.log2(np.where(inner > 0.0, inner, np.nan))

        known = np.concatenate([spread(frame) for frame in fitted_on]) if fitted_on else np.empty(0)
        known = known[~np.isnan(known)]
        low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
        for split, frame in raw.items():
            if is_plain:
                values = frame[name].to_numpy(float)
            elif high > low:
                values = np.clip((spread(frame) - low) / (high - low), 0.0, 1.0)
            else:
                values = np.zeros(len(frame))
            result[split][name] = np.where(np.isnan(values), 0.0, values)
    return result


LEAN_RATES = {
    "document_id_promo": (lambda c: c.ad_document, 5),
    "publisher_id_promo": (lambda c: c.ad_meta["publisher_id"], 10),
    "source_id_promo": (lambda c: c.ad_meta["source_id"], 10),
    "ad_id": (lambda c: c.ad, 5),
    "advertiser_id": (lambda c: c.promoted["advertiser_id"], 10),
    "campaign_id": (lambda c: c.promoted["campaign_id"], 10),
}
LEAN_NUMERIC = (
    *(f"document_id_document_id_promo_sim_{aspect}" for aspect in ASPECTS),
    *(f"{name}_ctr" for name in LEAN_RATES),
    "ad_id_count",
    "document_id_promo_count",
    "publish_time_days_since_published",
    "publish_time_promo_days_since_published",
)


def _lean(data: Data) -> Callable[[Click], dict[str, Any]]:
    by = {name: Rates(data, _plain(of), least) for name, (of, least) in LEAN_RATES.items()}
    weights = {aspect: _log_weights(data, aspect) for aspect in ASPECTS}

    def row(click: Click) -> dict[str, Any]:
        event, place = click.event, click.event["geo_location"]
        landing, ad = (
            {a: _vector(data.aspects[a].get(document, {}), weights[a]) for a in ASPECTS}
            for document in (click.landing, click.ad_document)
        )
        numbers = {f"document_id_document_id_promo_sim_{a}": _cosine(landing[a], ad[a]) for a in ASPECTS}
        numbers |= {f"{name}_ctr": rates.of(click)[0] for name, rates in by.items()}
        numbers["ad_id_count"] = by["ad_id"].views(click)
        numbers["document_id_promo_count"] = by["document_id_promo"].views(click)
        numbers["publish_time_days_since_published"] = days_since(event, click.landing_meta)
        numbers["publish_time_promo_days_since_published"] = days_since(event, click.ad_meta)
        return {name: numbers[name] for name in LEAN_NUMERIC} | {
            "document_id": click.landing,
            "ad_id": click.ad,
            "document_id_promo": click.ad_document,
            "campaign_id": click.promoted["campaign_id"],
            "source_id": click.landing_meta["source_id"],
            "source_id_promo": click.ad_meta["source_id"],
            "geo_location": place,
            "advertiser_id": click.promoted["advertiser_id"],
            "geo_location_state": place and place[:5],
            "publisher_id": click.landing_meta["publisher_id"],
            "publisher_id_promo": click.ad_meta["publisher_id"],
            "geo_location_country": place and place[:2],
            "platform": event["platform"] or 0,
            "topic_id_list": _top(data, "topics", click.landing, TOP["lean"]["topics"]),
            "entity_id_list": _top(data, "entities", click.landing, TOP["lean"]["entities"]),
            "category_id_list": _top(data, "categories", click.landing, TOP["lean"]["categories"]),
        }

    return row


def _lean_transform(raw: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    result = {split: pd.DataFrame(index=frame.index) for split, frame in raw.items()}
    train = raw.get("train", pd.DataFrame(columns=list(LEAN_NUMERIC), dtype=float))
    for name in LEAN_NUMERIC:
        fitted = train[name].to_numpy(float)
        for split, frame in raw.items():
            values = frame[name].to_numpy(float)
            if name.endswith("_count"):
                logs = np.log1p(np.nan_to_num(fitted))
                deviation = logs.std() if len(logs) else 0.0
                values = (np.log1p(np.nan_to_num(values)) - logs.mean()) / deviation if deviation else 0.0 * values
            elif name.endswith("_days_since_published"):
                known = fitted[~np.isnan(fitted)]
                values = np.log1p(np.where(np.isnan(values), np.median(known) if len(known) else 0.0, values))
            result[split][name] = np.where(np.isnan(values), 0.0, values)
    return result

"""Outbrain's tables with what real ones have against them: missing fields, repeated keys, unknown ids, equal times.

make_untidy(generated_folder, output, seed=0)
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

NULL = "\\N"


def make_untidy(source: Path, output: Path, *, seed: int = 0) -> None:
    """Write the tables of `source` (generated, plain CSV) to the new folder `output`, spoiled."""
    output.mkdir()
    rng = np.random.default_rng(seed)
    tables = {path.stem: pd.read_csv(path, dtype=str, keep_default_na=False) for path in sorted(source.glob("*.csv"))}
    _add_page_views(tables, rng)
    for name, spoil in _SPOILED.items():
        frame = spoil(tables[name], rng)
        order = frame.index if name.startswith("clicks") else rng.permutation(len(frame))
        tables[name] = frame.reset_index(drop=True).iloc[order]
    for name, frame in tables.items():
        frame.to_csv(output / f"{name}.csv", index=False)


def _add_page_views(tables: dict[str, pd.DataFrame], rng: np.random.Generator) -> None:
    """Of users at the time of their events: on the landing page before and after it, and on ads' documents later."""
    events, views = tables["events"], tables["page_views"]
    around = events.sample(frac=0.5, random_state=1).copy()
    shift = rng.choice([-5000, -300, -300, 0, 300, 40_000_000], len(around))
    around["timestamp"] = (around["timestamp"].astype(int) + shift).clip(lower=0).astype(str)
    later = events.sample(frac=0.3, random_state=2).copy()
    later["timestamp"] = (later["timestamp"].astype(int) + rng.integers(0, 10**8, len(later))).astype(str)
    later["document_id"] = rng.choice(tables["promoted_content"]["document_id"], len(later))
    more = pd.concat([around, later, around.head(20)])
    more["traffic_source"] = rng.integers(1, 4, len(more)).astype(str)
    tables["page_views"] = pd.concat([views, more[list(views.columns)], views.head(30)], ignore_index=True)


def _nulls(frame: pd.DataFrame, rng: np.random.Generator, shares: dict[str, float]) -> pd.DataFrame:
    spoiled = frame.copy()
    for column, share in shares.items():
        spoiled[column] = spoiled[column].mask(rng.random(len(frame)) < share, NULL)
    return spoiled


def _repeated(frame: pd.DataFrame, rng: np.random.Generator, column: str, share: float = 0.05) -> pd.DataFrame:
    """With some lines twice, of which the second says something else in a column."""
    again = frame[rng.random(len(frame)) < share].copy()
    again[column] = rng.permutation(again[column])
    return pd.concat([frame, again], ignore_index=True)


def _events(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    kept = frame[rng.random(len(frame)) > 0.03]
    shares = {"uuid": 0.02, "document_id": 0.02, "timestamp": 0.02, "platform": 0.04, "geo_location": 0.05}
    spoiled = _nulls(_repeated(kept, rng, "timestamp"), rng, shares)
    spoiled["platform"] = spoiled["platform"].mask(rng.random(len(spoiled)) < 0.02, "7")
    spoiled["geo_location"] = spoiled["geo_location"].mask(rng.random(len(spoiled)) < 0.02, "G")
    return spoiled


def _promoted(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    kept = frame[rng.random(len(frame)) > 0.03]
    shares = {"document_id": 0.03, "campaign_id": 0.04, "advertiser_id": 0.04}
    return _nulls(_repeated(kept, rng, "campaign_id"), rng, shares)


def _meta(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    spoiled = _nulls(
        _repeated(frame, rng, "publish_time"), rng, {"source_id": 0.05, "publisher_id": 0.1, "publish_time": 0.1}
    )
    # Some sources have no publisher at all, some documents an impossible time.
    sources = rng.permutation(spoiled["source_id"].unique())
    spoiled["publisher_id"] = spoiled["publisher_id"].mask(spoiled["source_id"].isin(sources[:3]), NULL)
    spoiled["publish_time"] = spoiled["publish_time"].mask(rng.random(len(spoiled)) < 0.03, "2031-01-01 00:00:00")
    spoiled["publish_time"] = spoiled["publish_time"].mask(rng.random(len(spoiled)) < 0.03, "1999-05-05 00:00:00")
    return spoiled


def _aspect(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Return values of which some documents have lost all, some come twice, and some have equal confidences."""
    documents = frame["document_id"].unique()
    kept = frame[~frame["document_id"].isin(documents[rng.random(len(documents)) < 0.05])]
    spoiled = _repeated(kept, rng, "confidence_level")
    spoiled["confidence_level"] = spoiled["confidence_level"].mask(rng.random(len(spoiled)) < 0.1, "0.25")
    return spoiled


def _views(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    spoiled = _nulls(frame, rng, {"platform": 0.03, "geo_location": 0.03, "traffic_source": 0.03})
    spoiled["uuid"] = spoiled["uuid"].mask(rng.random(len(spoiled)) < 0.05, "a-user-without-events")
    return spoiled


def _clicks(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return frame.assign(ad_id=frame["ad_id"].mask(rng.random(len(frame)) < 0.02, "999999999"))


_SPOILED: dict[str, Callable[[pd.DataFrame, np.random.Generator], pd.DataFrame]] = {
    "events": _events,
    "promoted_content": _promoted,
    "documents_meta": _meta,
    "documents_categories": _aspect,
    "documents_topics": _aspect,
    "documents_entities": _aspect,
    "page_views": _views,
    "clicks_train": _clicks,
    "clicks_test": _clicks,
}

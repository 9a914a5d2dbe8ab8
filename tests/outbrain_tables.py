"""Outbrain's tables for tests: what the joined sample of the real data can give of them."""

from pathlib import Path

import pandas as pd

from rayrec.sources.outbrain.tables import OutbrainTable

SAMPLE = "outbrain-10k/sample_train_dat.csv"
"""In the folder of real data: 1,959 complete displays of the first two minutes, clicks joined with events."""
_FIRST = pd.Timestamp("2016-06-14 04:06:19")
"""The sample's clock at timestamp 0 of events.csv, whose first display came at 61 ms."""
_EVENT = ["display_id", "uuid", "document_id", "timestamp", "platform", "geo_location"]


def write_sample_tables(sample: Path, folder: Path) -> None:
    """Write all nine tables into `folder`.

    Clicks and events are real. Of the ads only the ids are known: promoted_content has nulls beside them. Page views,
    documents and clicks to predict are headers alone.
    """
    rows = pd.read_csv(sample, dtype=str, keep_default_na=False)
    time = pd.to_datetime(rows["timestamp_view"], format="%Y-%m-%d %H:%M:%S.%f")
    rows["timestamp"] = (time - _FIRST) // pd.Timedelta(milliseconds=1)
    rows["platform"] = rows["platform"].str.removesuffix(".0")
    frames = {
        OutbrainTable.CLICKS_TRAIN: rows[["display_id", "ad_id", "clicked"]],
        OutbrainTable.EVENTS: rows[_EVENT].drop_duplicates(),
        OutbrainTable.PROMOTED_CONTENT: rows[["ad_id"]].drop_duplicates(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for table in OutbrainTable:
        frame = frames.get(table, pd.DataFrame()).reindex(columns=table.layout.schema.names)
        frame.replace("", None).to_csv(folder / f"{table.value}.csv", index=False, na_rep="\\N")

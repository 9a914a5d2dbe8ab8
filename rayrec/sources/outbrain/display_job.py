"""The job for displays of ads: parse, join, take statistics of `train`, compute features, fit, encode, write.

Each stage leaves its files in the scratch folder, or in the statistics of the dataset, until no later stage needs them:
a job that died continues after its last finished stage (`rayrec.preprocessing.workspace.Stages`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, UserError
from rayrec.features.hashes import hash_key
from rayrec.features.lookup_table import HASH, UNKNOWN, LookupTable
from rayrec.features.lookups import RATES_FOLDER
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.schema import NumericFeature, Schema
from rayrec.ingest.dataset import FoundKeys, SplitInfo
from rayrec.preprocessing.extract import extract_tables, pieces_of
from rayrec.preprocessing.lookups import KeyedRows, shuffle_rows, write_totals
from rayrec.preprocessing.numbers import UnfittedNumber, fit_numbers
from rayrec.preprocessing.parts import RandomGroups, RowEncoder, write_shuffled
from rayrec.preprocessing.segments import (
    Piece,
    Segment,
    batch_of,
    joined,
    make_segments,
    numbered,
    read_segment,
    write_pieces,
)
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Stages, Workspace, WrittenDataset
from rayrec.raw.input_files import InputFile
from rayrec.raw.rows import RowReader
from rayrec.sources.outbrain.clicks import (
    CLICK_SCHEMA,
    CLICKED,
    DISPLAY,
    POSITION,
    SUBMISSION,
    TRAIN,
    ClickRows,
    write_click_rows,
)
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.feature_sets import features_of, rate_keys, raw_features
from rayrec.sources.outbrain.features import AdRows
from rayrec.sources.outbrain.side_tables import (
    TRAFFIC,
    USER,
    DocumentRows,
    ProfileJob,
    ViewReader,
    read_views,
    write_ads,
    write_document_rows,
    write_documents,
    write_profiles,
    write_rates,
    write_users,
)
from rayrec.sources.outbrain.statistics import Constants, Referred, Statistics
from rayrec.sources.outbrain.tables import (
    DAY_MILLISECONDS,
    FULL_TABLES,
    LEAN_TABLES,
    OutbrainReader,
    OutbrainTable,
    find_files,
)

# Raw features of all rows, computed by the code that serves them.

CANDIDATE = "candidate"
LABEL_FIELDS = (
    pa.field(CLICKED, pa.float32(), False),
    pa.field(DISPLAY, pa.int64(), False),
    pa.field(CANDIDATE, pa.int64(), False),
)
"""Columns beside the features."""
POSITION_FIELD = pa.field(POSITION, pa.int64(), False)
"""The position of a row in its split, for files in another order."""
_SPLIT, _TRAFFIC = "split", "traffic_source"
_ROWS = pa.schema(
    [(HASH, pa.int64()), (USER, pa.int64()), (_SPLIT, pa.int8()), POSITION_FIELD, ("day", pa.int64()), *CLICK_SCHEMA]
)
_VIEWS = pa.schema(
    [
        (HASH, pa.int64()),
        (USER, pa.int64()),
        ("document_id", pa.int64()),
        ("day", pa.int64()),
        ("platform", pa.int8()),
        ("geo_location", pa.string()),
        ("timestamp", pa.int64()),
        (_TRAFFIC, pa.int8()),
    ]
)
_SAME_PAGE = " and ".join(f"shown.{name} = {{view}}.{name}" for name in _VIEWS.names[1:6])
WITH_TRAFFIC = f"""
with viewed as (
    -- Of views at the same time, the smallest source.
    select * exclude ({_TRAFFIC}), min({_TRAFFIC}) as {_TRAFFIC} from views group by all
)
select shown.*,
    -- Of equally near views, the earlier.
    case when earlier.timestamp is not null
            and (later.timestamp is null or shown.timestamp - earlier.timestamp <= later.timestamp - shown.timestamp)
        then earlier.{_TRAFFIC} else later.{_TRAFFIC} end as {_TRAFFIC}
from shown
asof left join viewed as earlier on {_SAME_PAGE.format(view="earlier")} and shown.timestamp >= earlier.timestamp
asof left join viewed as later on {_SAME_PAGE.format(view="later")} and shown.timestamp <= later.timestamp
order by shown.{USER}, {_SPLIT}, {POSITION}
"""
"""Rows with their traffic source: that of the page view of the same page and day which is nearest in time."""


def write_features(
    workspace: Workspace,
    splits: Mapping[str, Sequence[Piece]],
    views: Sequence[Piece],
    users: Path,
    statistics: Statistics,
    folder: Path,
) -> dict[str, list[Piece]]:
    """Write the features of rows in the order of users, whose profiles are so read from disk one after the other.

    `views`: page views that traffic sources are found in; `users`: folder of the table of users, if they have profiles.
    """
    definitions = features_of(statistics.constants.feature_set)
    schema = pa.schema([*LABEL_FIELDS, POSITION_FIELD, *(pa.field(d.name, d.raw_type) for d in definitions)])

    def read_rows(segment: Segment, split: int) -> Iterator[pa.RecordBatch]:
        table = LookupTable.cached(users)
        for position, batch in numbered(segment, read_segment(segment, CLICK_SCHEMA.names)):
            user = table.find_texts(batch["uuid"])
            has_user = user != UNKNOWN
            columns = {
                # Rows without a user are spread.
                HASH: np.where(has_user, table.numbers(HASH, user).values, hash_key(position)),
                USER: pa.array(user, mask=~has_user),
                _SPLIT: np.full(len(batch), split),
                POSITION: position,
                "day": batch["timestamp"].fill_null(0).to_numpy() // DAY_MILLISECONDS,
            }
            yield batch_of(_ROWS, columns, batch)

    def read_page_views(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_views(segment, users, TRAFFIC, _VIEWS):
            yield batch_of(_VIEWS, {"day": batch["timestamp"].to_numpy() // DAY_MILLISECONDS}, batch)

    def write(partition: int, rows: Mapping[str, pa.Table]) -> dict[str, list[Piece]]:
        shown = pa.concat_tables([rows[split] for split in splits])
        opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)

        def computed() -> Iterator[tuple[str, pa.RecordBatch]]:
            for batch in query(WITH_TRAFFIC, shown=shown, views=rows["views"]):
                kept = {CLICKED: batch[CLICKED], DISPLAY: batch[DISPLAY], CANDIDATE: batch["ad_id"]}
                features = batch_of(schema, {**kept, POSITION: batch[POSITION]}, raw_features(opened, batch))
                for number, split in enumerate(splits):
                    yield split, features.filter(pc.equal(batch[_SPLIT], number))

        return write_pieces({s: (folder / f"{s}-{partition:06d}.parquet", schema) for s in splits}, computed())

    sources = {
        split: KeyedRows(make_segments(pieces), _ROWS, partial(read_rows, split=number))
        for number, (split, pieces) in enumerate(splits.items())
    }
    sources["views"] = KeyedRows(make_segments(views), _VIEWS, read_page_views)
    return joined(shuffle_rows(workspace, "features", sources, write))


# The job.

_PAGE_VIEWS = OutbrainTable.PAGE_VIEWS
_LEAST_FOUND = 0.05
"""Smallest share of the rows that must find their key."""
RawTables = dict[OutbrainTable, tuple[RowReader, InputFile]]
"""The file of each table, and what reads it."""


class ParsedTables(NamedTuple):
    """The files of rows by table, and how many lines were bad."""

    tables: dict[str, list[Piece]]
    rejected: dict[str, int]
    """Number of bad lines by reason."""


class DisplayJob:
    """A checked job."""

    def __init__(self, config: DisplayPreprocessConfig, inputs: Mapping[str | None, Sequence[str]]) -> None:
        """Find the tables. Raises UserError on inputs that cannot work."""
        self._config = config
        self._tables = find_tables(config, inputs)

    @property
    def files(self) -> tuple[InputFile, ...]:
        return tuple(file for _, file in self._tables.values())

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write statistics, splits and bad rows. Raises UserError."""
        config, scratch, stages = self._config, workspace.scratch, Stages(workspace.scratch, workspace.progress)
        folder = workspace.folder / STATISTICS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        # Page views are read later, when it is known which of them are of use.
        early = {table: raw for table, raw in self._tables.items() if table != _PAGE_VIEWS}
        tables, bad = stages.run("tables", ParsedTables, lambda files: self._parse(workspace, early, files))
        clicks = stages.run("clicks", ClickRows, lambda files: write_click_rows(workspace, tables, config, files))
        train = clicks.splits[TRAIN]
        if not train:
            raise UserError("preprocess.split: no row falls into train; give more rows or change it")

        # The statistics, in which requests look up too.
        found = stages.run("values", DocumentRows, lambda files: write_document_rows(workspace, tables, files))
        constants = Constants(
            feature_set=config.feature_set,
            documents=found.documents,
            values=found.values,
            mean_rate=clicks.clicked / sum(piece.rows for piece in train),
            smoothing=config.rates.smoothing,
        )
        constants.save(folder)
        documents = folder / "documents"
        stages.leave("documents", lambda files: write_documents(workspace, found, files), documents)
        stages.leave("ads", lambda files: write_ads(workspace, tables, files), folder / "ads")
        keys, by_fold = rate_keys(config.feature_set), scratch / "rates"
        stages.leave(
            "rates", lambda files: write_rates(workspace, train, config.rates.folds, keys, folder, files), by_fold
        )
        served = {key.name: key.schema for key in keys}
        stages.leave("totals", lambda files: write_totals(workspace, by_fold, files, served), folder / RATES_FOLDER)
        rejected, views, users = Counter(bad), list[Piece](), scratch / "users"
        if config.feature_set == "full":
            stages.leave("users", lambda files: write_users(workspace, clicks.events, files), users)
            reader, file = self._tables[_PAGE_VIEWS]
            of_use: RawTables = {_PAGE_VIEWS: (ViewReader(reader, users, documents), file)}
            viewed, bad = stages.run("views", ParsedTables, lambda files: self._parse(workspace, of_use, files))
            rejected.update(bad)
            views = viewed[_PAGE_VIEWS.value]
            profiles = ProfileJob(users, documents, scratch / "values", constants.documents)
            stages.leave(
                "profiles", lambda files: write_profiles(workspace, views, profiles, files), folder / "profiles"
            )

        # Features by what serves them, fitted to `train`.
        statistics = Statistics.open(folder, by_fold)
        found_keys = stages.run(
            "find-keys", dict[str, FoundKeys], lambda _: count_found_keys(workspace, clicks, statistics)
        )
        features = stages.run(
            "features",
            dict[str, list[Piece]],
            lambda files: write_features(workspace, clicks.splits, views, users, statistics, files),
        )
        stages.release("tables", "clicks", "rates", "values", "users", "views")
        segments = {split: make_segments(pieces) for split, pieces in features.items()}
        schema = stages.run("fit", Schema, lambda _: _fit(workspace, config.feature_set, segments[TRAIN]))
        splits = {}
        for split, of_split in segments.items():
            if of_split:
                write = partial(self._write_split, workspace, schema, split, of_split)
                info = stages.run(f"write-{split}", SplitInfo, write, workspace.folder / split)
                splits[split] = info.model_copy(update={"labelled": split != SUBMISSION})
        joined = sum(piece.rows for pieces in clicks.splits.values() for piece in pieces)
        assert sum(split.rows for split in splits.values()) == joined, "rows lost or repeated"
        return WrittenDataset(schema, splits, dict(rejected), found_keys=found_keys)

    def _parse(self, workspace: Workspace, tables: RawTables, folder: Path) -> ParsedTables:
        """Parse tables into files. Raises UserError if too large a share of a table's rows is bad."""
        named = {table.value: (reader, [file]) for table, (reader, file) in tables.items()}
        extracted, rejected = extract_tables(workspace, named, folder, self._config.max_rejected_fraction)
        return ParsedTables({name: pieces_of(chunks) for name, chunks in extracted.items()}, rejected)

    def _write_split(
        self, workspace: Workspace, schema: Schema, split: str, segments: Sequence[Segment], _: Path
    ) -> SplitInfo:
        """Write the displays of `train` in random order, those of the other splits in the order of their ids."""
        encoder = RowEncoder(schema, workspace.folder, (*LABEL_FIELDS, POSITION_FIELD))
        order = RandomGroups(self._config.seed) if split == TRAIN else _identity
        return write_shuffled(workspace, encoder, split, segments, order, self._config.layout, POSITION)


def count_found_keys(workspace: Workspace, clicks: ClickRows, statistics: Statistics) -> dict[str, FoundKeys]:
    """Return how many rows find their event, their ad, its document and that of the page, and their user's page views.

    Raises UserError if next to none does though the table has rows; of users a sample of page views may have few.
    """
    segments = [segment for pieces in clicks.splits.values() for segment in make_segments(pieces)]
    referred: dict[str, Referred] = {"promoted_content": "ad", "documents of ads": "ad_document"}
    referred["documents of pages"] = "landing"
    if statistics.constants.feature_set == "full":
        referred["page_views"] = "user"

    def of_segment(segment: Segment) -> dict[str, FoundKeys]:
        found = dict.fromkeys(("events", *referred), FoundKeys())
        opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)
        for batch in read_segment(segment, ["ad_id", "document_id", "uuid", "timestamp"]):
            rows = AdRows(opened, batch)
            has_event = int(np.count_nonzero(rows.numbers("timestamp").valid))
            found["events"] += FoundKeys(rows=len(batch), found=has_event)
            for table, of in referred.items():
                _, places = rows.found(of)
                given = {
                    "ad": len(batch),
                    "ad_document": int(np.count_nonzero(rows.numbers("document_id", "ad").valid)),
                    "landing": int(np.count_nonzero(rows.numbers("document_id").valid)),
                    "user": len(batch) - batch["uuid"].null_count,
                }[of]
                found[table] += FoundKeys(rows=given, found=int(np.count_nonzero(places != UNKNOWN)))
        return found

    by_segment = workspace.engine.run(segments, of_segment)
    total = {table: sum((found[table] for found in by_segment), FoundKeys()) for table in by_segment[0]}
    # Not `statistics` itself: later tasks are sent it, and what it has opened could not travel.
    opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)
    known = {"events": sum(piece.rows for piece in clicks.events), "promoted_content": len(opened.ads)}
    for table, counts in total.items():
        is_given = table != "page_views" and known.get(table, len(opened.documents)) > 0
        if is_given and counts.rows and counts.share < _LEAST_FOUND:
            raise UserError(
                f"{table}: {counts.described('a key')}; the tables do not belong together, or write ids in two ways"
            )
    return total


def find_tables(config: DisplayPreprocessConfig, paths: Mapping[str | None, Sequence[str]]) -> RawTables:
    """Find the tables that a job reads in the paths under None.

    Raises UserError if a table is missing or lacks a column, and ConfigError on paths of splits.
    """
    named = next((split for split in paths if split is not None), None)
    if named is not None:
        raise ConfigError(
            f"--input {named}=...: preprocess.split.kind is 'displays', which splits the rows itself; give "
            "paths without a split"
        )
    required = FULL_TABLES if config.feature_set == "full" else LEAN_TABLES
    found = find_files(paths[None], required)
    wanted = required | {OutbrainTable.CLICKS_TEST}
    return {table: (OutbrainReader.open(table, file), file) for table, file in found.items() if table in wanted}


def _fit(workspace: Workspace, feature_set: Literal["full", "lean"], train: Sequence[Segment]) -> Schema:
    definitions = features_of(feature_set)
    numbers = [UnfittedNumber(d.name, (d.name,), d.steps) for d in definitions if d.feature is None]
    fitted = fit_numbers(workspace, read_segment, train, numbers)
    features = tuple(d.feature or NumericFeature(name=d.name, transforms=fitted[d.name]) for d in definitions)
    return Schema(label=CLICKED, group=DISPLAY, candidate=CANDIDATE, features=features)


def _identity(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions

"""The job for displays of ads: parse, join, take statistics of `train`, compute features, fit, encode, write.

Each stage leaves its files in the scratch folder, or in the statistics of the dataset, until no later stage needs them:
a job that died goes on from its last finished stage (`rayrec.preprocessing.workspace.Stages`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.feature_kinds import NumericFeature
from rayrec.features.lookups import RATES_FOLDER
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import SplitInfo
from rayrec.preprocessing.lookups.label_rates import write_totals
from rayrec.preprocessing.numbers.number_fitting import UnfittedNumber, fit_numbers
from rayrec.preprocessing.segments import read_segment
from rayrec.preprocessing.workspace import Stages, Workspace, WrittenDataset
from rayrec.preprocessing.write.encode import RowEncoder
from rayrec.preprocessing.write.shuffle import RandomGroups, write_shuffled
from rayrec.raw.input_files import InputFile
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.features.definitions import Numeric
from rayrec.sources.outbrain.features.feature_sets import features_of, rate_keys
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.preprocessing.clicks import (
    CLICKED,
    DISPLAY,
    SUBMISSION,
    TRAIN,
    ClickRows,
    write_click_rows,
)
from rayrec.sources.outbrain.preprocessing.documents import (
    DocumentRows,
    write_ads,
    write_document_rows,
    write_documents,
)
from rayrec.sources.outbrain.preprocessing.parsed_tables import ParsedTables, RawTables, find_tables, parse_tables
from rayrec.sources.outbrain.preprocessing.profiles import ProfileJob, write_profiles
from rayrec.sources.outbrain.preprocessing.rate_tables import RateJob, write_rates
from rayrec.sources.outbrain.preprocessing.raw_features import (
    CANDIDATE,
    LABEL_FIELDS,
    POSITION,
    POSITION_FIELD,
    write_features,
)
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, SplitRows
from rayrec.sources.outbrain.preprocessing.users import ViewReader, write_users
from rayrec.sources.outbrain.statistics import Constants, Statistics


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
        return _DisplayRun(self._config, self._tables, workspace).write()


class _DisplayRun:
    """One run of a job, from its last finished stage on."""

    def __init__(self, config: DisplayPreprocessConfig, raw_tables: RawTables, workspace: Workspace) -> None:
        self._config = config
        self._raw_tables = raw_tables
        self._workspace = workspace
        self._scratch = workspace.scratch
        self._stages = Stages(workspace.scratch, workspace.progress)
        self._rejected: Counter[str] = Counter()

    def write(self) -> WrittenDataset:
        workspace, stages = self._workspace, self._stages
        # Page views are read later, when it is known which of them are of use.
        tables = self._parse("tables", {t: raw for t, raw in self._raw_tables.items() if t != OutbrainTable.PAGE_VIEWS})
        clicks = stages.run(
            "clicks", ClickRows, lambda folder: write_click_rows(workspace, tables, self._config, folder)
        )
        if clicks.splits[TRAIN].rows == 0:
            raise UserError("preprocess.split: no row falls into train; give more rows or change it")
        statistics = self._write_statistics(tables, clicks)
        views, users = RowFiles(), self._scratch / "users"
        if self._config.feature_set == "full":
            views = self._write_profiles(clicks, statistics, users)
        write = partial(write_features, workspace, clicks, views, users, statistics)
        features = stages.run("features", SplitRows, write)
        stages.release("tables", "clicks", "rates", "values", "users", "views")
        schema = self._fit_schema(features)
        splits = self._write_splits(features, schema)
        lines = sum(tables.of(table).rows for table in (OutbrainTable.CLICKS_TRAIN, OutbrainTable.CLICKS_TEST))
        assert sum(split.rows for split in splits.values()) == lines, "rows lost or repeated"
        return WrittenDataset(schema, splits, dict(self._rejected))

    def _parse(self, stage: str, tables: RawTables) -> ParsedTables:
        most = self._config.max_rejected_fraction
        parsed = self._stages.run(
            stage, ParsedTables, lambda folder: parse_tables(self._workspace, tables, folder, most)
        )
        self._rejected.update(parsed.rejected)
        return parsed

    def _write_statistics(self, tables: ParsedTables, clicks: ClickRows) -> Statistics:
        """Write the tables of documents, ads and click-through rates; rates also with the sums of each fold."""
        workspace, stages, config = self._workspace, self._stages, self._config
        folder, train = workspace.folder / STATISTICS_FOLDER, clicks.splits[TRAIN]
        folder.mkdir(parents=True, exist_ok=True)
        documents = stages.run("values", DocumentRows, lambda files: write_document_rows(workspace, tables, files))
        constants = Constants(
            feature_set=config.feature_set,
            documents=documents.documents,
            values=documents.values,
            mean_rate=clicks.clicked / train.rows,
            smoothing=config.rates.smoothing,
        )
        constants.save(folder)
        stages.leave("documents", lambda files: write_documents(workspace, documents, files), folder / "documents")
        stages.leave("ads", lambda files: write_ads(workspace, tables, files), folder / "ads")
        job = RateJob(train, config.rates.folds, rate_keys(config.feature_set), folder)
        by_fold = self._scratch / "rates"
        stages.leave("rates", lambda files: write_rates(workspace, job, files))
        served = {key.name: key.schema for key in job.keys}
        stages.leave("totals", lambda files: write_totals(workspace, by_fold, files, served), folder / RATES_FOLDER)
        return Statistics.open(folder, by_fold)

    def _write_profiles(self, clicks: ClickRows, statistics: Statistics, users: Path) -> RowFiles:
        """Write user profiles; return the page views of use."""
        workspace, stages, documents = self._workspace, self._stages, statistics.folder / "documents"
        stages.leave("users", lambda folder: write_users(workspace, clicks.events, folder), users)
        reader, file = self._raw_tables[OutbrainTable.PAGE_VIEWS]
        parsed = self._parse("views", {OutbrainTable.PAGE_VIEWS: (ViewReader(reader, users, documents), file)})
        views = parsed.of(OutbrainTable.PAGE_VIEWS)
        job = ProfileJob(users, documents, self._scratch / "values", statistics.constants.documents)
        profiles = statistics.folder / "profiles"
        stages.leave("profiles", lambda folder: write_profiles(workspace, views, job, folder), profiles)
        return views

    def _fit_schema(self, features: SplitRows) -> Schema:
        definitions, train = features_of(self._config.feature_set), features.splits[TRAIN].segments()

        def fit(_: Path) -> Schema:
            numbers = [UnfittedNumber(d.name, (d.name,), d.steps) for d in definitions if isinstance(d, Numeric)]
            fitted = fit_numbers(self._workspace, read_segment, train, numbers)
            features = tuple(
                NumericFeature(name=d.name, transforms=fitted[d.name]) if isinstance(d, Numeric) else d.feature
                for d in definitions
            )
            return Schema(label=CLICKED, group=DISPLAY, candidate=CANDIDATE, features=features)

        return self._stages.run("fit", Schema, fit)

    def _write_splits(self, features: SplitRows, schema: Schema) -> dict[str, SplitInfo]:
        encoder = RowEncoder(schema, self._workspace.folder, (*LABEL_FIELDS, POSITION_FIELD))
        splits = {}
        for split, files in features.splits.items():
            if files.rows:
                write = partial(self._write_split, encoder, split, files)
                info = self._stages.run(f"write-{split}", SplitInfo, write, self._workspace.folder / split)
                splits[split] = info.model_copy(update={"labelled": split != SUBMISSION})
        return splits

    def _write_split(self, encoder: RowEncoder, split: str, files: RowFiles, _: Path) -> SplitInfo:
        """Write the displays of `train` in random order, those of the other splits in the order of their ids."""
        order = RandomGroups(self._config.seed) if split == TRAIN else _identity
        segments, layout = files.segments(), self._config.layout
        return write_shuffled(self._workspace, encoder, split, segments, order, layout, POSITION)


def _identity(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions

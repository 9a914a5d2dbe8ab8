"""Sources whose rows are ads in a display: parse, join, take statistics of train, compute features, fit, encode, write.

Each stage leaves its files in the scratch folder, or in the statistics of the dataset, until no other needs them: a job
that died goes on from its last finished stage (`rayrec.preprocessing.stages`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.preprocess import DisplayPreprocessConfig
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import SplitInfo
from rayrec.preprocessing.displays.ads import write_ads
from rayrec.preprocessing.displays.clicks import CLICKED, DISPLAY, SUBMISSION, ClickRows, write_click_rows
from rayrec.preprocessing.displays.counts import write_counts
from rayrec.preprocessing.displays.documents import write_documents
from rayrec.preprocessing.displays.fit import FittedNumbers, fit_numbers
from rayrec.preprocessing.displays.infos import DocumentInfo, write_infos
from rayrec.preprocessing.displays.last_views import write_last_views
from rayrec.preprocessing.displays.page_views import ViewReader
from rayrec.preprocessing.displays.profiles import ProfileJob, write_profiles
from rayrec.preprocessing.displays.rates import RateJob, write_rates, write_totals
from rayrec.preprocessing.displays.raw_features import (
    CANDIDATE,
    LABEL_FIELDS,
    LEAK,
    ORDER_FIELDS,
    POSITION,
    FeatureRows,
    write_in_display_order,
)
from rayrec.preprocessing.displays.row_files import RowFiles
from rayrec.preprocessing.displays.tables import ParsedTables, parse_tables
from rayrec.preprocessing.displays.traffic import write_rows_with_sources, write_traffic
from rayrec.preprocessing.displays.user_order import write_in_user_order
from rayrec.preprocessing.displays.users import write_users
from rayrec.preprocessing.displays.values import DocumentValues, write_values
from rayrec.preprocessing.encode import RowEncoder, write_in_order, write_shuffled
from rayrec.preprocessing.extract import RowReader
from rayrec.preprocessing.long_vocabularies import LongVocabularies
from rayrec.preprocessing.order import Permutation
from rayrec.preprocessing.stages import Stages
from rayrec.preprocessing.workspace import Workspace, WrittenDataset
from rayrec.sources.files import InputFile
from rayrec.sources.outbrain.features.raw import features_of, rate_keys
from rayrec.sources.outbrain.layout import FULL_TABLES, LEAN_TABLES, Table
from rayrec.sources.outbrain.reader import OutbrainTables, TableReader, table_reader
from rayrec.sources.outbrain.statistics import COUNTS_FOLDER, RATES_FOLDER, STATISTICS_FOLDER, Constants, Statistics


class DisplayJob:
    """A checked job."""

    def __init__(self, config: DisplayPreprocessConfig, inputs: Mapping[str | None, Sequence[str]]) -> None:
        """Raises UserError on inputs that cannot work."""
        self._config = config
        named = next((split for split in inputs if split is not None), None)
        if named is not None:
            raise ConfigError(
                f"--input {named}=...: preprocess.split.kind is 'displays', which deals the rows itself; give the "
                "paths alone"
            )
        required = FULL_TABLES if config.feature_set == "full" else LEAN_TABLES
        found = OutbrainTables.find(inputs[None], required).files
        wanted = required | {Table.CLICKS_TEST}
        self._tables: dict[Table, InputFile] = {table: file for table, file in found.items() if table in wanted}
        self._readers: dict[Table, TableReader] = {t: table_reader(t, [file]) for t, file in self._tables.items()}

    @property
    def files(self) -> tuple[InputFile, ...]:
        return tuple(self._tables.values())

    @property
    def is_resumable(self) -> bool:
        return True

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write statistics, splits and bad rows. Raises UserError."""
        config = self._config
        stages = Stages(workspace.scratch, workspace.progress)
        statistics = workspace.folder / STATISTICS_FOLDER
        statistics.mkdir(exist_ok=True)
        tables = self._parse(workspace, stages)
        rows = stages.run("clicks", ClickRows, lambda folder: write_click_rows(workspace, tables, config, folder))
        train = rows.splits["train"]
        if train.rows == 0:
            raise UserError("preprocess.split: no row falls into train; give more rows or change it")
        values, infos = self._documents(workspace, stages, tables, statistics)

        constants = Constants(
            feature_set=config.feature_set,
            original=config.original,
            documents=infos.documents,
            values=values.values,
            mean_rate=rows.clicked / train.rows,
            smoothing=config.rates.smoothing,
        )
        constants.save(statistics)
        rate_job = RateJob(train, config.rates.folds, rate_keys(constants), statistics)
        by_fold = workspace.scratch / "rates"
        stages.leave("rates", lambda folder: write_rates(workspace, rate_job, folder))
        stages.leave(
            "totals", lambda folder: write_totals(workspace, rate_job, by_fold, folder), statistics / RATES_FOLDER
        )
        opened = Statistics.open(statistics, by_fold)
        if config.feature_set == "full":
            if config.original:
                stages.leave(
                    "counts",
                    lambda folder: write_counts(workspace, tables, workspace.scratch / "values", folder),
                    statistics / COUNTS_FOLDER,
                )
            features = self._full_features(workspace, stages, tables, rows, opened)
        else:
            features = stages.run(
                "features", FeatureRows, lambda folder: write_in_display_order(workspace, rows.splits, opened, folder)
            )
        stages.release("tables", "clicks", "rates", "values")
        schema = self._schema(workspace, stages, features, constants)
        splits = self._write_splits(workspace, stages, features, schema)
        return WrittenDataset(schema, splits, tables.rejected)

    def _full_features(
        self, workspace: Workspace, stages: Stages, tables: ParsedTables, rows: ClickRows, statistics: Statistics
    ) -> FeatureRows:
        """Features of the `full` set, which need the page views of the users of rows."""
        original, scratch = self._config.original, workspace.scratch
        users, documents = scratch / "users", statistics.folder / "documents"
        stages.leave("users", lambda folder: write_users(workspace, rows, tables, statistics.folder, original, folder))
        reader = ViewReader(self._readers[Table.PAGE_VIEWS], users, documents, original)
        table: dict[Table, tuple[RowReader, InputFile]] = {Table.PAGE_VIEWS: (reader, self._tables[Table.PAGE_VIEWS])}
        limit = self._config.max_rejected_fraction
        parsed = stages.run("views", ParsedTables, lambda folder: parse_tables(workspace, table, folder, limit))
        views = parsed.of(Table.PAGE_VIEWS)
        stages.leave("traffic", lambda folder: write_traffic(workspace, rows, views, users, original, folder))
        with_sources = stages.run(
            "rows",
            ClickRows,
            lambda folder: write_rows_with_sources(workspace, rows, scratch / "traffic", folder),
        )
        stages.release("traffic")
        job = ProfileJob(users, documents, scratch / "values", statistics.constants.documents, original)
        stages.leave(
            "profiles", lambda folder: write_profiles(workspace, views, job, folder), statistics.folder / "profiles"
        )
        stages.leave("last-views", lambda folder: write_last_views(workspace, views, folder))
        stages.release("views")
        features = stages.run(
            "features",
            FeatureRows,
            lambda folder: write_in_user_order(
                workspace, with_sources.splits, statistics, users, scratch / "last-views", folder
            ),
        )
        stages.release("rows", "users", "last-views")
        return features

    def _parse(self, workspace: Workspace, stages: Stages) -> ParsedTables:
        tables: dict[Table, tuple[RowReader, InputFile]] = {
            table: (self._readers[table], file) for table, file in self._tables.items() if table is not Table.PAGE_VIEWS
        }
        limit = self._config.max_rejected_fraction
        return stages.run("tables", ParsedTables, lambda folder: parse_tables(workspace, tables, folder, limit))

    def _documents(
        self, workspace: Workspace, stages: Stages, tables: ParsedTables, statistics: Path
    ) -> tuple[DocumentValues, DocumentInfo]:
        values = stages.run("values", DocumentValues, lambda folder: write_values(workspace, tables, folder))
        infos = stages.run("infos", DocumentInfo, lambda folder: write_infos(workspace, tables, folder))
        values_in = workspace.scratch / "values"
        double_log = self._config.original and self._config.feature_set == "full"
        stages.leave(
            "documents",
            lambda folder: write_documents(workspace, values, values_in, infos, double_log, folder),
            statistics / "documents",
        )
        stages.leave("ads", lambda folder: write_ads(workspace, tables, folder), statistics / "ads")
        return values, infos

    def _schema(self, workspace: Workspace, stages: Stages, features: FeatureRows, constants: Constants) -> Schema:
        definitions = features_of(constants)
        original = constants.original
        fitted_on = features.splits["train"].segments()
        if original and constants.feature_set == "full":
            fitted_on += features.splits["validation"].segments()
        fitted = stages.run("fit", FittedNumbers, lambda _: fit_numbers(workspace, definitions, fitted_on))
        return Schema(
            label=CLICKED,
            group=DISPLAY,
            leak=LEAK if constants.feature_set == "full" else None,
            candidate=CANDIDATE,
            features=fitted.features(definitions, clip=not original),
        )

    def _write_splits(
        self, workspace: Workspace, stages: Stages, features: FeatureRows, schema: Schema
    ) -> dict[str, SplitInfo]:
        no_vocabularies = LongVocabularies({}, 0, workspace.scratch)
        kept = (*LABEL_FIELDS, *ORDER_FIELDS) if self._config.feature_set == "full" else LABEL_FIELDS
        encoder = RowEncoder(schema, workspace.folder, no_vocabularies, kept)
        splits = {}
        for split, files in features.splits.items():
            if files.rows:
                write = partial(self._write_split, workspace, encoder, split, files)
                info = stages.run(f"write-{split}", SplitInfo, write, workspace.folder / split)
                splits[split] = info.model_copy(update={"labelled": split != SUBMISSION})
        return splits

    def _write_split(
        self, workspace: Workspace, encoder: RowEncoder, split: str, files: RowFiles, _: Path
    ) -> SplitInfo:
        """Write `train` in random order, the other splits in that of displays."""
        config, spark, progress, segments = self._config, workspace.spark, workspace.progress, files.segments()
        has_user_order = config.feature_set == "full"
        if split != "train" and not has_user_order:
            return write_in_order(spark, encoder, split, segments, config.layout, progress)
        order = Permutation(files.rows, config.seed) if split == "train" else _as_they_are
        position = POSITION if has_user_order else None
        return write_shuffled(spark, encoder, split, segments, order, config.layout, progress, position)


def _as_they_are(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions

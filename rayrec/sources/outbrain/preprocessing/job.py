"""Sources whose rows are ads in a display: parse, join, take statistics of train, compute features, fit, encode, write.

Each stage leaves its files in the scratch folder, or in the statistics of the dataset, until no other needs them: a job
that died goes on from its last finished stage (`rayrec.preprocessing.stages`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import STATISTICS_FOLDER, SplitInfo
from rayrec.preprocessing.spark_tasks import reclaim_shuffles
from rayrec.preprocessing.stages import Stages
from rayrec.preprocessing.vocabularies.long import LongVocabularies
from rayrec.preprocessing.workspace import Workspace, WrittenDataset
from rayrec.preprocessing.write.encode import RowEncoder, write_in_order
from rayrec.preprocessing.write.shuffle import write_groups_shuffled, write_shuffled
from rayrec.raw.files import InputFile
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.features.raw import features_of, rate_keys
from rayrec.sources.outbrain.layout import Table
from rayrec.sources.outbrain.preprocessing.ads import write_ads
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED, DISPLAY, SUBMISSION, ClickRows, write_click_rows
from rayrec.sources.outbrain.preprocessing.documents import write_documents
from rayrec.sources.outbrain.preprocessing.fit import FittedNumbers, fit_numbers
from rayrec.sources.outbrain.preprocessing.infos import DocumentInfo, write_infos
from rayrec.sources.outbrain.preprocessing.inputs import DisplayInputs
from rayrec.sources.outbrain.preprocessing.rates import RateJob, write_rates, write_totals
from rayrec.sources.outbrain.preprocessing.raw_features import (
    CANDIDATE,
    LABEL_FIELDS,
    LEAK,
    ORDER_FIELDS,
    POSITION,
    FeatureRows,
    write_in_display_order,
)
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables, parse_tables
from rayrec.sources.outbrain.preprocessing.users.user_features import UserFeatures
from rayrec.sources.outbrain.preprocessing.values import DocumentValues, write_values
from rayrec.sources.outbrain.statistics import RATES_FOLDER, Constants, Statistics


class DisplayJob:
    """A checked job."""

    def __init__(self, config: DisplayPreprocessConfig, inputs: Mapping[str | None, Sequence[str]]) -> None:
        """Raises UserError on inputs that cannot work."""
        self._config = config
        self._inputs = DisplayInputs.resolve(config, inputs)

    @property
    def files(self) -> tuple[InputFile, ...]:
        return self._inputs.files

    @property
    def is_resumable(self) -> bool:
        return True

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write statistics, splits and bad rows. Raises UserError."""
        config, reclaim = self._config, partial(reclaim_shuffles, workspace.spark)
        stages = Stages(workspace.scratch, workspace.progress, reclaim)
        tables = stages.run("tables", ParsedTables, partial(self._parse, workspace))
        rows = stages.run("clicks", ClickRows, lambda folder: write_click_rows(workspace, tables, config, folder))
        if rows.splits["train"].rows == 0:
            raise UserError("preprocess.split: no row falls into train; give more rows or change it")
        statistics = self._statistics(workspace, stages, tables, rows)
        rejected = Counter(tables.rejected)
        if config.feature_set == "full":
            page_views = self._inputs.tables[Table.PAGE_VIEWS]
            of_users = UserFeatures(workspace, stages, config, tables, page_views, rows, statistics)
            features, rejected_views = of_users.write()
            rejected.update(rejected_views)
        else:
            write = partial(write_in_display_order, workspace, rows.splits, statistics)
            features = stages.run("features", FeatureRows, write)
        stages.release("tables", "clicks", "rates", "values")
        schema = self._schema(workspace, stages, features, statistics.constants)
        splits = self._write_splits(workspace, stages, features, schema)
        if not statistics.constants.is_original_full:
            clicks = sum(tables.of(table).rows for table in (Table.CLICKS_TRAIN, Table.CLICKS_TEST))
            assert sum(split.rows for split in splits.values()) == clicks, "rows lost or repeated"
        return WrittenDataset(schema, splits, dict(rejected))

    def _parse(self, workspace: Workspace, folder: Path) -> ParsedTables:
        """All tables but page_views, which are read when it is known what of them is of use."""
        tables = self._inputs.without([Table.PAGE_VIEWS])
        return parse_tables(workspace, tables, folder, self._config.max_rejected_fraction)

    def _statistics(self, workspace: Workspace, stages: Stages, tables: ParsedTables, rows: ClickRows) -> Statistics:
        """Documents, ads and rates of clicks, with those of each fold."""
        config, folder, train = self._config, workspace.folder / STATISTICS_FOLDER, rows.splits["train"]
        folder.mkdir(exist_ok=True)
        values = stages.run("values", DocumentValues, lambda files: write_values(workspace, tables, files))
        infos = stages.run("infos", DocumentInfo, lambda files: write_infos(workspace, tables, files))
        constants = Constants(
            feature_set=config.feature_set,
            original=config.original,
            documents=infos.documents,
            values=values.values,
            mean_rate=rows.clicked / train.rows,
            smoothing=config.rates.smoothing,
        )
        constants.save(folder)
        values_in, by_fold = workspace.scratch / "values", workspace.scratch / "rates"
        double_log = constants.is_original_full
        stages.leave(
            "documents",
            lambda files: write_documents(workspace, values, values_in, infos, double_log, files),
            folder / "documents",
        )
        stages.leave("ads", lambda files: write_ads(workspace, tables, files), folder / "ads")
        job = RateJob(train, config.rates.folds, rate_keys(constants), folder)
        stages.leave("rates", lambda files: write_rates(workspace, job, files))
        stages.leave("totals", lambda files: write_totals(workspace, job, by_fold, files), folder / RATES_FOLDER)
        return Statistics.open(folder, by_fold)

    def _schema(self, workspace: Workspace, stages: Stages, features: FeatureRows, constants: Constants) -> Schema:
        definitions = features_of(constants)
        fitted_on = features.splits["train"].segments()
        if constants.original and constants.feature_set == "full":
            fitted_on += features.splits["validation"].segments()
        fitted = stages.run("fit", FittedNumbers, lambda _: fit_numbers(workspace, definitions, fitted_on))
        return Schema(
            label=CLICKED,
            group=DISPLAY,
            leak=LEAK if constants.feature_set == "full" else None,
            candidate=CANDIDATE,
            features=fitted.features(definitions, clip=not constants.original),
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
        """Write the displays of `train` in random order, those of the other splits in their own."""
        config, segments = self._config, files.segments()
        position = POSITION if config.feature_set == "full" else None
        if split == "train":
            return write_groups_shuffled(workspace, encoder, split, segments, config.seed, config.layout, position)
        if position is None:
            return write_in_order(workspace, encoder.encode, CLICKED, split, segments, config.layout)
        return write_shuffled(workspace, encoder, split, segments, _as_they_are, config.layout, position)


def _as_they_are(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions

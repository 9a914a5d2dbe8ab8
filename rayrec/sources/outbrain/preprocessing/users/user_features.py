"""The stages of the `full` set alone: what page views say of rows, then the features, in the order of users."""

from dataclasses import dataclass
from pathlib import Path

from rayrec.preprocessing.stages import Stages
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.blocks import RowReader
from rayrec.raw.files import InputFile
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.layout import Table
from rayrec.sources.outbrain.preprocessing.clicks import ClickRows
from rayrec.sources.outbrain.preprocessing.counts import write_counts
from rayrec.sources.outbrain.preprocessing.raw_features import FeatureRows
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables, parse_tables
from rayrec.sources.outbrain.preprocessing.users.last_views import write_last_views
from rayrec.sources.outbrain.preprocessing.users.page_views import ViewReader
from rayrec.sources.outbrain.preprocessing.users.profiles import ProfileJob, write_profiles
from rayrec.sources.outbrain.preprocessing.users.traffic import write_rows_with_sources, write_traffic
from rayrec.sources.outbrain.preprocessing.users.user_order import write_in_user_order
from rayrec.sources.outbrain.preprocessing.users.users import write_users
from rayrec.sources.outbrain.statistics import COUNTS_FOLDER, Statistics


@dataclass(frozen=True)
class UserFeatures:
    """What the stages before left."""

    workspace: Workspace
    stages: Stages
    config: DisplayPreprocessConfig
    tables: ParsedTables
    page_views: tuple[RowReader, InputFile]
    rows: ClickRows
    statistics: Statistics

    def write(self) -> tuple[FeatureRows, dict[str, int]]:
        """Write users' profiles and the features of all rows; also gives the bad lines of page_views by reason."""
        workspace, stages, scratch, original = self.workspace, self.stages, self._scratch, self.config.original
        users, values, documents = scratch / "users", scratch / "values", self.statistics.folder / "documents"
        if original:
            stages.leave(
                "counts",
                lambda folder: write_counts(workspace, self.tables, values, folder),
                self.statistics.folder / COUNTS_FOLDER,
            )
        stages.leave(
            "users",
            lambda folder: write_users(workspace, self.rows, self.tables, self.statistics.folder, original, folder),
        )
        parsed = stages.run("views", ParsedTables, lambda folder: self._read_views(users, documents, folder))
        views = parsed.of(Table.PAGE_VIEWS)
        stages.leave("traffic", lambda folder: write_traffic(workspace, self.rows, views, users, original, folder))
        rows = stages.run(
            "rows",
            ClickRows,
            lambda folder: write_rows_with_sources(workspace, self.rows, scratch / "traffic", folder),
        )
        stages.release("traffic")
        job = ProfileJob(users, documents, values, self.statistics.constants.documents, original)
        stages.leave(
            "profiles",
            lambda folder: write_profiles(workspace, views, job, folder),
            self.statistics.folder / "profiles",
        )
        stages.leave("last-views", lambda folder: write_last_views(workspace, views, folder))
        stages.release("views")
        last_views = scratch / "last-views"
        features = stages.run(
            "features",
            FeatureRows,
            lambda folder: write_in_user_order(workspace, rows.splits, self.statistics, users, last_views, folder),
        )
        stages.release("rows", "users", "last-views")
        return features, parsed.rejected

    @property
    def _scratch(self) -> Path:
        return self.workspace.scratch

    def _read_views(self, users: Path, documents: Path, folder: Path) -> ParsedTables:
        reader, file = self.page_views
        of_users = ViewReader(reader, users, documents, self.config.original)
        return parse_tables(
            self.workspace, {Table.PAGE_VIEWS: (of_users, file)}, folder, self.config.max_rejected_fraction
        )

"""The sections `source` and `preprocess` of a recipe for interactions."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from rayrec.config.base import Config
from rayrec.config.preprocess import Names, PreprocessConfig, SourceConfig, TimeSplitConfig, VocabularyPreprocessConfig
from rayrec.config.table import FileFormat, LabelCondition, TimeColumn

USER, ITEM, TIMESTAMP = "user", "item", "timestamp"
"""The columns of a dataset's rows; files have them under any names."""
USUAL_NAMES = {
    USER: ("userId", "user_id", "userid", "user"),
    ITEM: ("movieId", "movie_id", "itemId", "item_id", "itemid", "item", "movie"),
    TIMESTAMP: ("timestamp",),
}


class _HeldOutItems(Config):
    validation: bool = False
    """Also hold out the user's interaction before, as `validation`."""
    negatives: PositiveInt = 100
    """Number of negatives that each held-out item is ranked among."""
    sampling: Literal["distinct", "with_replacement"] = "distinct"
    """`distinct`: different items that the user chose in no split. `with_replacement`, as published: items may
    repeat; only the user's items in `train` are left out.
    """


class LeaveOneOutSplitConfig(_HeldOutItems):
    """Hold out each user's last interaction as `test`, with drawn negatives."""

    kind: Literal["leave_one_out"] = "leave_one_out"
    test: bool = True
    """Hold out `test`; if false, the last interaction is `validation`, or all are `train`."""
    min_interactions: NonNegativeInt = 20
    """Fewest rows of a user, repeated ones included; users with fewer are dropped."""


class InteractionTimeSplitConfig(TimeSplitConfig):
    """Split by `source.timestamp`: the latest interactions are `test`, those before them `validation`.

    A moment divides the interactions of all users, so `train` knows nothing later, and nobody is left out. Without
    drawn negatives: `evaluate.ranking.candidates: next` ranks all items.
    """


class InteractionFilesSplitConfig(_HeldOutItems):
    """Split by files, as in the NCF paper: interactions for `train`, lists of candidates for `test`."""

    kind: Literal["files"] = "files"


InteractionSplitConfig = Annotated[
    LeaveOneOutSplitConfig | InteractionTimeSplitConfig | InteractionFilesSplitConfig, Field(discriminator="kind")
]


class InteractionPreprocessConfig(VocabularyPreprocessConfig):
    """Preprocessing of interactions of users with items."""

    kind: Literal["interactions"] = "interactions"
    split: InteractionSplitConfig = LeaveOneOutSplitConfig()
    """How interactions are split."""

    @property
    def reads_splits_from_files(self) -> bool:
        return self.split.kind == "files"

    @property
    def split_of_all_rows(self) -> Config | None:
        if isinstance(self.split, InteractionFilesSplitConfig):
            return None
        nothing = 0.0 if isinstance(self.split, InteractionTimeSplitConfig) else False
        return self.split.model_copy(update={"validation": nothing, "test": nothing})

    @property
    def holds_out_latest(self) -> bool:
        return self.split_of_all_rows not in (None, self.split)


_LAYOUTS: dict[str, dict[str, str]] = {
    "auto": {},
    "csv": {},
    "tab": {"separator": "\t"},
    "double_colon": {"separator": "::"},
    "parquet": {"format": "parquet"},
}


class ItemTableConfig(FileFormat):
    """A table of the items, by whose columns recommendations are filtered."""

    path: str
    """File, folder, glob or URI."""
    key: str
    """Column with the item, each once."""
    columns: Names
    """Columns to filter by; each has one value for an item."""


class InteractionSourceConfig(SourceConfig, FileFormat):
    """Interactions of users with items: MovieLens' ratings, similar tables, the NCF paper's files.

    Every row is a positive, whatever the rating, unless `choices` is set.
    """

    preprocess: ClassVar[type[PreprocessConfig]] = InteractionPreprocessConfig
    gives_interactions: ClassVar[bool] = True
    kind: Literal["interactions"] = "interactions"
    user: str | None = None
    """Column with the user; `null`: userId, user_id or user."""
    item: str | None = None
    """Column with the item; `null`: movieId, movie_id, itemId, item_id, item or movie."""
    timestamp: str | TimeColumn | None = None
    """Column with the time, ISO 8601 or numbers since 1970 if its format is not given; `null`: `timestamp` if there."""
    choices: LabelCondition | None = None
    """Condition for positives, such as `{column: rating, at_least: 4}`. Items of other rows are never learnt, drawn
    as negatives or recommended to their user.
    """
    items: ItemTableConfig | None = None
    """Table of the items for `filter` of `:recommend` and `:similar`; no model reads it."""

    @model_validator(mode="before")
    @classmethod
    def _as_tables(cls, content: Any) -> Any:
        """Read the recipes of earlier datasets and models, which say in one word how files hold rows."""
        layout = str(content.get("layout")) if isinstance(content, dict) else ""
        if layout not in _LAYOUTS:
            return content
        return {key: value for key, value in content.items() if key != "layout"} | _LAYOUTS[layout]

    @property
    def given_names(self) -> dict[str, str | None]:
        """Return the columns' names in files as the recipe states them; None: one of `USUAL_NAMES`."""
        time = self.timestamp.column if isinstance(self.timestamp, TimeColumn) else self.timestamp
        return {USER: self.user, ITEM: self.item, TIMESTAMP: time}

    @property
    def names_in_files(self) -> dict[str, tuple[str, ...]]:
        """Return the names that each of the columns may have in files; the first one that is there counts."""
        return {side: (given,) if given else USUAL_NAMES[side] for side, given in self.given_names.items()}

    @property
    def unneeded_columns(self) -> tuple[str, ...]:
        """Return the other columns of MovieLens' files."""
        return ("rating", *self.names_in_files[TIMESTAMP])

    @property
    def other_names(self) -> dict[str, str]:
        sides = (USER, ITEM)
        return {name: side for side in sides for name in self.names_in_files[side] if name not in sides}


CONFIG = InteractionSourceConfig

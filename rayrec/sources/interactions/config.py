"""The sections `source` and `preprocess` of a recipe for interactions."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from rayrec.config.base import Config
from rayrec.config.preprocess import PreprocessConfig, SourceConfig, VocabularyPreprocessConfig
from rayrec.config.table import LabelCondition

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


class InteractionFilesSplitConfig(_HeldOutItems):
    """Split by files, as in the NCF paper: interactions for `train`, lists of candidates for `test`."""

    kind: Literal["files"] = "files"


InteractionSplitConfig = Annotated[LeaveOneOutSplitConfig | InteractionFilesSplitConfig, Field(discriminator="kind")]


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
        return self.split.model_copy(update={"validation": False, "test": False})

    @property
    def holds_out_latest(self) -> bool:
        return self.split_of_all_rows not in (None, self.split)


class InteractionSourceConfig(SourceConfig):
    """Interactions of users with items: MovieLens' ratings, similar CSV or Parquet files, the NCF paper's files.

    Every row is a positive, whatever the rating, unless `choices` is set.
    """

    preprocess: ClassVar[type[PreprocessConfig]] = InteractionPreprocessConfig
    gives_interactions: ClassVar[bool] = True
    kind: Literal["interactions"] = "interactions"
    layout: Literal["auto", "tab", "double_colon", "csv", "parquet"] = "auto"
    """`tab`: u.data, *.rating (user, item, perhaps rating, timestamp); `double_colon`: ratings.dat; `csv`: with a
    header; `auto`: by the start of each file."""
    user: str | None = None
    """Column with the user; `null`: userId, user_id or user."""
    item: str | None = None
    """Column with the item; `null`: movieId, movie_id, itemId, item_id, item or movie."""
    timestamp: str | None = None
    """Column with the time, integers or ISO 8601; `null`: `timestamp` if there."""
    choices: LabelCondition | None = None
    """Condition for positives, such as `{column: rating, at_least: 4}`. Items of other rows are never learnt, drawn
    as negatives or recommended to their user.
    """

    @property
    def unneeded_columns(self) -> tuple[str, ...]:
        """Return the other columns of MovieLens' files."""
        return ("rating", self.timestamp or "timestamp")

    @property
    def given_names(self) -> dict[str, str | None]:
        """Return the columns' names in files as the recipe states them; None: one of `USUAL_NAMES`."""
        return {USER: self.user, ITEM: self.item, TIMESTAMP: self.timestamp}

    @property
    def other_names(self) -> dict[str, str]:
        sides = {side: (given,) if given else USUAL_NAMES[side] for side, given in self.given_names.items()}
        return {name: side for side in (USER, ITEM) for name in sides[side] if name not in (USER, ITEM)}


CONFIG = InteractionSourceConfig

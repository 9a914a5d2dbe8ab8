"""The sections `source` and `preprocess` of a recipe for interactions."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from rayrec.config.base import Config
from rayrec.config.preprocess import PreprocessConfig, SourceConfig, VocabularyPreprocessConfig
from rayrec.config.table import LabelCondition


class _HeldOutItems(Config):
    validation: bool = False
    """Also hold out the interaction before, as the `validation` split."""
    negatives: PositiveInt = 100
    """Items that each held-out one is ranked among."""
    sampling: Literal["distinct", "with_replacement"] = "distinct"
    """`distinct`: no item twice in a list, and none that the user is known to have chosen in any split.
    `with_replacement`: as the original draws, for comparison with published figures: items may repeat, and only the
    user's items in train are left out, so the held-out item itself may be drawn."""


class LeaveOneOutSplitConfig(_HeldOutItems):
    """The last interaction of each user is `test`, each with drawn negatives."""

    kind: Literal["leave_one_out"] = "leave_one_out"
    test: bool = True
    """false holds no `test` out: with `validation` the last interaction is that split, without it all are `train`."""
    min_interactions: NonNegativeInt = 20
    """Users with fewer rows, repeated ones counted, are dropped; 0 keeps all."""


class InteractionFilesSplitConfig(_HeldOutItems):
    """Splits come as files, as for the NCF paper: interactions for `train`, lists of candidates for `test`.

    `validation` cuts the last interaction of each user from train, with drawn negatives.
    """

    kind: Literal["files"] = "files"


InteractionSplitConfig = Annotated[LeaveOneOutSplitConfig | InteractionFilesSplitConfig, Field(discriminator="kind")]


class InteractionPreprocessConfig(VocabularyPreprocessConfig):
    """How interactions of users with items become a dataset."""

    kind: Literal["interactions"] = "interactions"
    split: InteractionSplitConfig = LeaveOneOutSplitConfig()
    """How interactions are cut into splits."""

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
    """Who chose what, and when: MovieLens' ratings, any CSV or Parquet of the same, and the files of the NCF paper.

    Every row counts as a positive interaction of its user with its item, whatever the rating, unless `choices` says
    which ones do.
    """

    preprocess: ClassVar[type[PreprocessConfig]] = InteractionPreprocessConfig
    gives_interactions: ClassVar[bool] = True
    kind: Literal["interactions"] = "interactions"
    layout: Literal["auto", "tab", "double_colon", "csv", "parquet"] = "auto"
    """`tab`: u.data, *.rating (user, item, or user, item, rating, timestamp); `double_colon`: ratings.dat; `csv`: with
    a header. `auto` recognises it from the beginning of each file."""
    user: str | None = None
    """Column of the user in files that name their columns; None finds the usual names (userId, user_id, user)."""
    item: str | None = None
    """Column of the item; None finds movieId, movie_id, itemId, item_id, item, movie."""
    timestamp: str | None = None
    """Column of the time, integers or ISO 8601; None takes `timestamp` if a file has it."""
    choices: LabelCondition | None = None
    """The rows that are choices, such as `{column: rating, at_least: 4}`; None takes all. The item of another row is
    known to its user: it is neither learnt, nor drawn as a negative, nor recommended."""

    @property
    def unneeded_columns(self) -> tuple[str, ...]:
        """Return the other columns of MovieLens' files."""
        return ("rating", self.timestamp or "timestamp")


CONFIG = InteractionSourceConfig

"""Where raw rows come from and what their columns are."""

from typing import Annotated, Literal

from pydantic import Field

from rayrec.config.base import Config


class CriteoSourceConfig(Config):
    """Criteo's display-ads logs: tab separated, no header: label, 13 integers, 26 hexadecimal categories.

    One file (Kaggle) or `day_0` ... `day_23` (Terabyte), plain or gzip; an empty field is a missing value.
    """

    kind: Literal["criteo"] = "criteo"


class MovieLensSourceConfig(Config):
    """Who chose what, and when: MovieLens' ratings, any CSV or Parquet of the same, and the files of the NCF paper.

    Every row counts as a positive interaction of its user with its item, whatever the rating.
    """

    kind: Literal["movielens"] = "movielens"
    layout: Literal["auto", "tab", "double_colon", "csv", "parquet"] = "auto"
    """`tab`: u.data, *.rating (user, item, or user, item, rating, timestamp); `double_colon`: ratings.dat; `csv`: with
    a header. `auto` tells from the beginning of each file."""
    user: str | None = None
    """Column of the user in files that name their columns; None finds the usual names (userId, user_id, user)."""
    item: str | None = None
    """Column of the item; None finds movieId, movie_id, itemId, item_id, item, movie."""
    timestamp: str | None = None
    """Column of the time, integers; None takes `timestamp` where there is one."""


class OutbrainSourceConfig(Config):
    """Outbrain's click prediction data: nine tables as CSV files with a header, each plain, gzip or zip.

    `\\N` and the empty field are missing values. An example is a line of clicks_train with what the others say of it.
    """

    kind: Literal["outbrain"] = "outbrain"


SourceConfig = Annotated[CriteoSourceConfig | MovieLensSourceConfig | OutbrainSourceConfig, Field(discriminator="kind")]

INTERACTION_SOURCES = frozenset({"movielens"})
"""Kinds of sources whose rows are interactions of a user with an item."""
DISPLAY_SOURCES = frozenset({"outbrain"})
"""Kinds of sources whose rows are candidates shown together; those of sources in neither are examples with a label."""

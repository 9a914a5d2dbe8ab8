"""The sections `source` and `preprocess` of a recipe for Outbrain's tables."""

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from rayrec.config.base import Config
from rayrec.config.preprocess import Fraction, PreprocessConfig
from rayrec.config.source import SourceConfig


class DisplaySplitConfig(Config):
    """Whole displays: of the last days all are `validation`, of the days before a share of them."""

    kind: Literal["displays"] = "displays"
    held_out_from_day: NonNegativeInt = 11
    """Days count from the first millisecond of the data."""
    held_out_share: Fraction = 0.2


class RatesConfig(Config):
    """Rates of clicks as features, without what a row says of itself: docs/outbrain.md."""

    folds: int = Field(5, ge=2)
    """A row of train sees the rates of the other folds."""
    smoothing: NonNegativeFloat = 20.0
    """Views with the mean rate of train that a key begins with."""


class DisplayPreprocessConfig(PreprocessConfig):
    """Of sources whose rows are candidates shown together, with features that are joined from tables and fitted."""

    kind: Literal["displays"] = "displays"
    """Follows from the source; a recipe need not say it."""
    feature_set: Literal["full", "lean"] = "full"
    """`full`: the 54 features of NVIDIA's first version, with users' profiles; `lean`: the 29 of the newest."""
    original: bool = False
    """Repeat what NVIDIA published, its leaks and defects included, for comparison."""
    split: DisplaySplitConfig = DisplaySplitConfig()
    rates: RatesConfig = RatesConfig()

    @property
    def drops_events(self) -> bool:
        """Whether events without a platform or a place count as absent, as in the original of `full`."""
        return self.original and self.feature_set == "full"


class OutbrainSourceConfig(SourceConfig):
    """Outbrain's click prediction data: nine tables as CSV files with a header, each plain, gzip or zip.

    `\\N` and the empty field are missing values. An example is a line of clicks_train with what the others say of it.
    """

    preprocess: ClassVar[type[PreprocessConfig]] = DisplayPreprocessConfig
    kind: Literal["outbrain"] = "outbrain"


CONFIG = OutbrainSourceConfig

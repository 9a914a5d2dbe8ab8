"""The sections `source` and `preprocess` of a recipe for Outbrain's tables."""

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from rayrec.config.base import Config
from rayrec.config.preprocess import Fraction, PreprocessConfig, SourceConfig


class DisplaySplitConfig(Config):
    """Whole displays go to `validation`: all of the last days, and a share of those of the days before."""

    kind: Literal["displays"] = "displays"
    held_out_from_day: NonNegativeInt = 11
    """Days count from the first millisecond of the data."""
    held_out_share: Fraction = 0.2
    """Share of the displays of earlier days in `validation`."""


class RatesConfig(Config):
    """Rates of clicks as features; the rate of a row leaves its own click out (docs/outbrain.md)."""

    folds: int = Field(5, ge=2)
    """Parts of `train`; a row has the rates of the other folds."""
    smoothing: NonNegativeFloat = 20.0
    """Number of views with the mean rate of `train` that are added to those of each key."""


class DisplayPreprocessConfig(PreprocessConfig):
    """Settings for displays of ads, whose features are joined from tables and fitted to `train`."""

    kind: Literal["displays"] = "displays"
    """Implied by the source; a recipe may leave it out."""
    feature_set: Literal["full", "lean"] = "full"
    """`full`: the 54 features of NVIDIA's first version, with users' profiles; `lean`: the 29 of the newest."""
    split: DisplaySplitConfig = DisplaySplitConfig()
    rates: RatesConfig = RatesConfig()


class OutbrainSourceConfig(SourceConfig):
    """Outbrain's click prediction data: nine tables as CSV files with a header, each plain, gzip or zip.

    `\\N` and the empty field are missing values. An example is a line of clicks_train with what the others say of it.
    """

    preprocess: ClassVar[type[PreprocessConfig]] = DisplayPreprocessConfig
    kind: Literal["outbrain"] = "outbrain"


CONFIG = OutbrainSourceConfig

"""The sections `source` and `preprocess` of a recipe for Outbrain's tables."""

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from rayrec.config.base import Config
from rayrec.config.preprocess import Fraction, PreprocessConfig, SourceConfig


class DisplaySplitConfig(Config):
    """Put whole displays into `validation`: all of the last days, and a fraction of earlier ones."""

    kind: Literal["displays"] = "displays"
    held_out_from_day: NonNegativeInt = 11
    """First held-out day, counted from the first millisecond of the data."""
    held_out_share: Fraction = 0.2
    """Fraction of the displays of earlier days in `validation`."""


class RatesConfig(Config):
    """Click-through rates as features; a row's rate leaves out its own click (docs/outbrain.md)."""

    folds: int = Field(5, ge=2)
    """Number of folds of `train`; a row gets the rates of the other folds."""
    smoothing: NonNegativeFloat = 20.0
    """Number of views with the mean rate that are added to each key."""


class DisplayPreprocessConfig(PreprocessConfig):
    """Preprocessing of displays of ads: features are joined from tables and fitted to `train`."""

    kind: Literal["displays"] = "displays"
    """Kind of preprocessing, which the source decides."""
    feature_set: Literal["full", "lean"] = "full"
    """`full`: the 54 features of NVIDIA's first version, with user profiles; `lean`: the 29 of the newest."""
    split: DisplaySplitConfig = DisplaySplitConfig()
    rates: RatesConfig = RatesConfig()


class OutbrainSourceConfig(SourceConfig):
    """Outbrain's click prediction data: nine CSV files with a header, plain, gzip or zip.

    An example is a line of clicks_train with the joined columns of the others; `\\N` and empty fields are missing.
    """

    preprocess: ClassVar[type[PreprocessConfig]] = DisplayPreprocessConfig
    kind: Literal["outbrain"] = "outbrain"


CONFIG = OutbrainSourceConfig

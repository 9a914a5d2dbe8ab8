"""What the configs of all sources share."""

from typing import ClassVar

from rayrec.config.base import Config
from rayrec.config.preprocess import PreprocessConfig, RowsPreprocessConfig


class SourceConfig(Config):
    """Where raw rows come from and what their columns are; each source has a class of its own."""

    preprocess: ClassVar[type[PreprocessConfig]] = RowsPreprocessConfig
    """The class of the section `preprocess` of a recipe with this source."""
    kind: str

"""The section `source` of a recipe for Criteo's logs."""

from typing import Literal

from rayrec.config.preprocess import SourceConfig


class CriteoSourceConfig(SourceConfig):
    """Criteo's display-ads logs: tab separated, no header: label, 13 integers, 26 hexadecimal categories.

    One file (Kaggle) or `day_0` ... `day_23` (Terabyte), plain or gzip; an empty field is a missing value.
    """

    kind: Literal["criteo"] = "criteo"


CONFIG = CriteoSourceConfig

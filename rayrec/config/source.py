"""Where raw rows come from and what their columns are."""

from typing import Literal

from rayrec.config.base import Config


class CriteoSourceConfig(Config):
    """Criteo's display-ads logs: tab separated, no header: label, 13 integers, 26 hexadecimal categories.

    One file (Kaggle) or `day_0` ... `day_23` (Terabyte), plain or gzip; an empty field is a missing value.
    """

    kind: Literal["criteo"] = "criteo"


SourceConfig = CriteoSourceConfig

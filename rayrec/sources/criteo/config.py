"""The columns of Criteo's display-ads logs, and the section `source` of a recipe for them."""

from typing import Literal

from rayrec.config.table import CategoricalRule, FitFill, LabelCondition, NumericRule, Rule, TableSourceConfig
from rayrec.config.transforms import Log

LABEL = "label"
NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
SEPARATOR = "\t"


class CriteoSourceConfig(TableSourceConfig):
    """Criteo's display-ads logs, one file (Kaggle) or `day_0` to `day_23` (Terabyte): a table whose columns and rules
    have defaults.

    Tab-separated without a header: label, 13 integers, 26 categories; an empty field is missing.
    """

    kind: Literal["criteo"] = "criteo"
    separator: str | None = SEPARATOR
    quote: bool = False
    header: tuple[str, ...] | None = (LABEL, *NUMERIC, *CATEGORICAL)
    label: str | LabelCondition = LABEL
    features: tuple[Rule, ...] = (
        NumericRule(columns=("I*",), transforms=(Log(offset=3.0), FitFill(value=0.0))),
        CategoricalRule(columns=("C*",)),
    )


CONFIG = CriteoSourceConfig

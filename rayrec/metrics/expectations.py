"""Expectations of metrics, as people write them: `auc >= 0.76`, `validation.log_loss < 0.5`."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rayrec.common.errors import ConfigError, did_you_mean

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_EXPRESSION = re.compile(r"\s*(?P<metric>\S+?)\s*(?P<operator>[<>=!]=|[<>])\s*(?P<bound>\S+)\s*")


@dataclass(frozen=True)
class Expectation:
    """A comparison of a metric with a number."""

    text: str
    """As it was written."""
    metric: str
    operator: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> "Expectation":
        """Raise ConfigError where the text is not METRIC OPERATOR NUMBER."""
        match = _EXPRESSION.fullmatch(text)
        if match is None:
            known = ", ".join(_OPERATORS)
            raise ConfigError(f"--expect '{text}': write it as METRIC OPERATOR NUMBER, such as 'auc >= 0.76' ({known})")
        try:
            bound = float(match["bound"])
        except ValueError:
            raise ConfigError(f"--expect '{text}': '{match['bound']}' is not a number") from None
        return cls(" ".join(text.split()), match["metric"], match["operator"], bound)

    def check(self, metrics: Mapping[str, float | None]) -> "CheckedExpectation":
        """Compare with the metric's value. Raises ConfigError if there is no metric of this name."""
        if self.metric not in metrics:
            hint = did_you_mean(self.metric, metrics, "there are")
            raise ConfigError(f"--expect '{self.text}': no metric '{self.metric}'; {hint}")
        value = metrics[self.metric]
        # An undefined metric meets nothing.
        return CheckedExpectation(self.text, value, value is not None and _OPERATORS[self.operator](value, self.bound))


@dataclass(frozen=True)
class CheckedExpectation:
    """Expectation, the value found, and whether it is met."""

    text: str
    value: float | None
    is_met: bool

    @property
    def line(self) -> str:
        """Expectation and what was found."""
        return f"{self.text} ({'undefined' if self.value is None else f'it is {self.value:.6g}'})"


def flat_metrics(by_split: Mapping[str, Mapping[str, float | None]], main: str | None) -> dict[str, float | None]:
    """Return the metrics by `split.name`, and those of the split `main` by their name alone, too."""
    flat = {f"{split}.{name}": value for split, metrics in by_split.items() for name, value in metrics.items()}
    return {**by_split.get(main or "", {}), **flat}

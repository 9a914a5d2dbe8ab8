"""What a metric is expected to be."""

import pytest

from rayrec.common.errors import ConfigError
from rayrec.metrics.expectations import Expectation, flat_metrics

METRICS = flat_metrics(
    {"validation": {"auc": 0.75, "hr@10": 0.5}, "test": {"auc": 0.7, "log_loss": 0.4, "calibration": None}}, "test"
)


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("auc >= 0.7", True),
        ("auc>0.7", False),
        ("test.auc == 0.7", True),
        (" validation.auc>= .76 ", False),
        ("validation.hr@10 <= 5e-1", True),
        ("log_loss<0.5", True),
        ("log_loss != 0.4", False),
        ("calibration < 2", False),
    ],
)
def test_expressions_are_compared(text: str, is_met: bool) -> None:
    checked = Expectation.parse(text).check(METRICS)
    assert checked.is_met is is_met
    assert checked.line.startswith(" ".join(text.split()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "auc >= >= 1",
            "--expect 'auc >= >= 1': write it as METRIC OPERATOR NUMBER, such as 'auc >= 0.76' (>=, <=, ==, !=, >, <)",
        ),
        ("auc >= high", "--expect 'auc >= high': 'high' is not a number"),
        ("auk >= 0.7", "--expect 'auk >= 0.7': no metric 'auk'; did you mean 'auc'?"),
        ("valid.auc >= 0.7", "--expect 'valid.auc >= 0.7': no metric 'valid.auc'; did you mean 'validation.auc'?"),
    ],
)
def test_wrong_expressions_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Expectation.parse(text).check(METRICS)
    assert str(error.value) == message

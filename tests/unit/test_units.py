"""Numbers are written for people."""

import math

import pytest

from rayrec.common.units import format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.79312, "0.793"),
        (0.0016134, "0.00161"),
        (0.99961, "1.00"),
        (-0.05, "-0.0500"),
        (0.000012345, "1.23e-05"),
        (3.2e-7, "3.2e-07"),
        (9.996, "10.0"),
        (41_467.2, "41,500"),
        (999.6, "1,000"),
        (math.nan, "nan"),
    ],
)
def test_a_number_has_three_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text

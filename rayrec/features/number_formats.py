"""Numbers as people write them: `1,234.50`, `1.234,50`, `1 234,5`, `1'234.5`, `€ 3,20`, `12 %`, `(45.00)`.

A `NumberFormat` other than `plain` says by an example which mark stands before decimals, as the same digits are two
numbers otherwise (`1,234`); all else can be told. Thousands may be divided by the other mark, by blanks or apostrophes,
and in lakhs (`12,34,567`). Signs of currencies and percent are left out, so `12 %` is 12. A minus may be a hyphen or
the mathematical sign, before or after the number, or parentheses.
"""

from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc

from rayrec.config.base import NumberFormat

NUMBER_FORMATS: tuple[NumberFormat, ...] = get_args(NumberFormat)
PERCENT = "[%\u2030]"
CURRENCY = (
    r"(?:[A-Z]{0,3}\p{Sc}|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|KRW|MXN|NOK|NZD|PLN|RUB|SEK|SGD|TRY|USD"
    r"|ZAR|Fr\.?|Ft|Kč|kr\.?|Rs\.?|zł)"
)
_BLANKS = " \u00a0\u2007\u2009\u202f"
_BLANK = f"[{_BLANKS}]?"
BETWEEN_THOUSANDS: dict[NumberFormat, str] = {
    "1,234.5": f",'\u2019{_BLANKS}",
    "1.234,5": f".'\u2019{_BLANKS}",
}
"""The characters that may stand between thousands, by format; the mark comes first."""
_MINUS_ELSEWHERE = rf"^({CURRENCY}?){_BLANK}\(([^()]+)\)$|^([^-]+?){_BLANK}-$"


def _pattern(between: str) -> str:
    """Return the pattern of a number whose thousands are divided by one of some characters."""
    mark = between[0]
    before = "," if mark == "." else "."
    lakhs = rf"[1-9][0-9]?(?:[{mark}][0-9]{{2}})+[{mark}][0-9]{{3}}"
    whole = rf"[0-9]+|[1-9][0-9]{{0,2}}(?:[{between}][0-9]{{3}})+|{lakhs}"
    digits = rf"(?:{whole})(?:[{before}][0-9]*)?|[{before}][0-9]+|(?i:inf|infinity|nan)"
    sign = rf"(?:{CURRENCY}|{PERCENT})"
    return (
        rf"^(?:(?P<minus>[+-]){_BLANK})?(?:{sign}{_BLANK})?(?P<second>[+-])?"
        rf"(?P<digits>{digits})(?P<exponent>[eE][+-]?[0-9]+)?{_BLANK}{sign}?$"
    )


_PATTERNS = {form: _pattern(between) for form, between in BETWEEN_THOUSANDS.items()}


def plain_numbers(texts: pa.Array, number_format: NumberFormat) -> pa.Array:
    """Write (n,) texts, without blanks around them, as plain numbers; null where a text has another format."""
    if number_format == "plain":
        return texts
    texts = pc.replace_substring(texts, "\u2212", "-")
    texts = pc.replace_substring_regex(texts, _MINUS_ELSEWHERE, r"-\1\2\3")
    found = pc.extract_regex(texts, _PATTERNS[number_format])
    minus, second, digits, exponent = (
        pc.struct_field(found, name) for name in ("minus", "second", "digits", "exponent")
    )
    digits = pc.replace_substring_regex(digits, f"[{BETWEEN_THOUSANDS[number_format]}]", "")
    digits = pc.replace_substring(digits, ",", ".")
    written = pc.binary_join_element_wise(minus, second, digits, exponent, pa.scalar("", texts.type))
    # Two signs are a mistake.
    return pc.if_else(pc.match_substring_regex(written, "^[+-]{2}"), None, written)

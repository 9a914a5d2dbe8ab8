"""Values of files and requests become the types of raw columns, or are marked as unreadable."""

import datetime as dt
import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import needs, read_column

BAD = object()
"""Stands for a value that cannot be read."""


def column(type_: str, **settings: str) -> RawColumn:
    return RawColumn.model_validate({"name": "x", "type": type_, **settings})


def read(values: pa.Array, raw: RawColumn) -> list[Any]:
    result, unreadable = read_column(values, raw)
    result.validate(full=True)
    assert (result.type, len(result), unreadable.shape) == (raw.arrow, len(values), (len(values),))
    assert not result.is_valid().to_numpy(zero_copy_only=False)[unreadable].any()
    return [BAD if wrong else value for value, wrong in zip(result.to_pylist(), unreadable, strict=True)]


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


TEXTS: dict[str, tuple[RawColumn, dict[str | None, Any]]] = {
    "number": (
        column("number"),
        {
            "1": 1.0,
            " 2.5\t": 2.5,
            "-.5e-3": -0.0005,
            "5.": 5.0,
            "inf": math.inf,
            "1e400": math.inf,
            "": None,
            None: None,
        }
        | dict.fromkeys(["x", "1,5", "0x1F", "1_000", "--1", "1e", "\u0663", "1 2", "nano"], BAD),
    ),
    "integer": (
        column("integer"),
        {"1": 1, " 007 ": 7, "-3": -3, str(2**63 - 1): 2**63 - 1, "1.0": 1, "+7": 7, "True": 1, "": None, None: None}
        | dict.fromkeys(["1.5", "0x1F", "1_000", "x", str(2**63), "\u0663"], BAD),
    ),
    "iso": (
        column("time", zone="Europe/Vienna"),
        {
            "2024-01-02": utc("2024-01-01 23:00"),
            "2024-07-02 03:04": utc("2024-07-02 01:04"),
            "2024-01-02T03:04:05.123456789Z": utc("2024-01-02 03:04:05.123456"),
            "2024-01-02 03:04:05 UTC": utc("2024-01-02 03:04:05"),
            "2024-01-02T03:04:05-05:30": utc("2024-01-02 08:34:05"),
            " 2024-01-02 03:04:05 +0100 ": utc("2024-01-02 02:04:05"),
            "2024-01-02 03:04:05,678": utc("2024-01-02 02:04:05.678"),
            "20240102T030405Z": utc("2024-01-02 03:04:05"),
            "20240102T030405,25+0100": utc("2024-01-02 02:04:05.25"),
            "20240102T0304": utc("2024-01-02 02:04"),
            "2024-03-31 02:30": utc("2024-03-31 01:00"),  # skipped: clocks go from 2 to 3
            "2024-10-27 02:30": utc("2024-10-27 00:30"),  # repeated: the first one
            "": None,
            None: None,
        }
        | dict.fromkeys(
            [
                "x",
                "0000-01-01",
                "2024-02-30",
                "24-01-02",
                "20240102T3",
                "2024-01-02 03,5",
                "2024-01-02 25:00",
                "02.01.2024",
            ],
            BAD,
        ),
    ),
    "strptime": (
        column("time", time_format="%y%m%d%H", zone="America/New_York"),
        {"14102100": utc("2014-10-21 04:00"), " 14122123": utc("2014-12-22 04:00"), "": None, None: None}
        | dict.fromkeys(["141021", "14102124", "1410210000", "x"], BAD),
    ),
    "seconds": (
        column("time", time_format="s"),
        {"0": utc("1970-01-01"), "1414281600.25": utc("2014-10-26 00:00:00.25"), "-1": utc("1969-12-31 23:59:59")}
        | {"": None, None: None}
        | dict.fromkeys(["1414281600000", "inf", "2014-10-26"], BAD),
    ),
    "milliseconds": (column("time", time_format="ms"), {"1414281600123": utc("2014-10-26 00:00:00.123"), "x": BAD}),
    "nanoseconds": (column("time", time_format="ns"), {"1414281600123456789": utc("2014-10-26 00:00:00.123457")}),
    "headers of HTTP name UTC": (
        column("time", time_format="%a, %d %b %Y %H:%M:%S GMT", zone="Europe/Vienna"),
        {"Wed, 01 May 2024 10:00:00 GMT": utc("2024-05-01 10:00"), "Wed, 01 May 2024 10:00:00": BAD},
    ),
    "logs of Apache": (
        column("time", time_format="%d/%b/%Y:%H:%M:%S %z", zone="Europe/Vienna"),
        {"01/May/2024:10:00:00 +0530": utc("2024-05-01 04:30")},
    ),
    "texts": (column("texts", separator="|"), {"a| b ": ["a", "b"], "a||": ["a", None, None], "": None, None: None}),
    "integers": (column("integers", separator=", "), {"1, 2": [1, 2], "1, , 2": [1, None, 2], "1|2": BAD, "": None}),
    "lists with commas in brackets": (
        column("texts", separator="[,]", form="number"),
        {
            """['a', "it's", 'b, c']""": ["a", "it's", "b, c"],
            '["a", null, "\\u00e9\\ud83d\\ude00", "say \\"hi\\""]': ["a", None, "\u00e9\U0001f600", 'say "hi"'],
            """{a,"b c","say \\"hi\\"",rock'n'roll,NULL}""": ["a", "b c", 'say "hi"', "rock'n'roll", None],
            "[sci fi, drama (1990s)]": ["sci fi", "drama (1990s)"],
            "[1, 2.0, 007]": ["1", "2", "007"],
            "('a',)": ["a"],
            "(1, None, 2.5)": ["1", None, "2.5"],
            "{'x'}": ["x"],
            "[np.str_('a'), np.int64(3)]": ["a", "3"],
            "array([1., 2.], dtype=float32)": ["1", "2"],
            "['\\n', u'[x]', b'y']": [None, "[x]", "y"],
            "": None,
            None: None,
        }
        | {empty: [] for empty in ("[]", "{}", "()", "set()", " [ ] ")}
        | dict.fromkeys(["a", "['a'", "['a', ['b']]", '{"a": 1}', "(see note, p. 3)", "[a,,b]", "[1, ..., 9]"], BAD),
    ),
    "lists with blanks in brackets": (
        column("numbers", separator="[ ]"),
        {
            "[1 2 3]": [1, 2, 3],
            "[ 1.   -2.5\n 1e-3]": [1, -2.5, 1e-3],
            "[nan 1]": [None, 1],
            "['7' '8']": [7, 8],
            "[]": [],
        }
        | dict.fromkeys(["[1, 2]", "1 2", "[1 ... 9]", "[a b]"], BAD),
    ),
    "numbers": (column("numbers", separator=" "), {"1 -2.5": [1.0, -2.5], "1 x": BAD, None: None}),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts(case: str) -> None:
    raw, expected = TEXTS[case]
    assert read(pa.array(expected, pa.string()), raw) == list(expected.values())
    assert read(pa.array(expected, pa.large_string()), raw) == list(expected.values())
    assert read(pa.array(expected).dictionary_encode(), raw) == list(expected.values())
    for text, value in expected.items():  # a request: each alone
        assert read(pa.array([text], pa.string()), raw) == [value]


ARROW: dict[str, tuple[pa.Array, RawColumn, list[Any]]] = {
    "integers beyond 2^53 as numbers": (pa.array([2**53 + 1, None]), column("number"), [2.0**53, None]),
    "decimals as numbers": (pa.array([Decimal("1.50"), None]), column("number"), [1.5, None]),
    "booleans as numbers": (pa.array([True, False, None]), column("number"), [1.0, 0.0, None]),
    "floats as integers": (
        pa.array([7.0, math.nan, None, 7.5, 1e30, math.inf]),
        column("integer"),
        [7, None, None, BAD, BAD, BAD],
    ),
    "uint64 as integers": (pa.array([1, 2**64 - 1], pa.uint64()), column("integer"), [1, BAD]),
    "integers as texts": (pa.array([7, -1, None], pa.int8()), column("text"), ["7", "-1", None]),
    "uint64 as texts": (pa.array([2**64 - 1], pa.uint64()), column("text"), [str(2**64 - 1)]),
    "floats as texts": (pa.array([7.0, math.nan, 7.5]), column("text"), ["7", None, "7.5"]),
    "decimals as texts": (pa.array([Decimal("7.00"), Decimal("7.50")]), column("text"), ["7", "7.5"]),
    "booleans as texts": (pa.array([True, False, None]), column("text"), ["true", "false", None]),
    "binary as texts": (pa.array([b"a", b"\xff", None]), column("text"), ["a", BAD, None]),
    "half floats as texts": (pa.array(np.array([0.1, 7, math.nan], np.float16)), column("text"), ["0.1", "7", None]),
    "days as texts": (pa.array([dt.date(2024, 5, 1)]), column("text", form="time"), ["2024-05-01"]),
    "midnights as texts": (
        pa.array([dt.datetime(2024, 5, 1), dt.datetime(2024, 5, 1, 9, 0, 0, 500_000)], pa.timestamp("ns")),
        column("text", form="time"),
        ["2024-05-01", "2024-05-01 09:00:00.5"],
    ),
    "durations as numbers": (pa.array([1_500, -3_000, None], pa.duration("ms")), column("number"), [1.5, -3.0, None]),
    "durations as texts": (pa.array([2_000_000], pa.duration("us")), column("text"), ["2"]),
    "uuids": (
        pa.array([bytes(range(16)), None], pa.uuid()),
        column("text"),
        ["00010203-0405-0607-0809-0a0b0c0d0e0f", None],
    ),
    "bytes of a fixed size": (pa.array([b"ab", b"\xff\xff"], pa.binary(2)), column("text"), ["ab", BAD]),
    "nothing": (pa.nulls(2), column("texts"), [None, None]),
    "dates": (pa.array([dt.date(2024, 1, 2)]), column("time", zone="Asia/Tokyo"), [utc("2024-01-01 15:00")]),
    "local times": (
        pa.array([dt.datetime(2024, 1, 2)]),
        column("time", zone="Asia/Tokyo", time_format="%Y"),
        [utc("2024-01-01 15:00")],
    ),
    "nanoseconds": (
        pa.array([-1, None], pa.timestamp("ns", "UTC")),
        column("time"),
        [utc("1969-12-31 23:59:59.999999"), None],
    ),
    "times far away": (pa.array([0, 2**62], pa.timestamp("us", "UTC")), column("time"), [utc("1970-01-01"), BAD]),
    "seconds far away": (pa.array([0, 2**62], pa.timestamp("s")), column("time"), [utc("1970-01-01"), BAD]),
    "integers as a pattern": (
        pa.array([14102100, None]),
        column("time", time_format="%y%m%d%H"),
        [utc("2014-10-21"), None],
    ),
    "lists": (pa.array([[1, None], None, []])[1:], column("texts"), [None, []]),
    "large lists": (pa.array([["7"], ["x", "8"]], pa.large_list(pa.string())), column("integers"), [[7], BAD]),
    "fixed lists": (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), column("numbers"), [[1.0, 2.0], None]),
}


@pytest.mark.parametrize("case", ARROW)
def test_arrow_columns(case: str) -> None:
    values, raw, expected = ARROW[case]
    assert read(values, raw) == expected


def test_a_column_of_the_right_type_is_not_copied() -> None:
    for raw in (column("number"), column("integers")):
        values = pa.nulls(3, raw.arrow)
        assert read_column(values, raw)[0] is values


@pytest.mark.parametrize(
    ("values", "raw", "message"),
    [
        (pa.array([{"a": 1}]), column("text"), "column 'x': holds struct<a: int64>, needs a text"),
        (pa.array([dt.date(2024, 1, 2)]), column("number"), "column 'x': holds date32[day], needs a number"),
        (pa.array([["a"]]), column("integer"), "column 'x': holds list<item: string>, needs an integer"),
        (pa.array([True]), column("time"), "column 'x': holds bool, needs a time as ISO 8601 writes it"),
        (pa.nulls(1, pa.month_day_nano_interval()), column("text"), "holds month_day_nano_interval, needs a text"),
        (pa.array(["a b"]), column("texts"), "column 'x': holds string, needs a list of texts; give its `separator`"),
        (
            pa.array([7]),
            column("numbers", separator="|"),
            "needs a list of numbers (or a text of them with '|' between)",
        ),
    ],
)
def test_types_that_cannot_be_read(values: pa.Array, raw: RawColumn, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        read_column(values, raw)


def test_messages_name_the_format_of_times() -> None:
    assert needs(column("time", time_format="ms")) == "a time in ms since 1970"
    assert needs(column("time", time_format="%d.%m.%Y")) == "a time as %d.%m.%Y"


@given(st.lists(st.none() | st.text() | st.floats().map(repr) | st.integers().map(str), max_size=20))
def test_a_value_does_not_depend_on_the_rows_around_it(texts: list[str | None]) -> None:
    for raw in (column("number"), column("integer"), column("time"), column("time", time_format="s")):
        together = read(pa.array(texts, pa.string()), raw)
        alone = [read(pa.array([text], pa.string()), raw)[0] for text in texts]
        assert list(map(repr, together)) == list(map(repr, alone))


@given(st.lists(st.floats(allow_nan=False)))
def test_numbers_as_python_reads_them(numbers: list[float]) -> None:
    assert read(pa.array(list(map(repr, numbers)), pa.string()), column("number")) == numbers

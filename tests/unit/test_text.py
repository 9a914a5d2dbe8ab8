"""Numbers are written for people, and users' names become ASCII for tags of metrics, and come back whole."""

import math
import subprocess

import pytest

from rayrec.common.text import (
    ascii_name,
    distinct_ends,
    format_number,
    natural_order,
    printable,
    shell_line,
    with_names,
)


@pytest.mark.parametrize(
    "names",
    [
        ["Monday", "Tuesday", "Sunday", "unknown"],
        ["<18", "18-24", "25-34", "65+", "Other"],
        ["<$5", "$5-$10", "$10-$20", "$100+"],
        ["(-5.0, 0.0]", "(0.0, 5.5]", "(5.5, 10.0]", "(10.0, inf]"],
        ["[5,10)", "[50,100)", "[100,200)", "[500,1000)", "[1000,2000)"],
        ["500-1,000", "1,000-2,000", "10,000+"],
        ["under 5k", "5k-10k", "1m+"],
        ["1,5 €", "2,5 €", "10 €"],
        ["-10", "-5", "0", "1e-06", "0.0001", "7"],
        ["12 am", "9 am", "12 pm", "1 pm"],
        ["00:30", "09:15", "09:45", "23:00"],
        ["Q1", "Q2", "Q10"],
        ["S", "M", "L", "XL"],
    ],
)
def test_names_of_an_order_are_known(names: list[str]) -> None:
    for shuffled in (names[::-1], names[1::2] + names[::2], sorted(names)):
        assert [shuffled[place] for place in natural_order(shuffled) or ()] == names
    assert natural_order([*names, "blue"]) is None


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


@pytest.mark.parametrize(
    "name", ["", "ctr", "a b/c:d", 'x"y\\z\n', "50%", "%41", "Straße", "点击率", "🛒", "e\u0301", "é"]
)
def test_a_name_comes_back(name: str) -> None:
    assert ascii_name(name).isascii()
    assert with_names(ascii_name(name).encode()) == name.encode()


def test_names_of_ascii_stay_readable() -> None:
    assert ascii_name("run-7/trial 3") == "run-7/trial 3"
    assert ascii_name("Straße 50%") == "Stra%C3%9Fe 50%25"


def test_a_file_name_that_is_no_utf_8_has_a_tag() -> None:
    assert ascii_name("caf\udce9") == "caf\\udce9"


def test_the_shortest_ends_that_differ() -> None:
    paths = [("/", "a", "run"), ("/", "b", "x", "run"), ("/", "b", "last"), ("run",)]
    assert distinct_ends(paths) == [("a", "run"), ("x", "run"), ("last",), ("run",)]
    assert distinct_ends([("/", "a", "run"), ("/", "x", "a", "run")]) == [("/", "a", "run"), ("x", "a", "run")]


UNRULY = [
    "it's",
    'a "b" #c: %d {0} [x]',
    "back\\slash\\n",
    "two\r\nlines",
    "\x1b[2J\x9b\x7f",
    "a\u2028b\u202ec",
    "größe\t",
]


@pytest.mark.parametrize("text", UNRULY)
def test_nothing_that_is_printed_leaves_its_line(text: str) -> None:
    shown = printable(text)
    assert all(character.isprintable() for character in shown) and len(shown.splitlines()) == 1
    assert shown == text or not text.isprintable()
    assert printable(text, keep=text) == text


def test_a_shell_reads_the_words_that_were_given() -> None:
    line = shell_line(["printf", "%s\\n", *UNRULY])
    assert printable(line) == line
    shown = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, check=True).stdout
    assert shown.decode() == "".join(f"{word}\n" for word in UNRULY)

"""Pages: whole, standing alone, and safe against texts of the data."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from rayrec.pages.charts import (
    Dimension,
    bars,
    distinct_labels,
    histograms,
    intervals,
    lines,
    parallel,
    shares_and_rates,
    stacked,
)
from rayrec.pages.page import Code, HtmlTable, Page, Section, html_of, percent, plus_minus, signed, text_of, write_page

HOSTILE = "</script><script>alert(1)</script>&amp;<b>"


class Parsed(HTMLParser):
    """The elements of a page, each closed in order, and its text."""

    VOID = frozenset({"meta", "link", "wbr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        for name, value in attrs:
            assert name != "src" and (name != "href" or str(value).startswith(("#", "data:"))), "the page stands alone"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def charts() -> list[Section]:
    one = [0.25, None, 1.0]
    return [
        Section(
            HOSTILE,
            [
                lines(HOSTILE, HOSTILE, "y", {HOSTILE: ([1, 2, 3], one)}, bands={HOSTILE: (one, one)}, diagonal=(0, 1)),
                shares_and_rates("s", [HOSTILE, "b", "c"], one, one, one, one),
                HtmlTable(
                    [{HOSTILE: HOSTILE, "number": 1.23456789, "none": None, "empty": ""}], title=HOSTILE, marked=[0]
                ),
                intervals("i", [HOSTILE, "b", "c"], one, one, one, reference=0.5, ratio=True),
                histograms("h", "x", [0.0, 0.5, 1.0], {HOSTILE: [0.5, 0.5]}),
                bars("b", [HOSTILE], [1.0], x_title="x"),
                stacked("t", [HOSTILE], {HOSTILE: [1.0]}, x_title="x"),
                parallel("p", [Dimension(HOSTILE, [0.0, 1.0], {HOSTILE: 0.0})], [HOSTILE, "b"]),
                Code(HOSTILE),
            ],
            HOSTILE,
        )
    ]


@pytest.fixture(scope="module")
def html() -> str:
    return html_of(
        Page(
            HOSTILE,
            HOSTILE,
            charts(),
            {HOSTILE: HOSTILE},
            [{"line": HOSTILE, "is_met": True}, {"line": "b", "is_met": False}],
        )
    )


def test_the_page_is_whole_and_stands_alone(html: str) -> None:
    page = Parsed(html)
    assert page.open == []
    # Its own three scripts: the charts, the library, and what draws the ones with the other.
    assert (page.seen["script"], page.seen["figure"], page.seen["table"], page.seen["pre"]) == (3, 8, 1, 1)
    assert "//" not in re.sub(r"(?s)<script.*?</script>", "", html), "no address of another page"
    assert page.text.count(HOSTILE) >= 7
    assert len(html) < 3_000_000


def test_no_text_of_the_data_becomes_markup(html: str) -> None:
    """Neither the browser's nor that of plotly.js, which shows some tags in the texts of charts."""
    assert "<script>alert" not in html
    content = re.search(r'id="charts">(.*?)</script>', html, re.DOTALL)
    assert content is not None
    drawn = json.loads(content[1])
    assert len(drawn) == 7

    def texts(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for inner in value.values() for text in texts(inner)]
        return [text for inner in value for text in texts(inner)] if isinstance(value, list) else [str(value)]

    own = {"<br>", "<extra></extra>"}
    for text in texts(drawn):
        assert set(re.findall(r"<[^>]*>(?:</extra>)?", text)) <= own, text


def test_the_library_is_plotly_packed(html: str) -> None:
    packed = re.search(r'id="library">(.*?)</script>', html)
    assert packed is not None
    assert gzip.decompress(base64.b64decode(packed[1])).decode() == get_plotlyjs()
    assert 'id="library"></script>' in html_of(Page("no charts", "", [Section("a", [Code("b")])]))


def test_columns_without_a_value_are_left_out(html: str) -> None:
    head = html[html.index("<thead>") : html.index("</thead>")]
    assert "number" in head and "none" not in head and "empty" not in head
    assert "<td class=number>1.23</td>" in html


def test_a_page_and_its_figures_are_written(tmp_path: Path) -> None:
    figures = {"values": [1.5, None, "é"]}
    write_page(tmp_path, Page("t", "s", []), figures)
    assert json.loads((tmp_path / "report.json").read_text()) == figures
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("count", range(1, 10))
def test_charts_fill_their_rows(count: int) -> None:
    """Sixths of the width, of a third, a half or the whole page, in rows without a gap."""
    chart = bars("b", ["a"], [1.0], x_title="x")
    html = html_of(Page("t", "", [Section("s", [chart] * count)]))
    widths = [{"third": 2, "half": 3, "whole": 6}[kind] for kind in re.findall(r'<figure class="(\w+)"', html)]
    assert len(widths) == count
    row = 0
    for width in widths:
        row += width
        assert row <= 6
        row %= 6
    assert row == 0


def test_a_small_table_stands_beside_charts_and_a_large_one_alone() -> None:
    small, large = HtmlTable([{"a": 1, "b": 2}]), HtmlTable([{f"column {n}": n for n in range(12)}])
    chart = bars("b", ["a"], [1.0], x_title="x")
    html = html_of(Page("t", "", [Section("s", [chart, small, large])]))
    assert re.findall(r'<figure class="(\w+)"', html) == ["half", "half", "whole"]


def test_differences_and_errors_have_three_digits() -> None:
    assert [signed(0.0012345), signed(-0.5), signed(0.0)] == ["+0.00123", "-0.500", "0"]
    assert (percent(0.2491), percent(None), plus_minus(0.79312, 0.0043219)) == ("24.9%", "", "0.793 ± 0.00432")
    html = html_of(Page("t", "", [Section("s", [HtmlTable([{"difference": signed(0.5)}])])]))
    assert "<td class=number>+0.500</td>" in html, "aligned as the numbers that they are"


def test_labels_are_short_and_all_different() -> None:
    long = ["a feature of a very long name: value 1", "a feature of a very long name: value 2", "b", "b"]
    labels = distinct_labels(long)
    assert len(set(labels)) == 4
    assert max(map(len, labels)) <= 23
    assert labels[0].startswith("a fea") and labels[0].endswith("value 1")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "True"), (3, "3"), (12_345, "12,345"), (0.123456, "0.123"), (2.0, "2"), (1e-9, "1e-09"),
     (123_456.7, "123,000"), ("a", "a")],
)  # fmt: skip
def test_measures_are_shown_with_three_digits(value: object, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(("level", "expected"), [(0.001, [0, 0.002]), (-3.0, [-6.0, 0]), (0.0, None), (None, None)])
def test_a_level_line_is_not_shown_at_nought(level: float | None, expected: list[float] | None) -> None:
    """A learning rate of 0.001, for example, where Plotly would show -1 to 1."""
    drawn = lines("rate", "step", "", {"a": ([1, 2], [level, level]), "b": ([1, 2], [level, level])})
    assert drawn.layout["yaxis"].get("range") == expected
    assert "range" not in lines("rate", "step", "", {"a": ([1, 2], [0.1, 0.2])}).layout["yaxis"]

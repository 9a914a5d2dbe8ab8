"""A page: one HTML file that works without a network, in light and dark, on a large screen and a small one."""

import base64
import gzip
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from rayrec.common.text import format_number, format_share, printable
from rayrec.store.files import write_atomically, write_json

PAGE_FILE, FIGURES_FILE = "report.html", "report.json"

_LONG, _TEXT = 14, 48
"""Characters from which on a cell may take several lines, and from which on words are as wide as a text."""
_CARD_ROWS, _CARD_CHARACTERS = 12, 46
"""Rows and characters up to which a table is a card among charts."""
_TALL = 900
"""Pixels from which a chart may continue on the next sheet of paper."""

Figures = Mapping[str, Any]
"""What a page shows, as JSON values."""


@dataclass(frozen=True)
class Chart:
    """A chart of plotly.js; `rayrec.pages.charts` makes them."""

    title: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    height: int = 300
    note: str = ""
    is_wide: bool = False
    """Whether it takes a row of its own."""
    min_width: int = 0
    """Pixels below which it is scrolled sideways."""


@dataclass(frozen=True)
class HtmlTable:
    """Rows that have the same keys, which are the header; measures are shown with three digits."""

    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    note: str = ""
    marked: Collection[int] = ()
    """Rows that stand out."""


@dataclass(frozen=True)
class Code:
    """A text as it is, such as a recipe."""

    text: str


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading."""

    title: str
    blocks: Sequence[Chart | HtmlTable | Code] = ()
    text: str = ""


@dataclass(frozen=True)
class Page:
    """A page. All texts are plain."""

    title: str
    summary: str
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    """The most important numbers, by name."""
    expectations: Sequence[Mapping[str, Any]] = ()
    """What was expected of the figures: `line` says it, `is_met` whether it came true."""


def write_page(folder: Path, page: Page, figures: Figures, name: str = PAGE_FILE) -> Path:
    """Write a page and, beside it, the figures that it was made from as JSON. Return the file of the page."""
    file = folder / name
    write_json(file.with_suffix(".json"), figures)
    write_atomically(file, html_of(page, file.with_suffix(".json").name))
    return file


def html_of(page: Page, figures_file: str = FIGURES_FILE) -> str:
    """Return the page as HTML; it says that its figures are in `figures_file`."""
    # Sections come first, as they number the charts; then what stands above them, and the library that draws.
    charts: list[Chart] = []
    body = "".join(_section(section, number, charts) for number, section in enumerate(page.sections))
    links = "".join(f'<a href="#s{n}">{_html(section.title)}</a>' for n, section in enumerate(page.sections))
    facts = "".join(
        f"<div{' class=said' if len(v) > _LONG else ''}><dt>{_html(k)}</dt><dd>{_html(v)}</dd></div>"
        for k, v in page.facts.items()
    )
    expectations = "".join(
        f'<li class="{"met" if one["is_met"] else "missed"}">{_html(one["line"])}</li>' for one in page.expectations
    )
    parts = {
        "title": _html(page.title),
        "summary": _html(page.summary),
        "facts": f"<dl>{facts}</dl>" if facts else "",
        "expectations": f'<ul class="checks">{expectations}</ul>' if expectations else "",
        "links": links,
        "body": body,
        "figures": _html(figures_file),
        # A text of the data might end the element.
        "charts": json.dumps([[c.traces, c.layout] for c in charts], allow_nan=False).replace("<", "\\u003c"),
        "library": _library() if charts else "",
    }
    return Template(files(__package__).joinpath("page.html").read_text()).substitute(parts)


def _html(text: str) -> str:
    return escape(printable(text, keep="\n"))


def _section(section: Section, number: int, charts: list[Chart]) -> str:
    """Return the HTML of a section, whose charts are added to `charts`."""
    content: list[str] = []
    cards: list[Chart | HtmlTable] = []
    for block in [*section.blocks, None]:
        is_wide = isinstance(block, Chart) and block.is_wide
        is_card = isinstance(block, Chart) or (isinstance(block, HtmlTable) and _is_small(block))
        # Cards that follow each other share a grid; a wide one has its own.
        if cards and (is_wide or not is_card):
            content.append(_grid(cards, charts))
            cards = []
        if is_card and not is_wide:
            assert block is not None and not isinstance(block, Code)
            cards.append(block)
        elif isinstance(block, Chart):
            content.append(_grid([block], charts))
        elif isinstance(block, HtmlTable):
            content.append(f'<div class="grid">{_table(block, "whole")}</div>')
        elif block is not None:
            content.append(f"<pre>{_html(block.text)}</pre>")
    text = f"<p>{_html(section.text)}</p>" if section.text else ""
    return f'<section id="s{number}"><h2>{_html(section.title)}</h2>{text}{"".join(content)}</section>'


def _grid(cards: Sequence[Chart | HtmlTable], charts: list[Chart]) -> str:
    """Return cards in rows of three, without a gap: the last two, or four, are in rows of two."""
    halves = {0: 0, 1: 4 if len(cards) > 1 else 0, 2: 2}[len(cards) % 3]
    widths = ["third"] * (len(cards) - halves) + ["half"] * halves if len(cards) > 1 else ["whole"]
    content = []
    for card, width in zip(cards, widths, strict=True):
        if isinstance(card, Chart):
            content.append(_chart(card, len(charts), width))
            charts.append(card)
        else:
            content.append(_table(card, width))
    return f'<div class="grid">{"".join(content)}</div>'


def _chart(chart: Chart, number: int, width: str) -> str:
    title, note = _html(chart.title), f"<small>{_html(chart.note)}</small>" if chart.note else ""
    kinds = f"{width} tall" if chart.height > _TALL else width
    return (
        f'<figure class="{kinds}"><figcaption>{title}</figcaption><div class="sideways"><div class="chart" role="img" '
        f'aria-label="{title}" data-chart="{number}" data-height="{chart.height}" data-min-width="{chart.min_width}" '
        f'style="height:{chart.height}px;min-width:{chart.min_width}px"></div></div>{note}</figure>'
    )


def _is_small(table: HtmlTable) -> bool:
    """Return whether a table fits into a third of the page."""
    columns = _columns_of(table)
    widths = [max(len(name), *(len(text_of(row.get(name))) for row in table.rows)) + 2 for name in columns]
    return len(table.rows) <= _CARD_ROWS and sum(widths) <= _CARD_CHARACTERS


def _columns_of(table: HtmlTable) -> dict[str, Any]:
    """Return the first value of each column; a column without any is left out."""
    names = dict.fromkeys(name for row in table.rows for name in row)
    first = {name: next((row[name] for row in table.rows if row.get(name) not in (None, "")), None) for name in names}
    return {name: value for name, value in first.items() if value is not None}


def _table(table: HtmlTable, width: str) -> str:
    title = f"<figcaption>{_html(table.title)}</figcaption>" if table.title else ""
    note = f"<small>{_html(table.note)}</small>" if table.note else ""
    columns = _columns_of(table)
    head = "".join(f"<th{_of_kind(value)}>{_breakable(name)}</th>" for name, value in columns.items())
    rows = "".join(
        f"<tr{' class=marked' if number in table.marked else ''}>{''.join(_cell(row.get(n)) for n in columns)}</tr>"
        for number, row in enumerate(table.rows)
    )
    kinds = f"{width} tall" if len(table.rows) > _CARD_ROWS else width
    return (
        f'<figure class="{kinds}">{title}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}</figure>"
    )


def _cell(value: Any) -> str:
    text = text_of(value)
    return f"<td{_of_kind(value)}>{_breakable(text) if len(text) > _LONG else _html(text)}</td>"


def _breakable(text: str) -> str:
    """Return the HTML of a text whose names may take several lines."""
    return re.sub(r"([._/=])(?=[^\W\d])", r"\1<wbr>", _html(text))


def _of_kind(value: Any) -> str:
    """Return the class of a cell: numbers are aligned at the right, long texts take several lines."""
    if (isinstance(value, int | float) and not isinstance(value, bool)) or isinstance(value, NumberText):
        return " class=number"
    if not isinstance(value, str) or len(value) <= _LONG:
        return ""
    return " class=text" if len(value) > _TEXT and " " in value else " class=long"


class NumberText(str):
    """A text of a number, which a table aligns at the right."""

    __slots__ = ()


def text_of(value: Any) -> str:
    """Return a value as people read it: three digits of a measure, all of an integer, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return format_number(value)


def percent(share: float | None) -> NumberText:
    """Return a share as people read it, such as '24.9%'; nothing for None."""
    return NumberText("" if share is None else format_share(share))


def signed(difference: float) -> NumberText:
    """Return a difference as people read it, such as '+0.00123'."""
    return NumberText(("+" if difference > 0 else "") + format_number(difference))


def plus_minus(value: float, error: float) -> NumberText:
    """Return a measure and how far it may be off, such as '0.793 ± 0.00432'."""
    return NumberText(f"{format_number(value)} ± {format_number(error)}")


@lru_cache(maxsize=1)
def _library() -> str:
    """Return plotly.js as a page carries it: packed, which takes two fifths of its size."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()

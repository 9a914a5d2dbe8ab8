"""A page: one HTML file that works without a network, in light and dark, on a large screen and a small one."""

import base64
import gzip
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from rayrec.common.files import write_atomically, write_json

PAGE_FILE, FIGURES_FILE = "report.html", "report.json"

_LONG = 48

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
class Table:
    """Rows that have the same keys, which are the header; numbers are shown with four digits."""

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
    blocks: Sequence[Chart | Table | Code] = ()
    text: str = ""


@dataclass(frozen=True)
class Check:
    """A statement that holds or does not."""

    text: str
    is_met: bool


@dataclass(frozen=True)
class Page:
    """A page. All texts are plain."""

    title: str
    summary: str
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    """The most important numbers, by name."""
    checks: Sequence[Check] = ()


def write_page(folder: Path, page: Page, figures: Figures) -> None:
    """Write report.html and, beside it, the figures that the page was made from as report.json."""
    write_json(folder / FIGURES_FILE, figures)
    write_atomically(folder / PAGE_FILE, html_of(page))


def html_of(page: Page) -> str:
    """The page as HTML."""
    charts: list[Chart] = []
    body = "".join(_section(section, number, charts) for number, section in enumerate(page.sections))
    links = "".join(f'<a href="#s{n}">{escape(section.title)}</a>' for n, section in enumerate(page.sections))
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in page.facts.items())
    checks = "".join(
        f'<li class="{"met" if check.is_met else "missed"}">{escape(check.text)}</li>' for check in page.checks
    )
    parts = {
        "title": escape(page.title),
        "summary": escape(page.summary),
        "facts": f"<dl>{facts}</dl>" if facts else "",
        "checks": f'<ul class="checks">{checks}</ul>' if checks else "",
        "links": links,
        "body": body,
        # A text of the data might end the element.
        "charts": json.dumps([[c.traces, c.layout] for c in charts], allow_nan=False).replace("<", "\\u003c"),
        "library": _library() if charts else "",
    }
    return Template(files(__package__).joinpath("page.html").read_text()).substitute(parts)


def _section(section: Section, number: int, charts: list[Chart]) -> str:
    """The HTML of a section, whose charts are added to `charts`."""
    content, in_grid = [], list[str]()
    for block in section.blocks:
        if isinstance(block, Chart):
            in_grid.append(_chart(block, len(charts)))
            charts.append(block)
            continue
        # Charts that follow each other share a grid.
        content += [_grid(in_grid), _table(block) if isinstance(block, Table) else f"<pre>{escape(block.text)}</pre>"]
        in_grid = []
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    blocks = "".join([*content, _grid(in_grid)])
    return f'<section id="s{number}"><h2>{escape(section.title)}</h2>{text}{blocks}</section>'


def _grid(charts: Sequence[str]) -> str:
    return f'<div class="grid">{"".join(charts)}</div>' if charts else ""


def _chart(chart: Chart, number: int) -> str:
    title, note = escape(chart.title), f"<small>{escape(chart.note)}</small>" if chart.note else ""
    wide = ' class="wide"' if chart.is_wide else ""
    return (
        f'<figure{wide}><figcaption>{title}</figcaption><div class="sideways"><div class="chart" role="img" '
        f'aria-label="{title}" data-chart="{number}" style="height:{chart.height}px;min-width:{chart.min_width}px">'
        f"</div></div>{note}</figure>"
    )


def _table(table: Table) -> str:
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    # The first value of each column; a column without any is left out.
    first: dict[str, Any] = dict.fromkeys(name for row in table.rows for name in row)
    for name in first:
        first[name] = next((row[name] for row in table.rows if row.get(name) not in (None, "")), None)
    names = [name for name, value in first.items() if value is not None]
    head = "".join(f"<th{_of_kind(first[name])}>{escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr{' class=marked' if number in table.marked else ''}>{''.join(_cell(row.get(n)) for n in names)}</tr>"
        for number, row in enumerate(table.rows)
    )
    return f'{title}{note}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(value: Any) -> str:
    return f"<td{_of_kind(value)}>{escape(text_of(value))}</td>"


def _of_kind(value: Any) -> str:
    """The class of a cell: numbers are aligned at the right, long texts take several lines."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return " class=number"
    return " class=long" if isinstance(value, str) and len(value) > _LONG else ""


def text_of(value: Any) -> str:
    """A value as people read it: four digits of a number, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


@lru_cache(maxsize=1)
def _library() -> str:
    """plotly.js as a page carries it: packed, which takes two fifths of its size."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()

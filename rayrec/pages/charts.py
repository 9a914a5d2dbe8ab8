"""The charts that pages are made of, as traces and layouts of plotly.js. Colours that depend on light or dark are the
page's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from rayrec.pages.page import Chart

Numbers = Sequence[float | None]

_BLUE, _ORANGE, _GREY = "#3b82f6", "#f59e0b", "#94a3b8"
_COLOURS = (_BLUE, _ORANGE, "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84cc16")
_LONGEST_LABEL, _LONGEST_ROW_LABEL = 22, 30
_ROW_HEIGHT = 22
_AXIS_WIDTH = 125
_RATIOS, _CLOSE_RATIOS = (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100), (0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5)


def lines(
    title: str,
    x_title: str,
    y_title: str,
    series: Mapping[str, tuple[Sequence[float], Numbers]],
    *,
    bands: Mapping[str, tuple[Numbers, Numbers]] | None = None,
    diagonal: tuple[float, float] | None = None,
    colours: Mapping[str, int] | None = None,
    note: str = "",
) -> Chart:
    """Lines by name, x and y of each, perhaps with a band (low, high).

    `diagonal`: where a thin line goes from the lower left to the upper right. `colours`: numbers of the lines' colours;
    by default each has its own.
    """
    traces: list[dict[str, Any]] = []
    for number, (name, (x, y)) in enumerate(series.items()):
        own = _COLOURS[(number if colours is None else colours[name]) % len(_COLOURS)]
        band = (bands or {}).get(name)
        if band is not None:
            edge = {"x": list(x), "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            traces.append({**edge, "y": rounded(band[0])})
            traces.append({**edge, "y": rounded(band[1]), "fill": "tonexty", "fillcolor": _faint(own)})
        mode = "lines" if len(x) > 40 else "lines+markers"
        style = {"color": own, "width": 2}
        traces.append({"x": rounded(x), "y": rounded(y), "name": plain(name), "mode": mode, "line": style})
    if diagonal is not None:
        low, high = diagonal
        dots = {"color": _GREY, "width": 1, "dash": "dot"}
        traces.append({"x": [low, high], "y": [low, high], "mode": "lines", "line": dots, "hoverinfo": "skip",
                       "showlegend": False})  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": plain(x_title)}},
        "yaxis": {"title": {"text": plain(y_title)}},
        "showlegend": len(series) > 1,
    }
    return Chart(title, traces, layout, note=note)


def shares_and_rates(
    title: str, labels: Sequence[str], shares: Numbers, rates: Numbers, low: Numbers, high: Numbers, *, note: str = ""
) -> Chart:
    """Bars of the share of each label, and points of a rate with its interval on a second axis."""
    x = distinct_labels(labels)
    hover = [plain(label) for label in labels]
    traces: list[dict[str, Any]] = [
        {"type": "bar", "x": x, "y": rounded(shares), "name": "share", "marker": {"color": _faint(_BLUE, 0.45)},
         "customdata": hover, "hovertemplate": "%{customdata}<br>%{y:.2%} of the values<extra></extra>"},
        {"x": x, "y": rounded(rates), "name": "label rate", "mode": "markers", "yaxis": "y2", "customdata": hover,
         "marker": {"color": _ORANGE, "size": 6}, "error_y": _errors(rates, low, high),
         "hovertemplate": "%{customdata}<br>label rate %{y:.4g}<extra></extra>"},
    ]  # fmt: skip
    layout = {
        "xaxis": {"type": "category", "tickangle": -45, "tickfont": {"size": 10}},
        "yaxis": {"tickformat": ".0%", "rangemode": "tozero"},
        "yaxis2": {"overlaying": "y", "side": "right", "showgrid": False, "rangemode": "tozero", "tickformat": ".3~p",
                   "tickmode": "auto", "nticks": 5},
        "showlegend": False,
        "margin": {"t": 12, "r": 44, "b": 40, "l": 44},
    }  # fmt: skip
    return Chart(title, traces, layout, height=260, note=note)


def intervals(
    title: str,
    labels: Sequence[str],
    values: Numbers,
    low: Numbers,
    high: Numbers,
    *,
    reference: float | None = None,
    ratio: bool = False,
    x_title: str = "",
    note: str = "",
    is_wide: bool = False,
) -> Chart:
    """Points with intervals, one below the other, the first at the top.

    `reference`: where a dotted line goes across. `ratio`: whether the values are ratios, for a logarithmic axis.
    """
    y = distinct_labels(labels, _LONGEST_ROW_LABEL)
    trace = {
        "x": rounded(values), "y": y, "mode": "markers", "marker": {"color": _BLUE, "size": 7},
        "error_x": _errors(values, low, high), "customdata": [plain(label) for label in labels],
        "hovertemplate": "%{customdata}: %{x:.5g}<extra></extra>",
    }  # fmt: skip
    axis: dict[str, Any] = {"title": {"text": plain(x_title)}}
    if ratio:
        ends = [end for end in (*low, *high) if end is not None]
        axis |= {"type": "log", "tickvals": _CLOSE_RATIOS if max(ends) < 4 * min(ends) else _RATIOS}
    shapes = []
    if reference is not None:
        shapes.append({"type": "line", "x0": reference, "x1": reference, "y0": 0, "y1": 1, "yref": "paper",
                       "line": {"color": _GREY, "width": 1, "dash": "dot"}})  # fmt: skip
    layout = {
        "xaxis": axis,
        "yaxis": {"type": "category", "autorange": "reversed", "tickfont": {"size": 11}},
        "shapes": shapes,
        "showlegend": False,
    }
    return Chart(title, [trace], layout, height=90 + _ROW_HEIGHT * len(y), note=note, is_wide=is_wide)


def histograms(title: str, x_title: str, edges: Numbers, shares: Mapping[str, Numbers], *, note: str = "") -> Chart:
    """Bars of shares by bins of even width, of several classes over each other."""
    ends = [edge for edge in edges if edge is not None]
    middles = rounded([(a + b) / 2 for a, b in pairwise(ends)])
    traces = [
        {"type": "bar", "x": middles, "y": rounded(values), "name": plain(name), "width": ends[1] - ends[0],
         "marker": {"color": _faint(_COLOURS[number], 0.55)}}
        for number, (name, values) in enumerate(shares.items())
    ]  # fmt: skip
    layout = {"barmode": "overlay", "bargap": 0, "xaxis": {"title": {"text": plain(x_title)}},
              "yaxis": {"tickformat": ".0%"}}  # fmt: skip
    return Chart(title, traces, layout, note=note)


def stacked(title: str, labels: Sequence[str], parts: Mapping[str, Numbers], *, x_title: str, note: str = "") -> Chart:
    """Horizontal bars, one for each label, the first at the top, made of parts by name."""
    y = distinct_labels(labels, _LONGEST_ROW_LABEL)
    traces = [
        {"type": "bar", "orientation": "h", "y": y, "x": rounded(values), "name": plain(name),
         "marker": {"color": _COLOURS[number % len(_COLOURS)], "line": {"width": 1, "color": "rgba(128,128,128,.4)"}},
         "hovertemplate": f"{plain(name)}: %{{x:.4s}}<extra></extra>"}
        for number, (name, values) in enumerate(parts.items())
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": plain(x_title)}, "tickformat": "~s"},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "showlegend": 1 < len(parts) <= len(_COLOURS),
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
    }
    return Chart(title, traces, layout, height=130 + 28 * len(y), note=note, is_wide=True)


@dataclass(frozen=True)
class Dimension:
    """An axis of `parallel`."""

    name: str
    values: Sequence[float | None]
    """The height of each line, from 0 to 1; None where it has none."""
    ticks: Mapping[str, float]
    """Texts beside the axis, and their heights."""


def parallel(title: str, dimensions: Sequence[Dimension], names: Sequence[str], *, note: str = "") -> Chart:
    """A line for each of `names` across parallel axes. Lines come the best first, which stands out."""
    places = list(range(len(dimensions)))
    traces = []
    for number, name in reversed(list(enumerate(names))):
        share = 1 - number / max(len(names) - 1, 1)
        is_best = number == 0
        style = {"color": _ORANGE if is_best else _faint(_BLUE, 0.12 + 0.6 * share), "width": 3 if is_best else 1.5}
        traces.append({"x": places, "y": [d.values[number] for d in dimensions], "mode": "lines", "line": style,
                       "text": plain(name), "hovertemplate": "%{text}<extra></extra>"})  # fmt: skip
    annotations = [
        {"x": place, "y": height, "text": plain(text), "showarrow": False, "xanchor": "left", "xshift": 5,
         "font": {"size": 11}}
        for place, dimension in enumerate(dimensions)
        for text, height in dimension.ticks.items()
    ]  # fmt: skip
    axes = [
        {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": {"color": _GREY, "width": 1}}
        for place in places
    ]
    # A key of many parts takes a line for each of the last three.
    texts = ["<br>".join(plain(part) for part in dimension.name.split(".")[-3:]) for dimension in dimensions]
    layout = {
        "xaxis": {"tickvals": places, "ticktext": texts, "showgrid": False, "range": [-0.1, len(places) - 0.3],
                  "zeroline": False, "tickangle": 0},
        "yaxis": {"visible": False, "range": [-0.06, 1.06]},
        "annotations": annotations,
        "shapes": axes,
        "showlegend": False,
        "margin": {"t": 12, "r": 60, "b": 70, "l": 12},
    }  # fmt: skip
    width = _AXIS_WIDTH * len(dimensions)
    return Chart(title, traces, layout, height=420, note=note, is_wide=True, min_width=width)


def plain(text: str) -> str:
    """A text that plotly.js shows as it is: otherwise it takes some HTML, such as links."""
    return escape(text, quote=False)


def distinct_labels(labels: Sequence[str], longest: int = _LONGEST_LABEL) -> list[str]:
    """Labels short enough for an axis, each once."""
    seen: dict[str, int] = {}
    result = []
    for label in labels:
        # Names and values of features tend to differ at both ends.
        short = label if len(label) <= longest else f"{label[: longest // 3]}…{label[1 + longest // 3 - longest :]}"
        seen[short] = seen.get(short, 0) + 1
        # Equal ones would share a place.
        result.append(plain(short) + "\u200b" * (seen[short] - 1))
    return result


def rounded(values: Numbers) -> list[float | None]:
    """Numbers with six digits: more cannot be seen."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def _errors(values: Numbers, low: Numbers, high: Numbers) -> dict[str, Any]:
    def distances(ends: Numbers) -> list[float | None]:
        return [None if v is None or e is None else abs(v - e) for v, e in zip(values, ends, strict=True)]

    return {"type": "data", "symmetric": False, "array": rounded(distances(high)), "thickness": 1, "width": 2,
            "arrayminus": rounded(distances(low))}  # fmt: skip


def _faint(hexadecimal: str, opacity: float = 0.2) -> str:
    red, green, blue = (int(hexadecimal[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"

"""The charts that pages are made of, as traces and layouts of plotly.js. Colours that depend on light or dark are the
page's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from rayrec.common.text import printable
from rayrec.pages.page import Chart

Values = Sequence[float | None]

_BLUE, _ORANGE, _GREY = "#2f7fe0", "#e8862e", "#94a3b8"
# Red is left for what is wrong.
_COLOURS = (_BLUE, _ORANGE, "#17a37a", "#8b6bdb", "#1aa5c4", "#d9609c", "#93a11f", _GREY)
_LONGEST_LABEL, _LONGEST_ROW_LABEL = 22, 24
_ROW_HEIGHT, _LOW_ROW_HEIGHT = 22, 17
_DIGITS = ",.3~r"
"""Three significant digits, as plotly.js writes formats."""
_AXIS_WIDTH, _LONGEST_AXIS = 115, 15
_RATIOS, _CLOSE_RATIOS = (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100), (0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5)


def lines(
    title: str,
    x_title: str,
    y_title: str,
    series: Mapping[str, tuple[Sequence[float], Values]],
    *,
    bands: Mapping[str, tuple[Values, Values]] | None = None,
    diagonal: tuple[float, float] | None = None,
    colours: Mapping[str, int] | None = None,
    note: str = "",
) -> Chart:
    """Return lines by name, x and y of each, perhaps with a band (low, high).

    `diagonal`: where a thin line goes from the lower left to the upper right. `colours`: numbers of the lines' colours;
    by default each has its own.
    """
    traces: list[dict[str, Any]] = []
    short = distinct_labels(list(series))
    for number, (name, (x, y)) in enumerate(series.items()):
        own = _COLOURS[(number if colours is None else colours[name]) % len(_COLOURS)]
        band = (bands or {}).get(name)
        if band is not None:
            edge = {"x": list(x), "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            traces.append({**edge, "y": rounded(band[0])})
            traces.append({**edge, "y": rounded(band[1]), "fill": "tonexty", "fillcolor": _faint(own)})
        mode = "lines" if len(x) > 40 else "lines+markers"
        style = {"color": own, "width": 2}
        traces.append({"x": rounded(x), "y": rounded(y), "name": short[number], "mode": mode, "line": style})
    if diagonal is not None:
        low, high = diagonal
        dots = {"color": _GREY, "width": 1, "dash": "dot"}
        traces.append({"x": [low, high], "y": [low, high], "mode": "lines", "line": dots, "hoverinfo": "skip",
                       "showlegend": False})  # fmt: skip
    y_axis: dict[str, Any] = {"title": {"text": plain(y_title)}}
    levels = {value for _, y in series.values() for value in y}
    if len(levels) == 1 and (level := levels.pop()) and not bands:
        # Plotly would show one unit around it, in which 0.001 looks like 0.
        y_axis["range"] = sorted([0, 2 * level])
    layout = {
        "xaxis": {"title": {"text": plain(x_title)}},
        "yaxis": y_axis,
        "showlegend": len(series) > 1,
    }
    return Chart(title, traces, layout, note=note)


def shares_and_rates(
    title: str,
    labels: Sequence[str],
    shares: Values,
    rates: Values,
    low: Values,
    high: Values,
    *,
    reference: float | None = None,
    note: str = "",
) -> Chart:
    """Return a row for each label, the first at the top: a bar of its share, and beside it a rate with its interval.

    `reference`: the rate of all, where a dotted line goes down. Without any rate there are only bars.
    """
    y = distinct_labels(labels)
    hover = [plain(label) for label in labels]
    traces: list[dict[str, Any]] = [
        {"type": "bar", "orientation": "h", "y": y, "x": rounded(shares), "marker": {"color": _faint(_BLUE, 0.6)},
         "customdata": hover, "hovertemplate": "%{customdata}<br>%{x:.3~p} of the values<extra></extra>"},
    ]  # fmt: skip
    has_rates = any(rate is not None for rate in rates)
    axis = {"nticks": 3, "tickangle": 0, "rangemode": "tozero", "tickformat": ".3~p", "tickfont": {"size": 10}}
    layout: dict[str, Any] = {
        "xaxis": {**axis, "title": _small("share"), "domain": [0, 0.44 if has_rates else 1]},
        "yaxis": {"type": "category", "autorange": "reversed", "tickfont": {"size": 10}, "showgrid": False},
        "showlegend": False,
        "bargap": 0.25,
        "margin": {"t": 4, "r": 12, "b": 40, "l": 24},
    }
    if has_rates:
        traces.append(
            {"x": rounded(rates), "y": y, "xaxis": "x2", "mode": "markers", "customdata": hover,
             "marker": {"color": _ORANGE, "size": 6}, "error_x": _errors(rates, low, high),
             "hovertemplate": "%{customdata}<br>label rate %{x:.3~p}<extra></extra>"},
        )  # fmt: skip
        layout["xaxis2"] = {**axis, "title": _small("label rate"), "domain": [0.56, 1]}
        if reference is not None:
            layout["shapes"] = [_dotted("x2", reference)]
    return Chart(title, traces, layout, height=70 + _LOW_ROW_HEIGHT * len(y), note=note)


def bars(title: str, labels: Sequence[str], values: Values, *, x_title: str, note: str = "") -> Chart:
    """Return horizontal bars, the first at the top."""
    trace = {
        "type": "bar", "orientation": "h", "y": distinct_labels(labels, _LONGEST_ROW_LABEL), "x": rounded(values),
        "marker": {"color": _faint(_BLUE, 0.7)}, "customdata": [plain(label) for label in labels],
        "hovertemplate": f"%{{customdata}}: %{{x:{_DIGITS}}}<extra></extra>",
    }  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": plain(x_title)}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "autorange": "reversed", "tickfont": {"size": 11}},
        "showlegend": False,
        "bargap": 0.3,
    }
    return Chart(title, [trace], layout, height=80 + _ROW_HEIGHT * len(labels), note=note)


def intervals(
    title: str,
    labels: Sequence[str],
    values: Values,
    low: Values,
    high: Values,
    *,
    reference: float | None = None,
    ratio: bool = False,
    x_title: str = "",
    note: str = "",
    is_wide: bool = False,
) -> Chart:
    """Return the points with intervals, one below the other, the first at the top.

    `reference`: where a dotted line goes across. `ratio`: whether the values are ratios, for a logarithmic axis.
    """
    y = distinct_labels(labels, _LONGEST_ROW_LABEL)
    trace = {
        "x": rounded(values), "y": y, "mode": "markers", "marker": {"color": _BLUE, "size": 7},
        "error_x": _errors(values, low, high), "customdata": [plain(label) for label in labels],
        "hovertemplate": f"%{{customdata}}: %{{x:{_DIGITS}}}<extra></extra>",
    }  # fmt: skip
    axis: dict[str, Any] = {"title": {"text": plain(x_title)}, "nticks": 6, "tickangle": 0}
    if ratio:
        ends = [end for end in (*low, *high) if end is not None]
        axis |= {"type": "log", "tickvals": _CLOSE_RATIOS if max(ends) < 4 * min(ends) else _RATIOS}
    shapes = []
    if reference is not None:
        shapes.append(_dotted("x", reference))
    layout = {
        "xaxis": axis,
        "yaxis": {"type": "category", "autorange": "reversed", "tickfont": {"size": 11}},
        "shapes": shapes,
        "showlegend": False,
    }
    return Chart(title, [trace], layout, height=90 + _ROW_HEIGHT * len(y), note=note, is_wide=is_wide)


def histograms(title: str, x_title: str, edges: Values, shares: Mapping[str, Values], *, note: str = "") -> Chart:
    """Return bars of shares by bins of even width, of several classes over each other."""
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


def stacked(
    title: str,
    labels: Sequence[str],
    parts: Mapping[str, Values],
    *,
    x_title: str,
    note: str = "",
    is_wide: bool = True,
) -> Chart:
    """Return horizontal bars, one for each label, the first at the top, made of parts by name."""
    y, short = distinct_labels(labels, _LONGEST_ROW_LABEL), distinct_labels(list(parts))
    traces = [
        {"type": "bar", "orientation": "h", "y": y, "x": rounded(values), "name": short[number],
         "marker": {"color": _COLOURS[number % len(_COLOURS)], "line": {"width": 1, "color": "rgba(128,128,128,.4)"}},
         "hovertemplate": "%{fullData.name}: %{x:.4s}<extra></extra>"}
        for number, (name, values) in enumerate(parts.items())
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": plain(x_title)}, "tickformat": "~s"},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "showlegend": 1 < len(parts) <= len(_COLOURS),
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
    }
    return Chart(title, traces, layout, height=130 + 28 * len(y), note=note, is_wide=is_wide)


@dataclass(frozen=True)
class Dimension:
    """An axis of `parallel`."""

    name: str
    values: Sequence[float | None]
    """The height of each line, from 0 to 1; None where it has none."""
    ticks: Mapping[str, float]
    """Texts beside the axis, and their heights."""


def parallel(title: str, dimensions: Sequence[Dimension], names: Sequence[str], *, note: str = "") -> Chart:
    """Return a line for each of `names` across parallel axes. Lines come the best first, which stands out."""
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
    # A key of many parts takes a line for each of the last three, or two lines for a long one, none of which reaches
    # the next axis.
    parts = [[p.replace("_", "_\n") if len(p) > _LONGEST_AXIS else p for p in d.name.split(".")] for d in dimensions]
    texts = ["<br>".join(map(plain, "\n".join(name[-3:]).split("\n"))) for name in parts]
    layout = {
        "xaxis": {"tickvals": places, "ticktext": texts, "showgrid": False, "range": [-0.1, len(places) - 0.3],
                  "zeroline": False, "tickangle": 0},
        "yaxis": {"visible": False, "range": [-0.06, 1.06]},
        "annotations": annotations,
        "shapes": axes,
        "showlegend": False,
        "margin": {"t": 12, "r": 60, "b": 100, "l": 12},
    }  # fmt: skip
    width = _AXIS_WIDTH * len(dimensions)
    return Chart(title, traces, layout, height=450, note=note, is_wide=True, min_width=width)


def _dotted(axis: str, place: float) -> dict[str, Any]:
    """Return a dotted line from the bottom to the top."""
    line = {"color": _GREY, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": axis, "x0": place, "x1": place, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _small(title: str) -> dict[str, Any]:
    return {"text": title, "font": {"size": 11}, "standoff": 4}


def plain(text: str) -> str:
    """Return a text that plotly.js shows as it is: otherwise it takes some HTML, such as links."""
    return escape(printable(text), quote=False)


def distinct_labels(labels: Sequence[str], longest: int = _LONGEST_LABEL) -> list[str]:
    """Return the labels short enough for an axis, each once."""
    seen: dict[str, int] = {}
    result = []
    for label in labels:
        # Names and values of features tend to differ at both ends.
        short = label if len(label) <= longest else f"{label[: longest // 3]}…{label[1 + longest // 3 - longest :]}"
        seen[short] = seen.get(short, 0) + 1
        # Equal ones would share a place.
        result.append(plain(short) + "\u200b" * (seen[short] - 1))
    return result


def rounded(values: Values) -> list[float | None]:
    """Return the numbers with six digits: more cannot be seen."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def _errors(values: Values, low: Values, high: Values) -> dict[str, Any]:
    def distances(ends: Values) -> list[float | None]:
        return [None if v is None or e is None else abs(v - e) for v, e in zip(values, ends, strict=True)]

    return {"type": "data", "symmetric": False, "array": rounded(distances(high)), "thickness": 1, "width": 2,
            "arrayminus": rounded(distances(low))}  # fmt: skip


def _faint(hexadecimal: str, opacity: float = 0.2) -> str:
    red, green, blue = (int(hexadecimal[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"

"""A chart of a few lines as an SVG file, which is text: it needs no browser to make and shows its changes in a diff."""

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 40, 55
_COLOURS = ("#64748b", "#2563eb", "#ea580c", "#16a34a")
_LABEL_HEIGHT = 17


def line_chart(x: Sequence[float], lines: Mapping[str, Sequence[float]], *, x_title: str, y_title: str) -> str:
    """Return the SVG of up to four lines by name, whose values (n,) belong to the places `x` (n,), in ascending
    order.
    """
    values = [value for line in lines.values() for value in line]
    step = _tick_step(max(values) - min(values))
    low, high = math.floor(min(values) / step), math.ceil(max(values) / step)

    def across(place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place - x[0]) / ((x[-1] - x[0]) or 1)

    def down(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value / step) / ((high - low) or 1)

    parts = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>']
    for tick in range(low, high + 1):
        y = down(tick * step)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e2e8f0"/>')
        parts.append(_text(_LEFT - 10, y + 4, f"{tick * step:.{max(0, -math.floor(math.log10(step)))}f}", "end"))
    parts += [_text(across(place), _HEIGHT - _BOTTOM + 22, f"{place:g}", "middle") for place in x]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, x_title, "middle"))
    parts.append(_text(_LEFT - 10, _TOP - 20, y_title, "end"))
    labels = _apart({name: down(line[-1]) for name, line in lines.items()})
    for colour, (name, line) in zip(_COLOURS, lines.items(), strict=False):
        points = [(across(place), down(value)) for place, value in zip(x, line, strict=True)]
        path = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
        parts.append(_text(_WIDTH - _RIGHT + 12, labels[name] + 4, name, "start", colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13">\n{body}\n</svg>\n'
    )


def _tick_step(span: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that cuts the span into six parts at most."""
    power = 10.0 ** math.floor(math.log10(span / 6)) if span else 1.0
    return next(power * factor for factor in (1, 2, 5, 10) if span <= 6 * power * factor)


def _apart(wanted: Mapping[str, float]) -> dict[str, float]:
    """Return the heights of labels, no higher than wanted and far enough apart to be read."""
    placed: dict[str, float] = {}
    for name in sorted(wanted, key=wanted.__getitem__):
        placed[name] = max(wanted[name], max(placed.values(), default=-math.inf) + _LABEL_HEIGHT)
    return placed


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#334155") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'

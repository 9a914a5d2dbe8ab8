"""Charts of a sweep as SVG text; each stands alone and needs no script."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tune.outcome import TrialOutcome
from tune.space import Parameter, Scalar, Space

WIDTH, HEIGHT = 900, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 40
_AXIS_TOP, _AXIS_BOTTOM = 60, 290
_BEST, _OTHER, _INK = "#c2410c", "#64748b", "#0f172a"


@dataclass(frozen=True)
class _Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        return [self.low + (self.high - self.low) * index / (count - 1) for index in range(count)]


def history(outcomes: Sequence[TrialOutcome], metric: str, best: Callable[[Sequence[float]], float]) -> str:
    """The metric of each trial in the order in which they were drawn, and the best so far as a line."""
    shown = [(o, o.value) for o in sorted(outcomes, key=lambda o: o.number) if o.value is not None]
    x = _Scale(shown[0][0].number, max(shown[-1][0].number, shown[0][0].number + 1), _LEFT, WIDTH - _RIGHT)
    y = _vertical([value for _, value in shown])
    so_far = [best([value for _, value in shown[: index + 1]]) for index in range(len(shown))]
    line = [(x(o.number), y(value)) for (o, _), value in zip(shown, so_far, strict=True)]
    dots = [
        f'<circle cx="{x(o.number):.1f}" cy="{y(value):.1f}" r="5" fill="{_BEST if o is outcomes[0] else _OTHER}">'
        f"<title>{escape(o.line(metric))}</title></circle>"
        for o, value in shown
    ]
    return _svg(_frame(y, metric) + _ticks_below(x, "trial") + _polyline(line, _BEST, 1.5) + "".join(dots))


def learning_curves(outcomes: Sequence[TrialOutcome], metric: str) -> str:
    """The metric at each evaluation of each trial; a trial that was stopped early ends early."""
    shown = [o for o in outcomes if o.curve]
    x = _Scale(1, max(2, *(len(o.curve) for o in shown)), _LEFT, WIDTH - _RIGHT)
    y = _vertical([value for o in shown for value in o.curve])
    lines = []
    for outcome in reversed(shown):
        is_best = outcome is outcomes[0]
        points = [(x(index + 1), y(value)) for index, value in enumerate(outcome.curve)]
        drawn = _polyline(points, _BEST if is_best else _OTHER, 2.5 if is_best else 1, outcome.line(metric))
        ends = (
            f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="3" fill="{_BEST if is_best else _OTHER}"/>'
        )
        lines.append(drawn + ends)
    return _svg(_frame(y, metric) + _ticks_below(x, "evaluation") + "".join(lines))


def parallel_coordinates(space: Space, outcomes: Sequence[TrialOutcome], metric: str) -> str:
    """A line a trial across an axis a parameter and the metric; better trials are drawn in a stronger colour.

    A line leaves out the axes of parameters that its trial does not have.
    """
    shown = [o for o in outcomes if o.value is not None]
    axes = [name for name in space.names if any(name in o.assignment for o in shown)]
    step = (WIDTH - 2 * _LEFT) / max(1, len(axes))
    places = {name: _LEFT + index * step for index, name in enumerate(axes)}
    scales = {name: _axis_scale(space.parameters[name]) for name in axes}
    values = _Scale(
        min(o.value for o in shown if o.value is not None),
        max(o.value for o in shown if o.value is not None),
        _AXIS_BOTTOM,
        _AXIS_TOP,
    )
    parts = [_axis(places[name], name, _axis_labels(space.parameters[name], scales[name])) for name in axes]
    parts.append(_axis(WIDTH - _LEFT, metric, [(values(v), f"{v:.4g}") for v in (values.low, values.high)]))
    for rank, outcome in reversed(list(enumerate(shown))):
        assert outcome.value is not None
        points = [(places[n], scales[n](outcome.assignment[n])) for n in axes if n in outcome.assignment]
        points.append((WIDTH - _LEFT, values(outcome.value)))
        strength = 1 - 0.8 * rank / max(1, len(shown) - 1)
        colour = _BEST if rank == 0 else _OTHER
        parts.append(_polyline(points, colour, 2.5 if rank == 0 else 1.2, outcome.line(metric), strength))
    return _svg("".join(parts))


def bars(shares: Mapping[str, float]) -> str:
    """Shares as horizontal bars."""
    row = 26
    parts = []
    for index, (name, share) in enumerate(shares.items()):
        top = index * row + 4
        parts.append(
            f'<text x="290" y="{top + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="300" y="{top}" width="{share * 500:.1f}" height="18" fill="{_OTHER}"/>'
            f'<text x="{306 + share * 500:.1f}" y="{top + 14}">{share:.0%}</text>'
        )
    return _svg("".join(parts), len(shares) * row + 10)


def _axis_scale(parameter: Parameter) -> Callable[[Scalar], float]:
    if parameter.bounds is None:
        places = _Scale(0, max(1, len(parameter.labels) - 1), _AXIS_BOTTOM, _AXIS_TOP)
        return lambda value: places(parameter.labels.index(value))
    low, high = parameter.bounds
    if parameter.loguniform is not None:
        logs = _Scale(math.log(low), math.log(high), _AXIS_BOTTOM, _AXIS_TOP)
        return lambda value: logs(math.log(float(value)))
    scale = _Scale(low, high, _AXIS_BOTTOM, _AXIS_TOP)
    return lambda value: scale(float(value))


def _axis_labels(parameter: Parameter, scale: Callable[[Scalar], float]) -> list[tuple[float, str]]:
    ends: Sequence[Scalar] = parameter.labels if parameter.bounds is None else parameter.bounds
    return [(scale(value), f"{value:.4g}" if isinstance(value, float) else str(value)) for value in ends]


def _axis(x: float, title: str, labels: Sequence[tuple[float, str]]) -> str:
    ticks = "".join(f'<text class="tick" x="{x + 5:.1f}" y="{y + 4:.1f}">{escape(text)}</text>' for y, text in labels)
    # Long keys of neighbouring axes would cover each other: only the last part, the whole in the tooltip.
    return (
        f'<line x1="{x:.1f}" y1="{_AXIS_TOP}" x2="{x:.1f}" y2="{_AXIS_BOTTOM}" stroke="{_INK}"/>{ticks}'
        f'<text x="{x:.1f}" y="{_AXIS_TOP - 14}" text-anchor="middle"><title>{escape(title)}</title>'
        f"{escape('.'.join(title.split('.')[-2:]))}</text>"
    )


def _vertical(values: Sequence[float]) -> _Scale:
    margin = 0.05 * (max(values) - min(values)) or 0.01
    return _Scale(min(values) - margin, max(values) + margin, HEIGHT - _BOTTOM, _TOP)


def _frame(y: _Scale, title: str) -> str:
    lines = "".join(
        f'<line x1="{_LEFT}" y1="{y(v):.1f}" x2="{WIDTH - _RIGHT}" y2="{y(v):.1f}" class="grid"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.4f}</text>'
        for v in y.ticks()
    )
    return f'{lines}<text x="{_LEFT}" y="12">{escape(title)}</text>'


def _ticks_below(x: _Scale, title: str) -> str:
    wanted = sorted({round(value) for value in x.ticks(9)})
    ticks = "".join(
        f'<text class="tick" x="{x(v):.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{v}</text>' for v in wanted
    )
    return f'{ticks}<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{title}</text>'


def _polyline(
    points: Sequence[tuple[float, float]], colour: str, width: float, tooltip: str = "", opacity: float = 1.0
) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-opacity="{opacity:.2f}">{title}</polyline>'
    )


def _svg(content: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{content}</svg>'

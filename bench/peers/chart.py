"""Draws a table as horizontal bars, with a panel for each row, or as lines on two logarithmic axes. The pictures are
plain SVG, with a light background of their own, so that they look the same on any page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

WIDTH = 960
MARGIN = 24
LABELS = 168  # room for the names beside the bars
VALUES = 92  # room for the figures behind them
BAR, GAP = 15, 5
PANEL_HEAD = 40
PANEL_LINE = 62  # characters of a panel's title
BARS_TOP = 64
PLOT_HEIGHT = 380
LEGEND = 190
INK, FAINT, GRID, CARD, BORDER = "#1f2328", "#59636e", "#d8dee4", "#ffffff", "#d1d9e0"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
LOGARITHMIC_FROM = 20  # how many times longer than the shortest bar the longest is
NO_FIGURE = "no figure"


@dataclass(frozen=True)
class Series:
    name: str
    colour: str
    values: Sequence[float | None]  # one for each row or point; None: not measured


Format = Callable[[float], str]


def bars(title: str, panels: Sequence[tuple[str, Format]], series: Sequence[Series], remark: str) -> str:
    """The first series is MiniRay, and is highlighted."""
    remark += f" Logarithmic where figures differ by more than {LOGARITHMIC_FROM} times."
    height_each = PANEL_HEAD + len(series) * (BAR + GAP) + 16
    columns = 2 if len(panels) > 1 else 1
    width_each = (WIDTH - MARGIN * (columns + 1)) / columns
    parts = []
    for number, (text, form) in enumerate(panels):
        x = MARGIN + number % columns * (width_each + MARGIN)
        y = BARS_TOP + number // columns * height_each
        parts.append(_panel(x, y, width_each, text, form, [(one, one.values[number]) for one in series]))
    height = BARS_TOP + math.ceil(len(panels) / columns) * height_each + 8
    return _card(title, height, [_text(MARGIN, 54, remark, size=12, ink=FAINT), *parts])


def _panel(x: float, y: float, width: float, text: str, form: Format, values: list[tuple[Series, float | None]]) -> str:
    there = [value for _, value in values if value is not None and value > 0]
    low, high = (min(there), max(there)) if there else (1.0, 1.0)
    logarithmic = high > LOGARITHMIC_FROM * low
    room = width - LABELS - VALUES

    def length(value: float) -> float:
        if value <= 0:
            return 0
        if not logarithmic:
            return room * value / high
        return room * (0.06 + 0.94 * math.log(value / low) / math.log(high / low))

    title = wrap(text, PANEL_LINE)
    lines = [
        _text(x, y + PANEL_HEAD - 10 - 15 * (len(title) - 1 - number), line, weight=600, size=12.5)
        for number, line in enumerate(title)
    ]
    for number, (one, value) in enumerate(values):
        top = y + PANEL_HEAD + number * (BAR + GAP)
        ours = number == 0
        lines.append(
            _text(x + LABELS - 8, top + 12, one.name, anchor="end", size=12, weight=700 if ours else 400, ink=INK)
        )
        if value is None:
            lines.append(_text(x + LABELS + 2, top + 12, NO_FIGURE, size=12, ink=FAINT))
            continue
        drawn = length(value)
        lines.append(
            f'<rect x="{x + LABELS:.1f}" y="{top}" width="{max(drawn, 1):.1f}" height="{BAR}" rx="2" '
            f'fill="{one.colour}"/>'
        )
        lines.append(
            _text(x + LABELS + drawn + 6, top + 12, form(value), size=12, weight=700 if ours else 400, ink=INK)
        )
    return "\n".join(lines)


def lines(
    title: str,
    points: Sequence[float],
    x_name: str,
    x_form: Format,
    y_form: Format,
    series: Sequence[Series],
    *,
    y_name: str = "",
) -> str:
    there = [value for one in series for value in one.values if value is not None and value > 0]
    low, high = (min(there) / 1.5, max(there) * 1.5) if there else (1.0, 10.0)
    left, top = MARGIN + 64.0, 72.0
    right, bottom = WIDTH - MARGIN - LEGEND, top + PLOT_HEIGHT
    first, last = min(points), max(points)

    def across(value: float) -> float:
        share = math.log(value / first) / math.log(last / first) if last > first else 0.5
        return left + 12 + share * (right - left - 24)

    def up(value: float) -> float:
        return bottom - math.log(value / low) / math.log(high / low) * (bottom - top)

    parts = [_text(MARGIN, top - 14, y_name, size=12, ink=FAINT)] if y_name else []
    for tick in _ticks(low, high):
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" stroke="{GRID}" stroke-width="1"/>'
        )
        parts.append(_text(left - 8, up(tick) + 4, y_form(tick), anchor="end", size=11.5, ink=FAINT))
    for point in points:
        parts.append(f'<path d="M{across(point):.1f},{bottom} v5" stroke="{FAINT}"/>')
        parts.append(_text(across(point), bottom + 20, x_form(point), anchor="middle", size=11.5, ink=FAINT))
    parts.append(f'<line x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="{FAINT}"/>')
    parts.append(_text((left + right) / 2, bottom + 40, x_name, anchor="middle", size=12, ink=FAINT))
    for number, one in reversed(list(enumerate(series))):
        parts.append(_line(one, points, across, up, ours=number == 0))
    parts += _names_at_the_end(series, points, across, up, right)
    return _card(title, bottom + 60, parts)


def _line(
    one: Series, points: Sequence[float], across: Callable[[float], float], up: Callable[[float], float], *, ours: bool
) -> str:
    known = [(across(x), up(y)) for x, y in zip(points, one.values, strict=True) if y is not None and y > 0]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in known)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if ours else 3}" fill="{one.colour}"/>' for x, y in known)
    width = 3 if ours else 1.8
    return f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width="{width}"/>{dots}'


def _names_at_the_end(
    series: Sequence[Series],
    points: Sequence[float],
    across: Callable[[float], float],
    up: Callable[[float], float],
    right: float,
) -> list[str]:
    """Labels beside the last point of each line, moved apart where they would overlap."""
    ends = []
    for number, one in enumerate(series):
        known = [(x, y) for x, y in zip(points, one.values, strict=True) if y is not None and y > 0]
        if known:
            ends.append((up(known[-1][1]), across(known[-1][0]), one, number == 0))
    ends.sort(key=lambda end: end[0])
    parts, below = [], 60.0
    for y, x, one, ours in ends:
        at = max(y, below + 16)
        below = at
        parts.append(
            f'<path d="M{x + 6:.1f},{y:.1f} L{right + 8:.1f},{at:.1f}" stroke="{one.colour}" stroke-width="1" '
            f'stroke-dasharray="2 3" fill="none"/>'
        )
        parts.append(_text(right + 12, at + 4, one.name, size=12.5, weight=700 if ours else 500, ink=one.colour))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    found = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    inside = [tick for tick in found if low <= tick <= high]
    if len(inside) >= 2:
        return inside
    finer = [step * tick for tick in found for step in (1, 2, 5)]
    return [tick for tick in finer if low <= tick <= high]


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: float = 12, weight: int = 400, ink: str = INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{ink}">{escape(words)}</text>'
    )


def _card(title: str, height: float, parts: list[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}" font-family="{FONT}">\n'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8" fill="{CARD}" '
        f'stroke="{BORDER}"/>\n{_text(MARGIN, 34, title, size=17, weight=700)}\n{inside}\n</svg>\n'
    )

"""The HTML table with which notebooks show a pool, a cluster or a training group."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from miniray import _core

_ROWS_MAX = _core.limits.shown_rows_max


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table. Cells are shown as text; markup in them is escaped."""
    more = len(rows) - _ROWS_MAX
    shown = rows if more <= 0 else rows[:_ROWS_MAX]
    body = "".join(_row("td", [str(cell) for cell in row]) for row in shown)
    rest = f"<p>and {more} more</p>" if more > 0 else ""
    return f"<p>{escape(title)}</p><table><thead>{_row('th', columns)}</thead><tbody>{body}</tbody></table>{rest}"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

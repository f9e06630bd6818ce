"""Writes docs/benchmarks.md and its pictures from the results file: ``python -m peers.document FILE FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from peers import chart
from peers.goals import NOISE, OURS, behind, goal_rows, median, real_peers
from peers.tables import Row, Table, size_text, tables

PICTURES = "benchmarks"
NOT_SUPPORTED = "not supported"  # what the results file calls "no such thing"


# --- Figures ----------------------------------------------------------------------------------------------------------
def time_text(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{_three(seconds / factor)} {unit}"
    return f"{_three(seconds * 1e9)} ns"


def bytes_text(size: float) -> str:
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{_three(size / factor)} {unit}"
    return f"{size:.0f} B"


def _three(number: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


FORMATS: dict[str, chart.Format] = {
    "s": time_text,
    "bytes": bytes_text,
    "a minute": lambda number: f"{number:,.0f}",
    "share": lambda number: f"{100 * number:.0f}%",
    "number": lambda number: f"{number:.0f}" if number == round(number) else f"{number:.2f}",
}


# --- Tables and pictures ----------------------------------------------------------------------------------------------
def measured_peers(results: dict[str, Any], table: Table) -> list[str]:
    """The peers that have at least one figure in the table."""
    return [name for name in results["peers"] if any(median(results, row.key, name) is not None for row in table.rows)]


def table_lines(results: dict[str, Any], table: Table) -> list[str]:
    names = measured_peers(results, table)
    titles = [results["peers"][name]["title"] for name in names]
    notes: list[str] = []
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(names)]
    for row in table.rows:
        cells = [_cell(results, row, name, notes) for name in names]
        if any(cell != NOT_SUPPORTED for cell in cells):
            lines.append(f"| {row.text} | " + " | ".join(cells) + " |")
    lines += [""] + [f"{number}. {note}" for number, note in enumerate(notes, 1)] if notes else []
    absent = [results["peers"][name]["title"] for name in results["peers"] if name not in names]
    if absent:
        lines += ["", f"Not supported or not measured: {', '.join(absent)}."]
    return lines


def _cell(results: dict[str, Any], row: Row, name: str, notes: list[str]) -> str:
    cell = results["rows"].get(row.key, {}).get(name)
    if cell is None:
        return "not measured"
    if "why" not in cell:
        text = FORMATS[row.unit](cell["median"])
        return f"**{text}**" if name == _best(results, row) else text
    why: str = cell["why"]
    if why == "no such thing":
        return NOT_SUPPORTED
    if len(why) <= len("comes with Python"):
        return why
    if why not in notes:
        notes.append(why)
    return f"({notes.index(why) + 1})"


def _best(results: dict[str, Any], row: Row) -> str | None:
    known = {name: median(results, row.key, name) for name in real_peers(results)}
    there = {name: value for name, value in known.items() if value is not None}
    if not there or not row.judged:
        return None
    return (max if row.more_is_better else min)(there, key=lambda name: there[name])


def picture(results: dict[str, Any], table: Table) -> str:
    series = [
        chart.Series(
            results["peers"][name]["title"],
            results["peers"][name]["colour"],
            [median(results, row.key, name) for row in table.rows],
        )
        for name in measured_peers(results, table)
    ]
    if not table.axis:
        panels = [(row.text, FORMATS[row.unit]) for row in table.rows]
        return chart.bars(table.title, panels, series, "Shorter is better.")
    points = [float(row.key.rsplit("_", 1)[1]) for row in table.rows]
    x_form = (lambda x: size_text(int(x))) if table.axis == "bytes" else (lambda x: f"{x:,.0f}")
    unit = table.rows[0].unit
    y_name = "tasks per minute, more is better" if unit == "a minute" else "time, less is better"
    return chart.lines(
        table.title, points, table.axis, x_form, FORMATS[unit], series, y_name=f"{y_name}; both axes logarithmic"
    )


# --- The document -----------------------------------------------------------------------------------------------------
WHY_BETTER = {
    "mpi": "MPI is faster for three reasons. Its processes never sleep: they look at shared memory until something "
    "arrives, whereas MiniRay looks for a moment and then sleeps. MPI receives into a buffer of the caller, whereas "
    "MiniRay makes a new object for each message. And MiniRay sends buffers of more than 512 MiB through the socket, "
    "because that is its limit for shared memory."
}


def losses(results: dict[str, Any], shown: list[Table]) -> list[str]:
    found = behind(results, shown)
    if not found:
        return ["No peer is better in any row."]
    lines = [
        f"In these rows, a peer is more than {100 * (NOISE - 1):.0f}% better. Raw sockets do not count as a peer: they "
        "show how fast the kernel moves bytes if a program does nothing else.",
        "",
    ]
    lines += ["| row | MiniRay | the best peer | times better |", "|---|---:|---:|---:|"]
    for one in found:
        form = FORMATS[one.row.unit]
        ours, theirs = median(results, one.row.key, OURS), median(results, one.row.key, one.peer)
        assert ours is not None
        assert theirs is not None
        title = results["peers"][one.peer]["title"]
        lines.append(
            f"| {one.table.title}: {one.row.text} | {form(ours)} | {title}: {form(theirs)} | {one.times:.2f} |"
        )
    return [*lines, "", *[WHY_BETTER[peer] for peer in {one.peer: None for one in found} if peer in WHY_BETTER]]


def peers_lines(results: dict[str, Any]) -> list[str]:
    lines = [
        "| peer | version | actors | tasks | one array for all | on three machines | in C++ |",
        "|---|---|---|---|---|---|---|",
    ]
    for peer in results["peers"].values():
        how = [peer["how"].get(kind, NOT_SUPPORTED) for kind in ("actors", "tasks", "broadcast", "nodes", "cpp")]
        version = peer.get("missing") or peer.get("version") or "part of the system"
        lines.append(f"| {peer['title']} | {version} | " + " | ".join(how) + " |")
    return lines


def document(results: dict[str, Any]) -> str:
    shown = tables(results["sizes"])
    shown = [table for table in shown if measured_peers(results, table)]
    parts = [
        "# MiniRay compared with its peers",
        "",
        f"These figures are from {results['date']}, measured on {results['machine']}. Every peer does the same work, "
        "and the results are checked. Each measurement runs in a process of its own, which is stopped afterwards. "
        f"The peers take turns, and a figure is the median of {results['rounds']} rounds; slow peers have fewer "
        "rounds, and the tables about growth have one. Every peer is used as its own documentation recommends, and "
        "all use the same interpreter. The best figure of each row is bold. `make bench-peers` makes this page from "
        "[the figures of every round](../bench/results/peers.json).",
        "",
        "## Goals",
        "",
        "| goal | target | measured | |",
        "|---|---|---|---|",
        *goal_rows(results, shown),
        "",
        "## Where MiniRay loses",
        "",
        *losses(results, shown),
    ]
    for table in shown:
        parts += ["", f"## {table.title}", "", table.remark, "", *table_lines(results, table)]
        parts += ["", f"![{table.title}]({PICTURES}/{table.key}.svg)"]
    parts += ["", "## How each was used", "", *peers_lines(results)]
    return "\n".join(parts) + "\n"


def write_document(file: Path, folder: Path) -> Path:
    results = json.loads(file.read_text())
    pictures = folder / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    for table in tables(results["sizes"]):
        if measured_peers(results, table):
            (pictures / f"{table.key}.svg").write_text(picture(results, table))
    written = folder / "benchmarks.md"
    written.write_text(document(results))
    return written


if __name__ == "__main__":
    print(f"Written to {write_document(Path(sys.argv[1]), Path(sys.argv[2]))}")

"""The goals of MiniRay relative to its peers, and whether the results file says that they are met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peers.tables import Row, Table

OURS = "miniray"
NEVER_BEHIND = ("multiprocessing", "dask")
NOISE = 1.05  # times; a smaller difference does not count
NEAR = 1.2  # times the best peer


@dataclass(frozen=True)
class Goal:
    text: str
    row: str
    times: float


BESIDE_RAY = [
    Goal("rate of calls of an actor's method", "call", 10),
    Goal("rate of calls, 1,000 in flight", "calls_in_flight", 20),
    Goal("rate of empty tasks", "task", 10),
    Goal("rate of empty tasks, 1,000 in flight", "tasks_in_flight", 20),
    Goal("time to the first result", "first", 30),
    Goal("memory while idle", "memory", 20),
    Goal("size on disk", "installed", 50),
]


@dataclass(frozen=True)
class Behind:
    """A row in which a peer is better, and how many times."""

    table: Table
    row: Row
    peer: str
    times: float


def real_peers(results: dict[str, Any]) -> list[str]:
    """The peers, without those that only show the limit of the system."""
    return [name for name, peer in results["peers"].items() if not peer["limit"]]


def median(results: dict[str, Any], row: str, peer: str) -> float | None:
    found = results["rows"].get(row, {}).get(peer, {}).get("median")
    return None if found is None else float(found)


def times_behind(results: dict[str, Any], row: Row, peer: str) -> float | None:
    """How many times better than MiniRay the peer is. Above 1, the peer wins."""
    ours, theirs = median(results, row.key, OURS), median(results, row.key, peer)
    if ours is None or theirs is None or min(ours, theirs) <= 0:
        return None
    return theirs / ours if row.more_is_better else ours / theirs


def behind(results: dict[str, Any], shown: list[Table], peer: str | None = None) -> list[Behind]:
    """The rows in which this peer, or the best of all peers, is better than MiniRay. The largest gap comes first."""
    found = []
    names = [peer] if peer else [name for name in real_peers(results) if name != OURS]
    for table in shown:
        for row in table.rows:
            known = {name: times_behind(results, row, name) for name in names} if row.judged else {}
            better = {name: times for name, times in known.items() if times is not None and times > NOISE}
            if better:
                best = max(better, key=lambda name: better[name])
                found.append(Behind(table, row, best, better[best]))
    return sorted(found, key=lambda one: -one.times)


def goal_rows(results: dict[str, Any], shown: list[Table]) -> list[str]:
    """Lines of a table: goal, measured, met."""
    lines = []
    for goal in BESIDE_RAY:
        times = times_behind(results, Row(goal.row, ""), "ray")
        if times is None:
            lines.append(f"| {goal.text}, compared with Ray | {goal.times:g} times better | not measured | unknown |")
        else:
            reached = 1 / times
            met = "met" if reached >= goal.times else "**missed**"
            lines.append(
                f"| {goal.text}, compared with Ray | {goal.times:g} times better | {reached:.3g} times | {met} |"
            )
    for peer in NEVER_BEHIND:
        if peer in results["peers"] and "missing" not in results["peers"][peer]:
            title = results["peers"][peer]["title"]
            lines.append(_none_of(f"not behind {title}", "in every row", behind(results, shown, peer), results))
    far = [one for one in behind(results, shown) if one.times > NEAR]
    lines.append(_none_of(f"within {NEAR} times the best peer", "in every row", far, results))
    return lines


def _none_of(text: str, wanted: str, found: list[Behind], results: dict[str, Any]) -> str:
    if not found:
        return f"| {text} | {wanted} | yes | met |"
    worst = found[0]
    title = results["peers"][worst.peer]["title"]
    rows = "1 row" if len(found) == 1 else f"{len(found)} rows"
    said = f"behind in {rows}, most in “{worst.table.title}: {worst.row.text}” ({title}, {worst.times:.2g} times)"
    return f"| {text} | {wanted} | {said} | **missed** |"

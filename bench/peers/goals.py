"""What MiniRay set out to reach beside its peers, and whether it did; read from the results file alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peers.tables import Row, Table

OURS = "miniray"
NEVER_BEHIND = ("multiprocessing", "dask")
NOISE = 1.05  # times; less is no difference
NEAR = 1.2  # times the best peer


@dataclass(frozen=True)
class Goal:
    text: str
    row: str
    times: float


BESIDE_RAY = [
    Goal("a call of an actor's method: rate", "call", 10),
    Goal("1,000 calls in flight: rate", "calls_in_flight", 20),
    Goal("an empty task: rate", "task", 10),
    Goal("1,000 tasks in flight: rate", "tasks_in_flight", 20),
    Goal("first result sooner", "first", 30),
    Goal("idle memory less", "memory", 20),
    Goal("installed size less", "installed", 50),
]


@dataclass(frozen=True)
class Behind:
    """A row in which a peer is better, and how many times."""

    table: Table
    row: Row
    peer: str
    times: float


def real_peers(results: dict[str, Any]) -> list[str]:
    """Without those that only show the limit."""
    return [name for name, peer in results["peers"].items() if not peer["limit"]]


def median(results: dict[str, Any], row: str, peer: str) -> float | None:
    found = results["rows"].get(row, {}).get(peer, {}).get("median")
    return None if found is None else float(found)


def times_behind(results: dict[str, Any], row: Row, peer: str) -> float | None:
    """How many times as good as MiniRay the peer is: above 1 it wins."""
    ours, theirs = median(results, row.key, OURS), median(results, row.key, peer)
    if ours is None or theirs is None or min(ours, theirs) <= 0:
        return None
    return theirs / ours if row.more_is_better else ours / theirs


def behind(results: dict[str, Any], shown: list[Table], peer: str | None = None) -> list[Behind]:
    """Rows in which this peer, or else the best of all, is better than MiniRay; the worst first."""
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
            lines.append(f"| {goal.text}, beside Ray | {goal.times:g} times | not measured | unknown |")
        else:
            reached = 1 / times
            met = "met" if reached >= goal.times else "**missed**"
            lines.append(f"| {goal.text}, beside Ray | {goal.times:g} times | {reached:.3g} times | {met} |")
    for peer in NEVER_BEHIND:
        if peer in results["peers"] and "missing" not in results["peers"][peer]:
            title = results["peers"][peer]["title"]
            lines.append(_none_of(f"never behind {title}", "in no row", behind(results, shown, peer), results))
    far = [one for one in behind(results, shown) if one.times > NEAR]
    lines.append(_none_of(f"within {NEAR} times the best peer", "in every row", far, results))
    return lines


def _none_of(text: str, wanted: str, found: list[Behind], results: dict[str, Any]) -> str:
    if not found:
        return f"| {text} | {wanted} | so it is | met |"
    worst = found[0]
    title = results["peers"][worst.peer]["title"]
    rows = "1 row" if len(found) == 1 else f"{len(found)} rows"
    said = f"behind in {rows}, most in “{worst.table.title}: {worst.row.text}” ({title}, {worst.times:.2g} times)"
    return f"| {text} | {wanted} | {said} | **missed** |"

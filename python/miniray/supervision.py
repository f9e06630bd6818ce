"""What happens when a worker dies: how often another may take its place, and a log of every decision."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from miniray import _check, _core, _log


@_check.suggest_arguments()
@dataclass(frozen=True)
class RestartPolicy:
    """How often what died is started again: at most ``max_restarts`` times within ``window_s`` seconds.

    Before each there is a pause of ``backoff_s`` seconds, twice as long for each restart that the window already holds,
    and never longer than ``backoff_max_s``. With ``other_nodes=True``, what was on a node that is gone may go to the
    nodes that are left. With ``retry_calls=True``, a ``call_remote`` that the death interrupted is made again: for
    functions that may run twice.
    """

    max_restarts: int = _core.limits.restarts_max
    window_s: float = _core.limits.restart_window_ms / 1000
    backoff_s: float = _core.limits.restart_pause_ms / 1000
    backoff_max_s: float = _core.limits.restart_pause_max_ms / 1000
    other_nodes: bool = False
    retry_calls: bool = False

    def __post_init__(self) -> None:
        _check.integer("max_restarts", self.max_restarts, 0)
        for name in ("window_s", "backoff_s", "backoff_max_s"):
            _check.number(name, getattr(self, name), what="a number of seconds")
        _check.boolean("other_nodes", self.other_nodes)
        _check.boolean("retry_calls", self.retry_calls)
        _core._check_policy(self._fields())

    def _fields(self) -> tuple[int, float, float, float]:
        return self.max_restarts, self.window_s, self.backoff_s, self.backoff_max_s


class Event(NamedTuple):
    """One decision, or its cause. ``kind`` is for programs, and so is ``details``; ``text`` is for people."""

    time: float  # seconds since 1970; no two events of a log have the same
    kind: str
    node: str
    worker: str
    text: str
    details: dict[str, Any]


class EventLog(_core.EventLog):
    """What was decided, and when. Any thread may add to it and read it.

        for event in cluster.events.events("worker_restarted"):
            print(event.time, event.node, event.text)

    Of more than ``events_max`` events the oldest are forgotten (``forgotten`` counts them); ``write_to`` keeps all.
    Each goes to the logger "miniray", too.
    """

    def __init__(self, events_max: int = _core.limits.events_max) -> None:
        super().__init__(_check.integer("events_max", events_max, 0))
        self._logged = 0.0  # the time of the newest event that the logger was told of
        self._logging = threading.Lock()

    def add(self, kind: str, text: str = "", *, node: str = "", worker: str = "", **details: Any) -> None:
        """Note an event, now. The details are what a message may hold."""
        self._note(kind, node, worker, text, details)

    def _note(self, kind: str, node: str, worker: str, text: str, details: dict[str, Any]) -> None:
        self._add(kind, node, worker, text, details)
        self._log_new()

    def _log_new(self) -> None:
        """Tell the logger of what has come since it was told last. The core adds events, too."""
        with self._logging:
            new = self.events(since=self._logged)
            if new:
                self._logged = new[-1].time
        for event in new:
            _log.log(event)

    def events(self, kind: str | None = None, since: float | None = None) -> list[Event]:
        """All events in order, or those of this kind, or those after this time (``since=last.time``)."""
        return [Event(*event) for event in self._events(kind, since)]

    def write_to(self, path: str | os.PathLike[str]) -> None:
        """Append the events so far, and those to come, to a file: one JSON object a line."""
        self._write_to(_check.path("path", path))

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events())

    def __repr__(self) -> str:
        return f"<miniray.EventLog of {len(self)} events>"

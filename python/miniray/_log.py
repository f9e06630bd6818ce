"""Passes events of workers, nodes and tasks to the logger "miniray", for programs that use ``logging``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from miniray.supervision import Event

# DEBUG: a normal run has these. WARNING: something failed, and MiniRay handles it. ERROR: MiniRay does not handle it.
# All other events are INFO.
_DEBUG = ("worker_started", "worker_ended")
_WARNING = (
    *("worker_died", "worker_stillborn", "worker_silent", "task_timeout", "restart_failed"),
    *("node_lost", "relaunch_failed", "group_failed", "ranks_moved"),
)
_ERROR = ("restart_refused", "initializer_failed", "pool_broken")


def log(event: Event) -> None:
    """Log an event. A program that has not imported logging has no handler, so then this does nothing."""
    logging = sys.modules.get("logging")
    if logging is None:
        return
    logger = logging.getLogger("miniray")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # a library prints nothing unless the program sets a handler
    level = logging.INFO
    if event.kind in _DEBUG:
        level = logging.DEBUG
    elif event.kind in _WARNING:
        level = logging.WARNING
    elif event.kind in _ERROR:
        level = logging.ERROR
    if logger.isEnabledFor(level):
        parts = [event.kind, event.node and f"on {event.node}", event.worker and f"({event.worker})"]
        what = " ".join(filter(None, parts))
        text = f"{what}: {event.text}" if event.text else what
        from miniray import _check

        logger.log(level, "%s", _check.escaped(text), extra={"event": event})

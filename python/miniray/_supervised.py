"""Workers that are replaced when they die: what the core's supervision is given by Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from miniray import _check, _core
from miniray.errors import UsageError
from miniray.supervision import EventLog, RestartPolicy
from miniray.worker import Worker, _live


def supervise(
    worker: Any,
    start: Callable[[Any], Worker],
    policy: RestartPolicy,
    on_restart: Callable[[Any], Any] | None,
    events: EventLog | None = None,
    node: str = "",
) -> None:
    """From now on, ``start(worker)`` makes the process that takes the place of one that died."""
    worker.events = events if events is not None else EventLog()
    worker._start_another, worker._on_restart, worker._retries_calls = start, on_restart, policy.retry_calls
    worker._supervision = _core._supervise(worker, policy._fields(), worker.events, node)


def replace(worker: Any) -> Worker:
    """Called by the core, which takes the process out of what this returns."""
    fresh: Worker = worker._start_another(worker)
    fresh._started = False
    _live.pop(id(fresh), None)
    worker.__dict__["_snapshot"] = fresh.__dict__.get("_snapshot")
    return fresh


def prepare(worker: Any) -> None:
    """Called by the core with each new process: it is told of what was registered, and then of its state."""
    if "_registered" in worker.__dict__ or "_definitions" in worker.__dict__:
        from miniray import calls

        calls.register_again(worker)
    if worker._on_restart is not None:
        worker._on_restart(worker)


def check(restart: RestartPolicy | None, on_restart: Callable[[Any], Any] | None) -> None:
    """Before anything is started."""
    if restart is None:
        raise UsageError("on_restart is of use only with a policy: restart=RestartPolicy()")
    if not isinstance(restart, RestartPolicy):
        raise TypeError(f"restart is a RestartPolicy, such as RestartPolicy(), not {_check.shown(restart)}")
    if on_restart is not None and not callable(on_restart):
        raise TypeError(f"on_restart is a function that takes the worker, not {type(on_restart).__name__}")

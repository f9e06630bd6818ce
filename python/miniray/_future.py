"""A pool's future: the standard one, with little memory, and with a cancel that ends a running task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future, InvalidStateError
from concurrent.futures._base import (
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    LOGGER,
    PENDING,
    RUNNING,
)
from typing import Any

from miniray.errors import MiniRayError

_DONE = (CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED)


class PoolBroken(MiniRayError, BrokenExecutor):
    """The pool can run no more tasks: its initializer failed, or no worker is left and none can be had."""


class PoolFuture(Future[Any]):
    """What a task will return.

    The lock and the condition are the pool's, and lists are made when something goes into them: of a million futures,
    few are ever waited for.
    """

    __slots__ = ("_callbacks", "_exception", "_inside", "_number", "_options", "_result", "_state", "_waiting")

    def __init__(self, inside: Any, options: Any) -> None:
        self._inside = inside
        self._options = options
        self._number = 0
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._callbacks: list[Callable[[Any], Any]] | None = None
        self._waiting: list[Any] | None = None

    # What the standard library's functions reach for.

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._inside.condition  # type: ignore[no-any-return]

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._waiting is None:
            self._waiting = []
        return self._waiting

    @property
    def _done_callbacks(self) -> list[Any]:
        if self._callbacks is None:
            self._callbacks = []
        return self._callbacks

    def cancel(self) -> bool:
        """Take the task back: one that waits is dropped; one that runs ends with its worker, which is replaced. False
        if it is done already."""
        if self._state in _DONE:
            return self._state != FINISHED
        self._cancelled_by_pool()
        self._inside.core.cancel(self._number, True)
        return self._state != FINISHED

    def _cancelled_by_pool(self) -> None:
        """It was dropped in a shutdown."""
        with self._condition:
            if self._state in _DONE:
                return
            self._state = CANCELLED_AND_NOTIFIED
            for waiter in self._waiting or ():
                waiter.add_cancelled(self)
        self._run_callbacks()

    def running(self) -> bool:
        """Whether a worker is at it."""
        if self._state == RUNNING:
            return True
        return self._state == PENDING and bool(self._inside.core.is_running(self._number))

    def result(self, timeout: float | None = None) -> Any:
        if self._state != FINISHED:
            self._wait(timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment] # no cycle through the traceback
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != FINISHED:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            done = self._state in _DONE
            if not done:
                waiter = _Waiter()
                self._waiters.append(waiter)
        if not done and not waiter.event.wait(timeout):
            with self._condition:
                self._waiters.remove(waiter)
                if self._state not in _DONE:
                    raise TimeoutError(f"the task is not done after {timeout} s; it goes on")
        if self._state != FINISHED:
            raise CancelledError

    def set_result(self, result: Any) -> None:
        self._finish(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        self._finish(None, exception)

    def _finish(self, result: Any, exception: BaseException | None) -> None:
        with self._condition:
            if self._state in _DONE:
                raise InvalidStateError(f"{self._state}: {self!r}")
            self._result, self._exception = result, exception
            self._state = FINISHED
            for waiter in self._waiting or ():
                if exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
        if self._callbacks is not None:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        with self._condition:
            callbacks, self._callbacks = self._callbacks or [], None
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                LOGGER.exception("exception calling callback for %r", self)


class _Waiter:
    """One thread that waits for one future."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def add_result(self, _: Any) -> None:
        self.event.set()

    add_exception = add_cancelled = add_result

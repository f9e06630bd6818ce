"""What futures of calls and of pools have in common; and the future of a pool, which takes little memory, and whose
cancel ends a task that runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import BrokenExecutor, CancelledError, Future, InvalidStateError
from concurrent.futures._base import (
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    LOGGER,
    PENDING,
    RUNNING,
)
from typing import TYPE_CHECKING, Any, TypeVar

from miniray import _check, _core
from miniray._waiting import Latch, condition_on
from miniray.errors import MiniRayError

T = TypeVar("T")

_DONE = (CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED)

# Guards the states of all pools' futures. concurrent.futures.wait takes the locks of its futures one after the other:
# with a lock for each pool, two threads that wait for futures of the same two pools could each hold one.
_lock = threading.RLock()


def _new_lock() -> None:
    """Replace the lock in a forked child: a thread that the child does not have may hold the old one."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


def new_condition() -> threading.Condition:
    """Return a condition for the futures of one pool."""
    return condition_on(_lock)


class PoolBroken(MiniRayError, BrokenExecutor):
    """The pool can run no more tasks: its initializer failed, or its last worker died and was not replaced."""


class MiniRayFuture(Future[T]):
    """A ``concurrent.futures.Future`` that can be awaited, and whose repr shows its state."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in an event loop. If the waiting task is cancelled, so is this future, as asyncio does with its own."""
        return self._await().__await__()

    async def _await(self) -> T:
        if not self.done():
            from miniray import _async  # asyncio takes longer to import than all the rest

            await _async.until_done(self)
        if self.cancelled():
            from asyncio import CancelledError as Cancelled

            raise Cancelled
        return self.result()

    def __repr__(self) -> str:
        return f"<miniray.{type(self).__name__} {self._describe()}>"

    def _describe(self) -> str:
        return f"at {id(self):#x}: {self._describe_state()}"

    def _describe_state(self) -> str:
        if self._state in (CANCELLED, CANCELLED_AND_NOTIFIED):
            return "cancelled"
        if self._state != FINISHED:
            return "running" if self._state == RUNNING else "pending"
        if self._exception is not None:
            return f"finished, raised {type(self._exception).__name__}"
        return f"finished, returned {type(self._result).__name__}"


class PoolFuture(MiniRayFuture[T]):
    """What a task will return: a ``concurrent.futures.Future`` that can be awaited.

    To save memory, all futures of a pool share a lock and a condition, and lists are made when something goes into
    them: of a million futures, few are ever waited for.
    """

    __slots__ = ("_callbacks", "_driver", "_exception", "_number", "_options", "_result", "_state", "_waiting")

    def __init__(self, driver: Any, options: Any) -> None:
        self._driver = driver
        self._options = options
        self._number = 0
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._callbacks: list[Callable[[Any], Any]] | None = None
        self._waiting: list[Any] | None = None

    if not TYPE_CHECKING:  # functions of the standard library use these; type checkers know the base's

        @property
        def _condition(self) -> threading.Condition:
            return self._driver.condition

        @property
        def _waiters(self) -> list[Any]:
            self._refuse_to_wait_here()
            if self._waiting is None:
                self._waiting = []
            return self._waiting

        @property
        def _done_callbacks(self) -> list[Any]:
            if self._callbacks is None:
                self._callbacks = []
            return self._callbacks

    def cancel(self) -> bool:
        """Cancel the task. One that waits is dropped; one that runs ends with its worker, which is replaced. Returns
        False if the task is done already."""
        if self._state in _DONE:
            return self._state != FINISHED
        self._cancelled_by_pool()
        self._driver.core.cancel(self._number, True)
        return self._state != FINISHED

    def _cancelled_by_pool(self) -> None:
        """Note that the task was cancelled, as in a shutdown."""
        with self._condition:
            if self._state in _DONE:
                return
            self._state = CANCELLED_AND_NOTIFIED
            for waiter in self._waiting or ():
                waiter.add_cancelled(self)
        self._run_callbacks()

    def running(self) -> bool:
        """Return whether a worker runs the task now."""
        if self._state == RUNNING:
            return True
        return self._state == PENDING and bool(self._driver.core.is_running(self._number))

    def result(self, timeout: float | None = None) -> T:
        """Wait for what the task returns; raises what it raised. TimeoutError after ``timeout`` seconds."""
        if timeout is not None:
            _check.seconds("timeout", timeout)
        if self._state != FINISHED:
            self._wait(timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment] # no cycle through the traceback
        return self._result  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the task raised; None if it returned."""
        if timeout is not None:
            _check.seconds("timeout", timeout)
        if self._state != FINISHED:
            self._wait(timeout)
        return self._exception

    def _describe_state(self) -> str:
        return "running" if self.running() else super()._describe_state()

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            done = self._state in _DONE
            if not done:
                waiter = _Waiter()
                self._waiters.append(waiter)  # type: ignore[arg-type]
        try:
            came = done or waiter.event.wait(timeout)
        except KeyboardInterrupt:
            _core._note_interrupt()
            raise
        if not came:
            with self._condition:
                self._waiters.remove(waiter)  # type: ignore[arg-type]
                if self._state not in _DONE:
                    raise TimeoutError(f"the task is not done after {timeout} s; it goes on")
        if self._state != FINISHED:
            raise CancelledError

    def _refuse_to_wait_here(self) -> None:
        if self._state not in _DONE:
            self._driver.refuse_to_wait_here()

    async def _await(self) -> T:
        self._refuse_to_wait_here()
        return await super()._await()

    def set_result(self, result: T) -> None:
        """Set the result. Only the pool does this."""
        self._finish(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the exception. Only the pool does this."""
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
            except BaseException as error:
                if not isinstance(error, Exception) and not self._driver.delivers_here():
                    raise  # Ctrl-C, in the thread that cancelled it
                LOGGER.exception("exception calling callback for %r", self)


class _Waiter:
    """A thread that waits for one future."""

    def __init__(self) -> None:
        self.event = Latch()

    def add_result(self, _: Any) -> None:
        self.event.set()

    add_exception = add_cancelled = add_result

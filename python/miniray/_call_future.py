"""Futures of calls. They are standard futures without a thread behind them: the thread that waits for one receives the
replies of its worker, also inside ``concurrent.futures.wait`` and ``as_completed``, and in an event loop.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import as_completed as _standard_as_completed
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED, LOGGER, PENDING
from typing import TYPE_CHECKING, Any, TypeVar

from miniray import _call_errors, _calls, _check, _core
from miniray._future import MiniRayFuture

T = TypeVar("T")
F = TypeVar("F", bound=Future[Any])


class CallFuture(MiniRayFuture[T]):
    """What a call will return: a ``concurrent.futures.Future`` that can be awaited.

    It gets its result when you wait for it, ask it whether it is done, or do so with another one of the same worker.
    Like its worker, it is for one thread at a time.
    """

    # The core makes these objects and sets the first five; the rest have defaults, because few futures need them.
    __slots__ = ("_name", "_number", "_reply", "_state", "_worker")

    _worker: Any
    _name: Any
    _number: int
    _reply: _calls.Reply | None  # None before it comes, and once an exception was made from it
    _exception: BaseException | None = None
    _watchers: _Watchers | None = None

    def __init__(self) -> None:
        raise TypeError("a CallFuture comes from call_async; for a future of your own, use concurrent.futures.Future()")

    def result(self, timeout: float | None = None) -> T:
        """Wait for what the call returns; raises what it raised. TimeoutError after ``timeout`` seconds."""
        if self._state != FINISHED:
            self._wait(timeout)
        reply = self._reply
        if reply is None or reply[0] != "value":
            self._read()
            if self._exception is not None:
                try:
                    raise self._exception
                finally:
                    self = None  # type: ignore[assignment] # no cycle through the traceback
            reply = self._reply
        return reply[1]  # type: ignore[index, no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the call raised; None if it returned."""
        if self._state != FINISHED:
            self._wait(timeout)
        self._read()
        return self._exception

    def done(self) -> bool:
        """Return whether the result is there, or the call was cancelled. Does not wait."""
        if self._state == PENDING:
            _receive_replies(self._worker)
        return self._state != PENDING

    def running(self) -> bool:
        """Return whether the call is not done. It may have begun on the worker, or not."""
        return not self.done()

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        return self._state == CANCELLED_AND_NOTIFIED

    def cancel(self) -> bool:
        """Cancel the call. If it has not begun there, it never will; if it has, its result is thrown away. Returns
        False if it is done already."""
        if self.done():
            return self.cancelled()
        self._worker._drop_call(self._number)
        self._state = CANCELLED_AND_NOTIFIED
        if self._watchers is not None:
            _tell(self)
        return True

    def add_done_callback(self, callback: Callable[[CallFuture[T]], Any]) -> None:
        """Call ``callback(self)`` when the call is done; at once if it is. The thread that notices runs it. Added in an
        event loop, it is run by the loop."""
        if not callable(callback):
            raise TypeError(f"add_done_callback takes a function that takes the future, not {_check.shown(callback)}")
        if self._state != PENDING:
            _run_callbacks(self, [callback])
            return
        self._watched().callbacks.append(callback)
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and (loop := asyncio._get_running_loop()) is not None:
            from miniray import _async

            _async.watch_replies(self, loop)

    def set_result(self, result: T) -> None:
        """Raise: the reply of its worker sets the result of a call."""
        raise InvalidStateError("the result of a call comes from its worker")

    def set_exception(self, exception: BaseException | None) -> None:
        """Raise, as ``set_result`` does."""
        raise InvalidStateError("the exception of a call comes from its worker")

    def _wait(self, timeout: float | None) -> None:
        _check.seconds("timeout", timeout)
        if self._state == PENDING and not self._worker._wait_for_call(self._number, timeout):
            raise TimeoutError(
                f"{self._worker.name} has not answered the call of {self._name} after {timeout} s; it goes on, and its "
                "result is not lost"
            )
        if self._state != FINISHED:
            raise CancelledError(f"the call of {self._name} was cancelled")

    def _read(self) -> None:
        """Make the value or the exception from the reply, once."""
        reply = self._reply
        if reply is None or reply[0] == "value":
            return
        try:
            if reply[0] in ("error", "unknown"):
                self._exception = _call_errors.error_in(self._worker.name, reply, _calls.definitions_of(self._worker))
            else:
                self._reply = ("value", _calls.value_of(self._worker, reply))
        except BaseException as unreadable:
            self._exception = unreadable
        if self._exception is not None:
            self._reply = None

    def _describe(self) -> str:
        state = self._describe_state()
        return f"of {self._name} in {self._worker.name}: {state}"

    def _describe_state(self) -> str:
        """Describe what is known here. Nothing is received or unpickled for a text."""
        if self._state != FINISHED or self._exception is not None:
            return super()._describe_state()
        kind, body = self._reply if self._reply is not None else ("", {})
        if kind == "value":
            return f"finished, returned {type(body).__name__}"
        if kind in ("error", "unknown"):
            return f"finished, raised {body.get('type', 'LookupError')}"
        return "finished, returned an object that was not read yet"

    if not TYPE_CHECKING:  # concurrent.futures.wait and as_completed reach for these; checkers know the base's

        @property
        def _condition(self) -> Any:
            return _NO_LOCK

        @property
        def _waiters(self) -> list[Any]:
            return self._watched().waiters

    def _watched(self) -> _Watchers:
        if self._watchers is None:
            self._watchers = _Watchers(self._worker if self._state == PENDING else None)
        return self._watchers


class _NoLock:
    """A worker and its futures are for one thread at a time. A lock that several futures share would be taken in an
    order that differs from set to set, and so could deadlock."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


_NO_LOCK = _NoLock()


class _Watchers:
    """The callbacks and waiters of a future. They hold no reference to the future: a cycle would keep its result."""

    __slots__ = ("callbacks", "waiters")

    def __init__(self, worker: Any) -> None:
        self.callbacks: list[Callable[[Any], Any]] = []
        self.waiters = _Waiters()
        self.waiters.worker = worker


class _Waiters(list[Any]):
    """Waiters of the standard library's wait() and as_completed(). Each gets an event whose wait() receives replies."""

    worker: Any  # None once the future is done

    def append(self, waiter: Any) -> None:
        if not isinstance(waiter.event, _RepliesEvent):
            event = _RepliesEvent()
            if waiter.event.is_set():
                event.set()
            waiter.event = event
        if self.worker is not None:
            waiter.event.watch(self.worker)
        super().append(waiter)


class _RepliesEvent(threading.Event):
    """An event whose wait() receives the replies of some workers. Any thread may set it, and a pool's thread does."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, list[Any]] = {}  # by id(worker): the worker, and how many of its calls are awaited
        self._wake: int | None = None  # an eventfd, while some thread waits
        self._wake_lock = threading.Lock()

    def watch(self, worker: Any) -> None:
        self._calls.setdefault(id(worker), [worker, 0])[1] += 1

    def unwatch(self, worker: Any) -> None:
        self._calls[id(worker)][1] -= 1
        if self._calls[id(worker)][1] == 0:
            del self._calls[id(worker)]

    def set(self) -> None:
        super().set()
        with self._wake_lock:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with self._wake_lock:
            self._wake = wake
        try:
            while True:
                for worker, _ in list(self._calls.values()):
                    _receive_replies(worker)
                left = None if deadline is None else deadline - time.monotonic()
                if self.is_set() or (left is not None and left <= 0):
                    return self.is_set()
                self._poll(wake, left)
        finally:
            with self._wake_lock:
                self._wake = None
            os.close(wake)

    def _poll(self, wake: int, left: float | None) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for worker, _ in self._calls.values():
            poll.register(worker.fileno(), select.POLLIN | (select.POLLOUT if worker._has_unsent() else 0))
            if worker._host_may_vanish and worker.is_alive():
                poll.register(worker._process_fileno(), select.POLLIN)
        poll.poll(None if left is None else left * 1000 + 1)


def _receive_replies(worker: Any) -> None:
    """Take the replies that have arrived, and notice if the worker is gone. Does not wait."""
    if worker._host_may_vanish:
        worker._look_around()
    worker._take_replies()


def _tell(future: CallFuture[Any]) -> None:
    """Tell the callbacks and waiters of a future that it is done. The core calls this, too."""
    watchers = future._watchers
    assert watchers is not None
    assert future._state != PENDING
    watchers.waiters.worker = None
    for waiter in watchers.waiters:
        waiter.event.unwatch(future._worker)
        if future._state == CANCELLED_AND_NOTIFIED:
            waiter.add_cancelled(future)
        elif future.exception(0) is None:
            waiter.add_result(future)
        else:
            waiter.add_exception(future)
    callbacks, watchers.callbacks = watchers.callbacks, []
    _run_callbacks(future, callbacks)


def _run_callbacks(future: CallFuture[Any], callbacks: list[Callable[[Any], Any]]) -> None:
    for callback in callbacks:
        try:
            callback(future)
        except Exception:
            LOGGER.exception("exception calling callback for %r", future)  # as the standard library does


def as_completed(futures: Iterable[F], timeout: float | None = None) -> Iterator[F]:
    """Yield futures when they are done: those of calls, of pools, and any other ``concurrent.futures.Future``. Raises
    TimeoutError if not all of them are done after ``timeout`` seconds."""
    _check.seconds("timeout", timeout)
    left = list(dict.fromkeys(_check.listed("futures", futures, "a list of futures")))
    for future in left:
        if not isinstance(future, Future):
            raise TypeError(f"futures are what submit and call_async return, not {_check.shown(future)}")
    if all(isinstance(future, CallFuture) for future in left):
        return _calls_as_completed(left, timeout)
    return _standard_as_completed(left, timeout)  # type: ignore[return-value]


def _calls_as_completed(left: list[Any], timeout: float | None) -> Iterator[Any]:
    """Yield futures of calls when they are done; of several, the one whose call was made first comes first."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while left:
        done = [future for future in left if future._state != PENDING]
        left = [future for future in left if future._state == PENDING]
        yield from done
        workers = list({id(future._worker): future for future in left}.values())
        if not left or any(future.done() for future in workers):
            continue
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError(f"{len(left)} of the calls have not returned after {timeout} s")
        _core._wait_for_replies([future._worker for future in workers], remaining)

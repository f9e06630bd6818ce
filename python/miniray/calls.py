"""Calls: named functions and objects on a worker, and futures of what they return.

    worker = Worker()                       # or one with a message loop of its own: it answers calls in handle.recv()
    worker.register("square", lambda x: x * x)
    worker.call_remote("square", 7)         # 49
    futures = [worker.call_async("square", n) for n in range(10)]
    [future.result() for future in futures]

Nothing moves behind your back: a future gets its result when you wait for it, ask it whether it is done, or do so with
another one of the same worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any

from miniray import _async, _calls, _core
from miniray._calls import RemoteTraceback

__all__ = ["CallFuture", "RemoteObject", "RemoteTraceback", "as_completed", "serve_calls"]


def serve_calls(handle: _core.Handle) -> None:
    """A work function that answers calls, and does nothing else."""
    while True:
        message = handle.recv()
        raise TypeError(f"this worker answers calls alone, and was sent a message: {str(message)[:100]}")


class CallFuture:
    """What a call will return. Like ``concurrent.futures.Future``; and it can be awaited."""

    def __init__(self, worker: Any, number: int, name: str) -> None:
        self._worker = worker
        self._number = number
        self._name = name
        self._state = "waiting"  # then "done" or "cancelled"
        self._reply: list[Any] | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[CallFuture], Any]] = []
        worker._call_table().waiting[number] = self

    def result(self, timeout: float | None = None) -> Any:
        """Wait for what the call returns; raises what it raised. TimeoutError after ``timeout`` seconds."""
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return _calls.value_of(self._worker, self._reply)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the call raised; None if it returned."""
        self._wait(timeout)
        if self._error is None and self._reply is not None and self._reply[1] in ("error", "unknown"):
            self._error = _calls.error_in(self._worker.name, self._reply)
        return self._error

    def done(self) -> bool:
        """Whether the result is there, or the call was cancelled. Does not wait."""
        if self._state == "waiting":
            _take_what_is_there(self._worker)
        return self._state != "waiting"

    def cancelled(self) -> bool:
        return self._state == "cancelled"

    def running(self) -> bool:
        return not self.done()

    def cancel(self) -> bool:
        """Take the call back: if it has not begun there, it never will; if it has, its result is thrown away.
        False if it is done already."""
        if self.done():
            return False
        self._worker._call_table().waiting.pop(self._number, None)
        self._worker._send_drop(self._number)
        self._finish("cancelled")
        return True

    def add_done_callback(self, callback: Callable[[CallFuture], Any]) -> None:
        """Call it with this future when it is done; at once if it is. In the thread that notices."""
        if self._state != "waiting":
            self._run(callback)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._await().__await__()

    async def _await(self) -> Any:
        while not self.done():
            await _async.wait_for_reply(self._worker, self.done)
        return self.result()

    def __repr__(self) -> str:
        return f"<miniray.CallFuture of {self._name} in {self._worker.name}: {self._state}>"

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._state == "waiting":
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                reply = self._worker._next_reply(left)
            except TimeoutError:
                raise TimeoutError(f"{self._name} in {self._worker.name} has not returned after {timeout} s") from None
            except (ConnectionError, EOFError) as error:
                _fail_all(self._worker, error)
                break
            _calls.settle(self._worker, reply)
        if self._state == "cancelled":
            raise CancelledError(f"the call of {self._name} was cancelled")

    def _settle(self, reply: list[Any]) -> None:
        self._reply = reply
        self._finish("done")

    def _finish(self, state: str) -> None:
        self._state = state
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._run(callback)

    def _run(self, callback: Callable[[CallFuture], Any]) -> None:
        try:
            callback(self)
        except Exception:
            import logging

            logging.getLogger("miniray").exception("a callback of %r raised", self)


def _take_what_is_there(worker: Any) -> None:
    try:
        while (reply := worker._try_reply()) is not None:
            _calls.settle(worker, reply)
    except (ConnectionError, EOFError) as error:
        _fail_all(worker, error)


def _fail_all(worker: Any, error: BaseException) -> None:
    """The worker is gone, and so is every call that was under way there."""
    waiting = worker._call_table().waiting
    futures = list(waiting.values())
    waiting.clear()
    for future in futures:
        future._error = error
        future._finish("done")


def as_completed(futures: Iterable[CallFuture], timeout: float | None = None) -> Iterator[CallFuture]:
    """The futures as they are done, from whichever workers. TimeoutError if not all are after ``timeout`` seconds."""
    left = list(dict.fromkeys(futures))
    deadline = None if timeout is None else time.monotonic() + timeout
    while left:
        done = [future for future in left if future.done()]
        yield from done
        left = [future for future in left if future not in set(done)]
        if done or not left:
            continue
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError(f"{len(left)} of the calls have not returned after {timeout} s")
        _core._wait_for_replies(list({id(future._worker): future._worker for future in left}.values()), remaining)


class RemoteObject:
    """An object that lives on a worker: its methods are called there."""

    def __init__(self, worker: Any, name: str) -> None:
        self._worker, self._name = worker, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("__"):
            raise AttributeError(method)
        name = f"{self._name}.{method}"
        return lambda *args, **kwargs: self._worker.call_remote(name, *args, **kwargs)

    def call_async(self, method: str, /, *args: Any, **kwargs: Any) -> CallFuture:
        """A method's call, as a future."""
        return call_async(self._worker, f"{self._name}.{method}", args, kwargs)

    def __repr__(self) -> str:
        return f"<miniray.RemoteObject {self._name} in {self._worker.name}>"


# Worker's methods.


def register(worker: Any, name: Any, function: Any) -> None:
    if function is None:
        name, function = getattr(name, "__name__", None), name
    if not isinstance(name, str) or not callable(function):
        raise TypeError(f"register takes a name and a function, not {name!r} and {function!r}")
    _describe(worker, ["define", name], function, [])


def create(worker: Any, name: str, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteObject:
    if isinstance(kind, str):
        _ask(worker, ["create", name, {"name": kind}, list(args), kwargs], 4, 6)
    else:
        _describe(worker, ["create", name], kind, [list(args), kwargs])
    return RemoteObject(worker, name)


def _describe(worker: Any, begin: list[Any], function: Any, rest: list[Any]) -> None:
    """By name if the function can be imported there, by value if not."""
    described = _calls.by_name(function)
    if described is not None:
        reply = _ask_plainly(worker, [*begin, described, *rest], 4, 4 + len(rest))
        if reply[1] != "unknown":
            return _calls.value_of(worker, reply)  # type: ignore[no-any-return]
        try:
            value = _calls.by_value(function)
        except TypeError:
            raise _calls.error_in(worker.name, reply) from None
    else:
        value = _calls.by_value(function)
    _ask(worker, [*begin, value, *rest], 4, 4 + len(rest))


def _ask(worker: Any, parts: list[Any], begin: int, end: int) -> Any:
    return _calls.value_of(worker, _ask_plainly(worker, parts, begin, end))


def _ask_plainly(worker: Any, parts: list[Any], begin: int, end: int) -> list[Any]:
    number = worker._send_call([None, *parts], begin, max(end, begin + 1))
    while True:
        reply: list[Any] = worker._next_reply(None)
        if reply[0] == number:
            return reply
        _calls.settle(worker, reply)


def call_async(worker: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallFuture:
    return CallFuture(worker, worker._begin_call(name, args, kwargs), name)


def forget(worker: Any, name: str) -> None:
    _ask(worker, ["forget", name], 2, 3)


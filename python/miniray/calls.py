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
from functools import partial
from typing import Any

from miniray import _calls, _core
from miniray._calls import RemoteTraceback
from miniray.errors import WorkerDied, WorkerError

__all__ = ["CallFuture", "RemoteObject", "RemoteTraceback", "as_completed", "serve_calls"]


def serve_calls(handle: _core.Handle) -> None:
    """A work function that answers calls, and does nothing else."""
    while True:
        message = handle.recv()
        raise TypeError(f"this worker answers calls alone, and was sent a message: {str(message)[:100]}")


class CallFuture(_core._CallFuture):
    """What a call will return. Like ``concurrent.futures.Future``; and it can be awaited."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for what the call returns; raises what it raised. TimeoutError after ``timeout`` seconds."""
        if self._waiting or self._error is not None or self.cancelled():
            self._wait_or_explain(timeout)
        return self._value()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the call raised; None if it returned."""
        if self._waiting or self.cancelled():
            try:
                self._wait_or_explain(timeout)
            except BaseException as raised:
                if raised is not self._error:
                    raise
        if self._error is None and self._reply is not None and self._reply[1] in ("error", "unknown"):
            self._error = _calls.error_in(self._worker.name, self._reply)
        error: BaseException | None = self._error
        return error

    def done(self) -> bool:
        """Whether the result is there, or the call was cancelled. Does not wait."""
        if self._waiting:
            try:
                self._settle_what_is_there()
            except (ConnectionError, EOFError, WorkerError) as error:
                _fail_all(self._worker, error)
        return not self._waiting

    def running(self) -> bool:
        """Whether it is not done: it may have begun there."""
        return not self.done()

    def cancel(self) -> bool:
        """Take the call back: if it has not begun there, it never will; if it has, its result is thrown away.
        False if it is done already."""
        if self.done():
            return self.cancelled()
        self._worker._call_table().waiting.pop(self._number, None)
        self._worker._send_drop(self._number)
        self._finish(True)
        return True

    def add_done_callback(self, callback: Callable[[CallFuture], Any]) -> None:
        """Call it with this future when it is done; at once if it is. In the thread that notices."""
        if self._waiting:
            self._add_callback(callback)
        else:
            _run_callbacks(self, [callback])

    def __await__(self) -> Generator[Any, None, Any]:
        return self._await().__await__()

    async def _await(self) -> Any:
        import asyncio  # takes longer to import than all the rest

        from miniray import _async

        if not self.done():
            settled = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if settled.done() else settled.set_result(None))
            while not self.done():
                await _async.wait_for_reply(self._worker, settled)
        return self.result()

    def __repr__(self) -> str:
        state = "waiting" if self._waiting else "cancelled" if self.cancelled() else "done"
        return f"<miniray.CallFuture of {self._name} in {self._worker.name}: {state}>"

    def _wait_or_explain(self, timeout: float | None) -> None:
        try:
            self._wait(timeout)
        except TimeoutError:
            raise TimeoutError(f"{self._name} in {self._worker.name} has not returned after {timeout} s") from None
        except (ConnectionError, EOFError, WorkerError) as error:
            _fail_all(self._worker, error)
        if self.cancelled():
            from concurrent.futures import CancelledError  # as asyncio above

            raise CancelledError(f"the call of {self._name} was cancelled")
        if self._error is not None:
            raise self._error


def _run_callbacks(future: CallFuture, callbacks: list[Callable[[CallFuture], Any]]) -> None:
    for callback in callbacks:
        try:
            callback(future)
        except Exception:
            import logging

            logging.getLogger("miniray").exception("a callback of %r raised", future)


def _fail_all(worker: Any, error: BaseException) -> None:
    """The worker is gone, and so is every call that was under way there. One that is supervised has another process
    when this returns, if its policy allows."""
    if isinstance(error, WorkerDied | WorkerError) and (supervision := getattr(worker, "_supervision", None)):
        try:
            supervision.tell(worker, error, worker._recover(error))
        except (WorkerDied, WorkerError) as told:
            error = told
    waiting = worker._call_table().waiting
    futures = list(waiting.values())
    waiting.clear()
    for future in futures:
        future._error = error
        future._finish(False)


def as_completed(futures: Iterable[CallFuture], timeout: float | None = None) -> Iterator[CallFuture]:
    """The futures as they are done, from whichever workers. TimeoutError if not all are after ``timeout`` seconds."""
    left = list(dict.fromkeys(futures))
    deadline = None if timeout is None else time.monotonic() + timeout
    while left:
        done = [future for future in left if not future._waiting]
        left = [future for future in left if future._waiting]
        yield from done
        workers = list({id(future._worker): future for future in left}.values())
        if not left or any(future.done() for future in workers):
            continue
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError(f"{len(left)} of the calls have not returned after {timeout} s")
        _core._wait_for_replies([future._worker for future in workers], remaining)


class RemoteObject:
    """An object that lives on a worker: its methods are called there."""

    def __init__(self, worker: Any, name: str) -> None:
        self._worker, self._name = worker, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("__"):
            raise AttributeError(method)
        call = partial(self._worker.call_remote, f"{self._name}.{method}")
        self.__dict__[method] = call  # found without this function the next time
        return call

    def call_async(self, method: str, /, *args: Any, **kwargs: Any) -> CallFuture:
        """A method's call, as a future."""
        return self._worker.call_async(f"{self._name}.{method}", *args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<miniray.RemoteObject {self._name} in {self._worker.name}>"


# Worker's methods.


def register(worker: Any, name: Any, function: Any) -> None:
    if function is None:
        name, function = getattr(name, "__name__", None), name
    if not isinstance(name, str) or not name or not callable(function):
        raise TypeError(f"register takes a name and a function, not {name!r} and {function!r}")
    _describe(worker, ["define", name], function, [])
    worker.__dict__.setdefault("_registered", {})[name] = function  # for the process that may take its place


def register_again(worker: Any) -> None:
    """In a process that has taken the place of another."""
    for name, function in worker.__dict__.get("_registered", {}).items():
        _describe(worker, ["define", name], function, [])


def create(worker: Any, name: str, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteObject:
    if isinstance(kind, str):
        _ask(worker, ["create", name, {"name": kind}, list(args), kwargs], 4, 6)
    else:
        _describe(worker, ["create", name], kind, [list(args), kwargs])
    return RemoteObject(worker, name)


def forget(worker: Any, name: str) -> None:
    worker.__dict__.get("_registered", {}).pop(name, None)
    _ask(worker, ["forget", name], 2, 3)


def _describe(worker: Any, begin: list[Any], function: Any, rest: list[Any]) -> None:
    """By name if the function can be imported there, by value if not."""
    described = _calls.by_name(function)
    if described is not None:
        reply = _reply_to(worker, [*begin, described, *rest], 4, 4 + len(rest))
        if reply[1] != "unknown":
            _calls.value_of(worker, reply)
            return
        try:
            value = _calls.by_value(function)
        except TypeError:
            raise _calls.error_in(worker.name, reply) from None
    else:
        value = _calls.by_value(function)
    _ask(worker, [*begin, value, *rest], 4, 4 + len(rest))


def _ask(worker: Any, parts: list[Any], begin: int, end: int) -> Any:
    return _calls.value_of(worker, _reply_to(worker, parts, begin, end))


def _reply_to(worker: Any, parts: list[Any], begin: int, end: int) -> list[Any]:
    number = worker._send_call([None, *parts], begin, max(end, begin + 1))
    while True:
        reply: list[Any] = worker._next_reply(None)
        if reply[0] == number:
            return reply
        worker._settle(reply)

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

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from miniray import _calls, _core
from miniray._calls import RemoteTraceback

if TYPE_CHECKING:
    from miniray._call_future import CallFuture, as_completed

__all__ = ["CallFuture", "RemoteObject", "RemoteTraceback", "as_completed", "serve_calls"]


def __getattr__(name: str) -> Any:
    """Futures are imported when the first is made: a worker that only answers calls has none."""
    if name in ("CallFuture", "as_completed"):
        from miniray import _call_future

        return getattr(_call_future, name)
    raise AttributeError(f"module 'miniray.calls' has no attribute {name!r}")


def serve_calls(handle: _core.Handle) -> None:
    """A work function that answers calls, and does nothing else."""
    while True:
        message = handle.recv()
        raise TypeError(f"this worker answers calls alone, and was sent a message: {str(message)[:100]}")


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

    def call_async(self, method: str, /, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """A method's call, as a future."""
        return self._worker.call_async(f"{self._name}.{method}", *args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<miniray.RemoteObject {self._name} in {self._worker.name}>"


# Worker's methods.


def register(worker: Any, name: Any, function: Any) -> None:
    """``Worker.register``."""
    if function is None:
        name, function = getattr(name, "__name__", None), name
    if not isinstance(name, str) or not name or not callable(function):
        raise TypeError(f"register takes a name and a function, not {name!r} and {function!r}")
    _describe(worker, ["define", name], function, [])
    worker.__dict__.setdefault("_registered", {})[name] = function  # for the process that may take its place


def register_again(worker: Any) -> None:
    """In a process that has taken the place of another."""
    _calls.start_anew(worker)
    for name, function in worker.__dict__.get("_registered", {}).items():
        _describe(worker, ["define", name], function, [])


def create(worker: Any, name: str, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteObject:
    """``Worker.create``."""
    if isinstance(kind, str):
        _ask(worker, ["create", name, {"name": kind}, list(args), kwargs], 4, 6)
    else:
        _describe(worker, ["create", name], kind, [list(args), kwargs])
    return RemoteObject(worker, name)


def forget(worker: Any, name: str) -> None:
    """``Worker.forget``."""
    worker.__dict__.get("_registered", {}).pop(name, None)
    _ask(worker, ["forget", name], 2, 3)


def _describe(worker: Any, begin: list[Any], function: Any, rest: list[Any]) -> None:
    """By name if the function can be imported there, by value if not."""
    definitions = _calls.definitions_of(worker)
    definition = definitions.of_function(function)
    while True:
        for need in definitions.closure_of(definition).definitions:
            _calls.tell(worker, need)
        described = definition.described
        if definition.in_script:
            _calls.tell(worker, definition)
            described = {"number": definition.number}
        reply = _reply_to(worker, [*begin, described, *rest], 4, 4 + len(rest))
        if reply[1] != "unknown" or definition.by_value:
            _calls.value_of(worker, reply)
            return
        definitions.to_value(definition)
        if "missing" in definition.described:
            raise _calls.error_in(worker.name, reply, definitions)


def _ask(worker: Any, parts: list[Any], begin: int, end: int) -> Any:
    return _calls.value_of(worker, _reply_to(worker, parts, begin, end))


def _reply_to(worker: Any, parts: list[Any], begin: int, end: int) -> list[Any]:
    number = worker._send_call([None, *parts], begin, max(end, begin + 1))
    while True:
        reply: list[Any] = worker._next_reply(None)
        if reply[0] == number:
            return reply
        worker._settle(reply)

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

from miniray import _call_errors, _calls, _check, _core
from miniray._call_errors import RemoteTraceback
from miniray.errors import UsageError

if TYPE_CHECKING:
    from miniray._call_future import CallFuture, as_completed

__all__ = ["CallFuture", "RemoteObject", "RemoteTraceback", "as_completed", "serve_calls"]

_QUOTED_MAX = _core.limits.quoted_bytes_max


def __getattr__(name: str) -> Any:
    """Futures are imported when the first is made: a worker that only answers calls has none."""
    if name in ("CallFuture", "as_completed"):
        from miniray import _call_future

        return getattr(_call_future, name)
    raise AttributeError(f"module 'miniray.calls' has no attribute {name!r}")


def serve_calls(handle: _core.Handle) -> None:
    """Answer calls, and do nothing else: a work function."""
    while True:
        message = handle.recv()
        raise TypeError(f"this worker only answers calls, and was sent a message: {str(message)[:_QUOTED_MAX]}")


class _RemoteMethod(partial[Any]):
    """A method of an object that lives on a worker: it is called there."""

    def __repr__(self) -> str:
        return f"<miniray.RemoteObject method {self.args[0]}; call it: {self.args[0]}()>"


class RemoteObject:
    """An object that lives on a worker: its methods are called there."""

    _worker: Any
    _name: str

    def __init__(self, worker: Any, name: str) -> None:
        self.__dict__.update(_worker=worker, _name=name)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("__"):
            raise AttributeError(method)
        call = _RemoteMethod(self._worker.call_remote, f"{self._name}.{method}")
        self.__dict__[method] = call  # the next lookup finds it without this function
        return call

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name} cannot be set from here: {self._name} lives in {self._worker.name}. Give it a method that sets it"
        )

    def call_async(self, method: str, /, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call a method without waiting, and return a future of its result."""
        return self._worker.call_async(f"{self._name}.{method}", *args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<miniray.RemoteObject {self._name} in {self._worker.name}>"


# Methods of Worker, here because few programs need them.


def register(worker: Any, name: Any, function: Any) -> None:
    """``Worker.register``."""
    if function is None:
        name, function = getattr(name, "__name__", None), name
        if name is None or name == "<lambda>" or not callable(function):
            raise TypeError(f"{_REGISTER}, or a function that has a name, not {_shown_function(name, function)}")
    if not isinstance(name, str) or not name:
        raise TypeError(f"{_REGISTER}; the name is a str, not {_check.shown(name)}")
    if not callable(function):
        raise TypeError(f"{_REGISTER}, not {_check.shown(function)}")
    _describe(worker, "define", name, function)
    worker.__dict__.setdefault("_registered", {})[name] = function  # a new process gets it, too


_REGISTER = 'register takes a name and a function: register("square", square)'


def _shown_function(name: Any, function: Any) -> str:
    return "a lambda alone" if name == "<lambda>" else _check.shown(function)


def register_again(worker: Any) -> None:
    """Register all functions once more, in a process that has replaced the worker's former one."""
    _calls.start_anew(worker)
    for name, function in worker.__dict__.get("_registered", {}).items():
        _describe(worker, "define", name, function)


def create(worker: Any, name: str, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteObject:
    """``Worker.create``."""
    _check.text("name", name, 'a str, what the object is called there, as in create("counter", Counter)')
    if not name or "." in name:
        raise UsageError(f"the name of an object has no dot, since one comes before its methods, not {name!r}")
    if not isinstance(kind, str) and not callable(kind):
        raise TypeError(f"create takes a name and a class: create({name!r}, Class, ...), not {_check.shown(kind)}")
    if isinstance(kind, str):
        _calls.done(worker, worker._ask("create", [name, {"name": kind}, list(args), kwargs]))
    else:
        _describe(worker, "create", name, kind, list(args), kwargs)
    return RemoteObject(worker, name)


def forget(worker: Any, name: str) -> None:
    """``Worker.forget``."""
    _check.text("name", name, "a str, what a function or an object is called there")
    worker.__dict__.get("_registered", {}).pop(name, None)
    _calls.done(worker, worker._ask("forget", name))


def _describe(worker: Any, verb: str, name: str, function: Any, *rest: Any) -> None:
    """Ask the worker to define or create something: by name if the function can be imported there, else by value."""
    definitions = _calls.definitions_of(worker)
    definition = definitions.of_function(function)
    while True:
        for need in definitions.closure_of(definition).definitions:
            _calls.tell(worker, need)
        described = definition.described
        if definition.in_script:
            _calls.tell(worker, definition)
            described = {"number": definition.number}
        reply = worker._ask(verb, [name, described, *rest])
        if reply[0] != "unknown" or definition.by_value:
            _calls.done(worker, reply)
            return
        definitions.to_value(definition)
        if "missing" in definition.described:
            raise _call_errors.error_in(worker.name, reply, definitions)

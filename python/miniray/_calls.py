"""Calls: how functions, arguments, results and errors travel, and what a worker does with the rarer ones of them.

The core has the common paths: a call of a known function with arguments that messages can say exactly.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
import traceback
import types
import zlib
from collections.abc import Callable
from typing import Any

from miniray import _functions, _spawned, _work
from miniray.errors import WorkerError

Pickle = dict[str, Any]
Functions = dict[Any, Any]


class Unknown(Exception):
    """A function that cannot be had here by its name."""


class RemoteTraceback(Exception):
    """Where an exception was raised, in another process: the cause of that exception here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


# Objects that a message cannot say exactly.


def pickled(thing: Any) -> Pickle:
    """With large buffers beside the pickle, so that they are not copied into it."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(thing, 5, buffer_callback=buffers.append)
    except Exception as error:
        by_value = _cloudpickle()
        if by_value is None:
            raise
        buffers.clear()
        try:
            body = by_value.dumps(thing, 5, buffer_callback=buffers.append)
        except Exception:
            raise error from None
    return {"pickle": body, "buffers": [_as_array(buffer.raw()) for buffer in buffers]}


def _as_array(memory: memoryview) -> Any:
    """So that it arrives in memory that can be written to."""
    numpy = sys.modules.get("numpy")
    return numpy.frombuffer(memory, numpy.uint8) if numpy is not None else bytes(memory)


def unpickled(packed: Pickle) -> Any:
    return _Unpickler(io.BytesIO(packed["pickle"]), buffers=packed["buffers"]).load()


class _Unpickler(pickle.Unpickler):
    """The coordinator's script may be imported here under another name."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in ("__main__", _spawned.MAIN):
            return super().find_class(module, name)
        try:
            return super().find_class("__main__", name)
        except AttributeError:
            found = _spawned._look_up(_functions._main(), name)
            if found is None:
                raise
            return found


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


# Functions and classes.


def by_name(function: Any) -> dict[str, Any] | None:
    """How another process imports it; None if it cannot."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None or "<" in qualname:
        return None
    if _spawned._look_up(sys.modules.get(module), qualname) is not function:
        return None
    is_main = module in ("__main__", _spawned.MAIN)
    return {"name": f"{'__main__' if is_main else module}.{qualname}", "check": _check(function) if is_main else 0}


def by_value(function: Any) -> dict[str, Any]:
    """For where it cannot be imported."""
    try:
        return {"pickle": _pickled_by_value(function)}
    except Exception as error:
        what = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"cannot send {what} to another process: {error}") from error


def _pickled_by_value(function: Any) -> Pickle:
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        if by_name(function) is None and isinstance(function, types.FunctionType):
            raise TypeError(
                "it is no function at the top level of a module. Move it there, or install cloudpickle (pip install "
                "cloudpickle), here and there, to send functions by value"
            )
        return pickled(function)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ in ("__main__", _spawned.MAIN) or by_name(function) is None:
        return {"pickle": cloudpickle.dumps(function, 5), "buffers": []}
    cloudpickle.register_pickle_by_value(module)
    try:
        return {"pickle": cloudpickle.dumps(function, 5), "buffers": []}
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _check(function: Any) -> int:
    """Tells one version of a function from another: a script's functions may have been defined anew."""
    code = getattr(function, "__code__", None)
    return _code_check(code) if code is not None else 0


def _code_check(code: types.CodeType) -> int:
    check = zlib.crc32(code.co_code)
    for constant in code.co_consts:
        inner = _code_check(constant) if isinstance(constant, types.CodeType) else zlib.crc32(repr(constant).encode())
        check = zlib.crc32(inner.to_bytes(4, "little"), check)
    return zlib.crc32(repr((code.co_names, sys.version_info[:2])).encode(), check)


def _find(function: dict[str, Any]) -> Any:
    """What a caller described. Unknown if it was described by name, and is not here."""
    if "missing" in function:
        raise TypeError(function["missing"])
    if function.get("pickle") is not None:
        return unpickled(function["pickle"])
    name: str = function["name"]
    try:
        found = _import(name)
    except Exception as error:
        raise Unknown(_functions.explain(name, error)) from None
    check = function.get("check", 0)
    if check and isinstance(found, types.FunctionType) and _check(found) != check:
        raise Unknown(f"{name} is another one here than there")
    return found


def _import(name: str) -> Any:
    module, _, rest = name.partition(".")
    if module == "__main__":
        for candidate in (sys.modules["__main__"], None):
            found = _spawned._look_up(candidate or _functions._main(), rest)
            if found is not None:
                return found
        raise AttributeError(f"{name} is not there{_spawned.stopped_at()}")
    found, rest_parts = _functions._import(name)
    for part in rest_parts:
        found = getattr(found, part)
    return found


# The worker's side.


def serve(functions: Functions, call: list[Any]) -> Any:
    """Whatever the core does not do itself."""
    _, operation, name, *rest = call
    if operation == "call":
        return _call(functions, name, *rest)
    if operation == "map":
        return _map(functions, name, *rest)
    if operation == "define":
        return _define(functions, name, rest[0])
    if operation == "create":
        function, arguments, keywords = rest
        functions[name] = _with(arguments, keywords, _find(function))
        return None
    if operation == "forget":
        functions.pop(name, None)
        return None
    if operation == "environment":
        os.environ.update(name)
        return None
    raise ValueError(f"there is no {operation!r} among the things that a worker can be asked")


def _define(functions: Functions, name: Any, function: dict[str, Any]) -> None:
    try:
        functions[name] = _find(function)
    except Exception as error:
        functions[name] = _Missing(error)
        raise


class _Missing:
    """Stands for a function that could not be had; whoever calls it hears why."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


def _call(
    functions: Functions,
    name: Any,
    arguments: Any,
    keywords: dict[str, Any] | None,
    memory_bytes: int | None = None,
    _lease: int = 0,
) -> Any:
    function = _function(functions, name)
    if memory_bytes is None:
        return _with(arguments, keywords, function)
    from miniray import _memory

    with _memory.at_most(memory_bytes):
        return _with(arguments, keywords, function)


def _with(arguments: Any, keywords: dict[str, Any] | None, function: Callable[..., Any]) -> Any:
    if isinstance(arguments, dict):
        arguments, keywords = unpickled(arguments)
    return function(*arguments, **(keywords or {}))


def _map(functions: Functions, name: Any, items: Any, star: bool, _lease: int = 0) -> tuple[list[Any], list[Any]]:
    """The results, and for those that raised, their positions and what it was."""
    function = _function(functions, name)
    if isinstance(items, dict):
        items = unpickled(items)
    results: list[Any] = []
    errors: list[Any] = []
    for item in items:
        try:
            results.append(function(*item) if star else function(item))
        except BaseException as error:
            errors.append([len(results), describe_error(error)[1]])
            results.append(None)
    return results, errors


def _function(functions: Functions, name: Any) -> Any:
    found = functions.get(name)
    if isinstance(found, _Missing):
        raise found.error
    if found is not None:
        return found
    if not isinstance(name, str):
        raise TypeError(f"a function is called by its name, not by {name!r}")
    first, _, method = name.partition(".")
    if method and first in functions:
        return _method(functions[first], first, method)
    if method:
        try:
            return _import(name)
        except Exception as error:
            raise LookupError(
                f"{_registered(functions, name)}. As a module's: {_functions.explain(name, error)}"
            ) from None
    raise LookupError(_registered(functions, name) + "; register it first")


def _registered(functions: Functions, name: str) -> str:
    known = ", ".join(sorted(str(known) for known in functions if isinstance(known, str))) or "none"
    return f'no function "{name}" is registered here (registered: {known})'


def _method(thing: Any, name: str, method: str) -> Any:
    found = _spawned._look_up(thing, method)
    if found is None or not callable(found):
        methods = [each for each in dir(thing) if not each.startswith("_") and callable(getattr(thing, each, None))]
        raise AttributeError(f'"{name}" is a {type(thing).__name__} without a method {method}; it has {methods}')
    return found


def describe_error(error: BaseException, of_the_result: bool = False) -> tuple[str, dict[str, Any]]:
    """An exception, for the caller: as text, and as itself if it can be sent."""
    if isinstance(error, Unknown):
        return "unknown", {"type": "LookupError", "message": str(error), "traceback": ""}
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # what filled the memory is in them, and telling takes some
    if of_the_result:
        error = TypeError(f"the result cannot be sent back: {error}").with_traceback(None)
    name, message, text = _work._raised(error)
    described: dict[str, Any] = {"type": name, "message": message, "traceback": text}
    if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):
        described["message"] = _leaving(error)
        return "error", described
    try:
        body = pickle.dumps(error, 5)
        pickle.loads(body)  # many exceptions can be packed, and not unpacked
        described["pickle"] = body
    except BaseException:
        pass  # the text will have to do
    return "error", described


def _leaving(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the call asked the process to exit ({error.code!r}); a worker goes on. Return, or raise something else"
    return str(error) or type(error).__name__


# The caller's side.


def value_of(worker: Any, reply: list[Any]) -> Any:
    """What a call returned; raises what it raised."""
    kind = reply[1]
    if kind == "value":
        return reply[3]
    if kind == "pickle":
        return unpickled(reply[3])
    raise error_in(worker.name, reply)


def error_in(worker: str, reply: list[Any]) -> BaseException:
    kind, described = reply[1], reply[3] if len(reply) > 3 else {}
    if kind == "unknown":
        return LookupError(f"{described['message']}\n(in {worker})")
    if kind != "error":
        return WorkerError(f"{worker} answered a call with what cannot be read: {str(reply)[:200]}")
    return error_of(worker, described)


def error_of(worker: str, described: dict[str, Any]) -> BaseException:
    text = described.get("traceback") or f"{described['type']}: {described['message']}"
    where = f"(in {worker})\n{text}"
    if "pickle" in described:
        try:
            error = _Unpickler(io.BytesIO(described["pickle"])).load()
            if isinstance(error, BaseException):
                error.__cause__ = RemoteTraceback(where)
                return error
        except Exception as why:
            where += f"\n(It could not be made anew here: {why!r})"
    failed = WorkerError(f"a call in {worker} raised {described['type']}: {described['message']}\n{where}")
    failed.worker, failed.type = worker, described["type"]
    failed.message, failed.traceback = described["message"], text
    return failed

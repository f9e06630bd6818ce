"""Shows people what a task was given: its arguments, or what a pickle holds, without running code of the pickle.

A worker may have died from loading this pickle, so its objects are not made here. Outlines stand for them, which show
their class and attributes as a dataclass would.
"""

from __future__ import annotations

import inspect
import io
import pickle
import reprlib
from collections.abc import Callable
from typing import Any

# Modules whose objects can be made safely: that runs no code of the user.
_HARMLESS = ("_codecs", "array", "collections", "datetime", "decimal", "fractions", "numpy", "pathlib", "uuid")
_HARMLESS_BUILTINS = ("bytearray", "complex", "frozenset", "range", "set", "slice")


def describe_arguments(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> str:
    """Return "sample=3, seed=4": abridged values, with the names of the function's parameters if they are known."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    given: list[tuple[str, Any]] = [("", one) for one in arguments] + list(keywords.items())
    try:
        parameters = inspect.signature(function).bind(*arguments, **keywords).arguments
        if not any(name in ("args", "kwargs") for name in parameters):
            given = list(parameters.items())
    except (TypeError, ValueError):
        pass
    return ", ".join(f"{name}={short.repr(value)}" if name else short.repr(value) for name, value in given)


class Outline:
    """Stands for an object of a pickle, and accepts everything that the pickle does to that object."""

    _called = "object"

    def __new__(cls, *arguments: Any, **keywords: Any) -> Outline:
        self = super().__new__(cls)
        self._shown = [reprlib.repr(one) for one in arguments] + _fields(keywords)
        return self

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._shown: list[str]

    def __call__(self, *arguments: Any, **keywords: Any) -> Outline:
        made: Outline = _class(repr(self))(*arguments, **keywords)
        return made

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self._shown += _fields(part)

    def append(self, item: Any) -> None:
        self._shown.append(reprlib.repr(item))

    def extend(self, items: Any) -> None:
        self._shown += [reprlib.repr(item) for item in items]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._shown.append(f"{reprlib.repr(key)}: {reprlib.repr(value)}")

    def __repr__(self) -> str:
        return f"{self._called}({', '.join(self._shown)})"


def _fields(named: dict[str, Any]) -> list[str]:
    return [f"{name}={reprlib.repr(value)}" for name, value in named.items()]


def _class(called: str) -> Any:
    return _OutlineClass("Outline", (Outline,), {"_called": called})


class _OutlineClass(type):
    """The class of outlines of one class or function, whose name is its ``repr``."""

    _called: str

    def __repr__(cls) -> str:
        return cls._called


def outlined(packed: dict[str, Any], name_of: Callable[[int], str]) -> Any:
    """Return what the pickle holds, with outlines for objects. ``name_of`` returns the name of the definition with a
    number."""
    return _Reader(io.BytesIO(packed["pickle"]), packed["buffers"], name_of).load()


class _Reader(pickle.Unpickler):
    def __init__(self, file: Any, buffers: Any, name_of: Callable[[int], str]) -> None:
        super().__init__(file, buffers=buffers)
        self._name_of = name_of

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("miniray._pickling", "defined"):
            return lambda number: _class(self._name_of(number))
        if (module, name) == ("miniray._pickling", "make_function"):
            return lambda *_: _class("<function>")
        if module.partition(".")[0] in _HARMLESS or (module == "builtins" and name in _HARMLESS_BUILTINS):
            return super().find_class(module, name)
        return _class(name)

"""Work functions by name: finds the function that a connection names, and returns the name of a function."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from miniray import _check, _core, _sent_work, _spawned

_main_specification: dict[str, Any] | None = None


def find(name: str) -> Callable[[_core.Handle], Any]:
    """Return the function that "module.function" names, for the workers of a server. Imports the module."""
    work_fn = _look_up(name)
    prepare_for_forks()
    return work_fn


def _look_up(name: str) -> Callable[[_core.Handle], Any]:
    sent = _sent_work.find(name)
    if sent is not None:
        return sent
    if name.startswith("__main__."):
        found = _main()
        rest = name.split(".")[1:]
    else:
        found, rest = _import(name)
    for part in rest:
        if not hasattr(found, part):
            hint = _spawned.stopped_at()
            raise AttributeError(f"{name} is not there: {found!r} has no {part!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, not a function that takes a handle")
    return found  # type: ignore[no-any-return]


def _main() -> Any:
    """Return the module of the coordinator's script if this server has it, else of the server's own script."""
    if _main_specification is not None and _spawned.MAIN not in sys.modules:
        _spawned.import_main(_main_specification)
    return sys.modules.get(_spawned.MAIN) or sys.modules["__main__"]


def set_main(specification: dict[str, Any]) -> None:
    global _main_specification
    _main_specification = specification


def _import(name: str) -> tuple[Any, list[str]]:
    """Import the longest part of the name that is a module. Return the module and the rest of the name."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(_not_a_name(name))
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            return importlib.import_module(module), parts[end:]
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if end == 1 or not (module == missing or module.startswith(missing + ".")):
                raise
    raise AssertionError("unreachable")


def _not_a_name(name: str) -> str:
    cure = f'; one of the script itself is "__main__.{name}"' if name.isidentifier() else ""
    return f'a function is named "module.function", not {name!r}{cure}'


def explain(name: str, error: BaseException) -> str:
    """Return the text of the error for a function that cannot be found or imported."""
    own = (name, "a function is named")  # the error texts of this file begin like this
    if isinstance(error, (AttributeError, TypeError, ValueError)) and str(error).startswith(own):
        return str(error)
    below = error.__traceback__
    while below is not None and _is_machinery(below.tb_frame.f_code.co_filename):
        below = below.tb_next  # skips the frames of this package and of importlib
    if below is None and isinstance(error, AttributeError) and error.name is not None:
        return f"cannot import {name}: {error}{_check.nearest(error.name, dir(error.obj))}"
    text = "".join(traceback.format_exception(type(error), error, below))
    cure = ""
    if isinstance(error, ModuleNotFoundError):
        near = _check.nearest(error.name or "", modules_beside(error.name or ""), least=0.8)
        meant = f" ({near.removeprefix('; ')})" if near else ""
        cure = (
            f"\nCheck the spelling{meant}, install {error.name} on this machine, or put its file beside the "
            "coordinator's script."
        )
    return f"cannot import {name}:\n{text.rstrip()}{cure}"


def modules_beside(name: str) -> list[str]:
    """Return the names of the modules that can be imported from the place where Python looks for this module."""
    import pkgutil

    package, dot, _ = name.rpartition(".")
    path = getattr(sys.modules.get(package), "__path__", []) if dot else None
    found = [package + dot + module.name for module in pkgutil.iter_modules(path)]
    return found if dot else [*found, *sys.stdlib_module_names]


def _is_machinery(file: str) -> bool:
    return "importlib" in file or file.startswith(os.path.dirname(os.path.abspath(__file__)) + os.sep)


def prepare_for_forks() -> None:
    """Called in a server before it forks workers. Existing objects are frozen, so that the garbage collectors of the
    workers do not visit them. Output is line-buffered, so that printed lines are not lost if a worker is killed."""
    gc.freeze()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


_refuses_pickles_in = 0  # the process of a worker whose server was made with pickle=False


def refuses_pickles() -> bool:
    """Whether the server of this worker takes no pickles. (Processes that the worker forks decide for themselves.)"""
    return _refuses_pickles_in == os.getpid()


def begin_work(environment: dict[str, str], takes_pickles: bool = True) -> None:
    """Called first in every worker of a server. Resets the server's signal handlers, and sets the variables that the
    connection asked for."""
    global _refuses_pickles_in
    _refuses_pickles_in = 0 if takes_pickles else os.getpid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from miniray import _script

    if not _script.forked_as:
        _script.main_is_foreign = True  # __main__ is the server's script
    if environment:
        os.environ.update(environment)


def name_of(work_fn: str | Callable[..., Any]) -> str:
    """Return the name by which another machine can import a function."""
    if isinstance(work_fn, str):
        if "." not in work_fn:
            raise ValueError(_not_a_name(work_fn))
        return work_fn
    module, qualname = _spawned.name_in_module(work_fn)
    assert module is not None, work_fn
    return f"{'__main__' if _spawned.is_main(module) else module}.{qualname}"

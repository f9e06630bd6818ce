"""Sends work functions by value that another interpreter cannot import, such as those of a notebook's cells.

The server is asked for a worker that waits for its function. The function is the worker's first message; the user's
messages come after it, in order.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from miniray import _check, _core, _spawned

_SUFFIX = " by value"  # ends the name that the server is asked for; errors show that name too


def reference(
    work_fn: str | Callable[..., Any], has_script: bool = True, takes_pickles: bool = True
) -> tuple[str, dict[str, Any] | None]:
    """Return the name under which a server finds the function, and the packed function if it is sent by value, else
    None. ``has_script`` says that the server gets a copy of this script."""
    from miniray import _functions

    own = not has_script and _spawned.is_main(getattr(work_fn, "__module__", None) or "")
    if isinstance(work_fn, str) or (not own and is_importable(work_fn)):
        return _functions.name_of(work_fn), None
    return getattr(work_fn, "__qualname__", type(work_fn).__qualname__) + _SUFFIX, packed(work_fn, takes_pickles)


def is_importable(work_fn: Any) -> bool:
    """Whether an interpreter with the same files finds this function by its name."""
    module, _ = _spawned.name_in_module(work_fn)
    if module is None:
        return False
    if _spawned.is_main(module):
        return _is_in_script(work_fn)
    return (
        getattr(sys.modules[module], "__spec__", None) is not None
    )  # a module without one was made while the program ran


def _is_in_script(work_fn: Any) -> bool:
    """Whether the function is in the script's file. One that was typed or run with exec is in __main__ only."""
    if _spawned.script() is None:
        return False
    code = getattr(inspect.unwrap(work_fn), "__code__", None)
    return code is None or (os.path.exists(code.co_filename) and not _comes_too_late(code))


def _comes_too_late(code: Any) -> bool:
    """Whether the function is defined below the line that starts workers. Other processes import the script only up to
    that line, unless it is under ``if __name__ == "__main__":``. The function is then sent by value, which works in
    both cases."""
    from miniray import _pickling, worker

    line = worker.first_start_line
    return bool(line) and code.co_firstlineno > line and _pickling.cloudpickle() is not None


def packed(work_fn: Any, takes_pickles: bool = True) -> dict[str, Any]:
    from miniray import _calls

    if not callable(work_fn):
        raise TypeError(f"work_fn is a function that takes a handle, or its name, not {_check.shown(work_fn)}")
    if not takes_pickles:
        from miniray import _definitions, _unsendable

        what = _unsendable.name_of(work_fn)
        raise TypeError(f"cannot send {what} to another process: {_definitions.BY_NAME_ONLY}")
    return _calls.by_value(work_fn)


def unpacked(described: dict[str, Any]) -> Any:
    from miniray import _calls

    try:
        return _calls._find(described)
    except ModuleNotFoundError as error:
        if error.name == "cloudpickle":
            error.msg = (
                "cannot load the work function, which was sent by value: cloudpickle is missing. Install it on this "
                "machine (pip install cloudpickle)"
            )
        raise


def find(name: str) -> Callable[[_core.Handle], Any] | None:
    """On the server: return the work function for a name that ``reference`` made for a function sent by value."""
    return _run_sent if name.endswith(_SUFFIX) else None


def _run_sent(handle: _core.Handle) -> Any:
    return unpacked(handle.recv())(handle)

"""Decides how another process gets a function: whether it can import it, and whether a call may change its state."""

from __future__ import annotations

import sys
import types
from typing import Any

from miniray import _script, _spawned


def importable_name(function: Any) -> str | None:
    """Return the "module.function" by which another process can import a function or class; None if there is none."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None or "<" in qualname or module in _script.MAIN_NAMES:
        return None
    if _spawned._look_up(sys.modules.get(module), qualname) is not function:
        return None
    return f"{module}.{qualname}"


def has_no_state(function: Any) -> bool:
    """Return whether a function that is sent by value has no state: no closure, defaults or attributes."""
    return not (function.__closure__ or function.__dict__ or function.__defaults__ or function.__kwdefaults__)


def may_change(function: Any) -> bool:
    """Return whether a call may change the state of a function that is sent by value: its closure, defaults and
    attributes. Globals, modules and classes do not belong to the function. Arrays do not count, although a call can
    write to them: they may be large, and unpacking one for each call would cost more than most calls."""
    return _may_change(function, set())


_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, range, types.ModuleType, types.CodeType)


def _is_array(thing: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(thing, numpy.ndarray):
        return not thing.dtype.hasobject
    return torch is not None and isinstance(thing, getattr(torch, "Tensor", ()))


def _may_change(thing: Any, seen: set[int]) -> bool:
    if isinstance(thing, (*_CONSTANTS, type)) or id(thing) in seen or _is_array(thing):
        return False
    seen.add(id(thing))
    if type(thing) in (tuple, frozenset):
        return any(_may_change(one, seen) for one in thing)
    if type(thing) is types.BuiltinFunctionType:
        return not isinstance(thing.__self__, (types.ModuleType, type(None)))
    if type(thing) is not types.FunctionType:
        return True
    if _script.is_of_script(thing) or importable_name(thing) is not None:
        return False  # it is not sent with the function
    held = [_script._contents(cell) for cell in thing.__closure__ or ()]
    held += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), vars(thing).get("__wrapped__")]
    if _script.assigned_outside(thing.__code__) or vars(thing).keys() - {"__wrapped__"}:
        return True
    return any(_may_change(one, seen) for one in held)

"""The errors of a worker when a call names a function, an object or a method that it does not have."""

from __future__ import annotations

import re
import sys
from typing import Any

from miniray import _check, _core, _functions

_FORGOTTEN_MAX = _core.limits.forgotten_names_max


def forget(functions: dict[Any, Any], name: Any) -> Any:
    """Drop a function or an object, but remember its name for errors. Return it, or None if there was none."""
    thing = functions.pop(name, None)
    if thing is None or not isinstance(name, str):
        return thing
    forgotten = functions.setdefault(forget, {})
    forgotten[name] = None
    if len(forgotten) > _FORGOTTEN_MAX:
        del forgotten[next(iter(forgotten))]
    return thing


def unknown(functions: dict[Any, Any], name: str, error: Exception | None = None) -> LookupError:
    """Return the error for a name that is not registered. ``error`` says why it could not be imported either."""
    typed = re.fullmatch(r"(.*) \[c\+\+ [0-9a-f]{16}\]", name)
    if typed:
        return LookupError(
            f"{typed[1]} is a function of a C++ program that was called without a name, and this is a Python worker. "
            'Call a function of Python by its name, "module.function", or use workers that run the same C++ program'
        )
    first, dot, _ = name.partition(".")
    if first in functions.get(forget, ()):
        return LookupError(f'"{first}" was forgotten here, by worker.forget("{first}"). Register or create it again')
    names = sorted(known for known in functions if isinstance(known, str))
    text = f'no function "{name}" is registered here (registered: {", ".join(names) or "none"})'
    if error is None:
        script = callable(getattr(sys.modules.get("__main__"), name, None))
        cure = f', or call the script\'s own by "__main__.{name}"' if script else ""
        return LookupError(
            f"{text}{_check.nearest(name, names) or '.'} Register it first: worker.register({name}){cure}"
        )
    if isinstance(error, ModuleNotFoundError) and error.name == first and dot:
        return LookupError(
            f'{text}, there is no object "{first}", and no module "{first}" can be imported'
            f"{_check.nearest(first, [*names, *_functions.modules_beside(first)], least=0.8)}"
        )
    return LookupError(f"{text}. Looked for in a module: {_functions.explain(name, error)}")


def no_method(thing: Any, name: str, method: str) -> AttributeError:
    """Return the error for an object that exists but has no such method."""
    kind = type(thing).__name__
    methods = [each for each in dir(thing) if not each.startswith("_") and callable(getattr(thing, each, None))]
    if hasattr(thing, method):
        return AttributeError(
            f'"{name}" is a {kind} whose {method} is {_check.shown(getattr(thing, method))}, not a method; only '
            f"methods can be called from another process. Give {kind} a method that returns it"
        )
    return AttributeError(
        f'"{name}" is a {kind} without a method {method}; it has {methods}{_check.nearest(method, methods)}'
    )

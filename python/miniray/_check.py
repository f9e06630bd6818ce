"""Checks arguments at the border of the API. Each function returns a value of the right type, or raises an error that
says what was passed and what is expected."""

from __future__ import annotations

import operator
import os

from miniray import _core
from miniray.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc are slow to import
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
_SHOWN_CHARACTERS_MAX = _core.limits.shown_value_chars_max
_SHOWN_BEGINNING = _core.limits.shown_beginning_chars


def escaped(text: str) -> str:
    """Return a peer's text for an error: control characters other than tab and newline, which a terminal would obey,
    are shown as escapes, as base/shown_text.hpp does it."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def shown(value: object) -> str:
    """Describe a value for an error text: "the str '4'", "a Counter", "the function train"."""
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    if type(value) in (str, bytes, int, float, bool, complex, list, tuple, dict, set):
        text = repr(value)
        if len(text) > _SHOWN_CHARACTERS_MAX:
            return f"a {kind} that begins {text[:_SHOWN_BEGINNING]}..."
        return f"the {kind} {text}"
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def integer(name: str, value: Any, least: int | None = None, most: int | None = None, *, what: str = "an int") -> int:
    """Check for an int, or an object that counts as one (numpy's), within these limits."""
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise TypeError(f"{name} is {what}, not {shown(value)}{_written_as(name, value, whole=True)}")
        value = operator.index(value)
    return _within(name, value, least, most)  # type: ignore[no-any-return]


def number(name: str, value: Any, least: float | None = None, *, what: str = "a number") -> float:
    """Check for an int or a float, or an object that counts as one (numpy's)."""
    if type(value) not in (int, float):
        if isinstance(value, bool | str | bytes) or not hasattr(type(value), "__float__"):
            raise TypeError(f"{name} is {what}, not {shown(value)}{_written_as(name, value)}")
        value = float(value)
    if value != value:
        raise UsageError(f"{name} is {what}, not NaN")
    return _within(name, value, least, None)  # type: ignore[no-any-return]


def seconds(name: str, value: Any) -> float | None:
    """Check for a time-out in seconds. None stands for no time-out."""
    return None if value is None else number(name, value, what="a number of seconds, or None")


def text(name: str, value: Any, what: str = "a str") -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {what}, not {shown(value)}")
    return value


def boolean(name: str, value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):  # Python's and numpy's
        raise TypeError(f"{name} is True or False, not {shown(value)}")
    return bool(value)


def boolean_or_none(name: str, value: Any) -> bool | None:
    return None if value is None else boolean(name, value)


def path(name: str, value: Any) -> str:
    """Check for a str or a path object. Returns a str; "" for None."""
    if value is None:
        return ""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is a path, a str or a pathlib.Path, not {shown(value)}")
    return str(os.fspath(value))


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        quoted = " or ".join(f'"{one}"' for one in choices)
        raise UsageError(f"{name} is {quoted}, not {value!r}")
    return str(value)


def environment(name: str, value: Any) -> dict[str, str]:
    """Check for a dict of environment variables."""
    if value is None:
        return {}
    made = dict(_mapping(name, value, 'a dict of environment variables, such as {"NCCL_DEBUG": "INFO"}'))
    for variable, setting in made.items():
        if not isinstance(variable, str) or not isinstance(setting, str):
            cure = f'; write "{setting}"' if isinstance(variable, str) and isinstance(setting, int | float) else ""
            raise TypeError(f"{name}[{variable!r}] is a str, not {shown(setting)}{cure}")
    return made


def amounts(name: str, value: Any) -> dict[str, float]:
    """Check for a dict of amounts by name."""
    made = _mapping(name, value, 'a dict of amounts, such as {"licence": 1}')
    return {text(f"a name in {name}", key): number(f"{name}[{key!r}]", amount, 0) for key, amount in made.items()}


def listed(name: str, value: Iterable[Any], what: str) -> list[Any]:
    """Return the elements of an iterable. A str raises, because nobody means its letters."""
    if isinstance(value, str | bytes) or not hasattr(type(value), "__iter__"):
        raise TypeError(f"{name} is {what}, not {shown(value)}")
    return list(value)


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the end of an error text that suggests the most similar known names, or "". ``least`` is the least
    similarity, from 0 to 1."""
    from difflib import SequenceMatcher

    likeness = {each: SequenceMatcher(None, name, each).ratio() for each in known}
    best = max(likeness.values(), default=0)
    found = [each for each, ratio in likeness.items() if ratio >= max(least, best - 0.11)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def suggest_arguments(elsewhere: Iterable[str] = (), where: str = "") -> Callable[[type[T]], type[T]]:
    """A class decorator: if the constructor gets a keyword that it does not have, the error suggests a similar one.
    ``elsewhere`` are keywords of other functions to suggest too; ``where`` then says where they belong."""

    def decorate(kind: type[T]) -> type[T]:
        plain: Any = kind.__init__
        code = plain.__code__
        known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

        def __init__(self: Any, *arguments: Any, **named: Any) -> None:
            for word in named:
                if word not in known:
                    near = nearest(word, [*known, *elsewhere])
                    also = where if any(f" {other}" in near for other in elsewhere) else ""
                    raise TypeError(f"{kind.__name__}() has no argument {word!r}{near}{also}")
            plain(self, *arguments, **named)

        __init__.__wrapped__ = plain  # type: ignore[attr-defined] # for inspect.signature
        __init__.__doc__, __init__.__qualname__ = plain.__doc__, plain.__qualname__
        kind.__init__ = __init__  # type: ignore[method-assign]
        return kind

    return decorate


def _mapping(name: str, value: Any, what: str) -> Mapping[Any, Any]:
    if not hasattr(type(value), "items") or not hasattr(type(value), "__getitem__"):
        raise TypeError(f"{name} is {what}, not {shown(value)}")
    return value  # type: ignore[no-any-return]


def _within(name: str, value: Any, least: Any, most: Any) -> Any:
    if (least is not None and value < least) or (most is not None and value > most):
        limits = f"from {least} to {most}" if least is not None and most is not None else f"{least} or more"
        raise UsageError(f"{name} is {limits}, not {value}")
    return value


def _written_as(name: str, value: Any, whole: bool = False) -> str:
    """Return the end of an error text that writes the argument as it was probably meant: "4" and 4.0 as 4."""
    try:
        meant = float(value) if isinstance(value, str | float) else None
    except ValueError:
        meant = None
    if meant is None or not name.isidentifier() or meant != meant or abs(meant) == float("inf"):
        return ""
    if whole and not meant.is_integer():
        return ""
    return f"; write {name}={int(meant) if meant.is_integer() else meant}"

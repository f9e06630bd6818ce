"""Error texts for objects that cannot be sent, with what to send instead."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from miniray import _core

_ENOUGH_BYTES = _core.limits.pickle_sample_bytes

# For messages: what to send instead of an object, by the name of its class or of a base class. "it" is the object.
_REMEDIES = {
    "datetime.datetime": "send it.isoformat() or it.timestamp()",
    "datetime.date": "send it.isoformat()",
    "datetime.time": "send it.isoformat()",
    "datetime.timedelta": "send it.total_seconds()",
    "enum.Enum": "send it.value or it.name",
    "pathlib.PurePath": "send str(it)",
    "decimal.Decimal": "send str(it), or float(it)",
    "fractions.Fraction": "send str(it), or float(it)",
    "uuid.UUID": "send str(it)",
    "builtins.complex": "send [it.real, it.imag], or a numpy array",
    "builtins.range": "send list(it), or its start, stop and step",
    "builtins.slice": "send [it.start, it.stop, it.step]",
    "builtins.set": "send a list",
    "builtins.frozenset": "send a list",
    "builtins.tuple": "send a list",
    "collections.deque": "send list(it)",
    "array.array": "send it.tolist() or it.tobytes()",
    "builtins.BaseException": "send str(it), or raise it",
    "builtins.ellipsis": "send a str or None",
    "builtins.module": "send it.__name__, and import it in the other process",
    "builtins.type": "send it.__name__",
    "_io.BytesIO": "send it.getvalue()",
    "_io.StringIO": "send it.getvalue()",
    "_io._IOBase": "send its path, or its content: it.read()",
    "pandas.core.frame.DataFrame": 'send it.to_dict("list"), or it.to_numpy()',
    "pandas.core.series.Series": "send it.to_numpy(), or it.to_list()",
    "pandas.core.indexes.base.Index": "send it.to_numpy(), or it.to_list()",
    "polars.dataframe.frame.DataFrame": "send it.to_dict(as_series=False), or it.to_numpy()",
    "polars.series.series.Series": "send it.to_numpy(), or it.to_list()",
    "PIL.Image.Image": "send numpy.asarray(it)",
    "numpy.dtype": "send it.name",
    "numpy.generic": "send it.item()",
    "torch.dtype": 'send str(it).removeprefix("torch.")',
    "torch.device": "send str(it)",
    "torch.nn.modules.module.Module": "send it.state_dict()",
    "concurrent.futures._base.Future": "send it.result()",
    "miniray._core.Worker": "only the process that started a worker can use it; send the data that it needs",
    "miniray._core.Handle": "only its own worker can use a handle",
    "_thread.lock": "only the threads of one process can share a lock",
    "_thread.RLock": "only the threads of one process can share a lock",
}

# For arguments of calls and tasks, which may be anything that can be pickled: a cure by the name of the class.
_CURES = {
    "_thread.lock": "Only the threads of one process can share a lock; create it inside the function",
    "_thread.RLock": "Only the threads of one process can share a lock; create it inside the function",
    "_io._IOBase": "Pass its path, and open it inside the function",
    "builtins.generator": "Pass list(it)",
    "builtins.module": "Import it inside the function",
    "concurrent.futures._base.Future": "Pass its result()",
    "_socket.socket": "Connect inside the function",
    "miniray._core.Worker": "Only the process that started a worker can use it; pass the data that it needs",
    "miniray._core.Handle": "Only its own worker can use a handle",
}
FILE = (
    "an open file ({!r}, a {}) belongs to one process. Send its path and open it in the other process, or send what "
    "it.read() returns"
)
_CREATE = "Create it inside the function, or pass what it is made from"
_DEPTH_MAX = _core.limits.unpicklable_depth_max

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.BuiltinMethodType)
_FUNCTION = "send its name; or call it in the worker: worker.register(it) and worker.call_remote, or pool.submit(it)"


def describe(thing: Any) -> tuple[str, str]:
    """Return what the object is, and what to do instead of sending it in a message: "a set", "send a list"."""
    if isinstance(thing, _FUNCTIONS):
        return name_of(thing), _FUNCTION
    if isinstance(thing, type):
        return name_of(thing), _REMEDIES["builtins.type"]
    remedy = _remedy(thing)
    if _calls_take(thing):
        remedy += "; calls and pools can send it as it is"
    return name_of(thing), remedy


def name_of(thing: Any) -> str:
    """Return what the object is: "a set", "the function f"."""
    kind = type(thing).__name__
    if isinstance(thing, _FUNCTIONS):
        return f"the function {thing.__qualname__}"
    if isinstance(thing, type):
        return f"the class {thing.__qualname__}"
    return f"{'an' if kind[0] in 'aeioAEIO' else 'a'} {kind}"


def _remedy(thing: Any) -> str:
    for base in type(thing).__mro__:
        found = _REMEDIES.get(f"{base.__module__}.{base.__qualname__}")
        if found is not None:
            return found
    if hasattr(type(thing), "__dataclass_fields__"):
        return "it is a dataclass; send dataclasses.asdict(it)"
    if hasattr(type(thing), "__next__") or type(thing).__name__ in ("dict_keys", "dict_values", "dict_items"):
        return "send list(it)"
    if hasattr(thing, "model_dump"):  # pydantic's
        return "send it.model_dump()"
    if "attrs" in sys.modules and hasattr(type(thing), "__attrs_attrs__"):
        return "send attrs.asdict(it)"
    if getattr(thing, "__dict__", None):
        return "send what it consists of, such as vars(it)"
    return "messages hold dict, list, str, int, float, bool, None, bytes and arrays"


class NeedsPickle(TypeError):
    """An object was to be sent that only a pickle can hold, and pickle=False forbids pickles. Users see a TypeError."""


def require_plain(thing: Any) -> None:
    """Raise NeedsPickle if a message cannot hold the object exactly. The text says where and why."""
    if not _core._is_plain(thing):
        raise NeedsPickle(_only_a_pickle(*_first_that_is_not_plain(thing)))


def _first_that_is_not_plain(thing: Any) -> tuple[str, Any]:
    """Return where the first object is that a message cannot hold exactly (" at [0]['x']"), and the object. It is a
    dict or a list only if the whole is nested too deeply, and then it has no place."""
    place = ""
    for _ in range(_core.limits.depth_max):
        if type(thing) is dict:
            key = next((key for key in thing if not _core._is_plain(key)), None)
            if key is not None:
                return " as a key" + (f" of {place}" if place else ""), key
            inner = [(f"[{key!r}]", one) for key, one in thing.items()]
        elif type(thing) is list:
            inner = [(f"[{index}]", one) for index, one in enumerate(thing)]
        else:
            break
        found = next((each for each in inner if not _core._is_plain(each[1])), None)
        if found is None:
            break
        place, thing = place + found[0], found[1]
    return (f" at {place}" if place and type(thing) not in (dict, list) else ""), thing


def require_plain_parts(parts: Any) -> None:
    """Do the same for what a call sends: the items of a map, or arguments with keyword arguments."""
    require_plain(list(parts) if type(parts) is tuple else parts)


def refuse_to_pickle(thing: Any) -> NoReturn:
    raise NeedsPickle(_only_a_pickle("", thing))


def _only_a_pickle(at: str, thing: Any) -> str:
    cure = f"{_plain_cure(thing)}, or use pickle=True"
    what = name_of(thing)
    if _is_array(thing):
        what = f"an array of {thing.dtype}"
    elif type(thing) is str:
        what = f"a str that is not valid Unicode ({thing!r})"
    elif type(thing) in (dict, list):
        what = f"{what} nested deeper than {_core.limits.depth_max} levels"
    return f"{what}{at} can only be sent as a pickle, which pickle=False forbids: {cure}"


def _is_array(thing: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(thing) is numpy.ndarray


def _plain_cure(thing: Any) -> str:
    """Return what to send in place of an object that only a pickle can hold."""
    if isinstance(thing, _FUNCTIONS):
        return "pass its name, and have the worker import it"
    if type(thing) is int:
        return "send it as a str"  # it has more than 64 bits
    if type(thing) is str:  # a message has UTF-8
        return "send bytes; of a file name, os.fsencode(it)"
    if type(thing) in (dict, list):
        return "does it contain itself? Make it flatter"
    if _is_array(thing):
        return "convert it to a numeric dtype in this machine's byte order"
    return _REMEDIES["builtins.type"] if isinstance(thing, type) else _remedy(thing)


class _Enough(Exception):
    pass


class _Sink:
    """A file that raises _Enough after a few bytes: most objects that cannot be pickled fail before."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> int:
        self.bytes += len(data)
        if self.bytes > _ENOUGH_BYTES:
            raise _Enough
        return len(data)


def _calls_take(thing: Any) -> bool:
    try:
        pickle.Pickler(_Sink(), 5, buffer_callback=lambda buffer: None).dump(thing)
    except _Enough:
        return True
    except Exception:
        return False
    return True


def explain_call(
    error: Exception, function: str, arguments: Any, keywords: Any, takes: Callable[[Any], bool]
) -> Exception:
    """Return an error for a call whose arguments could not be pickled, which names the argument and a cure. Another
    kind of error is returned unchanged. ``takes`` says whether an object can be pickled."""
    return _explain(
        error,
        [(f"argument {n}", one) for n, one in enumerate(arguments, 1)]
        + [(f"argument {name!r}", one) for name, one in keywords.items()],
        f" of {function}",
        takes,
    )


def explain_items(error: Exception, function: str, items: Any, first: int, takes: Callable[[Any], bool]) -> Exception:
    """Return the same for some items of a map; ``first`` is the position of the first of them."""
    return _explain(error, [(f"item {n}", one) for n, one in enumerate(items, first)], f" for {function}", takes)


def _explain(error: Exception, named: list[tuple[str, Any]], of: str, takes: Callable[[Any], bool]) -> Exception:
    if type(error) not in (TypeError, AttributeError, pickle.PicklingError, NeedsPickle):
        return error
    for name, value in named:
        if takes(value):
            continue
        if type(error) is NeedsPickle:
            return TypeError(f"cannot send {name}{of}: {_only_a_pickle(*_first_that_is_not_plain(value))}")
        place, thing = _culprit(value, str(error), takes)
        kind = type(thing).__name__
        what = f"{'an' if kind[0] in 'aeioAEIO' else 'a'} {kind}"
        at = f", {what}," if not place else f" (at {place}, {what})"
        told = str(error).rstrip(".")
        cure = "" if "\n" in told or ". " in told else f". {_cure(thing)}"
        made = type(error)(f"cannot send {name}{of}{at} to another process: {told}{cure}")
        made.__cause__ = error
        return made
    return error


def _culprit(value: Any, told: str, takes: Callable[[Any], bool]) -> tuple[str, Any]:
    """Return the innermost object that cannot be pickled, or the one that the error names, and its place in the
    value."""
    place = ""
    for _ in range(_DEPTH_MAX):
        if f"'{type(value).__name__}' object" in told:
            break
        inner: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            inner = [(f"[{key!r}]", one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            inner = [(f"[{index}]", one) for index, one in enumerate(value)]
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type | types.ModuleType):
            if _reduces_itself(value):
                break
            inner = [(f".{name}", one) for name, one in vars(value).items()]
        found = next((each for each in inner if not takes(each[1])), None)
        if found is None:
            break
        place, value = place + found[0], found[1]
    return place, value


def _reduces_itself(value: Any) -> bool:
    """Whether the object's class decides how it is pickled, so that its attributes do not matter."""
    kind: Any = type(value)
    return bool(kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__)


def _cure(thing: Any) -> str:
    for base in type(thing).__mro__:
        found = _CURES.get(f"{base.__module__}.{base.__qualname__}")
        if found is not None:
            return found
    return _CREATE

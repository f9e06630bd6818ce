"""What to send instead of an object that messages cannot hold."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

_ENOUGH_BYTES = 2**20  # of a pickle, to see that there is one

# By the name of a class, of the object's own or of one that it derives from; "it" is the object.
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
    "collections.deque": "send list(it)",
    "array.array": "send it.tolist() or it.tobytes()",
    "builtins.BaseException": "send str(it), or raise it",
    "builtins.ellipsis": "send a str or None",
    "builtins.module": "send it.__name__, and import it there",
    "builtins.type": "send it.__name__",
    "_io.BytesIO": "send it.getvalue()",
    "_io.StringIO": "send it.getvalue()",
    "_io._IOBase": "send its path, or what is in it: it.read()",
    "pandas.core.frame.DataFrame": 'send it.to_dict("list"), or it.to_numpy()',
    "pandas.core.series.Series": "send it.to_numpy(), or it.to_list()",
    "pandas.core.indexes.base.Index": "send it.to_numpy(), or it.to_list()",
    "polars.dataframe.frame.DataFrame": "send it.to_dict(as_series=False), or it.to_numpy()",
    "polars.series.series.Series": "send it.to_numpy(), or it.to_list()",
    "PIL.Image.Image": "send numpy.asarray(it)",
    "numpy.dtype": "send it.name",
    "torch.dtype": 'send str(it).removeprefix("torch.")',
    "torch.device": "send str(it)",
    "torch.nn.modules.module.Module": "send it.state_dict()",
    "concurrent.futures._base.Future": "send it.result()",
    "miniray._core.Worker": "a worker is for the process that started it; send what it should know",
    "miniray._core.Handle": "a handle is for its own worker",
    "_thread.lock": "a lock is for the threads of one process",
    "_thread.RLock": "a lock is for the threads of one process",
}

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.BuiltinMethodType)
_FUNCTION = "send its name; or have it called: worker.register(it) and worker.call_remote, or pool.submit(it)"


def describe(thing: Any) -> tuple[str, str]:
    """What it is, and what to do: "a set", "send a list"."""
    kind = type(thing).__name__
    if isinstance(thing, _FUNCTIONS):
        return f"the function {thing.__qualname__}", _FUNCTION
    if isinstance(thing, type):
        return f"the class {thing.__qualname__}", _REMEDIES["builtins.type"]
    remedy = _remedy(thing)
    if _calls_take(thing):
        remedy += "; calls and pools take it as it is"
    return f"{'an' if kind[0] in 'aeioAEIO' else 'a'} {kind}", remedy


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


class _Enough(Exception):
    pass


class _Sink:
    """A file that takes a little."""

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

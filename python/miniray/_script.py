"""The script's namespace in this process, and checks with which two processes find out that they have the same.

The script is ``__main__`` of the coordinator. A forked worker has it as it was at the fork. Spawned workers and workers
on other nodes import its file under another name; if there is no file, they have an empty module.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import types
import weakref
import zlib
from functools import cache, lru_cache, partial
from itertools import islice
from typing import Any

from miniray import _core, _functions, _spawned

MAIN_NAMES = ("__main__", _spawned.MAIN)

# The number of the process that was forked from the coordinator, if this process was forked from that one; 0 if it was
# not. (A worker that was forked from the coordinator is that process itself.)
forked_as = 0
# Whether __main__ in this process is not the coordinator's script, but a server's or a spawned worker's.
main_is_foreign = False
_import_failed = False

_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
_KEPT = (*_PLAIN, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_DEPTH_MAX = _core.limits.script_depth_max
_CACHED = type(lru_cache(len))


class Snapshot:
    """What the script had when a worker was forked. Parent and child have the same objects under the same names.

    With ``keeps_all``, it keeps objects that have no weak references, so that they are known to be the same later.
    """

    def __init__(self, keeps_all: bool = False) -> None:
        self.pid = 0  # the process that was forked then
        self._things: dict[str, Any] = {}
        script = sys.modules.get(_spawned.MAIN) or sys.modules["__main__"]
        for name, thing in list(script.__dict__.items()):
            known = thing if isinstance(thing, (*_KEPT, type)) else _weak(thing)
            self._things[name] = thing if known is _NOTHING and keeps_all else known

    def has(self, qualname: str, thing: Any) -> bool:
        """Whether the forked process has this object under this name."""
        top, _, rest = qualname.partition(".")
        found = self._things.get(top, _NOTHING)
        if isinstance(found, weakref.ref):
            found = found()
            if found is None:
                return False
        return (look_up(found, rest) if rest else found) is thing


_NOTHING = object()


def _weak(thing: Any) -> Any:
    """A weak reference, because an object may own a GPU's memory or a pool, and a snapshot must not keep it alive."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return _NOTHING


def is_fork(pid: int) -> bool:
    """Whether this process has the script as it was when the coordinator forked that process."""
    return pid != 0 and pid in (os.getpid(), forked_as)


def look_up(found: Any, qualname: str) -> Any:
    return _spawned._look_up(found, qualname)


def module() -> types.ModuleType:
    """The script's module in this process."""
    global _import_failed
    if not _import_failed and (not main_is_foreign or _functions._main_specification is not None):
        try:
            return _functions._main()  # type: ignore[no-any-return]
        except Exception:
            _import_failed = True  # workers then get everything of the script by value
    if _spawned.MAIN not in sys.modules:
        empty = types.ModuleType(_spawned.MAIN)
        sys.modules[_spawned.MAIN] = empty
    return sys.modules[_spawned.MAIN]


def is_of_script(thing: Any) -> bool:
    """Whether the script has this function or class under its own name."""
    if getattr(thing, "__module__", None) not in MAIN_NAMES:
        return False
    qualname = getattr(thing, "__qualname__", "<>")
    return "<" not in qualname and look_up(module(), qualname) is thing


@cache
def global_names(code: types.CodeType) -> list[str]:
    """The globals that a function uses, including those of functions inside it."""
    import dis  # here, because few programs need it

    found = {one.argval: None for one in dis.get_instructions(code) if one.opname in _GLOBAL_OPERATIONS}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(dict.fromkeys(global_names(constant)))
    return list(found)


_GLOBAL_OPERATIONS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")


@cache
def assigned_outside(code: types.CodeType) -> frozenset[str]:
    """The variables of enclosing functions to which a function, or a function inside it, assigns."""
    import dis

    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_DEREF", "DELETE_DEREF")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= assigned_outside(constant)
    return frozenset(found.intersection(code.co_freevars))


def globals_of(thing: Any) -> list[str]:
    """The globals of the script that code reachable from an object uses: from a function what it wraps or holds, from a
    class its methods and bases, from an object its class and attributes, from a container its elements."""
    script = module().__dict__
    found: dict[str, None] = {}
    seen = {id(thing)}
    waiting = [thing]
    kept = []  # keeps objects alive that were made on the way: only then is an id() unique
    while waiting and len(seen) < _FOLLOWED_MAX:
        one = waiting.pop()
        kept.append(one)
        if type(one) is types.FunctionType and one.__globals__ is script:
            found.update(dict.fromkeys(global_names(one.__code__)))
        for part in _parts_of(one):
            if type(part) not in _LEAVES and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return list(found)


_FOLLOWED_MAX = _core.limits.script_objects_max
_ELEMENTS_MAX = _core.limits.script_elements_max
_LEAVES = (type(None), bool, int, float, complex, str, bytes, bytearray, types.ModuleType, types.CodeType)
_DICTS = (dict, types.MappingProxyType)


def _parts_of(thing: Any) -> list[Any]:
    """The objects that an object may call. Runs no code of the object's class."""
    kind = type(thing)
    if issubclass(kind, types.FunctionType):
        held = [_contents(cell) for cell in thing.__closure__ or ()]
        return [*held, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *vars(thing).values()]
    if issubclass(kind, type):
        is_of_script = vars(thing).get("__module__") in MAIN_NAMES
        return [kind, *thing.__bases__, *vars(thing).values()] if is_of_script else []
    if kind is types.MethodType:
        return [thing.__func__, thing.__self__]
    if kind is partial:
        return [thing.func, *thing.args, *thing.keywords.values()]
    if kind is property:
        return [thing.fget, thing.fset, thing.fdel]
    if kind in (staticmethod, classmethod):
        return [thing.__func__]
    if kind in (list, tuple, set, frozenset):
        return list(islice(thing, _ELEMENTS_MAX))
    if kind in _DICTS:
        return list(islice(thing.values(), _ELEMENTS_MAX))
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except Exception:
        attributes = {}
    return [kind, *islice(attributes.values(), _ELEMENTS_MAX)] if type(attributes) is dict else [kind]


# --- Whether two processes have the same ------------------------------------------------------------------------------


def check(thing: Any, depth: int = 0) -> int:
    """Return a number that two processes with the same source compute alike; 0 if the object cannot be compared."""
    if depth > _DEPTH_MAX:
        return 1
    if isinstance(thing, types.FunctionType):
        return _check_function(thing, depth)
    if isinstance(thing, type):
        return _check_class(thing, depth)
    if isinstance(thing, types.ModuleType):
        return _crc("module", thing.__name__)
    if isinstance(thing, (staticmethod, classmethod)):
        return check(thing.__func__, depth + 1)
    if isinstance(thing, _CACHED):
        return check(thing.__wrapped__, depth + 1)
    if isinstance(thing, property):
        return _crc(*(check(part, depth + 1) for part in (thing.fget, thing.fset, thing.fdel)))
    if type(thing) in _PLAIN:
        try:
            body = pickle.dumps(thing, 5)
            if depth == 0 or not any(name.encode() in body for name in MAIN_NAMES):
                return zlib.crc32(body) | 1
        except Exception:
            pass
        return _check_pickle(thing, depth) if depth > 0 else 0
    return _check_object(thing, depth) if depth > 0 else 0  # the value of a global is sent and not compared


def _check_object(thing: Any, depth: int) -> int:
    """Check a default or a member of a class: its class, its attributes, and if its class is not of the script, its
    pickle."""
    try:
        members = sorted((name, check(value, depth + 1)) for name, value in vars(thing).items())
    except TypeError:
        members = []
    pickled = 0 if type(thing).__module__ in MAIN_NAMES else _check_pickle(thing, depth)
    return _crc(type(thing).__qualname__, members, pickled)


def _check_pickle(thing: Any, depth: int) -> int:
    """Check the pickle of an object, including its buffers, which are not copied. Returns 0 if it cannot be pickled."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    try:
        _CheckPickler(file, depth, buffers.append).dump(thing)
        return _crc(zlib.crc32(file.getbuffer()), [zlib.crc32(buffer.raw()) for buffer in buffers])
    except Exception:
        return 0


class _CheckPickler(pickle.Pickler):
    """Replaces functions and classes of the script by their checks, because the script's name differs between
    processes."""

    def __init__(self, file: Any, depth: int, buffer_callback: Any) -> None:
        super().__init__(file, 5, buffer_callback=buffer_callback)
        self._depth = depth

    def persistent_id(self, thing: Any) -> Any:
        if isinstance(thing, (type, types.FunctionType)) and getattr(thing, "__module__", None) in MAIN_NAMES:
            return thing.__qualname__, check(thing, self._depth + 1)
        return None


def _crc(*parts: Any) -> int:
    return zlib.crc32(repr(parts).encode()) | 1


def _check_function(function: types.FunctionType, depth: int) -> int:
    cells = [check(_contents(cell), depth + 1) for cell in function.__closure__ or ()]
    defaults = [check(default, depth + 1) for default in function.__defaults__ or ()]
    named = [(name, check(default, depth + 1)) for name, default in (function.__kwdefaults__ or {}).items()]
    return _crc(_check_code(function.__code__), cells, defaults, named)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _check_code(code: types.CodeType) -> int:
    constants = [
        _check_code(one)
        if isinstance(one, types.CodeType)
        else repr(sorted(map(repr, one)))
        if isinstance(one, frozenset)
        else repr(one)
        for one in code.co_consts
    ]
    return _crc(code.co_code, constants, code.co_names, code.co_varnames, sys.version_info[:2])


def _check_class(kind: type, depth: int) -> int:
    bases = [base.__qualname__ for base in kind.__bases__]
    members = [
        (name, check(member, depth + 1))
        for name, member in vars(kind).items()
        if not (name.startswith("__") and name.endswith("__")) or callable(member) or name == "__slots__"
    ]
    return _crc(kind.__qualname__, bases, sorted(members))


# The checks of the script's globals after its import. Code that ran since then may have changed the globals.
_first_checks: dict[str, int] = {}


def note_import(script: types.ModuleType) -> None:
    """Record the globals of the script. Call it after the import, before any function of the script runs."""
    for name, thing in list(script.__dict__.items()):
        if type(thing) in _PLAIN and not name.startswith("__"):
            _first_checks[name] = check(thing)


def has_same(qualname: str, found: Any, wanted: int) -> bool:
    """Whether the object that was found in this process is the one of another process, whose check is ``wanted``."""
    if not wanted:
        return False
    if qualname in _first_checks:
        return _first_checks[qualname] == wanted
    return check(found) == wanted

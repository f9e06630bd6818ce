"""The script's namespace: what a process has of it, and how two processes find out that they have the same.

The script is ``__main__`` of the coordinator. A forked worker has it as it was at the fork. Spawned workers and workers
on other nodes have what an import of the file gives, under another name; where there is no file, an empty module.
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

# The process that was forked from the coordinator, if this one was forked from that. (A worker is that process itself.)
forked_as = 0
# Whether __main__ here is not the coordinator's: a server's own, or an interpreter's that was started for a worker.
main_is_foreign = False
_import_failed = False

_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
_KEPT = (*_PLAIN, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_DEPTH_MAX = _core.limits.script_depth_max
_CACHED = type(lru_cache(len))


class Snapshot:
    """What the script had when a worker was forked. Two processes of one fork have the same under the same name."""

    def __init__(self) -> None:
        self.pid = 0  # of the process that was forked then
        self._things: dict[str, Any] = {}
        script = sys.modules.get(_spawned.MAIN) or sys.modules["__main__"]
        for name, thing in list(script.__dict__.items()):
            self._things[name] = thing if isinstance(thing, (*_KEPT, type)) else _weak(thing)

    def has(self, qualname: str, thing: Any) -> bool:
        top, _, rest = qualname.partition(".")
        found = self._things.get(top, _NOTHING)
        if isinstance(found, weakref.ref):
            found = found()
            if found is None:
                return False
        return (look_up(found, rest) if rest else found) is thing


_NOTHING = object()


def _weak(thing: Any) -> Any:
    """An object of a class may own a GPU's memory or a pool: a note of it must not keep it."""
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
    """The script, as this process has it."""
    global _import_failed
    if not _import_failed and (not main_is_foreign or _functions._main_specification is not None):
        try:
            return _functions._main()  # type: ignore[no-any-return]
        except Exception:
            _import_failed = True  # what is needed of it is sent by value
    if _spawned.MAIN not in sys.modules:
        empty = types.ModuleType(_spawned.MAIN)
        sys.modules[_spawned.MAIN] = empty
    return sys.modules[_spawned.MAIN]


def is_of_script(thing: Any) -> bool:
    """Whether a function or a class is found in the script under its own name."""
    if getattr(thing, "__module__", None) not in MAIN_NAMES:
        return False
    qualname = getattr(thing, "__qualname__", "<>")
    return "<" not in qualname and look_up(module(), qualname) is thing


@cache
def global_names(code: types.CodeType) -> list[str]:
    """What a function looks up in its globals, and what functions within it do."""
    import dis  # few programs need it

    found = {one.argval: None for one in dis.get_instructions(code) if one.opname in _GLOBAL_OPERATIONS}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(dict.fromkeys(global_names(constant)))
    return list(found)


_GLOBAL_OPERATIONS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")


@cache
def assigned_outside(code: types.CodeType) -> frozenset[str]:
    """The variables of functions around it that a function assigns to, or that functions within it do."""
    import dis

    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_DEREF", "DELETE_DEREF")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= assigned_outside(constant)
    return frozenset(found.intersection(code.co_freevars))


def globals_of(thing: Any) -> list[str]:
    """What the code that is reached through a thing looks up in the script: a function with what it wraps or holds, a
    class with its methods and bases, an object with its class and attributes, a container with its elements."""
    script = module().__dict__
    found: dict[str, None] = {}
    seen = {id(thing)}
    waiting = [thing]
    kept = []  # what was made on the way: an identity is that of one thing only while the thing lives
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
    """What a thing may call. Runs no code of the thing's class."""
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
    """A number that two processes compute alike from the same source; 0 for what cannot be compared."""
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
    return _check_object(thing, depth) if depth > 0 else 0  # a global is sent rather than compared


def _check_object(thing: Any, depth: int) -> int:
    """Of a default or a class's member, as far as it can be told: its class, its attributes, and what else is in the
    pickle of an object whose class is not of the script."""
    try:
        members = sorted((name, check(value, depth + 1)) for name, value in vars(thing).items())
    except TypeError:
        members = []
    pickled = 0 if type(thing).__module__ in MAIN_NAMES else _check_pickle(thing, depth)
    return _crc(type(thing).__qualname__, members, pickled)


def _check_pickle(thing: Any, depth: int) -> int:
    """0 if it cannot be pickled. Buffers count, and are not copied."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    try:
        _CheckPickler(file, depth, buffers.append).dump(thing)
        return _crc(zlib.crc32(file.getbuffer()), [zlib.crc32(buffer.raw()) for buffer in buffers])
    except Exception:
        return 0


class _CheckPickler(pickle.Pickler):
    """The script has another name in another process: its functions and classes are told by their own checks."""

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


# What an imported script began with; what it has now may have been changed by what ran here.
_first_checks: dict[str, int] = {}


def note_import(script: types.ModuleType) -> None:
    """After the script was imported here, and before anything of it runs."""
    for name, thing in list(script.__dict__.items()):
        if type(thing) in _PLAIN and not name.startswith("__"):
            _first_checks[name] = check(thing)


def has_same(qualname: str, found: Any, wanted: int) -> bool:
    """Whether what was found here is what another process has, by its check."""
    if not wanted:
        return False
    if qualname in _first_checks:
        return _first_checks[qualname] == wanted
    return check(found) == wanted

"""Pickles calls, results and errors. The script's functions and classes are sent as numbers, and exceptions complete.

A ``PickleContext`` tells the pickler which functions and classes have a number, and which globals belong to the script.
An ``UnpickleContext`` gives the unpickler in the other process what has these numbers there.
"""

from __future__ import annotations

import builtins
import enum
import functools
import importlib
import io
import pickle
import sys
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from miniray import _script, _spawned, _unsendable
from miniray.errors import ProtocolError

Pickle = dict[str, Any]


class PickleContext(Protocol):
    """What a pickler asks the process that it is in."""

    takes_pickles: bool  # False: pickle=False, so nothing is pickled

    def number_of(self, thing: Any) -> int | None:
        """The number by which the other process knows a function or class; None if it is sent in another way."""

    def namespace_of(self, names: dict[str, Any]) -> int | None:
        """The number of the globals of a function that is sent by value; None if copies of them are sent with it."""

    def use_globals(self, namespace: int, names: list[str]) -> None:
        """Called for the globals that a function uses, if the function is sent by value."""

    def owner_of(self, thing: Any) -> type | None:
        """The class of the script whose method the function is; None if there is none."""

    def is_there(self, thing: Any) -> bool:
        """Whether the other process finds the function or class in its script, under its name."""


class UnpickleContext(Protocol):
    """What an unpickler asks the process that it is in."""

    takes_pickles: bool  # False: pickle=False, so nothing is loaded
    refusal: str  # what the error says in that case

    def thing(self, number: int) -> Any: ...
    def namespace(self, number: int) -> dict[str, Any]: ...


# A pickle refers to these two functions where it has a number; the Unpickler puts its own in their place.


def defined(number: int) -> Any:
    raise pickle.UnpicklingError(
        f"cannot load this pickle outside of a call: it refers to definition {number} of a script"
    )


def make_function(code: types.CodeType, namespace: int, closure: Any) -> Any:
    raise pickle.UnpicklingError("cannot load this pickle outside of a call: it has a function of a script")


# --- Pickling ---------------------------------------------------------------------------------------------------------


def pickled(thing: Any, context: PickleContext) -> Pickle:
    """Pickle an object. Large buffers stay beside the pickle, so that they are not copied into it."""
    buffers: list[pickle.PickleBuffer] = []
    if not context.takes_pickles:
        _unsendable.refuse_to_pickle(thing)
    try:
        body = pickle.dumps(thing, 5, buffer_callback=buffers.append)
        needs_context = b"__main__" in body or _MAIN in body
    except Exception:
        needs_context = True
    if needs_context:
        buffers.clear()
        body = dumped(thing, context, buffers)
    return {"pickle": body, "buffers": [as_array(buffer.raw()) for buffer in buffers]}


_MAIN = _spawned.MAIN.encode()


def dumped(
    thing: Any, context: PickleContext, buffers: list[pickle.PickleBuffer] | None = None, root: Any = None
) -> bytes:
    """Pickle an object. ``root`` is a function or class that is sent by value, even if it has a number."""
    if not context.takes_pickles:
        _unsendable.refuse_to_pickle(thing)
    file = io.BytesIO()
    _pickler()(file, context, root, buffers.append if buffers is not None else None).dump(thing)
    return file.getvalue()


def as_array(memory: memoryview) -> Any:
    """A buffer as an array, which arrives in memory that can be written to."""
    numpy = sys.modules.get("numpy")
    return numpy.frombuffer(memory, numpy.uint8) if numpy is not None else bytes(memory)


def cloudpickle() -> Any:
    """The library that pickles functions and classes by value; None if it is not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


# Some wrappers of the standard library hold locks and weak references, which cannot be pickled. These functions make
# them again from what they wrap.


def make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def make_cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def make_dispatching(function: Any, implementations: list[tuple[type, Any]]) -> Any:
    made = functools.singledispatch(function)
    for kind, implementation in implementations:
        made.register(kind, implementation)
    return made


def _is_dispatching(thing: Any) -> bool:
    return hasattr(thing, "__wrapped__") and hasattr(thing, "dispatch") and hasattr(thing, "_clear_cache")


_CACHED = type(functools.lru_cache(len))
# cloudpickle would send the content of a text file as if it were the file.
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


class _Reducer:
    """A mixin for picklers. Its ``reducer_override`` decides how everything but plain builtins is sent."""

    _context: PickleContext
    _root: Any

    def _begin(self, context: PickleContext, root: Any) -> None:
        self._context, self._root = context, root
        self._inlined: set[int] = set()  # the classes that this pickle has by value, with their methods

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (type, _CACHED)) or type(thing) is types.FunctionType:
            owner = self._context.owner_of(thing)
            if owner is not None and id(owner) not in self._inlined:
                return getattr, (owner, thing.__name__)
            if thing is not self._root and owner is None:
                number = self._context.number_of(thing)
                if number is not None:
                    return defined, (number,)
                if self._context.is_there(thing):
                    return NotImplemented
            self._inlined.add(id(thing))
            return self._by_value(thing)
        if isinstance(thing, BaseException):
            return reduce_exception(thing)
        if type(thing) in _FILES and thing not in (sys.stdin, sys.stdout, sys.stderr):
            raise TypeError(_unsendable.FILE.format(getattr(thing, "name", "?"), type(thing).__name__))
        return self._other(thing)

    def _by_value(self, thing: Any) -> Any:
        return NotImplemented

    def _other(self, thing: Any) -> Any:
        return NotImplemented


class _PlainPickler(_Reducer, pickle.Pickler):
    """The pickler if cloudpickle is not installed: nothing is sent by value."""

    def __init__(self, file: Any, context: PickleContext, root: Any, buffer_callback: Any) -> None:
        pickle.Pickler.__init__(self, file, 5, buffer_callback=buffer_callback)
        self._begin(context, root)


@cache
def _pickler() -> Any:
    library = cloudpickle()
    if library is None:
        return _PlainPickler

    class ValuePickler(_Reducer, library.Pickler):  # type: ignore[misc, name-defined]
        def __init__(self, file: Any, context: PickleContext, root: Any, buffer_callback: Any) -> None:
            library.Pickler.__init__(self, file, 5, buffer_callback=buffer_callback)
            self._begin(context, root)

        def _by_value(self, thing: Any) -> Any:
            if isinstance(thing, _CACHED) and _script.is_of_script(thing):
                return make_cached, (thing.__wrapped__, thing.cache_parameters())
            if _is_dispatching(thing):
                others = [(kind, made) for kind, made in thing.registry.items() if kind is not object]
                return make_dispatching, (thing.__wrapped__, others)
            reduced = library.Pickler.reducer_override(self, thing)
            if reduced is NotImplemented:
                return reduced
            if isinstance(thing, enum.EnumMeta):
                return _reduce_enum(thing, *reduced)
            if isinstance(thing, type) and "__slots__" in vars(thing) and not _is_named_tuple(thing):
                return _reduce_slotted(thing, *reduced)
            if type(thing) is not types.FunctionType:
                return reduced
            namespace = self._context.namespace_of(thing.__globals__)
            if namespace is None:
                return reduced
            # The function gets the globals of the script in the other process, and looks them up there when it runs.
            _, (code, *_, closure), (state, slots), *rest = reduced
            self._context.use_globals(namespace, _script.global_names(code))
            return make_function, (code, namespace, closure), (state, {**slots, "__globals__": {}}), *rest

        def _other(self, thing: Any) -> Any:
            if type(thing) is functools.cached_property:
                return make_cached_property, (thing.func, thing.attrname)
            return library.Pickler.reducer_override(self, thing)

    return ValuePickler


# cloudpickle makes a class in two steps, so that its members can refer to it: first an empty class, then its members.
# Slots must be there at the first step, and the members of an enum need more after the second.


def _reduce_slotted(kind: type, make: Any, arguments: Any, state: Any = None, *rest: Any) -> Any:
    """Give a class its slots at the first step: it cannot get them later."""
    if state is None:
        return make, arguments  # a builtin class
    constructor, name, bases, members, *others = arguments
    slots = vars(kind)["__slots__"]
    members = {**members, "__slots__": slots if isinstance(slots, (str, dict)) else tuple(slots)}
    attributes = {
        key: value
        for key, value in state[0].items()
        if not (isinstance(value, types.MemberDescriptorType) and value.__objclass__ is kind)
    }
    return make, (constructor, name, bases, members, *others), (attributes, *state[1:]), *rest


def _is_named_tuple(kind: type) -> bool:
    """Whether the class is a typing.NamedTuple, which makes its slots itself."""
    return typing.NamedTuple in vars(kind).get("__orig_bases__", ())


def _reduce_enum(kind: Any, make: Any, arguments: Any, state: Any, *rest: Any) -> Any:
    """Send the members' attributes and the aliases too. cloudpickle makes the members before the enum's constructor is
    there, so they lack attributes that the constructor sets."""
    bases, name, qualname, _, *others = arguments
    aliased = dict(kind.__members__)
    attributes = {one: value for one, value in state[0].items() if one not in aliased}
    kept = {one.name: {key: value for key, value in vars(one).items() if key not in _OF_ENUM} for one in kind}
    values = {one: member.value for one, member in aliased.items()}
    *nothing, set_state = rest
    filled = (set_state, (attributes, *state[1:]), kept)
    return make, (bases, name, qualname, values, *others), filled, *nothing, fill_enum


_OF_ENUM = ("_name_", "_value_", "_sort_order_", "__objclass__")


def fill_enum(kind: Any, state: Any) -> Any:
    set_state, of_class, of_members = state
    set_state(kind, of_class)
    for name, attributes in of_members.items():
        vars(kind[name]).update(attributes)
    return kind


# --- Unpickling -------------------------------------------------------------------------------------------------------


def unpickled(packed: Pickle, context: UnpickleContext) -> Any:
    """Return the object. A peer may have sent anything in place of a pickle."""
    if not (
        isinstance(packed, dict)
        and isinstance(packed.get("pickle"), bytes | bytearray | memoryview)
        and isinstance(packed.get("buffers"), list)
    ):
        from miniray import _check
        from miniray.errors import ProtocolError

        raise ProtocolError(f"the other side sent, in place of a pickle, {_check.shown(packed)}")
    return Unpickler(io.BytesIO(packed["pickle"]), context, packed["buffers"]).load()


class Unpickler(pickle.Unpickler):
    """Loads pickles of another process. It finds the coordinator's script, which may have another name here."""

    def __init__(self, file: Any, context: UnpickleContext, buffers: Any = ()) -> None:
        if not context.takes_pickles:
            raise ProtocolError(context.refusal)
        super().__init__(file, buffers=buffers)
        self._context = context

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__:
            if name == "defined":
                return self._context.thing
            if name == "make_function":
                return self._make_function
        if module not in _script.MAIN_NAMES:
            return super().find_class(module, name)
        script = _script.module()
        found = _spawned._look_up(script, name)
        if found is None:
            found = _spawned._look_up(sys.modules["__main__"], name)
        if found is None:
            raise AttributeError(f"the script has no {name!r} in this process{_spawned.stopped_at()}")
        return found

    def _make_function(self, code: types.CodeType, namespace: int, closure: Any) -> types.FunctionType:
        return types.FunctionType(code, self._context.namespace(namespace), None, None, closure)


# --- Exceptions -------------------------------------------------------------------------------------------------------

_REDUCTIONS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
# args and exceptions are sent apart; obj of an AttributeError may be any object, and large.
_NOT_SENT = ("args", "obj", "exceptions")


def reduce_exception(error: BaseException) -> Any:
    """Reduce an exception to its class, arguments and attributes. Its constructor is not called again, because it may
    take other arguments."""
    if any(name in vars(kind) for kind in type(error).__mro__ if kind.__module__ != "builtins" for name in _REDUCTIONS):
        return NotImplemented  # its class decides how it is pickled
    return _parts(error.args, _attributes(error), error, lambda link: link)


def _parts(arguments: Any, attributes: Any, error: BaseException, follow: Callable[[Any], Any]) -> tuple[Any, ...]:
    links = {
        "__cause__": follow(error.__cause__),
        "__context__": follow(error.__context__),
        "__suppress_context__": error.__suppress_context__,
    }
    inner = (error.message, list(error.exceptions)) if isinstance(error, _GROUP) else None
    return make_exception, (type(error), arguments, inner), (attributes, links), None, None, fill_exception


def _attributes(error: BaseException) -> dict[str, Any]:
    found = dict(vars(error))
    for kind in type(error).__mro__:
        for name, member in vars(kind).items():
            if not isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                continue
            if name.startswith("__") or name in _NOT_SENT:
                continue
            try:
                found[name] = getattr(error, name)
            except AttributeError:
                pass  # a slot that was never set
    return found


_HEAP_TYPE = 1 << 9
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
_NOTHING = object()


def make_exception(kind: type[BaseException], arguments: tuple[Any, ...], inner: Any = None) -> BaseException:
    """Make an exception without calling its constructor. ``inner`` are the message and exceptions of a group."""
    base: Any = kind
    while base.__flags__ & _HEAP_TYPE:  # a __new__ in Python may take other arguments; a builtin one takes any
        base = base.__base__
    error: BaseException = base.__new__(kind, *(inner or arguments))
    BaseException.__setattr__(error, "args", arguments)  # the class may have a setter of its own
    return error


def fill_exception(error: BaseException, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, links = state
    for name, value in [*attributes.items(), *links.items()]:
        try:
            if getattr(error, name, _NOTHING) is not value:  # setting filename to None would change an OSError
                BaseException.__setattr__(error, name, value)  # the class may forbid it, as frozen dataclasses do
        except Exception:
            pass  # an attribute that can be read but not written


def dumped_error(error: BaseException, context: Any) -> bytes:
    """Pickle as much of an exception as can be sent: attributes that cannot be sent are left out, and arguments that
    cannot be sent become their text. ``context`` is an UnpickleContext too, to try the pickle out."""
    try:
        body = dumped(error, context)
        if reduce_exception(error) is NotImplemented:
            Unpickler(io.BytesIO(body), context).load()  # many exceptions can be pickled, but not loaded
        return body
    except Exception:
        return dumped(_SendableParts(error, context), context)


class _SendableParts:
    """Pickles as the parts of an exception that can be sent."""

    def __init__(self, error: BaseException, context: PickleContext) -> None:
        arguments = tuple(one if _can_be_sent(one, context) else repr(one) for one in error.args)
        attributes = {name: value for name, value in _attributes(error).items() if _can_be_sent(value, context)}
        self._reduced = _parts(arguments, attributes, error, lambda link: link if _can_be_sent(link, context) else None)

    def __reduce__(self) -> Any:
        return self._reduced


def _can_be_sent(value: Any, context: PickleContext) -> bool:
    try:
        dumped(value, context)
        return True
    except Exception:
        return False

"""What workers are told of the script: each function, class and global that they need, once, under a number.

A worker that has the same thing uses its own, which it finds by name. Other workers get it by value. Either way each
worker has one of it, and it comes back as the coordinator's own.
"""

from __future__ import annotations

import inspect
import reprlib
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from miniray import _pickling, _script, _spawned

# Every module has these of its own.
_NOT_SENT = ("__builtins__", "__name__", "__spec__", "__loader__", "__package__", "__file__", "__doc__")


class Definition:
    """One thing, and how workers hear of it."""

    __slots__ = (
        "by_value",
        "closure",
        "described",
        "each_call_anew",
        "globals",
        "handle",
        "in_script",
        "name",
        "needs",
        "number",
        "slot",
        "thing",
    )

    def __init__(self, thing: Any, number: int, handle: Any) -> None:
        self.thing = thing
        self.number = number
        self.handle = handle  # the pool's core's, if it is a pool's
        self.in_script = False
        self.name: str | None = None  # in the script, or "module.function"; None if it has none
        self.slot: tuple[int, str] | None = None  # the global that it is the value of
        self.by_value = False
        self.each_call_anew = False  # a worker makes it again for each call
        self.described: dict[str, Any] = {}  # as workers hear of it; empty until it is known how
        self.needs: list[Definition] = []  # what its pickle refers to
        self.globals: list[tuple[int, str]] = []  # what it looks up when it runs
        self.closure: Closure | None = None


class Closure:
    """All that a worker must have heard of before a definition is used, each after what it needs itself; and the
    globals' values as of then."""

    def __init__(
        self, definitions: list[Definition], values: list[tuple[dict[str, Any], str, Any]], generation: int
    ) -> None:
        self.definitions = definitions
        self._values = values
        self._generation = generation
        self.handle: Any = None  # the pool's core's list of them

    def is_current(self, generation: int) -> bool:
        return self._generation == generation and all(
            names.get(name, _GONE) is value for names, name, value in self._values
        )


_GONE = object()


class Definitions:
    """The definitions of one pool, or of one worker. It is a book and a shelf for pickles.

    ``snapshots`` were taken of the script when workers were forked; ``all_forked`` says that every worker has one.
    """

    def __init__(
        self,
        snapshots: list[_script.Snapshot],
        all_forked: bool,
        make_handle: Callable[[], Any] | None = None,
        on_described: Callable[[Definition], None] = lambda _: None,
    ) -> None:
        self._snapshots = snapshots
        self.all_forked = all_forked
        self.lock = threading.RLock()
        self._make_handle = make_handle
        self._on_described = on_described
        self._last_number = 0
        self._of_thing: dict[int, Definition] = {}
        self._of_global: dict[tuple[int, str], Definition] = {}
        self._of_number: dict[int, Definition] = {}
        self._namespaces: list[dict[str, Any]] = [_script.module().__dict__]
        self._noting: list[Definition] = []  # whose pickles are being made
        self._to_describe: list[Definition] = []
        self._generation = 0  # counts definitions that went by name first, and now go by value: they need others
        self._fresh: list[Definition] = []  # made since the last time that all were described

    # What is sent.

    def of_function(self, function: Any, each_call_anew: bool = False) -> Definition:
        """For a function or class to call: one of the script, one that can be imported, or any other. Of any other,
        each call may have what it holds as it was sent, whatever the calls before have done to it."""
        with self.lock:
            if _script.is_of_script(function) or id(function) in self._of_thing:
                found = self._of_script(function)
            else:
                found = self._new(function)
                found.name = importable_name(function)
                self._to_describe.append(found)
                if found.name is not None:
                    self._of_number[found.number] = found
                elif isinstance(function, type):  # its objects come back
                    self._of_thing[id(function)] = self._of_number[found.number] = found
                else:
                    found.each_call_anew = each_call_anew and may_change(function)
            self._describe_all()
            if found.number not in self._of_number:
                found.thing = None  # what is needed of it is in its pickle, and it may go
            return found

    def of_name(self, name: str) -> Definition:
        """For a function that the workers have: "module.function", or what a C++ program registered."""
        with self.lock:
            made = self._new(None)
            made.name, made.by_value = name, True  # nobody here could send its value
            made.described = {"name": name, "check": 0}
            self._fresh.clear()
            self._on_described(made)
            return made

    def pack(self, thing: Any) -> tuple[_pickling.Pickle, list[Definition]]:
        """A pickle, and what a worker needs to have heard of to read it."""
        with self.lock:
            noted = Definition(None, 0, None)
            self._noting.append(noted)
            try:
                body = _pickling.pickled(thing, self)
            finally:
                self._noting.pop()
            self._describe_all()
            return body, self._closure_of(noted).definitions if noted.needs or noted.globals else []

    def takes(self, thing: Any) -> bool:
        """Whether it can be pickled."""
        try:
            self.pack(thing)
        except Exception:
            return False
        return True

    def closure_of(self, definition: Definition) -> Closure:
        """As of now: globals may have got other values since the last time."""
        closure = definition.closure
        if closure is not None and closure.is_current(self._generation):
            return closure
        with self.lock:
            definition.closure = closure = self._closure_of(definition)
        return closure

    def to_value(self, definition: Definition) -> None:
        """A worker does not have it by its name."""
        with self.lock:
            definition.by_value = True
            self._generation += 1
            definition.described = {}
            self._to_describe.append(definition)
            try:
                self._describe_all()
                if definition.slot is not None and self._of_global.get(definition.slot) is not definition:
                    self._of_number.pop(definition.number, None)  # nobody asks for it again
            except TypeError as error:
                definition.described = {"missing": str(error)}  # whoever uses it there hears of it
                self._on_described(definition)

    def by_number(self, number: int) -> Definition:
        return self._of_number[number]

    def thing_or_none(self, number: int) -> Any:
        found = self._of_number.get(number)
        return found.thing if found is not None else None

    # The pickler's book.

    def number_of(self, thing: Any) -> int | None:
        if id(thing) not in self._of_thing and not _script.is_of_script(thing):
            return None
        definition = self._of_script(thing)
        if _reaches(definition, self._noting[-1]):
            return None  # each would have to be there before the other: cloudpickle ties such knots
        self._noting[-1].needs.append(definition)
        return definition.number

    def namespace_of(self, names: dict[str, Any]) -> int | None:
        for number, known in enumerate(self._namespaces):
            if known is names:
                return number
        module = sys.modules.get(names.get("__name__") or "")
        if module is not None and module.__dict__ is names:
            return None  # of a module, which the other side may import
        self._namespaces.append(names)
        return len(self._namespaces) - 1

    def use_globals(self, namespace: int, names: list[str]) -> None:
        self._noting[-1].globals.extend((namespace, name) for name in names if name not in _NOT_SENT)

    def owner_of(self, thing: Any) -> type | None:
        outer, _, name = getattr(thing, "__qualname__", "").rpartition(".")
        if not outer or not isinstance(thing, types.FunctionType) or not _script.is_of_script(thing):
            return None
        owner = _spawned._look_up(_script.module(), outer)
        if not isinstance(owner, type):
            return None
        member = vars(owner).get(name)
        is_member = (member.__func__ if isinstance(member, staticmethod) else member) is thing  # __new__ is static
        return owner if is_member else None

    def is_there(self, thing: Any) -> bool:
        return False

    # The unpickler's shelf.

    def thing(self, number: int) -> Any:
        return self._of_number[number].thing

    def namespace(self, number: int) -> dict[str, Any]:
        return self._namespaces[number]

    # Inside.

    def _new(self, thing: Any) -> Definition:
        handle = self._make_handle() if self._make_handle is not None else None
        if handle is None:
            self._last_number += 1
        made = Definition(thing, handle.number if handle is not None else self._last_number, handle)
        self._fresh.append(made)
        return made

    def _of_script(self, thing: Any) -> Definition:
        """Of a function or class at the top of the script."""
        known = self._of_thing.get(id(thing))
        if known is not None:
            return known
        made = self._new(thing)
        made.in_script, made.name = True, thing.__qualname__
        self._of_thing[id(thing)] = self._of_number[made.number] = made
        self._to_describe.append(made)
        return made

    def _of_value(self, namespace: int, name: str, value: Any) -> Definition:
        """Of a global. Another value is another definition."""
        known = self._of_global.get((namespace, name))
        if known is not None and known.thing is value:
            return known
        if known is not None and known.by_value:  # a worker may still ask for one that went by name
            del self._of_number[known.number]
        made = self._new(value)
        made.slot = (namespace, name)
        made.in_script, made.name = namespace == 0, name
        self._of_global[namespace, name] = self._of_number[made.number] = made
        self._to_describe.append(made)
        return made

    def _describe_all(self) -> None:
        try:
            while self._to_describe:
                definition = self._to_describe.pop()
                if not definition.described:
                    self._describe(definition)
        except BaseException:  # what was half done is forgotten: the next who needs it hears why
            self._to_describe.clear()
            tables: list[dict[Any, Definition]] = [self._of_thing, self._of_global, self._of_number]
            for table in tables:
                for key in [key for key, known in table.items() if known in self._fresh]:
                    del table[key]
            raise
        finally:
            if not self._noting:
                self._fresh.clear()

    def _describe(self, definition: Definition) -> None:
        described: dict[str, Any] = {}
        if definition.slot is not None:
            described["slot"] = list(definition.slot)
        has_name = self._describe_by_name(definition, described)
        if has_name and not definition.by_value:
            if definition.in_script and self.all_forked:  # what it refers to may have got another value since the fork
                names = _script.globals_of(definition.thing)
                definition.globals = [(0, name) for name in names if name not in _NOT_SENT]
            definition.described = described
            self._on_described(definition)
            return
        definition.by_value = True
        definition.needs, definition.globals = [], []
        self._noting.append(definition)
        try:
            described["pickle"] = self._value_of(definition)
        except Exception as error:
            definition.needs, definition.globals = [], []
            if definition.slot is None or not definition.in_script:
                raise TypeError(f"cannot send {_called(definition)} to another process: {error}") from error
            # What the worker's own script has will have to do.
            definition.by_value, definition.needs, definition.globals = False, [], []
            described |= {"name": f"__main__.{definition.name}", "kind": type(definition.thing).__qualname__}
            described["why"] = str(error)
        finally:
            self._noting.pop()
        if definition.number not in self._of_number:
            described["unnumbered"] = True  # if a result refers to it, it comes back by value
        if definition.each_call_anew:
            described["each_call_anew"] = True
        definition.described = described
        self._on_described(definition)

    def _describe_by_name(self, definition: Definition, described: dict[str, Any]) -> bool:
        """False if no worker could tell whether it has the same. Those that can use their own, even if a value is sent
        to others."""
        if definition.name is None or (definition.slot is not None and not definition.in_script):
            return False
        if not definition.in_script:
            described |= {"name": definition.name, "check": 0}
            return True
        forks = [one.pid for one in self._snapshots if one.has(definition.name, definition.thing)]
        check = _script.check(definition.thing) if forks or not self.all_forked else 0
        if forks or check:
            described |= {"name": f"__main__.{definition.name}", "check": check, "forks": forks}
        return bool(forks or check)

    def _value_of(self, definition: Definition) -> _pickling.Pickle:
        thing = definition.thing
        if definition.slot is not None:
            return _pickling.pickled(thing, self)
        if _pickling.cloudpickle() is None and isinstance(thing, types.FunctionType):
            raise TypeError(
                "it is no function that can be imported there. Move it to the top level of a module, or install "
                "cloudpickle (pip install cloudpickle), here and there, to send functions by value"
            )
        return value_pickle(thing, self)

    def _closure_of(self, definition: Definition) -> Closure:
        values: list[tuple[dict[str, Any], str, Any]] = []
        order: list[Definition] = []
        seen: set[int] = set()
        to_visit = [(definition, False)]
        while to_visit:
            one, needs_are_there = to_visit.pop()
            if not needs_are_there:
                if id(one) not in seen:
                    seen.add(id(one))
                    to_visit.append((one, True))
                    to_visit.extend((need, False) for need in reversed(one.needs))
                continue
            if one is not definition or one.in_script:  # else nobody refers to it
                order.append(one)
            # Its globals come before whatever needs it: a class may look them up when a class is derived from it.
            used = []
            for namespace, name in one.globals:
                names = self._namespaces[namespace]
                value = names.get(name, _GONE)
                if isinstance(value, types.ModuleType) and not one.by_value:
                    continue  # it was imported there as well
                values.append((names, name, value))
                if value is _GONE:
                    continue
                needed = self._of_value(namespace, name, value)
                self._describe_all()
                if "kind" in needed.described and not one.by_value:
                    continue  # it cannot be sent; a function that the worker has may do without
                used.append((needed, False))
            to_visit.extend(reversed(used))
        return Closure(order, values, self._generation)


def importable_name(function: Any) -> str | None:
    """ "module.function" of a function or class that another process can import; None if there is no such name."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None or "<" in qualname or module in _script.MAIN_NAMES:
        return None
    if _spawned._look_up(sys.modules.get(module), qualname) is not function:
        return None
    return f"{module}.{qualname}"


def value_pickle(thing: Any, book: _pickling.Book) -> _pickling.Pickle:
    """By value, though its module may be one that can be imported here."""
    library = _pickling.cloudpickle()
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if library is None or module is None or importable_name(thing) is None:
        return {"pickle": _pickling.dumped(thing, book, root=thing), "buffers": []}
    library.register_pickle_by_value(module)
    try:
        return {"pickle": _pickling.dumped(thing, book, root=thing), "buffers": []}
    finally:
        library.unregister_pickle_by_value(module)


def has_no_state(function: Any) -> bool:
    """Whether a function that goes by value is sure to be what it was: it holds nothing that could change."""
    return not (function.__closure__ or function.__dict__ or function.__defaults__ or function.__kwdefaults__)


def may_change(function: Any) -> bool:
    """Whether a call of a function that goes by value may change what it holds: the variables around it, its defaults
    and its attributes. Globals, modules and classes are not the function's own."""
    return _may_change(function, set())


_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, range, types.ModuleType, types.CodeType)


def _may_change(thing: Any, seen: set[int]) -> bool:
    if isinstance(thing, (*_CONSTANTS, type)) or id(thing) in seen:
        return False
    seen.add(id(thing))
    if type(thing) in (tuple, frozenset):
        return any(_may_change(one, seen) for one in thing)
    if type(thing) is types.BuiltinFunctionType:
        return not isinstance(thing.__self__, (types.ModuleType, type(None)))
    if type(thing) is not types.FunctionType:
        return True
    if _script.is_of_script(thing) or importable_name(thing) is not None:
        return False  # it does not go along
    held = [_script._contents(cell) for cell in thing.__closure__ or ()]
    held += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), vars(thing).get("__wrapped__")]
    if _script.assigned_outside(thing.__code__) or vars(thing).keys() - {"__wrapped__"}:
        return True
    return any(_may_change(one, seen) for one in held)


def is_same(one: Definition, other: Definition) -> bool:
    """Whether two definitions of one function say the same."""
    return (one.described, one.globals, one.needs) == (other.described, other.globals, other.needs)


def _reaches(definition: Definition, target: Definition) -> bool:
    """Whether its pickle refers to the other, or to what does."""
    seen: set[int] = set()
    waiting = [definition]
    while waiting:
        one = waiting.pop()
        if one is target:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            waiting.extend(one.needs)
    return False


def _called(definition: Definition) -> str:
    if definition.slot is not None:
        return f"the global {definition.slot[1]!r}"
    return str(getattr(definition.thing, "__qualname__", None) or repr(definition.thing))


# --- For people -------------------------------------------------------------------------------------------------------


def describe_arguments(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> str:
    """sample=3, seed=4: by the names of the function's parameters, if they are known, and abridged."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    given: list[tuple[str, Any]] = [("", one) for one in arguments] + list(keywords.items())
    try:
        parameters = inspect.signature(function).bind(*arguments, **keywords).arguments
        if not any(name in ("args", "kwargs") for name in parameters):
            given = list(parameters.items())
    except (TypeError, ValueError):
        pass
    return ", ".join(f"{name}={short.repr(value)}" if name else short.repr(value) for name, value in given)

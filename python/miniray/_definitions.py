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
import weakref
from collections.abc import Callable
from typing import Any

from miniray import _core, _pickling, _script, _spawned
from miniray._function_state import importable_name, may_change

# Every module has these of its own.
_NOT_SENT = ("__builtins__", "__name__", "__spec__", "__loader__", "__package__", "__file__", "__doc__")


class Definition:
    """One thing, and how workers hear of it."""

    __slots__ = (
        "__weakref__",
        "by_value",
        "closure",
        "described",
        "each_call_anew",
        "globals",
        "handle",
        "in_script",
        "may_look_up",
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
        self.globals: list[tuple[int, str]] = []  # what it looks up when it runs, if a worker is told of that
        self.may_look_up: list[str] = []  # of one that goes by name: the script's globals that its value would need
        self.closure: Closure | None = None


class Closure:
    """All that a worker must have heard of before a definition is used, each after what it needs itself; and the
    globals' values as of then, with those that will be needed if a worker asks for what went by name."""

    def __init__(
        self,
        definition: Definition,
        definitions: list[Definition],
        values: list[tuple[dict[str, Any], str, Any]],
        generation: int,
        may_grow: bool,
    ) -> None:
        self.definition = definition
        self.definitions = definitions
        self.values = values
        self.generation = generation
        self.may_grow = may_grow  # if a worker asks for values
        self.handle: Any = None  # the pool's core's list of them
        self._before: set[Definition] = set()  # a worker may have been told of them, and ask

    def replace(self, definitions: list[Definition]) -> None:
        self._before.update(self.definitions)
        self.definitions = definitions

    def is_current(self, generation: int) -> bool:
        return self.generation == generation and all(
            names.get(name, _GONE) is value for names, name, value in self.values
        )


_GONE = object()
_OPEN_MIN = _core.limits.open_closures_min
_ARGUMENT_CLOSURES_MAX = _core.limits.argument_closures_max


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
        self._generation = 0  # counts what may add to closures: definitions that go by value now, and new globals
        self._fresh: list[Definition] = []  # made since the last time that all were described
        self._open: list[Closure] = []  # of tasks that may wait when a worker asks for values
        self._open_max = _OPEN_MIN
        # Of values that globals had earlier, while a closure has them: they may be large.
        self._earlier: weakref.WeakValueDictionary[tuple[Any, ...], Definition] = weakref.WeakValueDictionary()
        self._earlier_numbers: weakref.WeakValueDictionary[int, Definition] = weakref.WeakValueDictionary()
        self._of_arguments: dict[tuple[Any, ...], Closure] = {}
        self._names: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()

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

    def pack(self, thing: Any) -> tuple[_pickling.Pickle, Closure | None]:
        """A pickle, and what a worker needs to have heard of to read it, if anything."""
        with self.lock:
            noted = Definition(None, 0, None)
            self._noting.append(noted)
            try:
                body = _pickling.pickled(thing, self)
            finally:
                self._noting.pop()
            self._describe_all()
            if not noted.needs and not noted.globals:
                return body, None
            key = (*dict.fromkeys(map(id, noted.needs)), *dict.fromkeys(noted.globals))
            closure = self._of_arguments.get(key)
            if closure is None or not closure.is_current(self._generation):
                closure = self._closure_of(noted)
                if len(self._of_arguments) >= _ARGUMENT_CLOSURES_MAX:
                    self._of_arguments.clear()
                if closure.may_grow:
                    self._of_arguments[key] = closure
            return body, closure

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
            closure = self._closure_of(definition)
            if definition.slot is None:  # else each would keep the other, and a value that may be large
                definition.closure = closure
        return closure

    def handle_of(self, closure: Closure, make: Callable[[list[Any]], Any]) -> Any:
        """Of the list that a pool's core has of it. Until no task has it, grown() tells what belongs into the list."""
        handle = closure.handle
        if handle is not None:
            return handle
        with self.lock:
            if closure.handle is None:
                if closure.may_grow and closure.generation != self._generation:  # another thread was quicker
                    closure.replace(self._as_of_then(closure))
                closure.handle = make([one.handle for one in closure.definitions])
                if closure.may_grow:
                    self._keep_open(closure)
            return closure.handle

    def grown(self) -> list[tuple[Any, list[Any]]]:
        """After to_value: lists that tasks have, and what is in them now."""
        with self.lock:
            found = []
            self._close_unused()
            for closure in self._open:
                closure.replace(self._as_of_then(closure))
                found.append((closure.handle, [one.handle for one in closure.definitions]))
            return found

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

    def by_number(self, number: int) -> Definition | None:
        """None if it is of a task that is gone."""
        return self._of_number.get(number) or self._earlier_numbers.get(number)

    def thing_or_none(self, number: int) -> Any:
        found = self._of_number.get(number)
        return found.thing if found is not None else None

    def clear(self) -> None:
        """Nobody will ask for anything again."""
        with self.lock:
            self._of_thing.clear()
            self._of_global.clear()
            self._of_number.clear()
            self._open.clear()
            self._of_arguments.clear()
            self._snapshots, self._namespaces = [], [{}]

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

    def _of_value(self, namespace: int, name: str, value: Any, is_current: bool = True) -> Definition:
        """Of a global. Another value is another definition."""
        known = self._of_global.get((namespace, name))
        if known is not None and known.thing is value:
            return known
        if not is_current:  # it may be, too
            known = self._earlier.get((namespace, name, id(value)))
            if known is None:
                known = self._earlier[namespace, name, id(value)] = self._new_value(namespace, name, value)
                if isinstance(value, (types.FunctionType, type)):
                    self._of_number[known.number] = known  # it may be part of a result
                else:
                    self._earlier_numbers[known.number] = known
            return known
        if known is not None and known.by_value:  # a worker may still ask for one that went by name
            del self._of_number[known.number]
        if known is None:
            self._generation += 1  # of definitions that may look it up
        made = self._new_value(namespace, name, value)
        self._of_global[namespace, name] = self._of_number[made.number] = made
        return made

    def _new_value(self, namespace: int, name: str, value: Any) -> Definition:
        made = self._new(value)
        made.slot = (namespace, name)
        made.in_script, made.name = namespace == 0, name
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
            if definition.in_script:  # what it refers to may have got another value since the fork
                names = [name for name in self._names_in(definition.thing) if name not in _NOT_SENT]
                if self.all_forked:
                    definition.globals = [(0, name) for name in names]
                else:
                    definition.may_look_up = names
            definition.described = described
            self._on_described(definition)
            return
        definition.by_value = True
        definition.needs, definition.globals, definition.may_look_up = [], [], []
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
                "workers do not find it under its name. Define it before they are started, at the top level of the "
                "script or of a module; or install cloudpickle (pip install cloudpickle), here and there, which sends "
                "functions by value"
            )
        return value_pickle(thing, self)

    def _keep_open(self, closure: Closure) -> None:
        if len(self._open) >= self._open_max:
            self._close_unused()
        self._open.append(closure)

    def _close_unused(self) -> None:
        kept = []
        for closure in self._open:
            # The third reference is that of a thread which is about to submit.
            if closure.handle.has_tasks or sys.getrefcount(closure.handle) > 2:
                kept.append(closure)
            else:
                closure.handle = None
        self._open, self._open_max = kept, max(_OPEN_MIN, 2 * len(kept))

    def _as_of_then(self, closure: Closure) -> list[Definition]:
        """What it consists of now that some definitions go by value, with the values that globals had."""
        as_of = {(id(names), name): value for names, name, value in closure.values}
        try:
            return self._closure_of(closure.definition, as_of).definitions
        except Exception:  # of what cannot be pickled: the task hears of it when it looks it up
            return closure.definitions

    def _names_in(self, thing: Any) -> list[str]:
        if not isinstance(thing, (types.FunctionType, type)):
            return _script.globals_of(thing)
        known = self._names.get(thing)
        if known is None:
            known = self._names[thing] = _script.globals_of(thing)
        return known

    def _note_values(self, names: list[str], noted: dict[str, Any]) -> None:
        """Of the script's globals, and of those that their values look up. Nothing is pickled."""
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in noted or name in _NOT_SENT:
                continue
            value = noted[name] = self._namespaces[0].get(name, _GONE)
            if value is not _GONE:
                waiting.extend(self._names_in(value))

    def _closure_of(self, definition: Definition, as_of: dict[tuple[int, str], Any] | None = None) -> Closure:
        """As of now, or with the values of globals that are given."""
        values: list[tuple[dict[str, Any], str, Any]] = []
        noted: dict[str, Any] = {}
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
            if as_of is None and one.may_look_up:
                self._note_values(one.may_look_up, noted)
            # Its globals come before whatever needs it: a class may look them up when a class is derived from it.
            used = []
            # A worker's own function finds what was sent under a global's name for others: it must be of now, too.
            sent = [(0, name) for name in one.may_look_up if (0, name) in self._of_global]
            for namespace, name in [*one.globals, *sent]:
                names = self._namespaces[namespace]
                value = names.get(name, _GONE)
                if as_of is not None:
                    value = as_of.get((id(names), name), value)
                if isinstance(value, types.ModuleType) and not one.by_value:
                    continue  # it was imported there as well
                values.append((names, name, value))
                if value is _GONE:
                    continue
                needed = self._of_value(namespace, name, value, as_of is None)
                self._describe_all()
                if "kind" in needed.described and not one.by_value:
                    continue  # it cannot be sent; a function that the worker has may do without
                used.append((needed, False))
            to_visit.extend(reversed(used))
        values += [(self._namespaces[0], name, value) for name, value in noted.items()]
        root = definition if definition.in_script and noted else _without_thing(definition)
        return Closure(root, order, values, self._generation, bool(noted))


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


def is_same(one: Definition, other: Definition) -> bool:
    """Whether two definitions of one function say the same."""
    return (one.described, one.globals, one.needs) == (other.described, other.globals, other.needs)


def _without_thing(definition: Definition) -> Definition:
    """For a closure that the definition refers to: a cycle would keep both, and large values, for a while."""
    made = Definition(None, 0, None)
    made.by_value, made.needs, made.globals = definition.by_value, definition.needs, definition.globals
    return made


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

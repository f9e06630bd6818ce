"""Tells workers of the script: of each function, class and global that they need, once, under a number.

A worker that has the same function, class or global finds its own by name and uses that. Other workers get it by value.
Either way each worker has it once, and when a result refers to it, the coordinator gets its own back.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from miniray import _core, _pickling, _script, _spawned, _unsendable
from miniray._definition_graph import UNSET, Closure, Definition, display_name, is_same, reaches, without_thing
from miniray._function_state import importable_name, may_change

__all__ = ["Definition", "Definitions", "is_same"]

# Every module has its own values of these globals, so they are not sent.
_NOT_SENT = ("__builtins__", "__name__", "__spec__", "__loader__", "__package__", "__file__", "__doc__")
BY_NAME_ONLY = (
    "pickle=False sends functions and classes by name only, and workers do not find this one under its name. Define it "
    "at the top level of a module, or of the script before the workers are started; or use pickle=True"
)
_OPEN_MIN = _core.limits.open_closures_min
_ARGUMENT_CLOSURES_MAX = _core.limits.argument_closures_max


class Definitions:
    """The definitions of one pool, or of one worker. It is the PickleContext and UnpickleContext of their pickles.

    ``snapshots`` were taken of the script when workers were forked; ``all_forked`` says that all workers were forked.
    ``make_handle`` makes a definition in a pool's core. ``on_described`` is called when a definition's message changes.
    Without ``takes_pickles``, only plain values are sent, and functions are sent by name alone.
    """

    refusal = "a worker has answered with a pickle, which pickle=False refuses"

    def __init__(
        self,
        snapshots: list[_script.Snapshot],
        all_forked: bool,
        make_handle: Callable[[], Any] | None = None,
        on_described: Callable[[Definition], None] = lambda _: None,
        takes_pickles: bool = True,
    ) -> None:
        self._snapshots = snapshots
        self.all_forked = all_forked
        self.takes_pickles = takes_pickles
        self.lock = threading.RLock()
        self._make_handle = make_handle
        self._on_described = on_described
        self._last_number = 0
        self._of_thing: dict[int, Definition] = {}
        self._of_global: dict[tuple[int, str], Definition] = {}
        self._of_number: dict[int, Definition] = {}
        self._namespaces: list[dict[str, Any]] = [_script.module().__dict__]
        self._being_pickled: list[Definition] = []  # a stack: one pickle may need another definition's first
        self._to_describe: list[Definition] = []
        # Counts the changes that may add to closures: a definition is sent by value now, or a global is new.
        self._generation = 0
        self._fresh: list[Definition] = []  # definitions made since all were described; dropped if one fails
        self._open: list[Closure] = []  # closures of tasks that may still wait when a worker asks for values
        self._open_max = _OPEN_MIN
        # The definitions of earlier values of globals. They are kept only while a closure has them: they may be large.
        self._earlier: weakref.WeakValueDictionary[tuple[Any, ...], Definition] = weakref.WeakValueDictionary()
        self._earlier_numbers: weakref.WeakValueDictionary[int, Definition] = weakref.WeakValueDictionary()
        self._of_arguments: dict[tuple[Any, ...], Closure] = {}
        self._names: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()

    # For the sender of calls.

    def of_function(self, function: Any, each_call_anew: bool = False) -> Definition:
        """Return the definition of a function or class to call: one of the script, one that can be imported, or any
        other. With ``each_call_anew``, each call of any other function gets the variables that the function holds as
        they were sent, even if an earlier call has changed them."""
        with self.lock:
            if _script.is_of_script(function) or id(function) in self._of_thing:
                found = self._of_script(function)
            else:
                found = self._new(function)
                found.name = importable_name(function)
                self._to_describe.append(found)
                if found.name is not None:
                    self._of_number[found.number] = found
                elif isinstance(function, type):  # results may have objects of it
                    self._of_thing[id(function)] = self._of_number[found.number] = found
                else:
                    found.each_call_anew = each_call_anew and may_change(function)
            self._describe_all()
            if found.number not in self._of_number:
                found.thing = None  # its pickle is made, and nothing else needs the function
            return found

    def of_name(self, name: str) -> Definition:
        """Return the definition of a function that the workers have: "module.function", or one that a C++ program
        registered."""
        with self.lock:
            made = self._new(None)
            made.name, made.by_value = name, True  # this process does not have its value, so a worker need not ask
            made.described = {"name": name, "check": 0}
            self._fresh.clear()
            self._on_described(made)
            return made

    def pack(self, thing: Any) -> tuple[_pickling.Pickle, Closure | None]:
        """Return a pickle, and the closure that a worker must have to load it; None if it needs none."""
        with self.lock:
            root = Definition(None, 0, None)  # stands for the pickle, to collect its needs
            self._being_pickled.append(root)
            try:
                body = _pickling.pickled(thing, self)
            finally:
                self._being_pickled.pop()
            self._describe_all()
            if not root.needs and not root.globals:
                return body, None
            key = (*dict.fromkeys(map(id, root.needs)), *dict.fromkeys(root.globals))
            closure = self._of_arguments.get(key)
            if closure is None or not closure.is_current(self._generation):
                closure = self._closure_of(root)
                if len(self._of_arguments) >= _ARGUMENT_CLOSURES_MAX:
                    self._of_arguments.clear()
                if closure.may_grow:
                    self._of_arguments[key] = closure
            return body, closure

    def takes(self, thing: Any) -> bool:
        """Whether the object can be pickled; without ``takes_pickles``, whether a message can hold it exactly."""
        if not self.takes_pickles:
            return _core._is_plain(thing)
        try:
            self.pack(thing)
        except Exception:
            return False
        return True

    def closure_of(self, definition: Definition) -> Closure:
        """Return the closure as of now: globals may have other values than the last time."""
        closure = definition.closure
        if closure is not None and closure.is_current(self._generation):
            return closure
        with self.lock:
            closure = self._closure_of(definition)
            if definition.slot is None:  # a value that may be large must not be part of a cycle
                definition.closure = closure
        return closure

    def handle_of(self, closure: Closure, make: Callable[[list[Any]], Any]) -> Any:
        """Return the handle of the closure's list in a pool's core. While a task uses the list, grown() returns what
        belongs into it."""
        handle = closure.handle
        if handle is not None:
            return handle
        with self.lock:
            if closure.handle is None:
                if closure.may_grow and closure.generation != self._generation:  # another thread has changed it
                    closure.replace(self._updated_definitions(closure))
                closure.handle = make([one.handle for one in closure.definitions])
                if closure.may_grow:
                    self._keep_open(closure)
            return closure.handle

    def grown(self) -> list[tuple[Any, list[Any]]]:
        """After to_value: return the handles of the lists that tasks use, and what belongs into each list now."""
        with self.lock:
            found = []
            self._close_unused()
            for closure in self._open:
                closure.replace(self._updated_definitions(closure))
                found.append((closure.handle, [one.handle for one in closure.definitions]))
            return found

    def to_value(self, definition: Definition) -> None:
        """Send the definition by value from now on, because a worker does not have it under its name."""
        with self.lock:
            definition.by_value = True
            self._generation += 1
            definition.described = {}
            self._to_describe.append(definition)
            try:
                self._describe_all()
                if definition.slot is not None and self._of_global.get(definition.slot) is not definition:
                    self._of_number.pop(definition.number, None)  # no worker asks for an earlier value again
            except TypeError as error:
                definition.described = {"missing": str(error)}  # a task that uses it raises this error
                self._on_described(definition)

    def by_number(self, number: int) -> Definition | None:
        """Return the definition with this number; None if it belonged to a task that is gone."""
        return self._of_number.get(number) or self._earlier_numbers.get(number)

    def thing_or_none(self, number: int) -> Any:
        found = self._of_number.get(number)
        return found.thing if found is not None else None

    def clear(self) -> None:
        """Drop everything, because no worker will ask again."""
        with self.lock:
            self._of_thing.clear()
            self._of_global.clear()
            self._of_number.clear()
            self._open.clear()
            self._of_arguments.clear()
            self._snapshots, self._namespaces = [], [{}]

    # As a PickleContext.

    def number_of(self, thing: Any) -> int | None:
        if id(thing) not in self._of_thing and not _script.is_of_script(thing):
            return None
        definition = self._of_script(thing)
        if reaches(definition, self._being_pickled[-1]):
            return None  # each would need the other first; cloudpickle can pickle such a cycle by value
        self._being_pickled[-1].needs.append(definition)
        return definition.number

    def namespace_of(self, names: dict[str, Any]) -> int | None:
        for number, known in enumerate(self._namespaces):
            if known is names:
                return number
        module = sys.modules.get(names.get("__name__") or "")
        if module is not None and module.__dict__ is names:
            return None  # the globals of a module, which the other process may import
        self._namespaces.append(names)
        return len(self._namespaces) - 1

    def use_globals(self, namespace: int, names: list[str]) -> None:
        self._being_pickled[-1].globals.extend((namespace, name) for name in names if name not in _NOT_SENT)

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

    # As an UnpickleContext.

    def thing(self, number: int) -> Any:
        return self._of_number[number].thing

    def namespace(self, number: int) -> dict[str, Any]:
        return self._namespaces[number]

    # Private.

    def _new(self, thing: Any) -> Definition:
        handle = self._make_handle() if self._make_handle is not None else None
        if handle is None:
            self._last_number += 1
        made = Definition(thing, handle.number if handle is not None else self._last_number, handle)
        self._fresh.append(made)
        return made

    def _of_script(self, thing: Any) -> Definition:
        """The definition of a function or class at the top of the script."""
        known = self._of_thing.get(id(thing))
        if known is not None:
            return known
        made = self._new(thing)
        made.in_script, made.name = True, thing.__qualname__
        self._of_thing[id(thing)] = self._of_number[made.number] = made
        self._to_describe.append(made)
        return made

    def _of_value(self, namespace: int, name: str, value: Any, is_current: bool = True) -> Definition:
        """The definition of a global's value. Another value of the same global has another definition."""
        known = self._of_global.get((namespace, name))
        if known is not None and known.thing is value:
            return known
        if not is_current:  # an earlier value of the global, or one that is current again
            known = self._earlier.get((namespace, name, id(value)))
            if known is None:
                known = self._earlier[namespace, name, id(value)] = self._new_value(namespace, name, value)
                if isinstance(value, (types.FunctionType, type)):
                    self._of_number[known.number] = known  # it may be part of a result
                else:
                    self._earlier_numbers[known.number] = known
            return known
        if known is not None and known.by_value:  # one that was sent by name stays: a worker may ask for it
            del self._of_number[known.number]
        if known is None:
            self._generation += 1  # closures of definitions that may look it up are out of date
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
        except BaseException:  # drop what is half done, so that the next call that needs it raises too
            self._to_describe.clear()
            tables: list[dict[Any, Definition]] = [self._of_thing, self._of_global, self._of_number]
            for table in tables:
                for key in [key for key, known in table.items() if known in self._fresh]:
                    del table[key]
            raise
        finally:
            if not self._being_pickled:
                self._fresh.clear()

    def _describe(self, definition: Definition) -> None:
        described: dict[str, Any] = {}
        if definition.slot is not None:
            described["slot"] = list(definition.slot)
        has_name = self._describe_by_name(definition, described)
        if has_name and not definition.by_value:
            if definition.in_script:  # its globals may have other values than at the fork
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
        self._being_pickled.append(definition)
        try:
            if self.takes_pickles:
                described["pickle"] = self._value_of(definition)
            else:
                described["value"] = self._plain_value_of(definition)
        except Exception as error:
            definition.needs, definition.globals = [], []
            if definition.slot is None or not definition.in_script or not self.takes_pickles:
                raise TypeError(f"cannot send {display_name(definition)} to another process: {error}") from error
            # The value cannot be sent, so the worker uses the value that its own script has.
            definition.by_value, definition.needs, definition.globals = False, [], []
            described |= {"name": f"__main__.{definition.name}", "kind": type(definition.thing).__qualname__}
            described["why"] = str(error)
        finally:
            self._being_pickled.pop()
        if definition.number not in self._of_number:
            described["unnumbered"] = True  # a result that refers to it has it by value
        if definition.each_call_anew:
            described["each_call_anew"] = True
        definition.described = described
        self._on_described(definition)

    def _describe_by_name(self, definition: Definition, described: dict[str, Any]) -> bool:
        """Add the name to the message, with which workers that have the same use their own. Returns False if no worker
        could tell whether it has the same."""
        if definition.name is None or (definition.slot is not None and not definition.in_script):
            return False
        if not definition.in_script:
            described |= {"name": definition.name, "check": 0}
            return True
        forks = [one.pid for one in self._snapshots if one.has(definition.name, definition.thing)]
        # A fork that lacks the very object may have an equal one, if it cannot be sent.
        compares = forks or not self.all_forked or not self.takes_pickles
        check = _script.check(definition.thing) if compares else 0
        if forks or check:
            described |= {"name": f"__main__.{definition.name}", "check": check, "forks": forks}
        return bool(forks or check)

    @staticmethod
    def _plain_value_of(definition: Definition) -> Any:
        thing = definition.thing
        if definition.slot is not None and not isinstance(thing, (type, types.FunctionType)):
            _unsendable.require_plain(thing)
            return thing
        raise _unsendable.NeedsPickle(BY_NAME_ONLY)

    def _value_of(self, definition: Definition) -> _pickling.Pickle:
        thing = definition.thing
        if definition.slot is not None:
            return _pickling.pickled(thing, self)
        if _pickling.cloudpickle() is None and isinstance(thing, types.FunctionType):
            raise TypeError(
                "workers do not find it under its name. Define it at the top level of the script or of a module, "
                "before the workers are started; or install cloudpickle (pip install cloudpickle) on both sides, "
                "which sends functions by value"
            )
        return value_pickle(thing, self)

    def _keep_open(self, closure: Closure) -> None:
        if len(self._open) >= self._open_max:
            self._close_unused()
        self._open.append(closure)

    def _close_unused(self) -> None:
        kept = []
        for closure in self._open:
            # getrefcount has one reference and the closure one; a third is that of a thread that is about to submit.
            if closure.handle.has_tasks or sys.getrefcount(closure.handle) > 2:
                kept.append(closure)
            else:
                closure.handle = None
        self._open, self._open_max = kept, max(_OPEN_MIN, 2 * len(kept))

    def _updated_definitions(self, closure: Closure) -> list[Definition]:
        """What the closure consists of after some definitions have turned to values. Globals keep the values that they
        had when the closure was made."""
        as_of = {(id(names), name): value for names, name, value in closure.values}
        try:
            return self._closure_of(closure.definition, as_of).definitions
        except Exception:  # something cannot be pickled: the task raises when it looks that up
            return closure.definitions

    def _names_in(self, thing: Any) -> list[str]:
        if not isinstance(thing, (types.FunctionType, type)):
            return _script.globals_of(thing)
        known = self._names.get(thing)
        if known is None:
            known = self._names[thing] = _script.globals_of(thing)
        return known

    def _record_values(self, names: list[str], recorded: dict[str, Any]) -> None:
        """Record the values of these globals of the script, and of the globals that their values use. Nothing is
        pickled."""
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in recorded or name in _NOT_SENT:
                continue
            value = recorded[name] = self._namespaces[0].get(name, UNSET)
            if value is not UNSET:
                waiting.extend(self._names_in(value))

    def _closure_of(self, definition: Definition, as_of: dict[tuple[int, str], Any] | None = None) -> Closure:
        """Make a closure with the current values of globals, or with those in ``as_of``."""
        values: list[tuple[dict[str, Any], str, Any]] = []
        recorded: dict[str, Any] = {}
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
            if one is not definition or one.in_script:  # else only the closure itself refers to it
                order.append(one)
            if as_of is None and one.may_look_up:
                self._record_values(one.may_look_up, recorded)
            # Its globals come before the definitions that need it: a class may use them when a class derives from it.
            used = []
            # A global that was sent for other functions replaces the worker's own, so it must be current here too.
            sent = [(0, name) for name in one.may_look_up if (0, name) in self._of_global]
            for namespace, name in [*one.globals, *sent]:
                names = self._namespaces[namespace]
                value = names.get(name, UNSET)
                if as_of is not None:
                    value = as_of.get((id(names), name), value)
                if isinstance(value, types.ModuleType) and not one.by_value:
                    continue  # the worker has imported the module as well
                values.append((names, name, value))
                if value is UNSET:
                    continue
                needed = self._of_value(namespace, name, value, as_of is None)
                self._describe_all()
                if "kind" in needed.described and not one.by_value:
                    continue  # it cannot be sent; the worker's own function uses the worker's own value
                used.append((needed, False))
            to_visit.extend(reversed(used))
        values += [(self._namespaces[0], name, value) for name, value in recorded.items()]
        root = definition if definition.in_script and recorded else without_thing(definition)
        return Closure(root, order, values, self._generation, bool(recorded))


def value_pickle(thing: Any, context: _pickling.PickleContext) -> _pickling.Pickle:
    """Pickle a function or class by value, even if its module can be imported on this machine."""
    library = _pickling.cloudpickle()
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if library is None or module is None or importable_name(thing) is None:
        return {"pickle": _pickling.dumped(thing, context, root=thing), "buffers": []}
    library.register_pickle_by_value(module)
    try:
        return {"pickle": _pickling.dumped(thing, context, root=thing), "buffers": []}
    finally:
        library.unregister_pickle_by_value(module)

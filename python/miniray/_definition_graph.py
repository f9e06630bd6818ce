"""A ``Definition`` is one function, class or global of the script, and the message that tells workers about it. A
``Closure`` is all definitions that a worker must have before it can use one of them."""

from __future__ import annotations

from typing import Any

UNSET = object()  # the value of a global that does not exist


class Definition:
    """One function, class or global value, and how workers are told about it."""

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
        self.handle = handle  # in the pool's core; None if the definition is not a pool's
        self.in_script = False
        self.name: str | None = None  # in the script, or "module.function"; None if it has no name
        self.slot: tuple[int, str] | None = None  # the namespace and name of the global whose value this is
        self.by_value = False
        self.each_call_anew = False  # a worker unpickles it again for each call
        self.described: dict[str, Any] = {}  # the message for workers; empty until it is made
        self.needs: list[Definition] = []  # the definitions that its pickle refers to
        self.globals: list[tuple[int, str]] = []  # the globals that it uses when it runs, if workers get them
        self.may_look_up: list[str] = []  # if it is sent by name: the globals of the script that its value would need
        self.closure: Closure | None = None


class Closure:
    """All definitions that a worker must have before it uses one definition, each after those that it needs itself;
    and the values of the globals at that time, including those that are needed only if a worker asks for a value of
    what was sent by name."""

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
        self.may_grow = may_grow  # it gets more definitions if a worker asks for values
        self.handle: Any = None  # of the list of these definitions in the pool's core
        self._before: set[Definition] = set()  # kept alive: a worker may have been told about them, and ask

    def replace(self, definitions: list[Definition]) -> None:
        self._before.update(self.definitions)
        self.definitions = definitions

    def is_current(self, generation: int) -> bool:
        """Whether no definition was added, and no global has another value now."""
        return self.generation == generation and all(
            names.get(name, UNSET) is value for names, name, value in self.values
        )


def is_same(one: Definition, other: Definition) -> bool:
    """Whether two definitions of one function tell workers the same."""
    return (one.described, one.globals, one.needs) == (other.described, other.globals, other.needs)


def without_thing(definition: Definition) -> Definition:
    """A copy for the closure of this definition. With the definition itself, both would be a cycle, which would keep
    large values alive until the garbage collector runs."""
    made = Definition(None, 0, None)
    made.by_value, made.needs, made.globals = definition.by_value, definition.needs, definition.globals
    return made


def reaches(definition: Definition, target: Definition) -> bool:
    """Whether the definition's pickle refers to the target, directly or through other definitions."""
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


def display_name(definition: Definition) -> str:
    """The definition's name in error texts."""
    if definition.slot is not None:
        return f"the global {definition.slot[1]!r}"
    return str(getattr(definition.thing, "__qualname__", None) or repr(definition.thing))

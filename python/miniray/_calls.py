"""Calls: how functions, arguments, results and errors travel.

The core itself runs the common case: a call of a known function with arguments that a message can hold exactly. This
module has the other cases.
"""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from miniray import (
    _coroutines,
    _definitions,
    _functions,
    _lookup,
    _pickling,
    _script,
    _spawned,
    _unsendable,
    _work,
)
from miniray._call_errors import error_in, error_of
from miniray.errors import ProtocolError

Functions = dict[Any, Any]


class Unknown(Exception):
    """A caller described something by its name, and this process does not have it. ``numbers`` name what is missing."""

    def __init__(self, text: str, numbers: list[int] | None = None, error: BaseException | None = None) -> None:
        super().__init__(text)
        self.numbers = numbers or []
        self.error = error  # the reason, if it was described by value and could not be made from that


# --- Functions and classes --------------------------------------------------------------------------------------------


def by_value(function: Any) -> dict[str, Any]:
    """Return a description of a function with all that it needs of the script, for a process that knows nothing of the
    script yet. If that process has some of it, it uses its own."""
    definitions = _definitions.Definitions([], False)
    wanted = definitions.of_function(function)
    while True:
        parts = [*definitions.closure_of(wanted).definitions, *([] if wanted.in_script else [wanted])]
        named = [one for one in parts if not one.by_value and "check" in one.described]
        if not named:
            return {"parts": [[one.number, one.described] for one in parts], "number": wanted.number}
        for one in named:
            definitions.to_value(one)
            if "missing" in one.described:
                raise TypeError(one.described["missing"])


def _find(function: dict[str, Any], served: Served | None = None) -> Any:
    """Return what a caller described. Raises Unknown if it was described by name alone, and is not here."""
    served = served if served is not None else Served()
    if "parts" in function:
        for number, described in function["parts"]:
            _define(served, number, described)
    if "number" in function:
        return served.thing(function["number"])
    if "missing" in function:
        raise TypeError(function["missing"])
    if "name" in function:
        try:
            return _by_name(served, function)
        except Unknown:
            if "pickle" not in function and "value" not in function:
                raise
    if "value" in function:
        return function["value"]
    return _pickling.unpickled(function["pickle"], served)


def _by_name(served: Served, function: dict[str, Any]) -> Any:
    name: str = function["name"]
    module, _, rest = name.partition(".")
    if module != "__main__" or ("forks" not in function and "kind" not in function):
        try:
            return _import(name)
        except Exception as error:
            raise Unknown(_functions.explain(name, error)) from None
    try:
        found = served.in_script(rest)
    except AttributeError as error:
        if "kind" in function:
            raise TypeError(f"the global {rest} cannot be sent ({function['why']}), and is not here") from None
        raise Unknown(str(error)) from None
    if "kind" in function:
        if type(found).__qualname__ != function["kind"]:
            raise TypeError(f"the global {rest} cannot be sent ({function['why']}), and is another one here")
        return found
    if any(_script.is_fork(pid) for pid in function["forks"]):
        return found
    if not _script.has_same(rest, found, function["check"]):
        raise Unknown(f"{name} is another one here than there")
    return found


def _import(name: str) -> Any:
    module, _, rest = name.partition(".")
    if module == "__main__":
        for candidate in (sys.modules["__main__"], None):
            found = _spawned._look_up(candidate or _functions._main(), rest)
            if found is not None:
                return found
        raise AttributeError(f"{name} is not there{_spawned.stopped_at()}")
    found, rest_parts = _functions._import(name)
    for part in rest_parts:
        found = getattr(found, part)
    return found


# --- The worker's side ------------------------------------------------------------------------------------------------


class Served:
    """What a worker has for its callers: registered functions and objects by name, and parts of the script by number.
    Pickles are written and read with it."""

    refusal = (
        "the caller has sent a pickle, and this worker takes none: it or its server was started with pickle=False "
        "(--no-pickle). Name functions that the worker can import, and pass plain data"
    )

    def __init__(self) -> None:
        self.functions: Functions = {}
        self.turns: dict[str, _coroutines.ConcurrencyLimit] = {}  # of objects that run several coroutines at once
        self.missing: dict[int, BaseException] = {}  # what it was told of and could not make, with the reasons
        self._numbers: dict[int, int] = {}  # the numbers of functions and classes, by their identity
        self._namespaces: dict[int, dict[str, Any]] = {}
        self._bound: dict[tuple[int, str], Any] = {}  # the values of globals before bind() replaced them
        self.takes_pickles = not _functions.refuses_pickles()  # a caller may say later that it takes none either

    def in_script(self, qualname: str) -> Any:
        """Return the script's own value of this name, even if bind() has replaced it."""
        top, _, rest = qualname.partition(".")
        script = _script.module()
        found = self._bound[0, top] if (0, top) in self._bound else getattr(script, top, _NOTHING)
        for part in rest.split(".") if rest else ():
            found = getattr(found, part, _NOTHING)
        if found is _NOTHING:
            raise AttributeError(f"__main__.{qualname} is not there{_spawned.stopped_at()}")
        return found

    def put(self, number: int, thing: Any, comes_back: bool = True) -> None:
        """Keep a part of the script under its number. If it ``comes_back``, results may refer to it by that number."""
        self.forget(number)  # the old one may be freed, and its identity reused
        self.functions[number] = thing
        if comes_back and isinstance(thing, (type, types.FunctionType)):
            self._numbers[id(thing)] = number

    def create(self, name: str, thing: Any) -> None:
        limit = _coroutines.concurrency_of(type(thing))
        self.forget(name)
        self.functions[name] = thing
        if limit > 1:
            self.turns[name] = _coroutines.ConcurrencyLimit(limit)

    def bind(self, slot: list[Any], thing: Any) -> None:
        """Make something the value of a global."""
        key = (int(slot[0]), str(slot[1]))
        names = self.namespace(key[0])
        if key not in self._bound:
            if names.get(key[1], _NOTHING) is thing:
                return
            if key[1] in names:
                self._bound[key] = names[key[1]]
        names[key[1]] = thing

    def forget(self, name: Any) -> None:
        thing = _lookup.forget(self.functions, name)
        if self._numbers.get(id(thing)) == name:
            del self._numbers[id(thing)]
        self.missing.pop(name, None)
        self.turns.pop(name, None)

    # For pickles.

    def number_of(self, thing: Any) -> int | None:
        return self._numbers.get(id(thing))

    def namespace_of(self, names: dict[str, Any]) -> int | None:
        if names is _script.module().__dict__:
            return 0
        return next((number for number, known in self._namespaces.items() if known is names), None)

    def use_globals(self, namespace: int, names: list[str]) -> None:
        pass  # the process that gets the function has them

    def owner_of(self, thing: Any) -> type | None:
        return None

    def is_there(self, thing: Any) -> bool:
        return _script.is_of_script(thing)

    def thing(self, number: int) -> Any:
        if number not in self.functions:
            raise Unknown(f"the worker was not told of thing {number} of the script")
        found = self.functions[number]
        if isinstance(found, _Missing):
            raise found.error
        return found

    def namespace(self, number: int) -> dict[str, Any]:
        if number == 0:
            return _script.module().__dict__
        return self._namespaces.setdefault(number, {"__name__": "__main__"})


_NOTHING = object()


def serve(served: Served, operation: str, body: Any) -> Any:
    """Carry out an operation that the core does not do itself."""
    if operation in ("call", "map") and served.missing:
        made = next((error for error in served.missing.values() if not isinstance(error, Unknown)), None)
        raise Unknown("; ".join(map(str, served.missing.values())), list(served.missing), made)
    if operation == "call":
        return _call(served, *body)
    if operation == "map":
        return _map(served, *body)
    if operation == "define":
        return _define(served, *body)
    if operation == "create":
        name, function, arguments, keywords = body
        served.create(name, _with(served, arguments, keywords, _find(function, served)))
        return None
    if operation == "forget":
        served.forget(body)
        return None
    if operation == "environment":
        os.environ.update(body)
        return None
    if operation == "plain":
        served.takes_pickles = False
        return None
    raise ValueError(f"there is no {operation!r} among the things that a worker can be asked")


def _define(served: Served, name: Any, function: dict[str, Any]) -> None:
    served.missing.pop(name, None)
    try:
        thing = _find(function, served)
    except BaseException as error:  # whatever the script's objects raise when they are made again
        served.functions[name] = _Missing(error)
        if isinstance(name, int):
            served.missing[name] = error
        raise
    if not isinstance(name, int):
        served.functions[name] = thing
        return
    if "each_call_anew" in function:
        thing = _EachCallAnew(thing, function["pickle"], served)
    served.put(name, thing, "unnumbered" not in function)
    if "slot" in function:
        served.bind(function["slot"], thing)


class _EachCallAnew:
    """A function that may change what it holds, such as a counter. Each call gets it as it was sent."""

    def __init__(self, made: Any, packed: _pickling.Pickle, served: Served) -> None:
        self._made = made  # for the first call
        self._packed = packed
        self._served = served

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        made, self._made = self._made, None
        if made is None:
            made = _pickling.unpickled(self._packed, self._served)
        return made(*arguments, **keywords)


class _Missing:
    """Stands for a function that could not be made here. A call of it raises the reason."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


def _call(
    served: Served,
    name: Any,
    arguments: Any,
    keywords: dict[str, Any] | None,
    memory_bytes: int | None = None,
) -> Any:
    function = _function(served.functions, name)
    if memory_bytes is None:
        return _with(served, arguments, keywords, function)
    from miniray import _memory

    with _memory.at_most(memory_bytes):
        return _awaited(_with(served, arguments, keywords, function))


def _with(served: Served, arguments: Any, keywords: dict[str, Any] | None, function: Callable[..., Any]) -> Any:
    if isinstance(arguments, dict):
        arguments, keywords = _pickling.unpickled(arguments, served)
    return function(*arguments, **(keywords or {}))


def _awaited(result: Any) -> Any:
    """Return the final result of an ``async def`` function. The result of any other function is returned as it is."""
    return _coroutines.run(result) if type(result) is types.CoroutineType else result


def begin(served: Served, name: Any, coroutine: Any, reply: Callable[[bool, Any], None]) -> bool:
    """Start the coroutine of an ``async def`` function that was called. Returns True if it goes on while other calls
    are taken; the attribute ``concurrency`` of its object says how many may."""
    return _coroutines.begin(coroutine, reply, served.turns.get(str(name).partition(".")[0]))


def _map(served: Served, name: Any, items: Any, star: bool) -> tuple[list[Any], list[Any]]:
    """Return the results, and the positions and errors of the items that raised."""
    function = _function(served.functions, name)
    if isinstance(items, dict):
        items = _pickling.unpickled(items, served)
    results: list[Any] = []
    errors: list[Any] = []
    coroutine = types.CoroutineType
    for item in items:
        try:
            result = function(*item) if star else function(item)
            results.append(_awaited(result) if type(result) is coroutine else result)
        except BaseException as error:
            errors.append([len(results), describe_error(served, error)[1]])
            results.append(None)
    return results, errors


def _function(functions: Functions, name: Any) -> Any:
    found = functions.get(name)
    if isinstance(found, _Missing):
        raise found.error
    if found is not None:
        return found
    if not isinstance(name, str):
        raise TypeError(f"a function is called by its name, not by {name!r}")
    first, _, method = name.partition(".")
    if method and first in functions:
        return _method(functions[first], first, method)
    if method:
        try:
            return _import(name)
        except Exception as error:
            raise _lookup.unknown(functions, name, error) from None
    raise _lookup.unknown(functions, name)


def _method(thing: Any, name: str, method: str) -> Any:
    found = _spawned._look_up(thing, method)
    if found is None or not callable(found):
        raise _lookup.no_method(thing, name, method)
    return found


def describe_error(served: Served, error: BaseException, of_the_result: bool = False) -> tuple[str, dict[str, Any]]:
    """Describe an exception for the caller: as text, and as a pickle if it can be pickled."""
    if isinstance(error, Unknown):
        plain = {"type": "LookupError", "message": str(error), "traceback": ""}
        cause = describe_error(served, error.error)[1] if error.error is not None else plain
        return "unknown", {**cause, "missing": error.numbers, "failed": error.error is not None}
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # they hold what filled the memory, and the report needs some
    if of_the_result:
        error = TypeError(f"the result cannot be sent back: {error}").with_traceback(None)
    name, message, text = _work._raised(error)
    described: dict[str, Any] = {"type": name, "message": message, "traceback": text}
    if isinstance(error, (SystemExit, GeneratorExit)):  # raised in the caller, they would end more than the call
        described["message"] = _leaving(error)
        return "error", described
    if not served.takes_pickles:
        return "error", described
    try:
        described["pickle"] = _pickling.dumped_error(error, served)
    except BaseException:
        pass  # the caller gets the text alone
    return "error", described


def without_unsendable(served: Served, values: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    """Return the results and errors of a map, with an error in the place of each result that cannot be sent."""
    results, errors = values
    for index, result in enumerate(results):
        try:
            _pickling.pickled(result, served) if served.takes_pickles else _unsendable.require_plain(result)
        except BaseException as error:
            results[index] = None
            errors.append([index, describe_error(served, error, True)[1]])
    return results, sorted(errors, key=lambda failed: failed[0])


def pack_reply(value: Any, served: Served) -> tuple[_pickling.Pickle | None, None]:
    """Return a pickle of what a message cannot hold exactly; None if it can be sent as a message all the same."""
    if not served.takes_pickles:
        _unsendable.require_plain(value)
        return None, None
    return _pickling.pickled(value, served), None


def _leaving(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the call asked the process to exit ({error.code!r}); a worker goes on. Return, or raise something else"
    return str(error) or type(error).__name__


# --- The caller's side ------------------------------------------------------------------------------------------------


Reply = tuple[str, Any]  # the kind and the body of a reply


def value_of(worker: Any, reply: Reply) -> Any:
    """Return what a call returned, or raise what it raised."""
    kind, body = reply
    if kind == "value":
        return body
    shelf = definitions_of(worker)
    if kind == "pickle":
        if not shelf.takes_pickles:
            raise ProtocolError(f"{worker.name} answered a call with a pickle, which pickle=False refuses")
        return _pickling.unpickled(body, shelf)
    raise error_in(worker.name, reply, shelf)


def done(worker: Any, reply: Reply) -> None:
    """Raise unless the worker has done what has no result."""
    if reply[0] in ("pickle", "values", "dropped"):
        raise ProtocolError(f"{worker.name} was told something, and answered with a result of the kind {reply[0]!r}")
    value_of(worker, reply)


class _Plain:
    """The UnpickleContext of answers to MiniRay's own questions: they are plain data, whatever users' calls return."""

    takes_pickles = False
    refusal = "MiniRay's own questions are not answered with pickles"


def own_question(worker: Any, function: str, timeout_s: float) -> Any:
    """Call a function of MiniRay in a worker, which returns plain data. Raises ProtocolError for any other answer, and
    if there is none in time."""
    future = worker.call_async(function)
    try:
        future._wait(timeout_s)
    except TimeoutError:
        raise ProtocolError(f"{worker.name} has not answered MiniRay's own question within {timeout_s} s") from None
    if future._exception is not None:
        raise future._exception
    kind, body = future._reply
    if kind == "value":
        return body
    try:
        told = f"{kind}: {error_of(worker.name, body, _Plain())}"  # type: ignore[arg-type]
    except Exception:
        told = f"what makes no sense ({kind})"
    raise ProtocolError(f"{worker.name} answered MiniRay's own question with {told}")


# What one worker was told of the script. A pool's driver does this for its workers.


def definitions_of(worker: Any) -> _definitions.Definitions:
    found: _definitions.Definitions | None = worker.__dict__.get("_definitions")
    if found is None:
        snapshot = worker.__dict__.get("_snapshot")
        snapshots = [snapshot] if snapshot else []
        found = _definitions.Definitions(snapshots, snapshot is not None, takes_pickles=worker._takes_pickles)
        worker._definitions = found
        worker._told = {}
    return found


def start_anew(worker: Any) -> None:
    """Forget what the worker was told of the script: a new process has replaced it, and knows nothing."""
    worker.__dict__.pop("_definitions", None)


def pack_for(worker: Any, thing: Any) -> tuple[_pickling.Pickle | None, list[Any]]:
    """Return a pickle for a worker. The worker is told first of what it needs to read it. None in place of the pickle:
    a message can hold the object."""
    definitions = definitions_of(worker)
    try:
        if not definitions.takes_pickles:
            _unsendable.require_plain_parts(thing)
            return None, []
        packed, needs = definitions.pack(thing)
    except Exception as error:
        arguments, keywords = thing if isinstance(thing, tuple) and len(thing) == 2 else ((), {})
        raise _unsendable.explain_call(error, "the call", arguments, keywords or {}, definitions.takes) from None
    for definition in needs.definitions if needs is not None else ():
        tell(worker, definition)
    return packed, []


def tell(worker: Any, definition: _definitions.Definition) -> None:
    """Tell a worker of a definition, unless it knows it. Raises the reason if the worker cannot make it."""
    definitions, told = definitions_of(worker), worker._told
    key = definition.slot or definition.number
    if told.get(key) == definition.number:
        return
    reply = _define_there(worker, definition)
    if reply[0] == "unknown" and not definition.by_value:
        definitions.to_value(definition)
        for need in definitions.closure_of(definition).definitions:
            tell(worker, need)
        if told.get(key) == definition.number:
            return  # it was one of them
        reply = _define_there(worker, definition)
    if reply[0] in ("error", "unknown"):
        worker._ask("forget", definition.number, False)  # a worker answers no call while something is missing
    done(worker, reply)
    told[key] = definition.number


def _define_there(worker: Any, definition: _definitions.Definition) -> Reply:
    reply: Reply = worker._ask("define", [definition.number, definition.described])
    return reply

"""Error texts for calls of the core with wrong arguments: which argument is wrong, what it is, and what it was."""

from __future__ import annotations

import ast
import re
from typing import Any

from miniray import _check, _core

Parameter = ast.arg


def refusal(function: Any, positional: list[Any], named: dict[str, Any]) -> TypeError:
    """Return the error for a call whose arguments fit none of the function's signatures."""
    texts = [_explain(signature[0], positional, named) for signature in function.__nb_signature__]
    return TypeError(texts[0])


def refuse_name(call: str, arguments: tuple[Any, ...]) -> None:
    """Raise the error for a call_remote or call_async whose first argument is not a name."""
    if not arguments:
        raise TypeError(f"{call} takes the name of a function, and its arguments: {call}('module.function', 1, 2)")
    function = arguments[0]
    name = getattr(function, "__name__", None)
    if not callable(function) or name is None:
        raise TypeError(f"{call} takes the name of a function, a str, not {_check.shown(function)}")
    raise TypeError(
        f"{call} takes the name of a function, not {_check.shown(function)} itself. Call worker.register({name}), and "
        f"then {call}('{name}', ...); or give it to a pool: pool.submit({name}, ...)"
    )


def _explain(signature: str, positional: list[Any], named: dict[str, Any]) -> str:
    definition: Any = ast.parse(re.sub(r"\\\d+", "None", signature) + ": ...").body[0]
    name: str = definition.name.strip("_") if definition.name != "__init__" else _class_of(positional)
    parameters: ast.arguments = definition.args
    in_order = [*parameters.posonlyargs, *parameters.args]
    by_name = {each.arg: each for each in [*parameters.args, *parameters.kwonlyargs]}
    is_method = bool(in_order) and in_order[0].arg == "self"
    if len(positional) > len(in_order):
        return _too_many(name, parameters, len(in_order) - is_method, positional[is_method:])
    for word in named:
        if word not in by_name:
            return f"{name}() has no argument {word!r}{_check.nearest(word, by_name)}"
    given = dict(zip((each.arg for each in in_order), positional, strict=False)) | named
    required = in_order[: len(in_order) - len(parameters.defaults)]
    missing = [each.arg for each in required if each.arg not in given]
    if missing:
        return f"{name}() needs {' and '.join(missing)}"
    for each in [*in_order, *parameters.kwonlyargs]:
        if each.arg in given and each.arg != "self" and not _fits(each.annotation, given[each.arg]):
            return _wrong(each, given[each.arg])
    for each in [*in_order, *parameters.kwonlyargs]:  # an int that is too large for the core's type
        value = given.get(each.arg)
        if "int" in _kinds(each.annotation) and isinstance(value, int) and not 0 <= value < 2**31:
            return f"{each.arg} is out of range: {value}"
    shown = [_check.shown(value) for value in [*positional[is_method:], *named.values()]]
    return f"{name}() cannot take {', '.join(shown)}"


def _class_of(positional: list[Any]) -> str:
    return type(positional[0]).__name__.strip("_") if positional else "it"


def _too_many(name: str, parameters: ast.arguments, most: int, given: list[Any]) -> str:
    words = [each.arg for each in parameters.kwonlyargs]
    if "timeout" in words and most == 0 and len(given) == 1:
        return f"{name} takes its limits by name: {name}(timeout={given[0]!r})"
    if words:
        return f"{name} takes {' and '.join(words)} by name"
    return f"{name}() takes {most or 'no'} argument{'s' * (most != 1)}, and was given {len(given)}"


_KINDS = {"int": "an int", "float": "a number", "str": "a str", "bool": "True or False", "bytes": "bytes"}


def _wrong(parameter: Parameter, value: Any) -> str:
    kinds = _kinds(parameter.annotation)
    name = parameter.arg
    expected = [_KINDS.get(kind, kind.rpartition(".")[2]) for kind in kinds if kind != "None"]
    if "float" in kinds and (name.endswith("_s") or name in ("timeout", "timeout_s")):
        expected = ["a number of seconds"]
    what = " or ".join(expected) + (", or None" if "None" in kinds else "")
    return f"{name} is {what}, not {_check.shown(value)}"


def _kinds(annotation: Any) -> list[str]:
    """The members of a union type, each without its type parameters."""
    if isinstance(annotation, ast.BinOp):
        return _kinds(annotation.left) + _kinds(annotation.right)
    if isinstance(annotation, ast.Subscript):
        return _kinds(annotation.value)
    return [ast.unparse(annotation)] if annotation is not None else ["typing.Any"]


def _fits(annotation: Any, value: Any) -> bool:
    return any(_is(kind, value) for kind in _kinds(annotation))


def _is(kind: str, value: Any) -> bool:
    if kind == "None":
        return value is None
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    plain = {"str": str, "bool": bool, "bytes": bytes, "list": list, "dict": dict, "tuple": tuple}.get(kind)
    wanted = plain or getattr(_core, kind, None)
    if isinstance(wanted, type):
        return isinstance(value, wanted)
    if kind == "collections.abc.Callable":
        return callable(value)
    return not kind.startswith("collections.abc.") or hasattr(value, "__iter__")

"""Exceptions arrive as what they were: class, arguments, attributes, notes, cause and context."""

from __future__ import annotations

import asyncio
import copy
import errno
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from call_workers import remote_text
from missing import NOT_HERE

import miniray
from miniray import Pool, Worker


class TwoArguments(ValueError):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} failed with {code}")
        self.name, self.code = name, code


class KeywordOnly(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FromHttp(OSError):
    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(response["status"], response["text"])
        self.response = response


class Slotted(Exception):
    __slots__ = ("detail",)

    def __init__(self, detail: str, _: object) -> None:
        self.detail = detail


class OwnNew(Exception):
    def __new__(cls, first: int, second: int) -> OwnNew:
        return super().__new__(cls, first)

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)
        self.second = second


class BadReduce(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)
        self.a, self.b = a, b

    def __reduce__(self) -> Any:
        return BadReduce, (self.a,)


class GoodReduce(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)
        self.a, self.b = a, b

    def __reduce__(self) -> Any:
        return GoodReduce, (self.a, self.b)


class Holds(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())
        self.lock = threading.Lock()
        self.text = text


def a_decode_error() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


MAKERS: list[Callable[[], BaseException]] = [
    lambda: TwoArguments("download", 404),
    lambda: KeywordOnly(reason="none"),
    lambda: FromHttp({"status": 404, "text": "Not Found"}),
    lambda: Slotted("d", 1),
    lambda: OwnNew(1, 2),
    lambda: BadReduce(1, 2),
    lambda: GoodReduce(1, 2),
    lambda: OSError(errno.ENOENT, "No such file", "a.txt"),
    lambda: FileNotFoundError(2, "x", "y", None, "z"),
    a_decode_error,
    lambda: json.JSONDecodeError("Expecting value", "doc", 1),
    lambda: ImportError("no", name="n", path="p"),
    lambda: StopIteration(7),
    lambda: KeyError("k"),
    lambda: SyntaxError("bad", ("f.py", 1, 2, "text")),
    lambda: KeyboardInterrupt("interrupted"),
    lambda: miniray.TaskOutOfMemory("much"),
    lambda: asyncio.CancelledError("c"),
]


@pytest.fixture
def ask() -> Iterator[Callable[..., Any]]:
    with Pool(1) as pool, Worker() as worker:

        def ask(kind: str, function: Callable[..., Any]) -> Any:
            if kind == "pool":
                return pool.submit(function).result()
            if kind == "map":
                return next(pool.map(lambda _: function(), [1]))
            worker.register("f", function)
            return worker.call_remote("f")

        yield ask


def raised(ask: Callable[..., Any], kind: str, function: Callable[..., Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        ask(kind, function)
    return caught.value


def attributes(error: BaseException) -> dict[str, Any]:
    names = [name for name in dir(error) if not name.startswith("_") and name not in ("add_note", "with_traceback")]
    found = {name: getattr(error, name, None) for name in names}
    return {name: value for name, value in found.items() if not callable(value)}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("kind", ["pool", "call"])
def test_it_is_what_it_was(ask: Callable[..., Any], kind: str, make: Callable[[], BaseException]) -> None:
    def fail() -> None:
        raise make()

    error, expected = raised(ask, kind, fail), make()
    assert type(error) is type(expected)
    assert error.args == expected.args
    assert str(error) == str(expected)
    assert attributes(error) == attributes(expected)
    assert "in fail" in remote_text(error)


def test_attributes_that_cannot_be_sent_are_left_out(ask: Callable[..., Any]) -> None:
    def fail() -> None:
        raise Holds("kept")

    error = raised(ask, "pool", fail)
    assert isinstance(error, Holds)
    assert error.text == error.args[0] == "kept"
    assert "lock" in error.args[1]
    assert not hasattr(error, "lock")


@pytest.mark.parametrize("kind", ["pool", "map", "call"])
def test_notes_causes_and_contexts(ask: Callable[..., Any], kind: str) -> None:
    def fail() -> None:
        try:
            try:
                raise TwoArguments("first", 1)
            except ValueError:
                raise KeyError("second")  # noqa: B904
        except KeyError as error:
            last = KeywordOnly(reason="third")
            if sys.version_info >= (3, 11):
                last.add_note("a note")
            raise last from error

    error = raised(ask, kind, fail)
    assert isinstance(error, KeywordOnly)
    assert getattr(error, "__notes__", ["a note"]) == ["a note"]
    second = error.__cause__
    assert isinstance(second, KeyError)
    assert second.args == ("second",)
    first = second.__context__
    assert isinstance(first, TwoArguments)
    assert first.code == 1
    assert isinstance(first.__cause__, miniray.RemoteTraceback)


def test_a_context_that_was_suppressed_is_not_shown(ask: Callable[..., Any]) -> None:
    def fail() -> None:
        try:
            raise KeyError("hidden")
        except KeyError:
            raise ValueError("shown") from None

    error = raised(ask, "pool", fail)
    assert error.__suppress_context__
    assert isinstance(error.__cause__, miniray.RemoteTraceback)
    assert isinstance(error.__context__, KeyError)


def test_an_exception_that_is_its_own_context(ask: Callable[..., Any]) -> None:
    def fail() -> None:
        first, second = KeyError("a"), ValueError("b")
        first.__context__, second.__context__ = second, first
        raise second

    error = raised(ask, "pool", fail)
    assert isinstance(error.__context__, KeyError)
    assert error.__context__.__context__ is error


@pytest.mark.skipif(sys.version_info < (3, 11), reason=NOT_HERE + "a Python that has exception groups")
def test_groups(ask: Callable[..., Any]) -> None:
    def fail() -> None:
        inner = ExceptionGroup("inner", [KeywordOnly(reason="deep")])  # noqa: F821
        raise ExceptionGroup("all", [TwoArguments("a", 1), inner, OSError(2, "x")])  # noqa: F821

    error: Any = raised(ask, "pool", fail)
    assert type(error).__name__ == "ExceptionGroup"
    assert error.message == "all"
    first, inner, last = error.exceptions
    assert (type(first), first.code) == (TwoArguments, 1)
    assert inner.exceptions[0].reason == "deep"
    assert last.errno == 2
    matched, rest = error.split(TwoArguments)
    assert len(matched.exceptions) == 1
    assert len(rest.exceptions) == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason=NOT_HERE + "a Python that has exception groups")
def test_a_group_whose_constructor_takes_more(ask: Callable[..., Any]) -> None:
    def fail() -> None:
        class Counted(ExceptionGroup):  # noqa: F821
            def __new__(cls, errors: list[Exception], count: int) -> Any:
                made = super().__new__(cls, "counted", errors)
                made.count = count
                return made

        raise Counted([KeyError("a")], 3)

    error: Any = raised(ask, "pool", fail)
    assert (type(error).__name__, error.message, error.count) == ("Counted", "counted", 3)
    assert [type(one) for one in error.exceptions] == [KeyError]


class Unprintable(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Speechless(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Unprintable, Speechless])
def test_one_that_cannot_be_printed_ends_nothing_but_its_call(ask: Callable[..., Any], kind: Any) -> None:
    def fail() -> None:
        raise kind("x")

    assert type(raised(ask, "call", fail)) is kind
    assert ask("call", lambda: 1) == 1


def test_a_local_class_is_known_by_its_bases(ask: Callable[..., Any]) -> None:
    def fail() -> None:
        class OnlyThere(TwoArguments):
            pass

        raise OnlyThere("there", 5)

    error = raised(ask, "pool", fail)
    assert isinstance(error, TwoArguments)
    assert type(error).__name__ == "OnlyThere"
    assert error.code == 5


def test_tried_again_after_any_of_them(ask: Callable[..., Any], tmp_path: Any) -> None:
    class Local(TwoArguments):
        pass

    def fail_first(path: str, kind: Any) -> int:
        with open(path, "a+") as file:
            file.write("x")
            file.seek(0)
            tries = len(file.read())
        if tries < 3:
            raise kind("again", tries)
        return tries

    with Pool(1) as pool:
        for number, kind in enumerate((TwoArguments, OwnNew, BadReduce, Local)):
            again = pool.options(retries=5, retry_on=(kind,))
            assert again.submit(fail_first, str(tmp_path / f"{number}"), kind).result() == 3
            assert list(again.map(fail_first, [str(tmp_path / f"m{number}")], [kind])) == [3]


def test_stop_iteration_does_not_end_a_map() -> None:
    def fail(x: int) -> int:
        if x == 2:
            raise StopIteration("no more")
        return x

    with Pool(1) as pool:
        for results in (pool.map(fail, range(4), chunksize=2), pool.imap_unordered(fail, range(4), chunksize=1)):
            with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
                list(results)
            assert isinstance(caught.value.__cause__, StopIteration)
        with pytest.raises(StopIteration):
            pool.submit(fail, 2).result()


def test_a_copied_exception_can_still_be_sent(ask: Callable[..., Any]) -> None:
    assert copy.copy(GoodReduce(1, 2)).b == 2
    assert ask("pool", lambda: str(ValueError("returned"))) == "returned"


class Frozen(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        object.__setattr__(self, "code", code)

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("this exception cannot be changed")


def test_an_exception_that_forbids_changes(ask: Callable[..., Any]) -> None:
    def fail() -> None:
        raise Frozen(7)

    with Pool(1) as pool, pytest.raises(Frozen) as caught:
        pool.submit(fail).result(60)
    assert vars(caught.value)["code"] == 7

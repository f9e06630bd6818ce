"""What the tests of calls and pools run elsewhere; every process on this machine can import it.

Those that wait do so for a file, which the test writes when it is time: no outcome hangs on how fast a machine is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_S = 0.005
WAIT_MAX_S = 60.0  # then the test has failed anyway, and nothing is to be left


# --- Work functions of workers that serve calls beside their messages -------------------------------------------------
SEEN: list[Any] = []


def note(handle: Any) -> None:
    """Remembers what it was sent."""
    while True:
        SEEN.append(handle.recv())


def note_and_echo(handle: Any) -> None:
    while True:
        message = handle.recv()
        SEEN.append(message)
        handle.send(message)


def seen() -> list[Any]:
    return list(SEEN)


def see(what: Any) -> Any:
    SEEN.append(what)
    return what


# --- Plain functions --------------------------------------------------------------------------------------------------
def square(x: Any) -> Any:
    return x * x


def add(x: Any, y: Any) -> Any:
    return x + y


def give(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return args, kwargs


def same(x: Any) -> Any:
    return x


def in_a_set_if_odd(x: int) -> Any:
    return {x} if x % 2 else x


def call(function: Any) -> Any:
    return function()


def fail(text: str) -> None:
    raise ValueError(text)


def fail_from_a_cause(text: str) -> None:
    try:
        raise KeyError("the cause of it")
    except KeyError as error:
        raise ValueError(text) from error


def fail_on_multiples_of_three(x: int) -> int:
    if x % 3 == 0 and x > 0:
        raise ValueError(f"{x} is a multiple of three")
    return x


def pid(_: Any = None) -> int:
    return os.getpid()


def folder_and_host() -> list[str]:
    return [os.getcwd(), os.uname().nodename]


def loaded_modules() -> list[str]:
    return sorted(sys.modules)


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


# --- Files as signals -------------------------------------------------------------------------------------------------
def touch(path: str) -> str:
    Path(path).touch()
    return path


def touch_or_leave(path: str) -> str:
    """Takes its time with what is new."""
    if not os.path.exists(path):
        Path(path).touch()
        time.sleep(0.02)
    return path


def append_line(path: str, line: str) -> str:
    """In one write, so that several processes do not mix theirs."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
    return line


def wait_for(path: str, result: Any = None) -> Any:
    """Returns when there is such a file."""
    deadline = time.monotonic() + WAIT_MAX_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody wrote {path}")
        time.sleep(POLL_S)
    return result


def begin_and_wait_for(begun: str, path: str, result: Any = None) -> Any:
    """Says in a file that it has begun, and by whom it is run."""
    Path(begun + ".part").write_text(str(os.getpid()))
    os.rename(begun + ".part", begun)
    return wait_for(path, result)


# --- What is hard to send ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Point:
    x: int
    y: float
    name: str = ""


class Named(tuple[int, int]):
    """A tuple that is more than a tuple."""


class Refuses:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this object refuses to be pickled")


class FailsThere:
    """Can be pickled, and cannot be unpickled in another process."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __reduce__(self) -> Any:
        return _rebuild_at_home, (self.home,)


def _rebuild_at_home(home: int) -> FailsThere:
    if os.getpid() != home:
        raise ArithmeticError("this object cannot be unpickled in another process")
    return FailsThere()


def refuses() -> Refuses:
    return Refuses()


def fails_there() -> FailsThere:
    return FailsThere()


def generator() -> Iterator[int]:
    yield 1


class OwnError(Exception):
    """With an argument more than its text."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.text, self.code = text, code


class HoldsSomething(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = Refuses()


class WrongArguments(Exception):
    """Is pickled without complaint, and then cannot be made again: the classic mistake."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_own(text: str, code: int) -> None:
    raise OwnError(text, code)


def raise_holding(text: str) -> None:
    raise HoldsSomething(text)


def raise_wrong_arguments(text: str) -> None:
    raise WrongArguments(text, 7)


def raise_no_text() -> None:
    raise NoText


def raise_huge_text(size: int) -> None:
    raise ValueError("x" * size)


# --- Objects ----------------------------------------------------------------------------------------------------------
class Counter:
    """Lives on a worker."""

    limit = 1000

    def __init__(self, start: int, *, step: int = 1) -> None:
        if start < 0:
            raise ValueError(f"a counter starts at 0 or more, not {start}")
        self.value, self.step = start, step

    def increment(self, times: int = 1) -> int:
        self.value += times * self.step
        return self.value

    def fail(self) -> None:
        raise LookupError(f"no luck at {self.value}")

    def whereabouts(self) -> int:
        return os.getpid()


# --- Initializers -----------------------------------------------------------------------------------------------------
STATE: dict[str, Any] = {}


def initialize(value: Any = "initialized") -> None:
    STATE["value"] = value
    STATE["times"] = STATE.get("times", 0) + 1


def state(_: Any = None) -> dict[str, Any]:
    return {**STATE, "pid": os.getpid()}


def fail_to_initialize(text: str = "no such device") -> None:
    raise OSError(text)


# --- Tasks that fail for a while, or take something -------------------------------------------------------------------
def count_of(path: str) -> int:
    """How many lines the file has."""
    try:
        return Path(path).read_text().count("\n")
    except FileNotFoundError:
        return 0


def die_at_first(path: str, times: int, result: Any = None) -> Any:
    """Kills its process, the first so many times; every try leaves a line."""
    append_line(path, str(os.getpid()))
    if count_of(path) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def fail_at_first(path: str, times: int, kind: type[BaseException] = OSError) -> int:
    append_line(path, str(os.getpid()))
    if count_of(path) <= times:
        raise kind(f"try {count_of(path)} of {path}")
    return count_of(path)


def take_memory(size: int) -> int:
    """Touches all of it."""
    return len(bytearray(b"x") * size)


def noted_bytes(path: str, number: int, size: int) -> tuple[int, bytes]:
    """Leaves a line, and returns so many bytes."""
    append_line(path, str(number))
    return number, bytes(size)


def lock_at(number: int, fatal: int) -> Any:
    """Something that cannot be sent, once."""
    return threading.Lock() if number == fatal else number


def append_line_and_sleep(path: str) -> None:
    append_line(path, "x")
    time.sleep(60)

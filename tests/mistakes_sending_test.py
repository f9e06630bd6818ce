"""What cannot be sent is named with its place, what to send instead, and whether calls and pools take it."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import io
import math
import pathlib
import threading
import types
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from miniray import Pool, Worker


class Color(enum.Enum):
    RED = 1


class Sample:
    def __init__(self) -> None:
        self.score = 3


@dataclass
class Point:
    x: int


class Frame:
    """As pandas has it."""

    def __init__(self) -> None:
        self.columns = {"a": [1, 2]}


Frame.__module__, Frame.__qualname__ = "pandas.core.frame", "DataFrame"


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def identity(thing: Any) -> Any:
    return thing


BY_CALL = "; calls and pools can send it as it is"
FUNCTION = "send its name; or call it in the worker: worker.register(it) and worker.call_remote, or pool.submit(it)"
THINGS: list[tuple[Any, str, str]] = [
    (datetime.datetime(2024, 1, 2), "a datetime", f"send it.isoformat() or it.timestamp(){BY_CALL}"),
    (datetime.date(2024, 1, 2), "a date", f"send it.isoformat(){BY_CALL}"),
    (datetime.timedelta(1), "a timedelta", f"send it.total_seconds(){BY_CALL}"),
    (Color.RED, "a Color", f"send it.value or it.name{BY_CALL}"),
    (pathlib.Path("/x"), "a PosixPath", f"send str(it){BY_CALL}"),
    (decimal.Decimal("1.5"), "a Decimal", f"send str(it), or float(it){BY_CALL}"),
    (fractions.Fraction(1, 3), "a Fraction", f"send str(it), or float(it){BY_CALL}"),
    (uuid.UUID(int=3), "a UUID", f"send str(it){BY_CALL}"),
    (range(3), "a range", f"send list(it), or its start, stop and step{BY_CALL}"),
    (3j, "a complex", f"send [it.real, it.imag], or a numpy array{BY_CALL}"),
    ({1, 2}, "a set", f"send a list{BY_CALL}"),
    (collections.deque([1]), "a deque", f"send list(it){BY_CALL}"),
    (array.array("i", [1]), "an array", f"send it.tolist() or it.tobytes(){BY_CALL}"),
    (Sample(), "a Sample", f"send what it consists of, such as vars(it){BY_CALL}"),
    (Point(3), "a Point", f"it is a dataclass; send dataclasses.asdict(it){BY_CALL}"),
    (ValueError("x"), "a ValueError", f"send str(it), or raise it{BY_CALL}"),
    (types.SimpleNamespace(a=1), "a SimpleNamespace", f"send what it consists of, such as vars(it){BY_CALL}"),
    (io.BytesIO(b"x"), "a BytesIO", f"send it.getvalue(){BY_CALL}"),
    (np.dtype("f4"), "a Float32DType", f"send it.name{BY_CALL}"),
    (Frame(), "a Frame", 'send it.to_dict("list"), or it.to_numpy()'),
    ((each for each in [1]), "a generator", "send list(it)"),
    (map(identity, [1]), "a map", f"send list(it){BY_CALL}"),
    ({}.keys(), "a dict_keys", "send list(it)"),
    (identity, "the function identity", FUNCTION),
    (lambda: 3, "the function <lambda>", FUNCTION),
    (math.sqrt, "the function sqrt", FUNCTION),
    (Sample, "the class Sample", "send it.__name__"),
    (math, "a module", "send it.__name__, and import it in the other process"),
    (io.TextIOWrapper(io.BytesIO()), "a TextIOWrapper", "send its path, or its content: it.read()"),
    (threading.Lock(), "a lock", "only the threads of one process can share a lock"),
]


@pytest.mark.parametrize(("thing", "what", "remedy"), THINGS, ids=[what for _, what, _ in THINGS])
@pytest.mark.parametrize("place", ["", '["batch"][1]'], ids=["alone", "nested"])
def test_what_cannot_be_sent_says_what_to_send(thing: Any, what: str, remedy: str, place: str) -> None:
    with Worker(echo) as worker:
        with pytest.raises(TypeError) as raised:
            worker.send({"batch": [0, thing]} if place else thing)
        assert str(raised.value) == f"cannot send {what} at msg{place}: {remedy}"
        worker.send("still good")
        assert worker.recv() == "still good"


def test_a_worker_is_not_sent() -> None:
    with Worker(echo) as worker, pytest.raises(TypeError) as raised:
        worker.send([worker])
    assert str(raised.value) == (
        "cannot send a Worker at msg[0]: only the process that started a worker can use it; send the data that it needs"
    )


def test_what_calls_are_said_to_take_they_take() -> None:
    with Worker() as worker, Pool(1) as pool:
        worker.register("identity", identity)
        for thing, what, remedy in THINGS:
            if remedy.endswith(BY_CALL):
                there = worker.call_remote("identity", thing), pool.submit(identity, thing).result()
                assert [type(each) for each in there] == [type(thing)] * 2, what


def test_large_objects_are_not_packed_to_say_so() -> None:
    """A few megabytes are enough to see that there is a pickle."""
    with Worker(echo) as worker, pytest.raises(TypeError, match="calls and pools can send it as it is"):
        worker.send({"a": {str(number) for number in range(1_000_000)}})

"""Calls of named functions on a worker, and of objects that live there: on this machine and through a worker server."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from task_functions import Named, Point
from waiting import PATIENCE_S

from miniray import Worker

# What an unknown name may be
UNKNOWN = (LookupError, AttributeError, ImportError)


# --- Functions --------------------------------------------------------------------------------------------------------
def test_a_worker_without_a_function_serves_calls() -> None:
    with Worker() as worker:
        worker.register("square", task_functions.square)
        assert worker.call_remote("square", 7) == 49
        assert worker.call_remote("task_functions.pid") == worker.pid != os.getpid()


def test_registered_under_a_name_or_its_own(call_worker: Any) -> None:
    call_worker.register("power", task_functions.square)
    call_worker.register(task_functions.add)
    assert call_worker.call_remote("power", 3) == 9
    assert call_worker.call_remote("add", 1, 2) == 3
    assert call_worker.call_remote("add", x="a", y="b") == "ab"
    assert call_worker.call_remote("add", 1, y=2) == 3


def test_a_name_with_a_module_is_imported_there(call_worker: Any) -> None:
    assert call_worker.call_remote("task_functions.square", 5) == 25
    assert call_worker.call_remote("os.path.join", "a", "b") == "a/b"
    assert call_worker.call_remote("os.getpid") == call_worker.pid


def test_a_lambda_and_a_closure(call_worker: Any) -> None:
    factor = 3
    held = {"offset": 10}

    def scale(x: int) -> int:
        return factor * x + held["offset"]

    call_worker.register("scale", scale)
    call_worker.register("negate", lambda x: -x)
    assert call_worker.call_remote("scale", 2) == 16
    assert call_worker.call_remote("negate", 2) == -2
    held["offset"] = 0
    assert call_worker.call_remote("scale", 2) == 16  # what was sent is a copy


def test_a_function_of_a_module_that_is_not_there(
    call_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        "FACTOR = 4\ndef helper(x):\n    return FACTOR * x\ndef scale(x):\n    return helper(x) + 1\n"
        "class Box:\n    def __init__(self, x):\n        self.x = x\n"
        "    def get(self):\n        return helper(self.x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))  # after the worker was started
    only_here = importlib.import_module("only_here")
    try:
        call_worker.register(only_here.scale)
        assert call_worker.call_remote("scale", 10) == 41
        box = call_worker.create("box", only_here.Box, 5)
        assert box.get() == 20
        assert "only_here" not in call_worker.call_remote("task_functions.loaded_modules")
    finally:
        del sys.modules["only_here"]


def test_an_importable_function_goes_by_name(call_worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what it calls is what the worker has, not what is here."""
    monkeypatch.setattr(task_functions, "POLL_S", 123.0)
    call_worker.register("poll", task_functions.square)
    assert call_worker.call_remote("poll", 2) == 4
    call_worker.register(task_functions.see)
    call_worker.call_remote("see", "noticed")
    assert call_worker.call_remote("task_functions.seen") == ["noticed"]  # the module's own list: one module, one state
    assert task_functions.SEEN == []


def test_a_function_of_this_very_module(call_worker: Any) -> None:
    """Which a server cannot import."""
    call_worker.register("calls_itself", factorial)
    assert call_worker.call_remote("calls_itself", 10) == 3628800


def factorial(n: int) -> int:
    return 1 if n <= 1 else n * factorial(n - 1)


def test_the_last_registration_counts(call_worker: Any) -> None:
    call_worker.register("f", lambda: "first")
    assert call_worker.call_remote("f") == "first"
    begun = call_worker.call_async("f")
    call_worker.register("f", lambda: "second")
    assert call_worker.call_remote("f") == "second"
    assert begun.result(PATIENCE_S) == "first"


def test_an_unknown_function_names_those_that_are_known(call_worker: Any) -> None:
    call_worker.register("train_step", task_functions.square)
    call_worker.register("evaluate", task_functions.square)
    with pytest.raises(LookupError, match=r"trian_step") as caught:
        call_worker.call_remote("trian_step", 1)
    assert "train_step" in str(caught.value)
    assert "evaluate" in str(caught.value)
    with pytest.raises(LookupError, match="no_such_module"):
        call_worker.call_remote("no_such_module.f")
    with pytest.raises(LookupError, match="no_such_function"):
        call_worker.call_remote("task_functions.no_such_function")
    assert call_worker.call_remote("train_step", 3) == 9


@pytest.mark.parametrize(
    "wrong", [("name", 3), ("", task_functions.square), (3, task_functions.square), ("name", None)]
)
def test_what_cannot_be_registered_is_refused_here(wrong: Any) -> None:
    with Worker() as worker:
        with pytest.raises(TypeError, match="register takes a name and a function"):
            worker.register(*wrong)
        assert worker.call_remote("os.getpid") == worker.pid


def test_a_function_that_cannot_be_sent_is_refused_here(call_worker: Any) -> None:
    held = task_functions.Refuses()
    with pytest.raises(TypeError, match="refuses to be pickled"):
        call_worker.register("bad", lambda: held)
    assert call_worker.call_remote("os.getpid") == call_worker.pid


# --- What goes there and comes back -----------------------------------------------------------------------------------
FAITHFUL = [
    None,
    True,
    -(2**63),
    2**64,
    2**200,
    1.5,
    float("inf"),
    "text \N{SNOWMAN}",
    "lone \ud800 surrogate",
    b"bytes",
    bytearray(b"array"),
    [],
    (),
    (1, (2, 3)),
    [1, (2, [3])],
    {"a": (1, 2), "b": {"c": ()}},
    {1: "int", (2, 3): "tuple", None: "none"},
    {1, 2, 3},
    frozenset("abc"),
    range(3),
    1 + 2j,
    Point(1, 2.5, "p"),
    [Point(1, 2.5), {"deep": Point(3, 4.0)}],
    Named((1, 2)),
    slice(1, 2),
    Ellipsis,
    int,
    task_functions.square,
    Path("/a/b"),
]


@pytest.mark.parametrize("value", FAITHFUL, ids=lambda value: type(value).__name__)
def test_values_arrive_as_what_they_are(call_worker: Any, value: Any) -> None:
    call_worker.register("kind", lambda x: f"{type(x).__module__}.{type(x).__qualname__}")
    assert call_worker.call_remote("kind", value) == f"{type(value).__module__}.{type(value).__qualname__}"
    back = call_worker.call_remote("task_functions.same", value)
    assert type(back) is type(value)
    assert back == value
    assert call_worker.call_remote("task_functions.give", value, named=value) == ((value,), {"named": value})


def test_objects_that_are_one_stay_one(call_worker: Any) -> None:
    inner = [1]
    call_worker.register("are_one", lambda x: x[0] is x[1])
    assert call_worker.call_remote("are_one", (inner, inner)) is True
    ring: list[Any] = []
    ring.append(ring)
    call_worker.register("is_ring", lambda x: x[0] is x)
    assert call_worker.call_remote("is_ring", ring) is True


def test_arrays(call_worker: Any) -> None:
    for array in (
        np.arange(4_000_000.0),
        np.zeros((0, 3), np.float32),
        np.array(7),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(10)[::-2],
        np.array(["a", "bc"]),
        np.array([1, "x", None], dtype=object),
        np.array([(1, 2.0)], dtype=[("n", "i4"), ("x", "f8")]),
    ):
        back = call_worker.call_remote("task_functions.same", array)
        assert type(back) is np.ndarray
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert np.array_equal(back, array)
    both = call_worker.call_remote("task_functions.same", (np.ones(300_000), {"of": np.float32(2.5)}))
    assert type(both) is tuple
    assert both[0].sum() == 300_000
    assert type(both[1]["of"]) is np.float32
    mixed = call_worker.call_remote("task_functions.same", {"points": {Point(1, 2)}, "array": np.arange(1_000_000)})
    assert mixed["points"] == {Point(1, 2)}
    assert mixed["array"][-1] == 999_999


def test_tensors(call_worker: Any) -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.arange(2_000_000), torch.ones(3, 4, dtype=torch.bfloat16), torch.tensor(2.5)):
        back = call_worker.call_remote("task_functions.same", tensor)
        assert isinstance(back, torch.Tensor)
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)
    parameter = call_worker.call_remote("task_functions.same", torch.nn.Parameter(torch.ones(2)))
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad


def test_a_large_array_goes_through_shared_memory() -> None:
    """Also beside what has to be pickled."""
    with Worker() as worker:
        worker.register("look", lambda array, flag: [len(array), *map(len, flag)])
        assert largest_mapping(worker.pid) < 64 << 20
        assert worker.call_remote("look", np.zeros(8 << 20), {"a set"}) == [8 << 20, 5]
        assert largest_mapping(worker.pid) >= 64 << 20


def largest_mapping(pid: int) -> int:
    """Of MiniRay's shared memory in this process."""
    lines = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:miniray" in line]
    ranges = [line.split()[0].split("-") for line in lines]
    return max((int(end, 16) - int(begin, 16) for begin, end in ranges), default=0)


# --- Calls beside messages --------------------------------------------------------------------------------------------
def test_calls_and_messages_keep_their_order(talker: Any) -> None:
    talker.send("one")
    first = talker.call_async("task_functions.seen")
    talker.send("two")
    second = talker.call_async("task_functions.seen")
    talker.send("three")
    assert second.result(PATIENCE_S) == ["one", "two"]
    assert first.result(PATIENCE_S) == ["one"]
    assert [talker.recv(timeout=PATIENCE_S) for _ in range(3)] == ["one", "two", "three"]
    assert talker.call_remote("task_functions.seen") == ["one", "two", "three"]


def test_a_recv_moves_futures_on_and_a_call_loses_no_message(talker: Any) -> None:
    future = talker.call_async("task_functions.square", 3)
    talker.send("after the call")
    assert talker.recv(timeout=PATIENCE_S) == "after the call"
    assert future.done()
    assert future.result(0) == 9
    for number in range(100):
        talker.send(number)
    assert talker.call_remote("task_functions.square", 4) == 16
    assert [talker.recv(timeout=PATIENCE_S) for _ in range(100)] == list(range(100))


def test_a_result_is_no_message(talker: Any) -> None:
    future = talker.call_async("task_functions.square", 3)
    with pytest.raises(TimeoutError):
        talker.recv(timeout=0.5)
    assert future.result(PATIENCE_S) == 9


def test_large_ones_both_ways_do_not_block_each_other(talker: Any) -> None:
    large = b"x" * 5_000_000
    futures = []
    for number in range(10):
        talker.send([number, large])
        futures.append(talker.call_async("task_functions.same", (number, large)))
    assert [future.result(PATIENCE_S)[0] for future in futures] == list(range(10))
    assert [talker.recv(timeout=PATIENCE_S)[0] for _ in range(10)] == list(range(10))


def test_a_worker_that_does_not_receive_serves_no_calls(tmp_path: Path) -> None:
    """Its work function has not come to recv() yet; afterwards it does."""
    gate = str(tmp_path / "gate")

    def work(handle: Any) -> None:
        task_functions.wait_for(gate)
        handle.send(handle.recv())

    with Worker(work) as worker:
        future = worker.call_async("task_functions.square", 3)
        with pytest.raises(TimeoutError):
            future.result(0.2)
        Path(gate).touch()
        assert future.result(PATIENCE_S) == 9


def test_a_cpp_like_silence_ends_with_the_worker() -> None:
    """A worker that returns, and never served the call."""

    def work(handle: Any) -> None:
        handle.send("bye")

    with Worker(work) as worker:
        assert worker.recv(timeout=PATIENCE_S) == "bye"
        future = None
        with pytest.raises(EOFError):  # noqa: PT012 (the call or its result, whichever notices first)
            future = worker.call_async("task_functions.square", 3)
            future.result(PATIENCE_S)

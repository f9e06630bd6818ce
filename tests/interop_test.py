"""Calls and pools across languages: Python asks C++ workers, and C++ asks Python's, with errors both ways."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from waiting import PATIENCE_S

import miniray
from miniray import Cluster, NodeConfig, Pool, WorkerDied, WorkerError


@pytest.fixture
def program(root: Path) -> Path:
    """tests/interop_program.cpp."""
    return root / "build/release/tests/interop_program"


@pytest.fixture
def cluster(program: Path) -> Iterator[Cluster]:
    """A node whose workers are C++."""
    with Cluster([NodeConfig("localhost", 2, base_port=0)], program=program, progress=False) as made:
        yield made


@pytest.fixture
def worker(cluster: Cluster) -> Any:
    return cluster.start("miniray.serve_calls")[0]


# --- Python calls C++ -------------------------------------------------------------------------------------------------
def test_functions_that_the_program_registered(worker: Any) -> None:
    assert worker.call_remote("square", 3) == 9.0
    assert worker.call_remote("join", "a", ["b", "c"]) == "abc"
    assert worker.call_remote("mean", np.arange(5.0)) == 2.0
    futures = [worker.call_async("square", number) for number in range(1000)]
    assert [future.result(PATIENCE_S) for future in futures] == [number**2 for number in range(1000)]


def test_objects_of_classes_that_the_program_registered(worker: Any) -> None:
    counter = worker.create("counter", "Counter", 10)
    assert counter.increment(5) == 15
    assert counter.call_async("increment", 1).result(PATIENCE_S) == 16
    worker.forget("counter")
    with pytest.raises(WorkerError, match=r'there is no function "counter\.increment" here, and no object "counter"'):
        worker.call_remote("counter.increment", 1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("square", "abc"), r'square takes \(double\), and argument 1 is a string: "abc"'),
        (("square", 1, 2), "square takes 1 argument, and 2 were given"),
        (("join", "a", ["b", 3]), r"and \[1\] of argument 2 is an integer: 3"),
        (("mean", np.arange(5, dtype=np.int32)), r"mean takes \(.*\), and argument 1 is"),
        (
            ("square", {1, 2}),
            "square is C\\+\\+, and an argument is a pickle, which only Python can read: pass plain data",
        ),
        (("cube", 1), r'there is no function "cube".*square'),
        (("mean", np.zeros(0)), "raised std::invalid_argument: the mean of nothing"),
    ],
    ids=["type", "count", "within a list", "of an array", "a set", "no such function", "it throws"],
)
def test_what_does_not_fit_is_told(worker: Any, call: tuple[Any, ...], text: str) -> None:
    with pytest.raises(WorkerError, match=text):
        worker.call_remote(*call)
    assert worker.call_remote("square", 2) == 4.0


def test_an_exception_has_the_stack_of_its_throw(worker: Any) -> None:
    with pytest.raises(WorkerError, match="the mean of nothing") as raised:
        worker.call_remote("mean", np.zeros(0))
    assert raised.value.traceback.startswith("C++ stack at the throw:\n")
    assert "mean(std::span<double const" in raised.value.traceback
    assert raised.value.traceback in str(raised.value)


def test_keywords_and_functions_by_value_are_refused(worker: Any) -> None:
    with pytest.raises(WorkerError, match="square takes no keyword arguments"):
        worker.call_remote("square", x=2)
    with pytest.raises(WorkerError, match="a C\\+\\+ worker cannot take a function from its caller"):
        worker.register("double", lambda x: 2 * x)
    assert worker.call_remote("square", 2) == 4.0


def test_a_death_there(worker: Any) -> None:
    futures = [worker.call_async("crash"), worker.call_async("square", 2)]
    for future in futures:
        with pytest.raises(WorkerDied, match="SIGABRT"):
            future.result(PATIENCE_S)


# --- A pool in Python over C++ workers --------------------------------------------------------------------------------
def test_a_pool_calls_them_by_name(cluster: Cluster) -> None:
    with Pool(cluster) as pool:
        assert pool.submit("square", 3).result(PATIENCE_S) == 9.0
        assert list(pool.map("square", range(500))) == [number**2 for number in range(500)]
        assert sorted(pool.imap_unordered("square", range(100))) == [number**2 for number in range(100)]
        assert pool.starmap("join", [("a", ["b"]), ("c", [])]) == ["ab", "c"]
        large = np.ones(500_000)
        assert list(pool.map("mean", [large] * 8)) == [1.0] * 8


def test_errors_and_deaths_in_such_a_pool(cluster: Cluster) -> None:
    with Pool(cluster) as pool:
        with pytest.raises(WorkerError, match="the mean of nothing"):
            pool.submit("mean", np.zeros(0)).result(PATIENCE_S)
        with pytest.raises(WorkerError, match="argument 1 is a string"):
            list(pool.map("square", [1, 2, "three"]))
        with pytest.raises(WorkerDied, match="SIGABRT"):
            pool.submit("crash").result(PATIENCE_S)
        with pytest.raises(WorkerError, match=r"task_functions\.square.*square"):
            pool.submit(task_functions.square, 2).result(PATIENCE_S)
        with pytest.raises(WorkerError, match="a C\\+\\+ worker cannot take a function from its caller"):
            pool.submit(lambda: 1).result(PATIENCE_S)
        assert list(pool.map("square", range(50))) == [number**2 for number in range(50)]


def test_a_limit_on_memory_that_is_enough(cluster: Cluster) -> None:
    """tests/parity.json has one that is not."""
    with Pool(cluster) as pool:
        limited = pool.options(memory_bytes=16 << 20)
        assert limited.submit("square", 2).result(PATIENCE_S) == 4.0
        assert list(limited.map("square", range(5))) == [0, 1, 4, 9, 16]


def test_functions_by_name_in_a_pool_of_python(pool: Any) -> None:
    assert pool.submit("math.sqrt", 4).result(PATIENCE_S) == 2.0
    assert list(pool.map("operator.neg", range(100))) == [-number for number in range(100)]
    with pytest.raises(LookupError, match=r"cannot import math\.no_such"):
        pool.submit("math.no_such").result(PATIENCE_S)
    with pytest.raises(LookupError, match="square"):
        pool.submit("square", 2).result(PATIENCE_S)


def test_both_languages_in_one_pool(cluster: Cluster) -> None:
    """Each task goes to whoever is free, so all should know its function by one name."""
    with Pool([*cluster.start("miniray.serve_calls"), miniray.Worker()]) as pool:
        assert len(pool.workers) == 3
        errors = [future.exception(PATIENCE_S) for future in [pool.submit("square", 2) for _ in range(30)]]
        assert all(error is None or isinstance(error, LookupError) for error in errors)
        assert None in errors


# --- C++ asks Python --------------------------------------------------------------------------------------------------
def test_a_coordinator_in_cpp(program: Path) -> None:
    done = subprocess.run([program, sys.executable], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:5] == ["1.5", "from both", "2", "255", "ValueError: math domain error"]
    assert lines[5] == "TypeError: must be real number, not str"
    assert lines[6].startswith('LookupError: no function "math.no_such_function" is registered here')
    assert lines[7].startswith("TypeError: the result is one that only Python can read")
    assert lines[-4:] == ["-19900", "ValueError: math domain error", "died with code 7", "3"]

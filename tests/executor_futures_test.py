"""Futures of a pool are those of concurrent.futures: states, callbacks, wait, as_completed, cancel, asyncio.

Each test runs against the standard library's ProcessPoolExecutor too, but for those marked as ours alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Executor,
    InvalidStateError,
    as_completed,
    wait,
)
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pytest
import task_functions
from executors import WORKERS
from waiting import PATIENCE_S, is_gone, until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

TIME_OUTS = (TimeoutError, FutureTimeoutError)  # one and the same from Python 3.11 on


class Gates:
    """Tasks that end when they are told to."""

    def __init__(self, executor: Executor, folder: Path) -> None:
        self.executor, self.folder = executor, folder
        self.count = 0

    def submit(self, result: Any = None) -> Any:
        self.count += 1
        future: Any = self.executor.submit(task_functions.wait_for, str(self.folder / str(self.count)), result)
        future.gate = self.folder / str(self.count)
        return future

    def open_all(self) -> None:
        for number in range(1, self.count + 1):
            (self.folder / str(number)).touch()


@pytest.fixture
def gates(executor: Executor, tmp_path: Path) -> Any:
    made = Gates(executor, tmp_path)
    yield made
    made.open_all()


# --- States -----------------------------------------------------------------------------------------------------------
def test_the_states_of_a_future(gates: Gates) -> None:
    future = gates.submit("done")
    assert not future.done()
    assert until(future.running)
    assert not future.cancelled()
    with pytest.raises(TIME_OUTS):
        future.result(timeout=0.1)
    with pytest.raises(TIME_OUTS):
        future.exception(timeout=0)
    future.gate.touch()
    assert future.result(PATIENCE_S) == "done"
    assert future.exception(0) is None
    assert future.done()
    assert not future.running()
    assert not future.cancel()
    assert not future.cancelled()
    for set_it in (lambda: future.set_result(1), lambda: future.set_exception(ValueError())):
        with pytest.raises(InvalidStateError):
            set_it()
    assert "finished" in repr(future)


def test_waiting_then_cancelled(gates: Gates, caplog: pytest.LogCaptureFixture) -> None:
    running = [gates.submit(number) for number in range(WORKERS)]
    assert until(lambda: all(future.running() for future in running))
    queued = [gates.submit() for _ in range(20)]
    last = queued[-1]  # the standard library marks the first few as running
    assert not last.running()
    assert not last.done()
    assert last.cancel()
    assert last.cancelled()
    assert last.done()
    assert not last.running()
    assert last.cancel()
    with pytest.raises(CancelledError):
        last.result(0)
    with pytest.raises(CancelledError):
        last.exception(0)
    gates.open_all()
    assert [future.result(PATIENCE_S) for future in running] == list(range(WORKERS))
    wait(queued, PATIENCE_S)
    assert not caplog.records


def test_a_cancelled_task_is_never_run(executor: Executor, gates: Gates, tmp_path: Path) -> None:
    running = [gates.submit() for _ in range(WORKERS)]
    futures = [executor.submit(task_functions.append_line, str(tmp_path / "lines"), str(n)) for n in range(200)]
    cancelled = {number for number, future in enumerate(futures) if number % 2 and future.cancel()}
    assert len(cancelled) >= 90
    gates.open_all()
    wait([*running, *futures], PATIENCE_S)
    ran = {int(line) for line in (tmp_path / "lines").read_text().split()}
    assert ran == set(range(200)) - cancelled


# --- Callbacks --------------------------------------------------------------------------------------------------------
def test_callbacks_run_in_order_and_an_error_in_one_is_logged(gates: Gates, caplog: pytest.LogCaptureFixture) -> None:
    future = gates.submit("done")
    called: list[Any] = []

    def fail(_: Any) -> None:
        called.append("fails")
        raise RuntimeError("a callback's own mistake")

    future.add_done_callback(lambda done: called.append(done))
    future.add_done_callback(fail)
    future.add_done_callback(lambda done: called.append(done.result(0)))
    with caplog.at_level(logging.ERROR):
        future.gate.touch()
        assert until(lambda: len(called) == 3)
    assert called == [future, "fails", "done"]
    assert until(lambda: "a callback's own mistake" in caplog.text)
    future.add_done_callback(lambda _: called.append("late"))
    assert called[-1] == "late"


def test_callbacks_of_cancelled_and_failed_ones(gates: Gates, executor: Executor) -> None:
    running = [gates.submit() for _ in range(WORKERS)]
    assert until(lambda: all(future.running() for future in running))
    called: list[str] = []
    last = [gates.submit() for _ in range(20)][-1]
    last.add_done_callback(lambda done: called.append(f"cancelled: {done.cancelled()}"))
    last.cancel()
    assert called == ["cancelled: True"]
    failing = executor.submit(task_functions.fail, "boom")
    failing.add_done_callback(lambda done: called.append(str(done.exception())))
    gates.open_all()
    assert until(lambda: len(called) == 2)
    assert called[1] == "boom"


def test_submit_from_a_callback(executor: Executor) -> None:
    """A chain that keeps itself going."""
    values: list[int] = []

    def onward(done: Any) -> None:
        values.append(done.result())
        if values[-1] < 50:
            executor.submit(task_functions.add, values[-1], 1).add_done_callback(onward)

    executor.submit(task_functions.add, 0, 1).add_done_callback(onward)
    assert until(lambda: len(values) == 50)
    assert values == list(range(1, 51))


# --- wait and as_completed --------------------------------------------------------------------------------------------
def test_wait_for_the_first(gates: Gates) -> None:
    one, two = gates.submit(1), gates.submit(2)
    two.gate.touch()
    done, pending = wait([one, two], PATIENCE_S, return_when=FIRST_COMPLETED)
    assert (done, pending) == ({two}, {one})


def test_wait_for_the_first_exception(gates: Gates, executor: Executor) -> None:
    one = gates.submit(1)
    failing = executor.submit(task_functions.fail, "boom")
    done, pending = wait([one, failing], PATIENCE_S, return_when=FIRST_EXCEPTION)
    assert (done, pending) == ({failing}, {one})
    one.gate.touch()
    fine = executor.submit(task_functions.square, 2)
    assert wait([one, fine], PATIENCE_S, return_when=FIRST_EXCEPTION) == ({one, fine}, set())


def test_wait_for_all_with_and_without_success(gates: Gates) -> None:
    one, two = gates.submit(1), gates.submit(2)
    one.gate.touch()
    one.result(PATIENCE_S)
    assert wait([one, two], 0.1, return_when=ALL_COMPLETED) == ({one}, {two})
    assert wait([one, two], 0) == ({one}, {two})
    two.gate.touch()
    assert wait([one, two], PATIENCE_S) == ({one, two}, set())
    assert wait([], PATIENCE_S) == (set(), set())


def test_as_completed_in_the_order_of_completion(gates: Gates) -> None:
    one, two = gates.submit("one"), gates.submit("two")
    found = as_completed([one, two], timeout=PATIENCE_S)
    two.gate.touch()
    assert next(found) is two
    one.gate.touch()
    assert next(found) is one
    assert list(found) == []
    assert set(as_completed([one, two, one])) == {one, two}


def test_as_completed_that_times_out(gates: Gates) -> None:
    one, two = gates.submit("one"), gates.submit("two")
    one.gate.touch()
    found = as_completed([one, two], timeout=2)
    assert next(found) is one
    with pytest.raises(TIME_OUTS):
        next(found)
    two.gate.touch()
    assert two.result(PATIENCE_S) == "two"


def test_wait_in_several_threads(gates: Gates) -> None:
    future = gates.submit("seen by all")
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(future.result(PATIENCE_S))) for _ in range(5)]
    for thread in threads:
        thread.start()
    future.gate.touch()
    for thread in threads:
        thread.join()
    assert found == ["seen by all"] * 5


# --- asyncio ----------------------------------------------------------------------------------------------------------
def test_run_in_executor(executor: Executor, gates: Gates) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(executor, task_functions.square, 3) == 9
        with pytest.raises(ValueError, match="boom"):
            await loop.run_in_executor(executor, task_functions.fail, "boom")
        numbers = (loop.run_in_executor(executor, task_functions.square, number) for number in range(100))
        assert await asyncio.gather(*numbers) == [number * number for number in range(100)]
        waiting = gates.submit("opened")
        wrapped = asyncio.wrap_future(waiting)
        asyncio.get_running_loop().call_later(0.03, waiting.gate.touch)  # the loop has to run for this to happen
        assert await asyncio.wait_for(wrapped, PATIENCE_S) == "opened"

    asyncio.run(main())


def test_a_cancelled_task_of_asyncio_cancels_what_waits(executor: Executor, gates: Gates) -> None:
    running = [gates.submit() for _ in range(WORKERS)]
    assert until(lambda: all(future.running() for future in running))
    queued = [gates.submit() for _ in range(20)][-1]

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(queued), 0.1)

    asyncio.run(main())
    assert queued.cancelled()
    gates.open_all()


def test_as_the_executor_of_several_loops_one_after_the_other(executor: Executor) -> None:
    async def main() -> int:
        return await asyncio.get_running_loop().run_in_executor(executor, task_functions.square, 4)

    assert [asyncio.run(main()) for _ in range(3)] == [16] * 3


# --- Ours alone -------------------------------------------------------------------------------------------------------
def test_cancel_of_what_runs_ends_its_worker_and_not_the_pool(pool: Any, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    future = pool.submit(task_functions.begin_and_wait_for, str(begun), str(tmp_path / "never"))
    assert until(begun.exists)
    pid = int(begun.read_text())
    called: list[bool] = []
    future.add_done_callback(lambda done: called.append(done.cancelled()))
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(PATIENCE_S)
    assert until(lambda: called == [True])
    assert until(lambda: is_gone(pid))
    assert sorted(pool.map(task_functions.square, range(100))) == sorted(number * number for number in range(100))
    assert until(lambda: len(pool.workers) == WORKERS)


def test_cancel_of_many_that_run_or_wait(pool: Any, tmp_path: Path) -> None:
    futures = [pool.submit(task_functions.wait_for, str(tmp_path / "never")) for _ in range(20)]
    kept = [pool.submit(task_functions.square, number) for number in range(20)]
    assert until(lambda: any(future.running() for future in futures))
    assert all(future.cancel() for future in futures)
    assert [future.result(PATIENCE_S) for future in kept] == [number * number for number in range(20)]
    assert all(future.cancelled() for future in futures)


def test_functions_that_pickle_alone_would_not_take(pool: Any) -> None:
    factor = 3
    assert pool.submit(lambda x: factor * x, 5).result(PATIENCE_S) == 15
    assert list(pool.map(lambda x: -x, range(5))) == [0, -1, -2, -3, -4]
    assert pool.submit(task_functions.call, lambda: "an argument").result(PATIENCE_S) == "an argument"
    assert pool.submit(task_functions.same, lambda: "a result").result(PATIENCE_S)() == "a result"
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(PATIENCE_S)

"""A pool is a concurrent.futures.Executor: submit, map, shutdown, initializers and errors.

Each test runs against the standard library's ProcessPoolExecutor too, so that it is the yardstick and not our reading
of its documentation.
"""

from __future__ import annotations

import gc
import multiprocessing
import operator
import os
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import executors
import pytest
import task_functions
from executors import WORKERS
from waiting import PATIENCE_S, is_gone, until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


# --- submit -----------------------------------------------------------------------------------------------------------
def test_submit_passes_what_it_is_given(executor: Executor) -> None:
    assert isinstance(executor, Executor)
    future = executor.submit(task_functions.give, 1, "two", named=3, fn=4, self=5)
    assert isinstance(future, Future)
    assert future.result(PATIENCE_S) == ((1, "two"), {"named": 3, "fn": 4, "self": 5})
    assert executor.submit(pow, 2, 10).result(PATIENCE_S) == 1024
    assert executor.submit(operator.methodcaller("upper"), "x").result(PATIENCE_S) == "X"


def test_it_runs_elsewhere(executor: Executor, tmp_path: Path) -> None:
    """And several at once: each of these two waits for the other."""
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    first = executor.submit(task_functions.begin_and_wait_for, one, two, "first")
    second = executor.submit(task_functions.begin_and_wait_for, two, one, "second")
    assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == ("first", "second")
    assert len({os.getpid(), *(int(Path(path).read_text()) for path in (one, two))}) == 3


def test_no_more_at_once_than_there_are_workers(executor: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    futures = [
        executor.submit(task_functions.begin_and_wait_for, str(tmp_path / f"begun{number}"), str(gate), number)
        for number in range(40)
    ]
    until(lambda: len(list(tmp_path.glob("begun*[0-9]"))) >= WORKERS)
    gate.touch()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(40))
    assert len({path.read_text() for path in tmp_path.glob("begun*[0-9]")}) == WORKERS  # processes


def test_values_arrive_as_what_they_are(executor: Executor) -> None:
    values = [(1, (2,)), {1, 2}, task_functions.Point(1, 2.5), {(1, 2): None}, 2**100, bytearray(b"x"), range(3)]
    for value in values:
        back = executor.submit(task_functions.same, value).result(PATIENCE_S)
        assert back == value
        assert type(back) is type(value)
    assert list(executor.map(task_functions.same, values)) == values


def test_many(executor: Executor) -> None:
    futures = [executor.submit(task_functions.square, number) for number in range(2000)]
    assert [future.result(PATIENCE_S) for future in futures] == [number * number for number in range(2000)]


def test_submit_from_many_threads(executor: Executor) -> None:
    found: dict[int, list[Any]] = {}

    def use(number: int) -> None:
        futures = [executor.submit(task_functions.add, 1000 * number, each) for each in range(100)]
        found[number] = [future.result(PATIENCE_S) for future in futures]

    executor.submit(task_functions.square, 1).result(PATIENCE_S)
    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [1000 * number + each for each in range(100)] for number in range(8)}


def test_submit_needs_a_function(executor: Executor) -> None:
    with pytest.raises(TypeError):
        executor.submit()  # type: ignore[call-arg]
    future: Future[Any] | None = None
    with pytest.raises(TypeError):  # noqa: PT012 (at once, or with the future)
        future = executor.submit(None)  # type: ignore[arg-type]
        future.result(PATIENCE_S)
    assert executor.submit(task_functions.square, 2).result(PATIENCE_S) == 4


# --- Exceptions -------------------------------------------------------------------------------------------------------
def test_an_exception_arrives_as_it_was_raised_with_the_remote_traceback(executor: Executor) -> None:
    future = executor.submit(task_functions.raise_own, "text", 42)
    error = future.exception(PATIENCE_S)
    assert isinstance(error, task_functions.OwnError)
    assert (error.text, error.code) == ("text", 42)
    assert error.__cause__ is not None
    assert "in raise_own" in str(error.__cause__)
    assert "raise OwnError(text, code)" in str(error.__cause__)
    with pytest.raises(task_functions.OwnError):
        future.result(PATIENCE_S)


def test_the_cause_of_a_cause_is_told(executor: Executor) -> None:
    error = executor.submit(task_functions.fail_from_a_cause, "boom").exception(PATIENCE_S)
    assert type(error) is ValueError
    assert "the cause of it" in str(error.__cause__)


def test_what_cannot_be_pickled_fails_alone(executor: Executor) -> None:
    """Arguments, results and exceptions; the others are not harmed."""
    bad = [
        executor.submit(task_functions.same, task_functions.Refuses()),
        executor.submit(task_functions.refuses),
        executor.submit(task_functions.generator),
        executor.submit(task_functions.raise_holding, "text"),
    ]
    good = [executor.submit(task_functions.square, number) for number in range(100)]
    for future in bad:
        assert isinstance(future.exception(PATIENCE_S), Exception)
    assert "refuses to be pickled" in str(bad[0].exception())
    assert [future.result(PATIENCE_S) for future in good] == [number * number for number in range(100)]
    assert executor.submit(task_functions.square, 3).result(PATIENCE_S) == 9


# --- map --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"chunksize": 1}, {"chunksize": 7}, {"chunksize": 1000}])
def test_map_keeps_the_order(executor: Executor, options: dict[str, int]) -> None:
    assert list(executor.map(task_functions.square, range(100), **options)) == [n * n for n in range(100)]
    assert list(executor.map(task_functions.add, [1, 2, 3], [10, 20], **options)) == [11, 22]  # as zip: the shortest
    assert list(executor.map(task_functions.square, [], **options)) == []
    assert list(executor.map(task_functions.add, iter("ab"), iter("cd"), **options)) == ["ac", "bd"]


def test_map_is_eager_and_returns_an_iterator(executor: Executor, tmp_path: Path) -> None:
    results = executor.map(task_functions.touch, [str(tmp_path / str(number)) for number in range(10)])
    assert iter(results) is results
    assert until(lambda: len(list(tmp_path.iterdir())) == 10)  # though nobody has asked for a result
    assert len(list(results)) == 10
    assert next(results, "no more") == "no more"


def test_map_raises_where_the_exception_was(executor: Executor) -> None:
    results = executor.map(task_functions.fail_on_multiples_of_three, range(6))
    assert [next(results), next(results), next(results)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3 is a multiple of three"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    assert executor.submit(task_functions.square, 3).result(PATIENCE_S) == 9


def test_map_with_a_time_out(executor: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    assert executor.submit(task_functions.square, 3).result(PATIENCE_S) == 9  # what follows finds a worker that runs
    results = executor.map(task_functions.wait_for, [__file__, str(gate)], ["first", "second"], timeout=2)
    assert next(results) == "first"
    with pytest.raises((TimeoutError, FutureTimeoutError)):
        next(results)
    gate.touch()
    assert executor.submit(task_functions.square, 3).result(PATIENCE_S) == 9


def test_map_checks_its_chunksize(executor: Executor) -> None:
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="chunksize"):
            executor.map(task_functions.square, range(3), chunksize=wrong)


def test_map_of_an_iterable_that_fails(executor: Executor) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise LookupError("no more numbers")

    with pytest.raises(LookupError, match="no more numbers"):
        list(executor.map(task_functions.square, numbers()))
    assert executor.submit(task_functions.square, 3).result(PATIENCE_S) == 9


def test_a_map_that_is_given_up_cancels_the_rest(executor: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    blocked = [executor.submit(task_functions.wait_for, str(gate)) for _ in range(WORKERS)]
    assert until(lambda: all(future.running() for future in blocked))
    last = 300
    paths = [__file__] + [str(tmp_path / f"out{number}") for number in range(last)]
    results = executor.map(task_functions.touch_or_leave, paths, chunksize=1)
    opener = threading.Timer(0.2, gate.touch)
    opener.start()
    next(results)
    results.close()  # type: ignore[attr-defined]
    opener.join()
    assert executor.submit(task_functions.square, 3).result(PATIENCE_S) == 9
    executor.shutdown(wait=True)
    assert not (tmp_path / f"out{last - 1}").exists()


# --- shutdown ---------------------------------------------------------------------------------------------------------
def test_a_context_manager_waits_for_the_rest(make_executor: Any, tmp_path: Path) -> None:
    with make_executor() as executor:
        futures = [executor.submit(task_functions.append_line, str(tmp_path / "lines"), "x") for _ in range(50)]
    assert all(future.done() for future in futures)
    assert len((tmp_path / "lines").read_text().split()) == 50
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(task_functions.square, 1)
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.map(task_functions.square, [1])


def test_shutdown_without_waiting_lets_the_rest_finish(executor: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    futures = [executor.submit(task_functions.wait_for, str(gate), number) for number in range(6)]
    executor.shutdown(wait=False)
    with pytest.raises(RuntimeError):
        executor.submit(task_functions.square, 1)
    assert not any(future.done() for future in futures)
    gate.touch()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(6))
    executor.shutdown(wait=True)
    executor.shutdown()  # as often as one likes
    assert until(lambda: not multiprocessing.active_children())  # the standard library does not wait for them now


def test_shutdown_that_cancels_what_has_not_begun(executor: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = [executor.submit(task_functions.wait_for, str(gate), number) for number in range(WORKERS)]
    assert until(lambda: all(future.running() for future in running))
    waiting = [executor.submit(task_functions.append_line, str(tmp_path / "lines"), str(n)) for n in range(100)]
    executor.shutdown(wait=False, cancel_futures=True)
    # The standard library hands a few over before they can begin. While the first ones run, the others are cancelled.
    until(lambda: sum(future.cancelled() for future in waiting) >= 90)
    gate.touch()
    assert [future.result(PATIENCE_S) for future in running] == list(range(WORKERS))
    executor.shutdown(wait=True)
    # After shutdown(wait=False) the standard library's second shutdown waits for nothing, and its wait() for ever.
    until(lambda: all(future.done() for future in waiting))
    cancelled = [future for future in waiting if future.cancelled()]
    with pytest.raises(CancelledError):
        cancelled[0].result(PATIENCE_S)
    ran = (tmp_path / "lines").read_text().split() if (tmp_path / "lines").exists() else []
    assert len(ran) == 100 - len(cancelled)
    assert until(lambda: not multiprocessing.active_children())


def test_an_executor_that_was_never_used(make_executor: Any) -> None:
    make_executor().shutdown()
    with make_executor(1):
        pass


@pytest.mark.parametrize("kind", [executors.standard, executors.ours], ids=["standard", "miniray"])
def test_an_executor_that_nobody_holds_finishes_its_work(kind: Any) -> None:
    before = children()
    future = kind(1).submit(task_functions.square, 7)
    assert future.result(PATIENCE_S) == 49
    assert until(lambda: gc.collect() >= 0 and not multiprocessing.active_children() and children() == before)


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_no_process_is_left(make_executor: Any) -> None:
    with make_executor(3) as executor:
        pids = set(executor.map(task_functions.pid, range(100)))
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 3
    assert until(lambda: all(map(is_gone, pids)))


# --- Making one -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", [0, -1])
def test_too_few_workers(make_executor: Any, wrong: int) -> None:
    with pytest.raises(ValueError, match="max_workers"):
        make_executor(wrong)


def test_all_cores_by_default(make_executor: Any) -> None:
    assert list(make_executor(None).map(task_functions.square, range(20))) == [n * n for n in range(20)]


def test_an_initializer_runs_once_in_each_worker_before_all_else(make_executor: Any) -> None:
    with make_executor(2, initializer=task_functions.initialize, initargs=("mine",)) as executor:
        found = list(executor.map(task_functions.state, range(100)))
    assert {one["value"] for one in found} == {"mine"}
    assert {one["times"] for one in found} == {1}
    assert task_functions.STATE == {}


def test_an_initializer_must_be_a_function(make_executor: Any) -> None:
    with pytest.raises(TypeError, match="initializer"):
        make_executor(1, initializer=3)


def test_an_initializer_that_fails_breaks_the_executor(make_executor: Any, caplog: pytest.LogCaptureFixture) -> None:
    executor = make_executor(2, initializer=task_functions.fail_to_initialize)
    futures = []
    with pytest.raises(BrokenExecutor):  # noqa: PT012 (submit may be the one that knows already)
        futures = [executor.submit(task_functions.square, number) for number in range(10)]
        futures[0].result(PATIENCE_S)
    for future in futures:
        with pytest.raises(BrokenExecutor):
            future.result(PATIENCE_S)
    with pytest.raises(BrokenExecutor):
        executor.submit(task_functions.square, 1)
    executor.shutdown()
    executor.shutdown(wait=False, cancel_futures=True)

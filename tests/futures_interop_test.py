"""Our futures are the standard library's: concurrent.futures and asyncio take every one of them, alone and mixed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import resource
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import task_functions
from waiting import PATIENCE_S, until, until_async

import miniray
from miniray import Pool, Worker


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, PATIENCE_S))


# --- concurrent.futures -----------------------------------------------------------------------------------------------
def test_they_are_standard_futures(call_worker: Any) -> None:
    future = call_worker.call_async("task_functions.square", 3)
    assert isinstance(future, Future)
    assert issubclass(miniray.CallFuture, Future)
    assert issubclass(miniray.PoolFuture, Future)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(1)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_exception(ValueError())
    assert future.result(PATIENCE_S) == 9
    with pytest.raises(TypeError, match="call_async"):
        miniray.CallFuture()


def test_a_result_is_read_once(call_worker: Any) -> None:
    future = call_worker.call_async("task_functions.same", {1, 2})
    assert future.result(PATIENCE_S) is future.result()
    failed = call_worker.call_async("task_functions.fail", "boom")
    assert failed.exception(PATIENCE_S) is failed.exception()


def test_wait_for_all(call_worker: Any) -> None:
    threads = threading.active_count()
    futures = [call_worker.call_async("task_functions.square", number) for number in range(100)]
    futures[0].result(PATIENCE_S)  # some are done before
    done, left = concurrent.futures.wait(futures, PATIENCE_S, ALL_COMPLETED)
    assert threading.active_count() == threads
    assert not left
    assert sorted(future.result(0) for future in done) == [number * number for number in range(100)]
    assert concurrent.futures.wait(futures) == (done, set())  # all done already


def test_wait_for_the_first(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    quick = call_worker.call_async("task_functions.square", 2)
    slow = call_worker.call_async("task_functions.wait_for", str(gate))
    done, left = concurrent.futures.wait([quick, slow], PATIENCE_S, FIRST_COMPLETED)
    assert (done, left) == ({quick}, {slow})
    gate.touch()
    assert concurrent.futures.wait([slow], PATIENCE_S) == ({slow}, set())


def test_wait_for_the_first_failure(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    good = call_worker.call_async("task_functions.square", 2)
    failed = call_worker.call_async("task_functions.fail", "boom")
    slow = call_worker.call_async("task_functions.wait_for", str(gate))
    done, left = concurrent.futures.wait([good, failed, slow], PATIENCE_S, FIRST_EXCEPTION)
    assert (done, left) == ({good, failed}, {slow})
    gate.touch()
    assert slow.result(PATIENCE_S) is None


def test_wait_times_out_and_may_be_tried_again(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = call_worker.call_async("task_functions.wait_for", str(gate), "opened")
    for timeout in (0, 0.05):
        assert concurrent.futures.wait([slow], timeout) == (set(), {slow})
        with pytest.raises(concurrent.futures.TimeoutError):
            list(concurrent.futures.as_completed([slow], timeout))
    gate.touch()
    assert [future.result(0) for future in concurrent.futures.as_completed([slow], PATIENCE_S)] == ["opened"]


def test_deaths_and_cancelled_ones_end_a_wait(call_worker: Any, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with Worker() as other:
        dying = call_worker.call_async("task_functions.wait_for", never)
        dying_too = call_worker.call_async("task_functions.square", 1)
        cancelled = other.call_async("task_functions.wait_for", never)
        cancelled.cancel()
        threading.Timer(0.1, call_worker.kill).start()
        assert not concurrent.futures.wait([dying, dying_too, cancelled], PATIENCE_S).not_done
        assert cancelled.cancelled()
        for future in (dying, dying_too):
            assert isinstance(future.exception(0), miniray.WorkerDied)
        Path(never).touch()


@pytest.mark.parametrize("as_completed", [concurrent.futures.as_completed, miniray.as_completed])
def test_all_kinds_in_one_set(as_completed: Callable[..., Any], tmp_path: Path, server: Any) -> None:
    """A call here, a call there, a task of a pool and one of the standard library, in every order."""
    kinds = 4
    with (
        Worker() as here,
        server.connect("miniray.serve_calls") as there,
        Pool(1) as pool,
        ThreadPoolExecutor(1) as threads,
    ):
        for first in range(kinds):
            gates = [str(tmp_path / f"gate {first} {kind}") for kind in range(kinds)]
            futures: list[Future[Any]] = [
                here.call_async("task_functions.wait_for", gates[0], 0),
                there.call_async("task_functions.wait_for", gates[1], 1),
                pool.submit(task_functions.wait_for, gates[2], 2),
                threads.submit(task_functions.wait_for, gates[3], 3),
            ]
            found = as_completed(futures, timeout=PATIENCE_S)
            for step in range(kinds):
                kind = (first + step) % kinds
                Path(gates[kind]).touch()
                future = next(found)
                assert future is futures[kind]
                assert future.result(0) == kind
            assert next(found, None) is None


def test_many_of_all_kinds_in_one_set(server: Any) -> None:
    with (
        Worker() as here,
        server.connect("miniray.serve_calls") as there,
        Pool(2) as pool,
        ThreadPoolExecutor(1) as threads,
    ):
        futures: dict[Future[Any], int] = {}
        for number in range(200):
            futures[here.call_async("task_functions.square", number)] = number
            futures[pool.submit(task_functions.square, number)] = number
            futures[there.call_async("task_functions.square", number)] = number
            futures[threads.submit(task_functions.square, number)] = number
        done, left = concurrent.futures.wait(futures, PATIENCE_S)
        assert not left
        assert {future: future.result(0) for future in done} == {f: number**2 for f, number in futures.items()}


def test_two_threads_wait_for_futures_of_the_same_two_pools() -> None:
    """Each takes the locks of both pools, in whichever order."""
    with Pool(1) as one, Pool(1) as two:
        failures: list[BaseException] = []

        def work(first: Pool, second: Pool) -> None:
            try:
                for _ in range(100):
                    futures = [pool.submit(abs, -1) for _ in range(10) for pool in (first, second)]
                    assert not concurrent.futures.wait(futures, PATIENCE_S).not_done
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=pools, daemon=True) for pools in ((one, two), (two, one))]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), "deadlock"
        finally:
            sys.setswitchinterval(interval)
        assert not failures


# --- asyncio ----------------------------------------------------------------------------------------------------------
def test_awaited_and_wrapped() -> None:
    async def main() -> None:
        with Worker() as worker, Pool(1) as pool:
            assert await worker.call_async("task_functions.square", 3) == 9
            assert await pool.submit(task_functions.square, 4) == 16
            assert await asyncio.wrap_future(worker.call_async("task_functions.square", 5)) == 25
            assert await asyncio.wrap_future(pool.submit(task_functions.square, 6)) == 36
            futures = [worker.call_async("task_functions.square", 7), pool.submit(task_functions.square, 8)]
            assert await asyncio.gather(*futures) == [49, 64]
            for failing in (
                worker.call_async("task_functions.fail", "boom"),
                pool.submit(task_functions.fail, "boom"),
                asyncio.wrap_future(worker.call_async("task_functions.fail", "boom")),
            ):
                with pytest.raises(ValueError, match="boom"):
                    await failing
            done = pool.submit(abs, -1)
            done.result(PATIENCE_S)
            assert await done == 1

    run(main())


def test_the_loop_runs_while_a_task_is_awaited(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        with Pool(1) as pool:
            asyncio.get_running_loop().call_later(0.05, gate.touch)
            assert await pool.submit(task_functions.wait_for, str(gate), "opened") == "opened"

    run(main())


@pytest.mark.parametrize("wrap", [False, True])
def test_cancelling_the_task_cancels_the_call_and_the_task(wrap: bool, tmp_path: Path) -> None:
    never = str(tmp_path / "never")

    async def main() -> None:
        with Worker() as worker, Pool(1) as pool:
            call, task = tmp_path / "call", tmp_path / "task"
            for begun, future in (
                (call, worker.call_async("task_functions.begin_and_wait_for", str(call), never)),
                (task, pool.submit(task_functions.begin_and_wait_for, str(task), never)),
            ):

                async def wait(future: Any = future) -> Any:
                    return await (asyncio.wrap_future(future) if wrap else future)

                waiting = asyncio.ensure_future(wait())
                await asyncio.sleep(0)  # now it waits
                await until_async(begun.exists)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await until_async(future.cancelled)  # wrap_future tells it in the loop's next round
            assert await pool.submit(abs, -3) == 3  # on another worker
            Path(never).touch()
            assert await worker.call_async("task_functions.square", 3) == 9

    run(main())


def test_awaiting_a_cancelled_one(tmp_path: Path) -> None:
    never = str(tmp_path / "never")

    async def main() -> None:
        with Worker() as worker, Pool(1) as pool:
            for future in (
                worker.call_async("task_functions.wait_for", never),
                pool.submit(task_functions.wait_for, never),
            ):
                asyncio.get_running_loop().call_later(0.02, future.cancel)

                async def wait(future: Any = future) -> Any:
                    return await future

                for _ in range(2):  # while it runs, and later
                    task = asyncio.ensure_future(wait())
                    with pytest.raises(asyncio.CancelledError):
                        await task
            Path(never).touch()

    run(main())


def test_many_awaited_at_once_need_few_descriptors() -> None:
    """They share one reader: a thousand calls of a worker must not meet a limit of 1024 open files."""

    async def main() -> None:
        with Worker() as worker:

            async def square(number: int) -> Any:
                return await worker.call_async("task_functions.square", number)

            assert await asyncio.gather(*map(square, range(1000))) == [number**2 for number in range(1000)]

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_callback_in_a_loop_comes_by_itself(call_worker: Any) -> None:
    async def main() -> None:
        called = asyncio.Event()
        call_worker.call_async("task_functions.square", 3).add_done_callback(lambda _: called.set())
        await called.wait()

    run(main())


def test_a_loop_that_is_closed_early_leaves_the_call_to_others(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    futures = []

    async def begin() -> None:
        future = call_worker.call_async("task_functions.wait_for", str(gate), "opened")
        future.add_done_callback(lambda _: None)
        futures.append(future)

    async def end() -> Any:
        gate.touch()
        return await futures[0]

    run(begin())
    assert run(end()) == "opened"


def test_a_call_that_is_done_after_its_loop_was_closed_leaves_nothing(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    futures = []

    async def begin() -> None:
        futures.append(call_worker.call_async("task_functions.wait_for", str(gate), "opened"))
        futures[0].add_done_callback(lambda _: None)

    before = set(os.listdir("/proc/self/fd"))
    run(begin())
    gate.touch()
    assert futures[0].result(PATIENCE_S) == "opened"
    assert set(os.listdir("/proc/self/fd")) <= before  # while the worker is still there


# --- What they look like ----------------------------------------------------------------------------------------------
def test_repr_tells_the_state_of_a_call(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = call_worker.call_async("task_functions.wait_for", str(gate), "opened")
    raised = call_worker.call_async("task_functions.fail", "boom")
    by_pickle = call_worker.call_async("task_functions.same", {1})
    unknown = call_worker.call_async("task_functions.no_such_function")
    cancelled = call_worker.call_async("task_functions.square", 1)
    cancelled.cancel()
    assert repr(slow).startswith("<miniray.CallFuture of task_functions.wait_for in ")
    assert repr(slow).endswith(": pending>")
    gate.touch()
    assert unknown.exception(PATIENCE_S) is not None
    assert repr(slow).endswith(": finished, returned str>")
    assert repr(raised).endswith(": finished, raised ValueError>")
    raised.exception()
    assert repr(raised).endswith(": finished, raised ValueError>")
    assert repr(by_pickle).endswith(": finished, returned an object that was not read yet>")
    by_pickle.result()
    assert repr(by_pickle).endswith(": finished, returned set>")
    assert ": finished, raised " in repr(unknown)
    assert repr(cancelled).endswith(": cancelled>")


def test_repr_of_a_call_receives_nothing(call_worker: Any) -> None:
    first = call_worker.call_async("task_functions.square", 3)
    called: list[Any] = []
    first.add_done_callback(called.append)
    for _ in range(100):
        repr(first)
    assert not called
    assert first.result(PATIENCE_S) == 9


def test_repr_tells_the_state_of_a_task(tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    with Pool(1) as pool:
        running = pool.submit(task_functions.begin_and_wait_for, str(begun), str(gate), "opened")
        waiting = pool.submit(abs, -1)
        cancelled = pool.submit(abs, -1)
        cancelled.cancel()
        task_functions.wait_for(str(begun))
        until(running.running)
        assert repr(running).startswith("<miniray.PoolFuture at 0x")
        assert repr(running).endswith(": running>")
        assert repr(waiting).endswith(": pending>")
        assert repr(cancelled).endswith(": cancelled>")
        gate.touch()
        assert waiting.result(PATIENCE_S) == 1
        assert repr(running).endswith(": finished, returned str>")
        failed = pool.submit(task_functions.fail, "boom")
        assert failed.exception(PATIENCE_S) is not None
        assert repr(failed).endswith(": finished, raised ValueError>")

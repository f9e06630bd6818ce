"""Futures of calls: waited for, awaited, cancelled, called back, and a thousand of them at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from waiting import PATIENCE_S, until_async

import miniray
from miniray import Worker, as_completed


def test_a_thousand_in_flight_and_each_gets_its_own(call_worker: Any) -> None:
    call_worker.register(task_functions.square)
    futures = [call_worker.call_async("square", number) for number in range(1000)]
    order = list(range(1000))
    random.Random(1).shuffle(order)
    for number in order:
        assert futures[number].result(PATIENCE_S) == number * number


def test_a_thousand_with_arrays_in_flight(call_worker: Any) -> None:
    futures = [call_worker.call_async("task_functions.same", np.full(2000, number)) for number in range(1000)]
    for number, future in enumerate(futures):
        assert future.result(PATIENCE_S)[-1] == number


def test_more_than_the_sockets_hold_does_not_deadlock(call_worker: Any) -> None:
    large = "x" * 1_000_000
    futures = [call_worker.call_async("task_functions.same", (number, large)) for number in range(40)]
    assert [future.result(PATIENCE_S)[0] for future in futures] == list(range(40))


def test_states(call_worker: Any, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    future = call_worker.call_async("task_functions.wait_for", gate, "done")
    assert isinstance(future, miniray.CallFuture)
    assert not future.done()
    assert not future.cancelled()
    Path(gate).touch()
    assert future.result(timeout=PATIENCE_S) == "done"
    assert future.result() == "done"  # as often as one likes
    assert future.exception(timeout=0) is None
    assert future.done()
    assert not future.cancelled()
    assert not future.cancel()
    failed = call_worker.call_async("task_functions.fail", "boom")
    for _ in range(2):
        assert isinstance(failed.exception(), ValueError)
    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            failed.result()
    assert failed.done()
    assert not failed.cancel()
    assert "task_functions.fail" in repr(failed)


def test_results_come_in_the_order_of_calls(call_worker: Any, tmp_path: Path) -> None:
    futures = [
        call_worker.call_async("task_functions.append_line", str(tmp_path / "lines"), str(number))
        for number in range(200)
    ]
    futures[-1].result(PATIENCE_S)
    assert all(future.done() for future in futures)
    assert (tmp_path / "lines").read_text().split() == [str(number) for number in range(200)]


# --- Cancelling -------------------------------------------------------------------------------------------------------
def test_what_has_not_begun_is_not_run(call_worker: Any, tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    running = call_worker.call_async("task_functions.begin_and_wait_for", str(begun), str(gate), "ran")
    waiting = [call_worker.call_async("task_functions.touch", str(tmp_path / f"{n}")) for n in range(20)]
    task_functions.wait_for(str(begun))
    for future in waiting[::2]:
        assert future.cancel()
        assert future.cancelled()
        assert future.done()
        assert future.cancel()  # once more changes nothing
    gate.touch()
    assert running.result(PATIENCE_S) == "ran"
    for future in waiting[1::2]:
        future.result(PATIENCE_S)
    for future in waiting[::2]:
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(0)
        with pytest.raises(concurrent.futures.CancelledError):
            future.exception(0)
    assert sorted(int(path.name) for path in tmp_path.glob("[0-9]*")) == list(range(1, 20, 2))


def test_what_runs_goes_on_and_its_result_is_thrown_away(call_worker: Any, tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    running = call_worker.call_async("task_functions.begin_and_wait_for", str(begun), str(gate), "unwanted")
    later = call_worker.call_async("task_functions.square", 5)
    task_functions.wait_for(str(begun))
    assert running.cancel()
    assert running.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        running.result(PATIENCE_S)
    assert not later.done()
    gate.touch()
    assert later.result(PATIENCE_S) == 25
    assert call_worker.call_remote("os.getpid") == call_worker.pid


def test_cancelled_ones_mixed_at_random(call_worker: Any) -> None:
    source = random.Random(7)
    futures = [call_worker.call_async("task_functions.square", number) for number in range(500)]
    cancelled = {number for number in source.sample(range(500), 200) if futures[number].cancel()}
    for number, future in enumerate(futures):
        assert future.cancelled() == (number in cancelled)
        if number not in cancelled:
            assert future.result(PATIENCE_S) == number * number


# --- Callbacks --------------------------------------------------------------------------------------------------------
def test_callbacks_run_in_order_once_and_with_the_future(call_worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    future = call_worker.call_async("task_functions.square", 3)
    called: list[Any] = []

    def fail(_: Any) -> None:
        called.append("fails")
        raise RuntimeError("a callback's own mistake")

    future.add_done_callback(lambda done: called.append(("first", done)))
    future.add_done_callback(fail)
    future.add_done_callback(lambda done: called.append(("second", done.result(0))))
    with caplog.at_level(logging.ERROR):
        assert future.result(PATIENCE_S) == 9
    assert called == [("first", future), "fails", ("second", 9)]
    assert "a callback's own mistake" in caplog.text
    future.add_done_callback(lambda _: called.append("late"))  # done already: at once
    assert called[-1] == "late"
    with caplog.at_level(logging.ERROR):
        future.add_done_callback(fail)
    assert call_worker.call_remote("task_functions.square", 4) == 16
    assert len(called) == 5


def test_callbacks_of_failed_and_cancelled_ones(call_worker: Any, tmp_path: Path) -> None:
    called: list[str] = []
    failed = call_worker.call_async("task_functions.fail", "boom")
    failed.add_done_callback(lambda done: called.append(str(done.exception(0))))
    assert isinstance(failed.exception(PATIENCE_S), ValueError)
    running = call_worker.call_async("task_functions.wait_for", str(tmp_path / "gate"))
    running.add_done_callback(lambda done: called.append(f"cancelled: {done.cancelled()}"))
    running.cancel()
    assert called == ["boom", "cancelled: True"]
    (tmp_path / "gate").touch()
    assert call_worker.call_remote("os.getpid") == call_worker.pid
    assert called == ["boom", "cancelled: True"]


def test_a_callback_may_call_again(call_worker: Any) -> None:
    """A chain that keeps itself going."""
    last: list[Any] = []

    def onward(done: Any) -> None:
        value = done.result(0)
        if value < 100:
            future = call_worker.call_async("task_functions.add", value, 1)
            last.append(future)
            future.add_done_callback(onward)

    first = call_worker.call_async("task_functions.add", 0, 1)
    first.add_done_callback(onward)
    first.result(PATIENCE_S)
    while len(last) < 99:
        last[-1].result(PATIENCE_S)
    assert last[-1].result(PATIENCE_S) == 100


# --- Several workers, asyncio -----------------------------------------------------------------------------------------
def test_as_completed(tmp_path: Path, server: Any) -> None:
    gates = [tmp_path / f"gate{number}" for number in range(3)]
    with Worker() as one, Worker() as two, server.connect("miniray.serve_calls") as three:
        workers = (one, two, three)
        waits = zip(workers, gates, range(3), strict=True)
        futures = [one.call_async("task_functions.wait_for", str(gate), n) for one, gate, n in waits]
        found = as_completed(futures, timeout=PATIENCE_S)
        order = []
        for number in (2, 0, 1):
            gates[number].touch()
            future = next(found)
            assert future in futures
            order.append(future.result(0))
        assert order == [2, 0, 1]
        assert next(found, None) is None
        assert {future.result(0) for future in as_completed(futures)} == {0, 1, 2}  # all done already


def test_as_completed_times_out_with_deaths_and_cancelled_ones(tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with Worker() as one, Worker() as two, Worker() as three:
        dying = one.call_async("task_functions.wait_for", never)
        cancelled = two.call_async("task_functions.wait_for", never)
        stuck = three.call_async("task_functions.wait_for", never)
        quick = [two.call_async("task_functions.square", 3)]
        one.kill()
        cancelled.cancel()
        found = as_completed([stuck, dying, cancelled], timeout=2)
        assert {next(found), next(found)} == {dying, cancelled}
        assert isinstance(dying.exception(0), miniray.WorkerDied)
        with pytest.raises(TimeoutError, match="1"):
            next(found)
        assert not stuck.done()
        assert list(as_completed([])) == []
        (tmp_path / "never").touch()
        assert stuck.result(PATIENCE_S) is None
        assert [future.result(PATIENCE_S) for future in as_completed(quick, PATIENCE_S)] == [9]


def test_as_completed_over_many(server: Any) -> None:
    with Worker() as one, Worker() as two, server.connect("miniray.serve_calls") as three:
        futures = {w.call_async("task_functions.square", n): n for n in range(100) for w in (one, two, three)}
        assert len(futures) == 300
        done = {future: future.result(0) for future in as_completed(futures, timeout=PATIENCE_S)}
    assert done == {future: n * n for future, n in futures.items()}


def test_awaited(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def converse() -> None:
        assert await call_worker.call_async("task_functions.square", 3) == 9
        with pytest.raises(ValueError, match="boom"):
            await call_worker.call_async("task_functions.fail", "boom")
        waiting = call_worker.call_async("task_functions.wait_for", str(gate), "opened")
        others = [call_worker.call_async("task_functions.square", number) for number in range(200)]
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while not waiting.done():
                ticks += 1
                if ticks == 5:
                    gate.touch()  # the loop has to run for this to happen
                await asyncio.sleep(0.01)

        async def wait(future: Any) -> Any:
            return await future

        results = await asyncio.wait_for(
            asyncio.gather(tick(), wait(waiting), *map(wait, reversed(others))), timeout=PATIENCE_S
        )
        assert results[1] == "opened"
        assert results[:1:-1] == [number * number for number in range(200)]
        assert ticks >= 5
        assert await waiting == "opened"  # done already

    asyncio.run(converse())


def test_awaited_by_several_and_given_up_by_one(call_worker: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def converse() -> None:
        future = call_worker.call_async("task_functions.wait_for", str(gate), "opened")

        async def wait() -> Any:
            return await future

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(), 0.1)
        follow_up = call_worker.call_async("task_functions.square", 2)
        gate.touch()
        # Whether an await that is given up cancels the call is the caller's to know: the worker serves on.
        assert await follow_up == 4

    asyncio.run(converse())


def test_awaited_beside_messages(talker: Any) -> None:
    async def converse() -> None:
        async def call() -> list[Any]:
            return [await talker.call_async("task_functions.square", number) for number in range(50)]

        async def talk() -> list[Any]:
            heard = []
            for number in range(50):
                await talker.send_async(number)
                heard.append(await talker.recv_async(timeout=PATIENCE_S))
            return heard

        squares, numbers = await asyncio.wait_for(asyncio.gather(call(), talk()), PATIENCE_S)
        assert squares == [number * number for number in range(50)]
        assert numbers == list(range(50))

    asyncio.run(converse())


def test_an_awaited_message_beside_a_call_that_does_not_await(talker: Any) -> None:
    """The call reads the message, and nothing more comes that would wake the loop."""

    async def converse() -> None:
        message = asyncio.create_task(talker.recv_async(timeout=PATIENCE_S))
        await until_async(lambda: "_receiving" in vars(talker) and talker._receiving[1].locked(), what="its wait")
        talker.send(7)
        assert talker.call_remote("task_functions.square", 3) == 9  # the worker has answered the message before
        assert await message == 7

    asyncio.run(converse())


def test_an_awaited_call_beside_a_recv_that_does_not_await(talker: Any, tmp_path: Path) -> None:
    async def converse() -> None:
        go = tmp_path / "go"
        future = talker.call_async("task_functions.wait_for", str(go))
        outcome = asyncio.ensure_future(asyncio.wait_for(future, PATIENCE_S))
        await until_async(lambda: "_reply_watch" in vars(talker) and talker._reply_watch._calls, what="its wait")
        go.touch()
        talker.send(8)
        assert talker.recv(timeout=PATIENCE_S) == 8  # the reply came before it
        await outcome

    asyncio.run(converse())


def test_an_awaited_call_whose_worker_dies(call_worker: Any, tmp_path: Path) -> None:
    async def converse() -> None:
        future = call_worker.call_async("task_functions.wait_for", str(tmp_path / "never"))
        asyncio.get_running_loop().call_later(0.1, call_worker.kill)
        with pytest.raises(miniray.WorkerDied):
            await future

    asyncio.run(converse())

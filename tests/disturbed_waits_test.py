"""Sends, receives and waits that a signal, a cancellation, a close or another thread disturbs: nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from waiting import PATIENCE_S, is_blocked, until, when_this_thread_blocks

import miniray
from miniray import Worker, wait_any


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def late_reader(gate: Path) -> Worker:
    """Reads when the gate is open, and says how much came."""

    def work(handle: Any) -> None:
        task_functions.wait_for(str(gate))
        while True:
            handle.send(len(handle.recv()))

    return Worker(work)


class Interrupted(Exception):
    pass


@contextlib.contextmanager
def interruptible() -> Any:
    """SIGALRM raises Interrupted."""

    def raise_it(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def alarm() -> None:
    os.kill(os.getpid(), signal.SIGALRM)


@pytest.mark.parametrize("wait", ["wait_any", "recv", "recv_async", "wait"])
def test_the_rest_of_an_interrupted_send_goes_out_with_the_next_wait(wait: str, tmp_path: Path) -> None:
    with late_reader(tmp_path / "gate") as worker:
        with interruptible(), pytest.raises(Interrupted), when_this_thread_blocks(alarm):
            worker.send("x" * 3_000_000)
        (tmp_path / "gate").touch()
        if wait == "wait_any":
            assert wait_any([worker], timeout=30) == [worker]
        if wait == "wait":
            with pytest.raises(TimeoutError):
                worker.wait(timeout=2)
        if wait == "recv_async":
            assert asyncio.run(worker.recv_async(timeout=30)) == 3_000_000
        else:
            assert worker.recv(timeout=30) == 3_000_000


def test_a_cancelled_send_is_finished_by_the_next_call(tmp_path: Path) -> None:
    async def converse() -> None:
        with late_reader(tmp_path / "gate") as worker:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(worker.send_async("x" * 3_000_000), 0.1)
            (tmp_path / "gate").touch()
            assert await worker.recv_async(timeout=30) == 3_000_000

    asyncio.run(converse())


def test_a_close_wakes_who_awaits() -> None:
    async def converse() -> None:
        worker = Worker(echo)
        waiting = asyncio.create_task(worker.recv_async())
        await asyncio.sleep(0)  # now it waits
        worker.close()
        with pytest.raises(miniray.EndOfStream):
            await asyncio.wait_for(waiting, 30)
        with Worker(lambda handle: handle.send("fresh")) as other:  # it may get the same descriptor
            assert await other.recv_async(timeout=30) == "fresh"

    asyncio.run(converse())


def test_wait_any_by_two_threads_is_refused_not_lost(tmp_path: Path) -> None:
    def send_when_told(handle: Any) -> None:
        until((tmp_path / "go").exists)
        handle.send(1)
        handle.recv()

    workers = [Worker(send_when_told), *(Worker(echo) for _ in range(3))]
    refused: list[str] = []

    def wait() -> None:
        try:
            wait_any(workers, timeout=PATIENCE_S)
        except RuntimeError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
        until(lambda waiting=thread: is_blocked(waiting.native_id) or not waiting.is_alive())
    (tmp_path / "go").touch()  # a send from here would use a channel that another thread waits for
    for thread in threads:
        thread.join()
    assert len(refused) == 2
    assert all("thread" in text for text in refused)
    for worker in workers:
        worker.kill()
        worker.close()


def test_a_list_that_changes_during_wait_any_does_no_harm(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    workers = [Worker(lambda handle: handle.send(task_functions.wait_for(str(gate), "late"))) for _ in range(3)]
    changing = list(workers)

    def change() -> None:
        changing.clear()
        gate.touch()

    with when_this_thread_blocks(change):
        found = wait_any(changing, timeout=PATIENCE_S)
    assert found
    assert set(found) <= set(workers)
    for worker in workers:
        assert worker.recv(timeout=30) == "late"
        worker.close()


def test_a_signal_handler_cannot_wait_inside_wait_any(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Worker(lambda handle: handle.send(task_functions.wait_for(str(gate)))) as one, Worker(echo) as two:
        errors: list[str] = []

        def handler(*_: object) -> None:
            try:
                wait_any([two], timeout=0)
            except RuntimeError as error:
                errors.append(str(error))
            gate.touch()

        before = signal.signal(signal.SIGALRM, handler)
        with when_this_thread_blocks(alarm):
            assert wait_any([one], timeout=PATIENCE_S) == [one]
        signal.signal(signal.SIGALRM, before)
        [error] = errors
        assert "signal handler" in error


def test_a_message_that_is_interrupted_while_it_is_decoded_is_not_lost() -> None:
    def source(handle: Any) -> None:
        for number in range(20):
            handle.send({"number": number, "arrays": [np.zeros(4) for _ in range(3000)]})
        handle.recv()

    with Worker(source) as worker:
        received: list[Any] = []
        interrupts = 0
        while len(received) < 20:
            assert interrupts < 10_000, f"only {len(received)} of 20 messages came"
            try:
                with interruptible():
                    signal.setitimer(signal.ITIMER_REAL, 0.001 * (interrupts + 1))
                    # In one step for Python: between two, a handler may raise when the message is there already.
                    received.extend(itertools.starmap(functools.partial(worker.recv, timeout=30), [()]))
            except Interrupted:
                interrupts += 1
        assert interrupts > 0
        assert [message["number"] for message in received] == list(range(20))

"""Local workers, and every way in which one ends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from script_programs import run_script
from waiting import is_blocked, until

import miniray
from miniray import Worker, wait_any


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def test_a_closure_works_and_the_context_manager_ends_it() -> None:
    factor = 3

    def work(handle: Any) -> None:
        while True:
            handle.send(handle.recv() * factor)

    with Worker(work) as worker:
        worker.send(14)
        assert worker.recv() == 42
        assert worker.is_alive()
        assert "work" in worker.name
        assert str(worker.pid) in repr(worker)
    assert not worker.is_alive()
    with pytest.raises(EOFError, match="was closed by this process"):
        worker.send(1)


def test_a_return_is_an_end_of_stream_that_says_so() -> None:
    with Worker(lambda handle: handle.send("done")) as worker:
        assert worker.recv() == "done"
        with pytest.raises(miniray.EndOfStream, match="has returned; there are no more messages"):
            worker.recv()
        assert worker.wait() == 0
        with pytest.raises(miniray.EndOfStream):
            worker.send(1)


def test_an_exception_arrives_with_its_traceback() -> None:
    def work(handle: Any) -> None:
        handle.recv()
        raise KeyError("no such layer")

    with Worker(work) as worker:
        worker.send(None)
        with pytest.raises(miniray.WorkerError) as caught:
            worker.recv()
        assert caught.value.type == "KeyError"
        assert "no such layer" in caught.value.message
        assert 'raise KeyError("no such layer")' in caught.value.traceback
        assert "_work.py" not in caught.value.traceback
        assert str(worker.pid) in str(caught.value)
        assert worker.wait() == 1


def test_sys_exit_is_an_exit() -> None:
    with Worker(lambda handle: sys.exit(7)) as worker:
        with pytest.raises(miniray.WorkerDied, match="exited with code 7") as caught:
            worker.recv()
        assert caught.value.exit_code == 7
        assert caught.value.signal is None
    with Worker(lambda handle: sys.exit()) as worker, pytest.raises(miniray.EndOfStream):
        worker.recv()


def test_a_death_certificate_has_the_python_stack_and_the_last_messages() -> None:
    def crash_in_this_function() -> None:
        ctypes.string_at(0)

    def work(handle: Any) -> None:
        handle.send({"status": "ready"})
        handle.recv()
        crash_in_this_function()

    with Worker(work) as worker:
        worker.recv()
        worker.send({"cmd": "crash", "array": np.zeros(3)})
        with pytest.raises(miniray.WorkerDied) as caught:
            worker.recv()
    died = caught.value
    assert isinstance(died, ConnectionError)
    assert isinstance(died, EOFError)
    assert died.signal == signal.SIGSEGV
    assert "killed by SIGSEGV" in str(died)
    assert "crash_in_this_function" in died.stack
    assert "C++ stack at SIGSEGV" in died.stack
    assert '-> {"cmd": "crash", "array": "<array float64 3>"}' in died.last_messages
    assert '<- {"status": "ready"}' in died.last_messages
    assert died.peak_bytes > 1_000_000
    assert not died.out_of_memory


def test_a_worker_that_is_killed_is_reported_at_once() -> None:
    with Worker(echo) as worker:
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(miniray.WorkerDied, match="killed by SIGTERM"):
            worker.recv()
        assert worker.wait() == -signal.SIGTERM


def test_the_out_of_memory_killer_is_named(memory_group: Path) -> None:
    def greedy(handle: Any) -> None:
        (memory_group / "cgroup.procs").write_text(str(os.getpid()))
        handle.send("going")
        held = [bytearray(2**20) for _ in range(500)]
        handle.send(len(held))

    with Worker(greedy) as worker:
        assert worker.recv() == "going"
        with pytest.raises(miniray.WorkerDied, match="was killed: out of memory") as caught:
            worker.recv()
        assert caught.value.out_of_memory
        assert caught.value.signal == signal.SIGKILL


def test_killed_by_hand_is_not_out_of_memory() -> None:
    with Worker(echo) as worker:
        worker.kill()
        with pytest.raises(miniray.WorkerDied, match="SIGKILL") as caught:
            worker.recv()
        assert not caught.value.out_of_memory


def test_killed_at_random_moments_while_messages_fly() -> None:
    source = random.Random(3)
    message = {"text": "x" * 3000, "array": np.zeros(20_000)}
    for _ in range(500):
        worker = Worker(echo)
        timer = threading.Timer(source.random() * 0.004, os.kill, (worker.pid, signal.SIGKILL))
        timer.start()
        with pytest.raises(miniray.WorkerDied):  # noqa: PT012 (which call it is depends on the moment)
            while True:
                worker.send(message)
                if source.random() < 0.5:
                    worker.recv(timeout=30)
        timer.join()
        worker.close()


def test_wait_any_reports_messages_deaths_and_nothing() -> None:
    workers = [Worker(echo) for _ in range(6)]
    assert wait_any(workers, timeout=0.01) == []
    workers[4].send(1)
    workers[1].send(2)
    found: list[Worker] = []
    while len(found) < 2:
        found = wait_any(workers, timeout=30)
    assert found == [workers[1], workers[4]]
    assert [worker.recv() for worker in found] == [2, 1]
    workers[2].kill()
    assert wait_any(workers, timeout=30) == [workers[2]]
    with pytest.raises(miniray.WorkerDied):
        workers[2].recv()
    pending = workers[:2] + workers[3:]
    for number, worker in enumerate(pending):
        worker.send(number)
    answers = []
    while pending:
        for worker in wait_any(pending, timeout=30):
            answers.append(worker.recv())
            pending.remove(worker)
    assert sorted(answers) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="nothing to wait for"):
        wait_any([])
    for worker in workers:
        worker.close()


def test_wait_times_out_and_reads_what_is_still_sent() -> None:
    with Worker(echo) as worker, pytest.raises(TimeoutError, match="still runs"):
        worker.wait(timeout=0.01)

    def talkative(handle: Any) -> None:
        for number in range(100):
            handle.send([number, b"x" * 50_000])

    with Worker(talkative) as worker:
        assert worker.wait(timeout=30) == 0
        assert [worker.recv()[0] for _ in range(100)] == list(range(100))


def test_asyncio() -> None:
    async def converse() -> None:
        workers = [Worker(echo) for _ in range(4)]
        large = np.arange(300_000.0)

        async def talk(worker: Worker) -> None:
            for number in range(20):
                await worker.send_async({"number": number, "array": large, "text": "x" * 300_000})
            for number in range(20):
                answer = await worker.recv_async(timeout=30)
                assert answer["number"] == number

        await asyncio.gather(*map(talk, workers))
        with pytest.raises(TimeoutError):
            await workers[0].recv_async(timeout=0.01)
        both = asyncio.gather(workers[0].recv_async(), workers[0].recv_async())
        await asyncio.sleep(0)
        workers[0].send("first")
        workers[0].send("second")
        assert await both == ["first", "second"]
        waiting = asyncio.create_task(workers[1].recv_async())
        await asyncio.sleep(0)  # now it waits
        waiting.cancel()
        workers[1].send("not lost")
        assert await workers[1].recv_async() == "not lost"
        workers[2].kill()
        with pytest.raises(miniray.WorkerDied):
            await workers[2].recv_async()
        assert await workers[2].wait_async(timeout=30) == -signal.SIGKILL
        for worker in workers:
            worker.close()

    asyncio.run(converse())


def test_two_threads_in_one_worker_are_refused(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Worker(lambda handle: handle.send(task_functions.wait_for(str(gate)))) as worker:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(worker.recv()))
        thread.start()
        until(lambda: thread.native_id is not None and is_blocked(thread.native_id))
        with pytest.raises(RuntimeError, match="in use by another thread"):
            worker.recv(timeout=0)
        with pytest.raises(RuntimeError, match="Give each thread a worker of its own"):
            worker.send("from the second thread")
        gate.touch()
        thread.join()
        assert answers == [None]


def test_a_worker_imports_what_calls_need_only_when_it_is_called(tmp_path: Path) -> None:
    source = """
    import sys
    from miniray import Worker
    def work(handle):
        handle.send([name for name in sys.modules if name in ("miniray._calls", "miniray._definitions")])
        handle.recv()
    with Worker(work) as worker:
        print(worker.recv(), worker.call_remote("math.sqrt", 4))
    """
    assert run_script(tmp_path, source) == "[] 2.0\n"

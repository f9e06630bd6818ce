"""``async with`` of workers, pools and clusters: leaving ends them as ``with`` does, and the loop runs meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import task_functions
from waiting import PATIENCE_S

from miniray import Cluster, NodeConfig, Pool, Worker


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, PATIENCE_S))


class Ticks:
    """Counts while the loop runs, and opens a gate at the third tick: who blocks the loop waits for ever."""

    def __init__(self, gate: Path) -> None:
        self.gate, self.count = gate, 0

    def begin(self) -> None:
        self.task = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while True:
            self.count += 1
            if self.count == 3:
                self.gate.touch()
            await asyncio.sleep(0.01)


def finish_when_open(handle: Any) -> None:
    gate = handle.recv()
    handle.send("begun")
    try:
        handle.recv()  # until the conversation ends
    except EOFError:
        task_functions.wait_for(gate)


def ignore_the_end(handle: Any) -> None:
    handle.send("begun")
    while True:
        threading.Event().wait(1)


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_worker(kind: str, server: Any, tmp_path: Path) -> None:
    async def main() -> None:
        ticks = Ticks(tmp_path / "gate")
        worker = Worker(finish_when_open) if kind == "local" else server.connect("async_with_test.finish_when_open")
        async with worker as entered:
            assert entered is worker
            await worker.send_async(str(tmp_path / "gate"))
            assert await worker.recv_async() == "begun"
            ticks.begin()
        assert ticks.count >= 3
        assert not worker.is_alive()
        assert worker.wait() == 0
        ticks.task.cancel()

    run(main())


def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    from miniray import _async

    class Limits:
        close_grace_ms = 100

    class Core:
        limits = Limits

    monkeypatch.setattr(_async, "_core", Core)

    async def main() -> None:
        async with Worker(ignore_the_end) as worker:
            assert await worker.recv_async() == "begun"
        assert not worker.is_alive()

    run(main())


def test_a_leave_that_is_cancelled_still_ends_the_worker() -> None:
    async def main() -> None:
        worker = Worker(ignore_the_end)

        async def use() -> None:
            async with worker:
                assert await worker.recv_async() == "begun"
                left.set()

        left = asyncio.Event()
        task = asyncio.ensure_future(use())
        await left.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(worker.wait, PATIENCE_S) == -9
        worker.close()

    run(main())


def test_what_the_body_raises_comes_out() -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with Worker() as worker, Pool(1):
                raise ZeroDivisionError
        assert not worker.is_alive()

    run(main())


def test_pool(tmp_path: Path) -> None:
    """Leaving finishes what was submitted, as ``with`` does."""

    async def main() -> None:
        ticks = Ticks(tmp_path / "gate")
        async with Pool(2) as pool:
            assert isinstance(pool, Pool)
            pid = await pool.submit(os.getpid)
            future = pool.submit(task_functions.wait_for, str(tmp_path / "gate"), "opened")
            ticks.begin()
        assert future.result(0) == "opened"
        assert ticks.count >= 3
        assert not Path(f"/proc/{pid}").exists()
        ticks.task.cancel()
        async with Worker() as worker:  # no thread is left that a fork would have to warn of
            assert await worker.call_async("task_functions.square", 3) == 9
        with pytest.raises(RuntimeError, match="shutdown"):
            pool.submit(abs, -1)

    run(main())


def test_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        ticks = Ticks(tmp_path / "gate")
        node = NodeConfig("localhost", num_workers=1, base_port=0, env={"PYTHONPATH": str(Path(__file__).parent)})
        async with Cluster(nodes=[node], ship_code=False, progress=False) as cluster:
            [worker] = cluster.start("async_with_test.finish_when_open")
            await worker.send_async(str(tmp_path / "gate"))
            assert await worker.recv_async() == "begun"
            ticks.begin()
        assert ticks.count >= 3
        assert not worker.is_alive()
        assert not cluster.workers
        ticks.task.cancel()

    run(main())

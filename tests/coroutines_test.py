"""async def functions and methods, as tasks and as calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import until

import miniray
from miniray import Pool, Worker


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


async def echo_once(handle: Any) -> None:
    await handle.send_async(await handle.recv_async())


async def fail() -> None:
    await asyncio.sleep(0)
    raise ValueError("in a coroutine")


class Account:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.value = 0

    async def add(self, amount: int) -> int:
        async with self.lock:
            before = self.value
            await asyncio.sleep(0)
            self.value = before + amount
            return self.value

    def now(self) -> int:
        return self.value


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_tasks(start: str) -> None:
    with Pool(2, start=start) as pool:
        assert pool.submit(add, 1, 2).result() == 3
        assert list(pool.map(add, range(50), range(50))) == [2 * n for n in range(50)]
        assert sorted(pool.imap_unordered(lambda n: add(n, 1), range(20))) == list(range(1, 21))
        assert pool.options(memory_bytes=10**9).submit(add, 3, 4).result() == 7
        with pytest.raises(ValueError, match="in a coroutine"):
            pool.submit(fail).result()


def test_calls_and_methods() -> None:
    with Worker() as worker:
        worker.register(add)
        assert worker.call_remote("add", 1, 2) == 3
        account: Any = worker.create("account", Account)
        assert account.add(5) == 5
        futures = [account.call_async("add", 1) for _ in range(20)]
        assert [future.result() for future in futures] == list(range(6, 26))
        assert account.now() == 25
        with pytest.raises(ValueError, match="in a coroutine"):
            worker.register(fail) or worker.call_remote("fail")


class Crowd:
    """Whose calls wait for each other."""

    concurrency = 8

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.gate = asyncio.Event()

    async def enter(self) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.gate.wait()
        self.inside -= 1
        return self.most

    async def open(self) -> None:
        self.gate.set()

    def count(self) -> int:
        return self.inside

    async def fail(self) -> None:
        await self.gate.wait()
        raise ValueError("in a crowd")

    async def gives_a_set(self) -> set[int]:
        return {1}

    async def cannot_be_sent(self) -> Any:
        return (n for n in range(3))


@pytest.mark.parametrize("how", ["calls alone", "messages too", "asyncio", "spawn"])
def test_calls_of_an_object_that_asks_for_it_interleave(how: str) -> None:
    """Each would wait for ever if the next were not taken before it is done."""

    def echo(handle: Any) -> None:
        while True:
            handle.send(handle.recv())

    async def echo_async(handle: Any) -> None:
        while True:
            await handle.send_async(await handle.recv_async())

    work = {"calls alone": None, "spawn": None, "messages too": echo, "asyncio": lambda h: asyncio.run(echo_async(h))}
    with Worker(work[how], start="spawn" if how == "spawn" else "fork") as worker:
        crowd: Any = worker.create("crowd", Crowd)
        futures = [crowd.call_async("enter") for _ in range(5)]
        failed = crowd.call_async("fail")
        assert until(lambda: crowd.count() == 5) if how == "asyncio" else crowd.count() == 5
        if how in ("messages too", "asyncio"):
            for number in range(3):
                worker.send(number)
                assert worker.recv(timeout=60) == number
        crowd.open()
        assert [future.result(60) for future in futures] == [5] * 5
        with pytest.raises(ValueError, match="in a crowd"):
            failed.result(60)
        assert crowd.gives_a_set() == {1}
        with pytest.raises(TypeError, match="the result cannot be sent"):
            crowd.cannot_be_sent()
        assert crowd.count() == 0


def test_no_more_of_them_than_it_asks_for() -> None:
    with Worker() as worker:
        crowd: Any = worker.create("crowd", Crowd)
        futures = [crowd.call_async("enter") for _ in range(7)]
        opened = crowd.call_async("open")
        later = [crowd.call_async("enter") for _ in range(20)]
        assert opened.result(60) is None
        assert max(future.result(60) for future in futures + later) <= 8


def test_a_worker_that_dies_with_calls_under_way() -> None:
    with Worker() as worker:
        crowd: Any = worker.create("crowd", Crowd)
        futures = [crowd.call_async("enter") for _ in range(3)]
        assert crowd.count() == 3
        worker.kill()
        for future in futures:
            with pytest.raises(miniray.WorkerDied):
                future.result(60)


def test_a_worker_is_closed_with_calls_under_way() -> None:
    with Worker() as worker:
        crowd: Any = worker.create("crowd", Crowd)
        crowd.call_async("enter")
        assert crowd.count() == 1
    assert not worker.is_alive()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_work_function_that_is_a_coroutine(start: str) -> None:
    with Worker(echo_once, start=start) as worker:
        worker.send({"x": 1})
        assert worker.recv(timeout=60) == {"x": 1}
        assert worker.wait(60) == 0


class Clock:
    """Something that goes on while nobody calls."""

    def __init__(self) -> None:
        self.ticks = 0

    async def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.tick())

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.ticks += 1

    def now(self) -> int:
        return self.ticks


def test_a_task_that_a_coroutine_leaves_behind_goes_on() -> None:
    with Worker() as worker:
        clock: Any = worker.create("clock", Clock)
        clock.start()
        assert until(lambda: clock.now() > 3)


@pytest.mark.parametrize("limit", [0, -1, 2.5, "8", True])
def test_a_concurrency_that_is_no_number_of_calls(limit: Any) -> None:
    with Worker() as worker:
        with pytest.raises(ValueError, match=r"concurrency is .* It must be an int of at least 1"):
            worker.create("crowd", type("Wrong", (Crowd,), {"concurrency": limit}))
        assert worker.create("crowd", Crowd).count() == 0

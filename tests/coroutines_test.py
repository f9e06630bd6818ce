"""async def functions and methods, as tasks and as calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from miniray import Pool, Worker


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


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

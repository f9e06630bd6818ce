"""What mypy and pyright must both infer. It is checked, never run."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import Any

from typing_extensions import assert_type

import miniray
from miniray import CallFuture, Cluster, NodeConfig, Pool, PoolFuture, RemoteObject, Worker
from miniray.pool import PoolView


def square(x: int) -> int:
    return x * x


def label(x: int, name: str = "", *, loud: bool = False) -> str:
    return name * x if loud else name


def join(a: int, b: str, c: bytes) -> bytes:
    return f"{a}{b}".encode() + c


async def fetch(url: str) -> bytes:
    return url.encode()


class Model:
    def __init__(self, size: int) -> None:
        self.size = size

    def score(self, x: float) -> float:
        return x


def submitting(pool: Pool, model: Model) -> None:
    assert_type(pool.submit(square, 3), PoolFuture[int])
    assert_type(pool.submit(square, 3).result(), int)
    assert_type(pool.submit(label, 3, "a", loud=True), PoolFuture[str])
    assert_type(pool.submit(label, x=3), PoolFuture[str])
    assert_type(pool.submit(fetch, "a"), PoolFuture[bytes])
    assert_type(pool.submit(Model, 3), PoolFuture[Model])
    assert_type(pool.submit(model.score, 0.5), PoolFuture[float])
    assert_type(pool.submit(lambda: 1), PoolFuture[int])
    assert_type(pool.submit("module.function", 1, a=2), PoolFuture[Any])
    assert_type(pool.options(retries=2), PoolView)
    assert_type(pool.options(retries=2).submit(square, 3), PoolFuture[int])


def mapping(pool: Pool) -> None:
    assert_type(pool.map(square, [1, 2]), Iterator[int])
    assert_type(list(pool.map(square, range(3), chunksize=2, timeout=1.0)), list[int])
    assert_type(pool.map(label, [1, 2], ["a", "b"]), Iterator[str])
    assert_type(pool.map(join, [1], ["a"], [b"c"]), Iterator[bytes])
    assert_type(pool.map(fetch, ["a"]), Iterator[bytes])
    assert_type(pool.map("module.function", [1]), Iterator[Any])
    assert_type(pool.starmap(label, [(1, "a")]), list[str])
    assert_type(pool.starmap(fetch, [("a",)]), list[bytes])
    assert_type(pool.imap_unordered(square, iter([1])), Iterator[int])
    assert_type(pool.imap_unordered(fetch, ["a"], progress=True), Iterator[bytes])
    assert_type(pool.options(num_gpus=1).map(square, [1]), Iterator[int])


def waiting(pool: Pool, worker: Worker) -> None:
    call = worker.call_async("square", 3)
    task = pool.submit(square, 3)
    assert_type(call, CallFuture[Any])
    assert_type(call.result(), Any)
    assert_type(task.exception(), BaseException | None)
    assert_type(worker.call_remote("square", 3), Any)
    assert_type(worker.create("model", Model, 3), RemoteObject)
    for future in miniray.as_completed([task]):
        assert_type(future, PoolFuture[int])
    for one in concurrent.futures.as_completed([call, task]):
        one.result()
    assert_type(concurrent.futures.wait([task], timeout=1).done, set[concurrent.futures.Future[int]])


async def awaiting(pool: Pool, worker: Worker) -> None:
    assert_type(await pool.submit(square, 3), int)
    assert_type(await pool.submit(fetch, "a"), bytes)
    assert_type(await asyncio.wrap_future(pool.submit(square, 3)), int)
    assert_type(await worker.call_async("square", 3), Any)


async def leaving() -> None:
    async with Worker() as worker, Pool(2) as pool, Cluster([NodeConfig("localhost")]) as cluster:
        assert_type(worker, Worker)
        assert_type(pool, Pool)
        assert_type(cluster, Cluster)
    with Pool(2) as other:
        assert_type(other, Pool)

"""Mistakes that mypy and pyright must both find, one for each line that is marked. It is checked, never run."""

from __future__ import annotations

from miniray import Pool, PoolFuture, Worker


def square(x: int) -> int:
    return x * x


def label(x: int, name: str) -> str:
    return name * x


async def work(pool: Pool, worker: Worker) -> None:
    pool.submit(square, "3")  # wrong
    pool.submit(square)  # wrong
    pool.submit(square, 3, 4)  # wrong
    pool.submit(square, y=3)  # wrong
    pool.submit(3)  # wrong
    text: PoolFuture[str] = pool.submit(square, 3)  # wrong
    print(text)
    pool.submit(square, 3).result().upper()  # wrong
    (await pool.submit(square, 3)).upper()  # wrong
    pool.map(square, ["3"])  # wrong
    pool.map(square, 3)  # wrong
    pool.map(label, [1], [2])  # wrong
    pool.map(square, [1], chunksize="2")  # wrong
    pool.map(square, [1], chunk_size=2)  # wrong
    for squared in pool.imap_unordered(square, [1]):
        squared.upper()  # wrong
    pool.starmap(square, [1])  # wrong
    worker.call_async(square, 3)  # wrong
    worker.call_remote(square, 3)  # wrong
    worker.send_nothing()  # wrong

"""Runs calls of ``async def`` functions in a worker, one after the other or concurrently.

A worker has one event loop for all its coroutines. The loop runs while a call waits for its coroutine, and while the
worker waits for the next call. If the work function runs an event loop of its own, the coroutines run in that one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

_loop: Any = None
_under_way: set[Any] = set()  # keeps tasks alive: an event loop has only weak references to them


def _own_loop() -> Any:
    import asyncio  # here, because it takes longer to import than all the rest

    global _loop
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
    return _loop


def _running_loop() -> Any:
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await the coroutine and return its result."""
    return _own_loop().run_until_complete(coroutine)


def begin(
    coroutine: Coroutine[Any, Any, Any], reply: Callable[[bool, Any], None], limit: ConcurrencyLimit | None
) -> bool:
    """Await the coroutine, and call ``reply(failed, outcome)`` once. Returns True if the event loop has more to do, so
    that the worker must run it while it waits for other calls.

    Without ``limit``, the coroutine is done when this returns. With it, the coroutine runs while the worker takes other
    calls.
    """
    running = _running_loop()
    if running is not None:
        _start(running, _replying(coroutine, reply))
        return False  # the work function runs this loop itself
    import asyncio

    loop = _own_loop()
    if limit is None:
        run(_replying(coroutine, reply))
        return bool(asyncio.all_tasks(loop))  # the coroutine may have started tasks that are not done
    _start(loop, limit.run(_replying(coroutine, reply)))
    loop.run_until_complete(asyncio.sleep(0))  # the coroutine starts before the worker takes the next call
    return True


def concurrency_of(kind: type) -> int:
    """How many calls of one object of this class may run at once: its attribute ``concurrency``, by default 1."""
    limit = getattr(kind, "concurrency", 1)
    if isinstance(limit, (property, staticmethod, classmethod)) or callable(limit):
        return 1  # the class uses this name for something else
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(
            f"{kind.__qualname__}.concurrency is {limit!r}. It must be an int of at least 1: the number of coroutines "
            "of one object that run at once"
        )
    return limit


class ConcurrencyLimit:
    """Limits how many calls of one object run at once. The others wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphore: Any = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        import asyncio

        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self._limit)
        async with self._semaphore:
            await work


def _start(loop: Any, coroutine: Coroutine[Any, Any, None]) -> None:
    task = loop.create_task(coroutine)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _replying(coroutine: Coroutine[Any, Any, Any], reply: Callable[[bool, Any], None]) -> None:
    try:
        outcome, failed = await coroutine, False
    except BaseException as error:
        outcome, failed = error, True
    reply(failed, outcome)


def work(descriptor: int, timeout: float | None) -> bool:
    """Run the coroutines until the descriptor is readable, one of them is done, or ``timeout`` seconds are over.
    Returns False if there are none."""
    import asyncio

    loop = _own_loop()
    tasks = asyncio.all_tasks(loop)
    if not tasks:
        return False

    async def wait() -> None:
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(descriptor, lambda: None if readable.done() else readable.set_result(None))
        try:
            await asyncio.wait({readable, *tasks}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(descriptor)

    try:
        loop.run_until_complete(wait())
    except (asyncio.CancelledError, RuntimeError):
        pass  # a coroutine cancelled all tasks, this wait included, or stopped the loop
    return True

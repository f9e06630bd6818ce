"""Coroutines in a worker: calls of ``async def`` functions, one after the other or beside each other.

A worker has one event loop for all of them. It runs while a call waits for its coroutine, and while the worker waits
for the next call. A work function that runs a loop of its own has them in that one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

_loop: Any = None
_under_way: set[Any] = set()


def _own_loop() -> Any:
    import asyncio  # takes longer to import than all the rest

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
    """Await it, and return what it returns."""
    return _own_loop().run_until_complete(coroutine)


def begin(coroutine: Coroutine[Any, Any, Any], reply: Callable[[bool, Any], None], turns: Turns | None) -> bool:
    """Await it, and call ``reply(failed, outcome)`` once: before this returns, or later if this returns True.

    With ``turns``, it goes on while other calls are taken. So do tasks that it has left in the loop.
    """
    running = _running_loop()
    if running is not None:
        _start(running, _replying(coroutine, reply))
        return False  # that loop is the work function's, which runs it
    import asyncio

    loop = _own_loop()
    if turns is None:
        run(_replying(coroutine, reply))
        return bool(asyncio.all_tasks(loop))  # it may have left some behind
    _start(loop, turns.take(_replying(coroutine, reply)))
    loop.run_until_complete(asyncio.sleep(0))  # it begins before the next call is taken
    return True


def concurrency_of(kind: type) -> int:
    """How many calls of an object of that class may be under way at once."""
    limit = getattr(kind, "concurrency", 1)
    if isinstance(limit, (property, staticmethod, classmethod)) or callable(limit):
        return 1  # the class means something else by that name
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(
            f"{kind.__qualname__}.concurrency is {limit!r}, and must be a whole number from 1: so many coroutines of "
            "one object go on beside each other"
        )
    return limit


class Turns:
    """How many calls of one object are under way at once: the others wait for their turn."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphore: Any = None

    async def take(self, work: Coroutine[Any, Any, None]) -> None:
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
    """Let the coroutines go on until the descriptor is readable, one is done, or ``timeout`` seconds are over. False if
    there are none."""
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
        pass  # a coroutine cancelled all tasks, or stopped the loop: that is not this wait's business
    return True

"""Waiting for a condition, in tests. A wait that ends in vain fails the test, and says what it waited for."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0  # for what takes milliseconds on a machine that is not busy
POLL_S = 0.01

Wish = Callable[[], Any]
Name = str | Callable[[], str]  # of what is wished for; by default the source of the wish


def until(wish: Wish, within_s: float = PATIENCE_S, what: Name = "") -> Any:
    """Polls until the wish returns something true, and returns that."""
    deadline = time.monotonic() + within_s
    while not (granted := wish()):
        assert time.monotonic() < deadline, _in_vain(wish, within_s, what)
        time.sleep(POLL_S)
    return granted


async def until_async(wish: Wish, within_s: float = PATIENCE_S, what: Name = "") -> Any:
    """The same for asyncio: the loop runs meanwhile."""
    deadline = time.monotonic() + within_s
    while not (granted := wish()):
        assert time.monotonic() < deadline, _in_vain(wish, within_s, what)
        await asyncio.sleep(POLL_S)
    return granted


def _in_vain(wish: Wish, within_s: float, what: Name) -> str:
    if callable(what):
        what = what()
    if not what:
        try:
            what = " ".join(inspect.getsource(wish).split())
        except (OSError, TypeError):  # it was not read from a file
            what = repr(wish)
    return f"waited {within_s:g} s in vain for: {what}"


def is_gone(pid: int) -> bool:
    """Whether the process has ended; perhaps whoever inherited it has not reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_blocked(thread: int) -> bool:
    """Whether this thread of any process waits in the kernel, and not just for a lock, such as the interpreter's."""
    try:
        place = Path(f"/proc/{thread}/wchan").read_text()
    except OSError:  # it has ended
        return False
    return place not in ("", "0") and not place.startswith("futex")


@contextmanager
def when_this_thread_blocks(act: Callable[[], Any]) -> Iterator[None]:
    """Does something, once, in another thread, as soon as the body waits in the kernel."""
    body = threading.get_native_id()
    assert body == os.getpid(), "for the main thread"
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            until(lambda: is_blocked(body), what="a wait of the main thread")
            act()
        except BaseException as failure:
            failures.append(failure)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()
    assert not failures, failures

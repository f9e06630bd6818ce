"""Coroutines in a worker: one event loop for all that its callers ask it to await."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

_loop: Any = None


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await it, and return what it returns. The loop stays: what one call makes in it, the next can use."""
    import asyncio  # takes longer to import than all the rest

    global _loop
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(coroutine)

"""A condition and a latch that Ctrl-C cannot leave locked.

Those of the standard library are Python code: if Ctrl-C comes just after they have taken their lock, they never release
it. Here the interpreter itself takes and releases locks.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from miniray import _core

_SLICE_S = _core.limits.wait_slice_ms / 1000


def _acquire(lock: Any, timeout: float | None) -> bool:
    """Acquire a lock, waiting in slices: a Ctrl-C just before the wait does not end it, so it is seen after a slice."""
    if timeout is None:
        while not lock.acquire(True, _SLICE_S):
            pass
        return True
    end = time.monotonic() + timeout
    while not lock.acquire(True, min(_SLICE_S, max(0.0, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


class _Condition(threading.Condition):
    def wait(self, timeout: float | None = None) -> bool:
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]
        saved: Any = None
        try:
            saved = self._release_save()  # type: ignore[attr-defined]
            return _acquire(waiter, timeout)
        finally:
            if saved is not None:
                self._acquire_restore(saved)  # type: ignore[attr-defined]
            elif not self._is_owned():  # type: ignore[attr-defined] # Ctrl-C came just after the lock was released
                self.acquire()
            if waiter in self._waiters:  # type: ignore[attr-defined]
                self._waiters.remove(waiter)  # type: ignore[attr-defined]


def condition_on(lock: Any) -> threading.Condition:
    """Return a condition whose ``with`` takes the lock without running Python code."""
    own: Any = type("Condition", (_Condition,), {"__enter__": lock.__enter__, "__exit__": lock.__exit__})
    made: threading.Condition = own(lock)
    return made


class Latch:
    """An event that is set once."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_set = False

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # the latch is already set
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds. Return whether the latch is set."""
        if not self._is_set and _acquire(self._lock, timeout):
            self._is_set = True
            self._lock.release()
        return self._is_set

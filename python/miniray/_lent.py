"""Workers that a program has lent to a pool: until the pool is shut down, only the pool may talk to them."""

from __future__ import annotations

from functools import cache
from typing import Any

from miniray.errors import UsageError

_TALKING = (
    *("send", "recv", "send_large", "recv_large", "send_async", "recv_async", "call_remote", "call_async"),
    *("register", "create", "forget", "wait", "wait_async", "close"),
)


def check(worker: Any) -> None:
    """Raise UsageError if a pool cannot have the worker."""
    if worker._closed:
        raise UsageError(f"{worker.name} was closed; a pool needs workers that run")
    if hasattr(worker, "_own_class"):
        raise UsageError(f"{worker.name} is already in a pool; a worker can be in one pool at a time")


def lend(worker: Any) -> None:
    """From now on, the worker's calls raise UsageError."""
    own: Any = type(worker)
    worker.__class__ = _lent_class(own)


def give_back(worker: Any) -> None:
    """Undo ``lend``, if the worker was lent."""
    worker.__class__ = getattr(worker, "_own_class", type(worker))


@cache
def _lent_class(cls: Any) -> Any:
    def refuse(self: Any, *_: Any, **__: Any) -> Any:
        raise UsageError(f"{self.name} belongs to a pool until the pool is shut down. Give the pool tasks: pool.submit")

    described = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**dict.fromkeys(_TALKING, refuse), "_own_class": cls, **described})

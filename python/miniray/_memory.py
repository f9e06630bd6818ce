"""A limit on the memory of one task, kept by the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from miniray import _core
from miniray.errors import TaskOutOfMemory


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Within it, this process may take so much more than it has. TaskOutOfMemory if it wants to."""
    limit = _core._MemoryLimit(more_bytes)
    try:
        yield
    except MemoryError as error:
        raise TaskOutOfMemory(limit.explain(str(error).strip())) from error
    finally:
        limit.end()

"""Limits the memory of one task, through a limit of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from miniray import _core
from miniray.errors import TaskOutOfMemory


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """In this context, the process may take ``more_bytes`` more than it has. Beyond that, raises TaskOutOfMemory."""
    limit = _core._MemoryLimit(more_bytes)
    try:
        yield
    except MemoryError as error:
        raise TaskOutOfMemory(limit.explain(str(error).strip())) from error
    finally:
        limit.end()

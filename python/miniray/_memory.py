"""A limit on the memory of one task, kept by the kernel: what a process may have of private, writable memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from miniray.errors import TaskOutOfMemory


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Within it, this process may take so much more than it has. TaskOutOfMemory if it wants to."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + more_bytes
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    except MemoryError as error:
        why = f": {str(error).strip()}" if str(error).strip() else ""
        text = (
            f"the task needed more than the {more_bytes} bytes that it may take beside what its worker had "
            f"(memory_bytes={more_bytes}){why}. Give it less at a time, or raise memory_bytes"
        )
        raise TaskOutOfMemory(text) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int:
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"VmData:"):
                return int(line.split()[1]) * 1024
    return 0

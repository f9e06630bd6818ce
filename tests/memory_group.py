"""A control group with little memory, for tests of what the kernel kills when there is no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

MEMORY_BYTES = 96 << 20


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Whoever writes its pid into `cgroup.procs` has MEMORY_BYTES."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(base) / f"miniray-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(MEMORY_BYTES))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        members = group / "cgroup.procs"
        until(lambda: not members.read_text(), what="the end of all that were in the group")  # noqa: B023
        group.rmdir()
        return
    pytest.skip("needs a writable memory control group")

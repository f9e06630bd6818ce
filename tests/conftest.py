"""What every Python test shares: after each, nothing of it is left."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


def leftovers() -> dict[str, list[str]]:
    """Descriptors, children and MiniRay's shared memory of this process."""
    descriptors = sorted(os.listdir("/proc/self/fd"), key=int)
    targets = []
    for number in descriptors:
        try:
            targets.append(f"{number} -> {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            pass  # the one that listed the folder
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    shared = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:miniray" in line]
    return {"descriptors": targets, "children": children, "shared memory": shared}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = leftovers()
    yield
    gc.collect()
    after = leftovers()
    # wait_any keeps one epoll set for each thread, and torch and numpy open what they like on first use.
    extra = set(after["descriptors"]) - set(before["descriptors"])
    assert not {entry for entry in extra if "socket" in entry or "pidfd" in entry or "memfd" in entry}
    assert after["children"] == before["children"]
    assert after["shared memory"] == before["shared memory"]

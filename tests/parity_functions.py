"""What the scenarios of tests/parity.json call, for Python workers. tests/parity_program.cpp has the same for C++."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


def square(number: float) -> float:
    return number * number


def fail(text: str) -> None:
    raise ValueError(text)


def fail_at(item: int) -> int:
    if item >= 10:
        raise ValueError(f"item {item}")
    return item


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(item: int) -> int:
    if item == 5:
        die()
    return item


def die_once(path: str) -> str:
    if not os.path.exists(path):
        Path(path).touch()
        die()
    return "alive"


def wait_for(begun: str, go: str) -> str:
    """Tells that it has begun, and waits for a file."""
    Path(begun).touch()
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(go):
        assert time.monotonic() < deadline, f"nobody made {go}"
        time.sleep(0.005)
    return "went"


def fail_once(path: str) -> None:
    if not os.path.exists(path):
        Path(path).touch()
        raise ValueError("no state")


def rank(handle: Any) -> None:
    """Says that it is ready, and dies of its first message."""
    handle.recv()
    handle.send({"status": "ready"})
    handle.recv()
    die()


def exists(path: str) -> bool:
    return os.path.exists(path)


def allocate(count: int) -> int:
    return len(bytearray(count))


def wait_for_pair(files: list[str]) -> str:
    return wait_for(*files)

"""The functions that the peers run. Every worker can import this module, so a peer may send functions by name."""

from __future__ import annotations

import os
import time
from typing import Any

OK = b"ok"
SAMPLE_STEP = 512  # the checksum reads one double in each page of an array


class Actor:
    """An object that lives in a worker."""

    def small_value(self) -> bytes:
        return OK

    def echo(self, array: Any) -> Any:
        return array

    def checksum(self, array: Any) -> float:
        return checksum(array)


def nothing(_: Any = None) -> bytes:
    return OK


def checksum(array: Any) -> float:
    return float(array[::SAMPLE_STEP].sum())


def multiply(left: Any, right: Any) -> Any:
    return left @ right


def spin(loops: int) -> int:
    for _ in range(loops):
        pass
    return loops


def verify(problem: dict[str, Any]) -> dict[str, Any]:
    """Whether the answer is right, after `loops` loops of work."""
    spin(problem["loops"])
    left, right = problem["question"]
    return {"problem_id": problem["id"], "correct": left * right == problem["answer"]}


def linger(seconds: float) -> int:
    """Keeps its worker busy, so that other workers get tasks."""
    time.sleep(seconds)
    return os.getpid()

"""What the peers are asked to do. Every worker can import it, so that functions travel by name where a peer does so."""

from __future__ import annotations

import os
import time
from typing import Any

OK = b"ok"
SAMPLE_STEP = 512  # of an array of doubles, one in each page is looked at


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
    """Is the answer right? It takes so many loops to find out."""
    spin(problem["loops"])
    left, right = problem["question"]
    return {"problem_id": problem["id"], "correct": left * right == problem["answer"]}


def linger(seconds: float) -> int:
    """Keeps its worker busy, so that others come to their turn."""
    time.sleep(seconds)
    return os.getpid()

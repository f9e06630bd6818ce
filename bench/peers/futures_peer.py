"""The standard library's concurrent.futures.ProcessPoolExecutor: tasks, and no actors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, ClassVar

from peers.peer import NoSuchThing, Peer, right
from peers.work import nothing


class Futures(Peer):
    title = "ProcessPoolExecutor"
    colour = "#b07aa1"
    place = 4
    how: ClassVar[dict[str, str]] = {"tasks": "`executor.submit`"}
    first = """
from concurrent.futures import ProcessPoolExecutor
def square(x):
    return x * x
with ProcessPoolExecutor(1) as executor:
    print(executor.submit(square, 7).result(), flush=True)
    input()
"""

    def start_clients(self, clients: int) -> None:
        raise NoSuchThing("no such thing")

    def start_tasks(self, workers: int) -> None:
        self.executor = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"))

    def tasks(self, count: int) -> int:
        return right([self.executor.submit(nothing).result() for _ in range(count)])

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [future.result() for future in [self.executor.submit(function, *some) for some in arguments]]

    def stop(self) -> None:
        if hasattr(self, "executor"):
            self.executor.shutdown()


PEER = Futures

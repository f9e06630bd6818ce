"""The standard library's multiprocessing: a loop behind a pipe for actors, and its Pool for tasks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any, ClassVar

from peers.peer import Peer, right
from peers.work import Actor, nothing


def serve(orders: Any, answers: Any) -> None:
    """The loop of a worker. Arrays travel as bytes, or are in shared memory under a name."""
    actor = Actor()
    while (order := orders.recv()) is not None:
        method, argument = order
        if method == "small_value":
            answers.send(actor.small_value())
        elif method == "echo":
            import numpy as np

            array = np.empty(argument, np.uint8)
            orders.recv_bytes_into(array)
            answers.send_bytes(actor.echo(array))
        else:
            answers.send(checksum_of_shared(actor, *argument))


def checksum_of_shared(actor: Actor, name: str, count: int) -> float:
    import numpy as np

    shared = SharedMemory(name)
    try:
        return actor.checksum(np.frombuffer(shared.buf, np.float64, count))
    finally:
        shared.close()


class Multiprocessing(Peer):
    title = "multiprocessing"
    colour = "#3d9970"
    place = 3
    how: ClassVar[dict[str, str]] = {
        "actors": "a loop over a `Pipe` for each direction",
        "tasks": "`Pool.apply_async`",
        "broadcast": "`shared_memory`, its name to each process",
    }
    first = """
from multiprocessing import Pool
def square(x):
    return x * x
with Pool(1) as pool:
    print(pool.apply(square, (7,)), flush=True)
    input()
"""

    def start_actors(self, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self.actors: list[tuple[Any, Any, Any]] = []
        for _ in range(workers):
            # A one-way pipe holds a thousand small messages; a socket pair would block after 277.
            orders_end, orders = context.Pipe(duplex=False)
            answers, answers_end = context.Pipe(duplex=False)
            child = context.Process(target=serve, args=(orders_end, answers_end))
            child.start()
            orders_end.close()
            answers_end.close()
            self.actors.append((child, orders, answers))

    def calls(self, count: int) -> int:
        _, orders, answers = self.actors[0]
        received = []
        for _ in range(count):
            orders.send(("small_value", None))
            received.append(answers.recv())
        return right(received)

    def calls_in_flight(self, count: int) -> int:
        _, orders, answers = self.actors[0]
        for _ in range(count):
            orders.send(("small_value", None))
        return right([answers.recv() for _ in range(count)])

    def call_each(self) -> int:
        for _, orders, _ in self.actors:
            orders.send(("small_value", None))
        return right([answers.recv() for _, _, answers in self.actors])

    def echo(self, array: Any) -> Any:
        import numpy as np

        _, orders, answers = self.actors[0]
        orders.send(("echo", array.nbytes))
        orders.send_bytes(array.data.cast("B"))
        back = np.empty_like(array)
        answers.recv_bytes_into(back.data.cast("B"))
        return back

    def broadcast(self, array: Any) -> list[float]:
        import numpy as np

        shared = SharedMemory(create=True, size=array.nbytes)
        try:
            np.frombuffer(shared.buf, array.dtype, len(array))[:] = array
            for _, orders, _ in self.actors:
                orders.send(("checksum", (shared.name, len(array))))
            return [answers.recv() for _, _, answers in self.actors]
        finally:
            shared.close()
            shared.unlink()

    def start_tasks(self, workers: int) -> None:
        self.pool = multiprocessing.get_context("fork").Pool(workers)

    def tasks(self, count: int) -> int:
        return right([self.pool.apply(nothing) for _ in range(count)])

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [result.get() for result in [self.pool.apply_async(function, some) for some in arguments]]

    def stop(self) -> None:
        super().stop()
        for child, orders, _ in getattr(self, "actors", []):
            orders.send(None)
            child.join()
        if hasattr(self, "pool"):
            self.pool.close()
            self.pool.join()


PEER = Multiprocessing

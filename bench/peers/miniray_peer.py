"""MiniRay: workers with objects in them, and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from peers.cpp import program
from peers.peer import Peer, right
from peers.work import Actor, checksum, nothing


def checksums(handle: Any) -> None:
    while True:
        handle.send(checksum(handle.recv()))


class MiniRay(Peer):
    title = "MiniRay"
    colour = "#e4572e"
    place = 0
    distribution = "miniray"
    requirements = ()  # the wheel of this repository
    module = "miniray"
    how: ClassVar[dict[str, str]] = {
        "actors": "`worker.create`, `actor.method()`, `actor.call_async`",
        "tasks": "`Pool.submit`",
        "broadcast": "`actor.call_async` of each",
        "nodes": "`Cluster`, `cluster.broadcast`",
        "cpp": "`Worker`, `Pool::map` of a registered function, `Group`",
    }
    first = """
from miniray import Worker
def work(handle):
    while True:
        handle.send(handle.recv() ** 2)
with Worker(work) as worker:
    worker.send(7)
    print(worker.recv(), flush=True)
    input()
"""

    def cpp_command(self, work: str, processes: int) -> list[str]:
        return [program("peer_miniray_cpp"), work]

    def start_actors(self, workers: int) -> None:
        from miniray import Worker

        self.workers = [Worker() for _ in range(workers)]
        self.actors = [worker.create("actor", Actor) for worker in self.workers]

    def calls(self, count: int) -> int:
        actor = self.actors[0]
        return right([actor.small_value() for _ in range(count)])

    def calls_in_flight(self, count: int) -> int:
        actor = self.actors[0]
        return right([future.result() for future in [actor.call_async("small_value") for _ in range(count)]])

    def call_each(self) -> int:
        return right([future.result() for future in [actor.call_async("small_value") for actor in self.actors]])

    def echo(self, array: Any) -> Any:
        return self.actors[0].echo(array)

    def broadcast(self, array: Any) -> list[float]:
        if hasattr(self, "cluster"):
            self.cluster.broadcast(array)
            return list(self.cluster.gather())
        return [future.result() for future in [actor.call_async("checksum", array) for actor in self.actors]]

    def start_nodes(self, hosts: dict[str, str], here: str, workers: int) -> None:
        from miniray import Cluster, NodeConfig

        nodes = [NodeConfig(host, num_workers=workers, base_port=0) for host in hosts]
        self.cluster = Cluster(nodes, progress=False)
        self.cluster.start(checksums)

    def start_tasks(self, workers: int) -> None:
        from miniray import Pool

        self.pool = Pool(workers)

    def tasks(self, count: int) -> int:
        return right([self.pool.submit(nothing).result() for _ in range(count)])

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [future.result() for future in [self.pool.submit(function, *some) for some in arguments]]

    def stop(self) -> None:
        super().stop()
        for worker in getattr(self, "workers", []):
            worker.close()
        if hasattr(self, "cluster"):
            self.cluster.stop()
        if hasattr(self, "pool"):
            self.pool.shutdown()


PEER = MiniRay

"""Dask distributed: actors and futures, on a local cluster of processes, or with its own commands on other hosts."""

from __future__ import annotations

import multiprocessing
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from peers.peer import ROOT, Peer, right
from peers.work import Actor, checksum, nothing

NODES_PORT = 28786
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 15


def be_client(address: str, worker: str, pipe: Any) -> None:
    """A client process with an actor on its own worker."""
    from distributed import Client

    with Client(address) as client:
        actor = client.submit(Actor, actor=True, workers=[worker]).result()
        pipe.send(None)
        while (count := pipe.recv()) is not None:
            pipe.send(right([future.result() for future in [actor.small_value() for _ in range(count)]]))


def quietly(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Dask(Peer):
    title = "Dask"
    colour = "#f2a900"
    place = 2
    distribution = "distributed"
    requirements = ("distributed",)
    module = "distributed"
    how: ClassVar[dict[str, str]] = {
        "actors": "`submit(..., actor=True)`, `actor.method().result()`",
        "tasks": "`client.map`, `client.submit`; arrays through `scatter`",
        "broadcast": "`client.scatter(..., broadcast=True)`",
        "nodes": "`dask scheduler` and `dask worker` through ssh, `scatter(..., broadcast=True)`",
    }
    first = """
from distributed import Client, LocalCluster
def square(x):
    return x * x
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        print(client.submit(square, 7).result(), flush=True)
        input()
"""

    def _connect(self, workers: int) -> None:
        from distributed import Client, LocalCluster

        self.cluster: Any = LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        )
        self.client: Any = Client(self.cluster)
        self.client.wait_for_workers(workers, timeout=START_TIMEOUT_S + workers)

    def start_actors(self, workers: int) -> None:
        self._connect(workers)
        self._make_actors()

    def _make_actors(self) -> None:
        self.addresses = list(self.client.scheduler_info(n_workers=-1)["workers"])
        made = [self.client.submit(Actor, actor=True, workers=[where], pure=False) for where in self.addresses]
        self.actors = [future.result() for future in made]

    def calls(self, count: int) -> int:
        actor = self.actors[0]
        return right([actor.small_value().result() for _ in range(count)])

    def calls_in_flight(self, count: int) -> int:
        actor = self.actors[0]
        return right([future.result() for future in [actor.small_value() for _ in range(count)]])

    def call_each(self) -> int:
        return right([future.result() for future in [actor.small_value() for actor in self.actors]])

    def echo(self, array: Any) -> Any:
        return self.actors[0].echo(array).result()

    def broadcast(self, array: Any) -> list[float]:
        there = self.client.scatter(array, broadcast=True, hash=False)
        sums = [self.client.submit(checksum, there, workers=[where], pure=False) for where in self.addresses]
        return list(self.client.gather(sums))

    def start_clients(self, clients: int) -> None:
        self._connect(clients)
        context = multiprocessing.get_context("spawn")
        self.processes = []
        for worker in self.client.scheduler_info()["workers"]:
            here, there = context.Pipe()
            process = context.Process(target=be_client, args=(self.cluster.scheduler_address, worker, there))
            process.start()
            self.processes.append((process, here))
        for _, pipe in self.processes:
            pipe.recv()

    def client_calls(self, count: int) -> int:
        for _, pipe in self.processes:
            pipe.send(count)
        return sum(pipe.recv() for _, pipe in self.processes)

    def start_tasks(self, workers: int) -> None:
        self._connect(workers)

    def tasks(self, count: int) -> int:
        return right([self.client.submit(nothing, pure=False).result() for _ in range(count)])

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        columns: list[list[Any]] = [list(column) for column in zip(*arguments, strict=True)]
        if columns and hasattr(columns[0][0], "nbytes"):
            columns = [self.client.scatter(column, hash=False) for column in columns]
        return list(self.client.gather(self.client.map(function, *columns, pure=False)))

    def start_nodes(self, hosts: dict[str, str], here: str, workers: int) -> None:
        from distributed import Client

        address = f"tcp://{here}:{NODES_PORT}"
        scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", f"--host={here}", f"--port={NODES_PORT}"]
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, f"--nworkers={workers}"]
        worker += ["--nthreads=1", "--no-dashboard", "--memory-limit=0"]
        self.commands = [quietly([*scheduler, "--no-dashboard"])]
        for host, host_address in hosts.items():
            words = ["env", f"PYTHONPATH={ROOT / 'bench'}", *worker, f"--host={host_address}"]
            self.commands.append(quietly(["ssh", "-tt", host, shlex.join(words)]))
        self.client = Client(address, timeout=START_TIMEOUT_S)
        self.client.wait_for_workers(workers * len(hosts), timeout=START_TIMEOUT_S)
        self._make_actors()

    def stop(self) -> None:
        for process, pipe in getattr(self, "processes", []):
            pipe.send(None)
            process.join()
        if hasattr(self, "commands"):
            self.client.shutdown()  # also ends the workers on the hosts; killed workers would leave semaphores behind
            for command in reversed(self.commands):
                command.wait(STOP_TIMEOUT_S)
        elif hasattr(self, "client"):
            self.client.close()
        if hasattr(self, "cluster"):
            self.cluster.close()


PEER = Dask

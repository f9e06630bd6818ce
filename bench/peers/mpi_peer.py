"""MPI through mpi4py: ranks that send and receive for actors, mpi4py.futures for tasks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from peers.cpp import program
from peers.peer import NoSuchThing, Peer, right
from peers.work import OK, Actor, nothing

# mpirun must be told to run as root and with more ranks than cores. On one machine, messages go through shared memory,
# and large ones through process_vm_readv where that is allowed.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def serve(comm: Any) -> None:
    """The loop of every rank except the first."""
    actor = Actor()
    while (order := comm.recv(source=0)) is not None:
        method, argument = order
        if method == "small_value":
            comm.send(actor.small_value(), dest=0)
            continue
        import numpy as np  # imported late: a rank that never sees an array does not need it

        if method == "echo":
            array = np.empty(argument, np.uint8)
            comm.Recv(array, source=0)
            comm.Send(actor.echo(array), dest=0)
        else:
            array = np.empty(argument, np.float64)
            comm.Bcast(array, root=0)
            comm.send(actor.checksum(array), dest=0)


def serve_pair(comm: Any, clients: int) -> None:
    """Ranks from `clients` on are actors; the others are clients. The first one tells the others how often to call."""
    rank = comm.Get_rank()
    if rank >= clients:
        while comm.recv(source=rank - clients) is not None:
            comm.send(OK, dest=rank - clients)
    else:
        while (count := comm.recv(source=0)) is not None:
            comm.send(call_partner(comm, clients, count), dest=0)
        comm.send(None, dest=rank + clients)


def call_partner(comm: Any, clients: int, count: int) -> int:
    partner = comm.Get_rank() + clients
    requests = [comm.isend("small_value", dest=partner) for _ in range(count)]
    answers = [comm.recv(source=partner) for _ in range(count)]
    for request in requests:
        request.wait()
    return right(answers)


class Mpi(Peer):
    title = "MPI"
    colour = "#76b7b2"
    place = 5
    distribution = "mpi4py"
    requirements = ("mpi4py",)
    module = "mpi4py.MPI"
    debian = ("openmpi-bin",)
    how: ClassVar[dict[str, str]] = {
        "actors": "`send` and `recv` of a rank; `Send` and `Recv` of arrays",
        "tasks": "`MPIPoolExecutor.submit`",
        "broadcast": "`Bcast`",
        "nodes": "`mpirun --host`, `Bcast`",
        "cpp": "`MPI_Send` and `MPI_Recv`, `MPI_Scatter` and `MPI_Gather`, `MPI_Allreduce`",
    }
    first = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.Get_rank() == 0:
    comm.send(7, dest=1)
    print(comm.recv(source=1), flush=True)
    sys.stdin.readline()
    comm.Barrier()
else:
    comm.send(comm.recv(source=0) ** 2, dest=0)
    comm.Barrier()
"""

    @classmethod
    def command(cls, python: str, kind: str, workers: int) -> list[str]:
        if shutil.which("mpirun") is None:
            raise NoSuchThing("not installed: there is no mpirun")
        ranks = str(2 * workers if kind == "clients" else workers + 1)
        if kind == "cpp":
            return super().command(python, kind, workers)
        if kind == "nodes":
            return [*MPIRUN, "-n", ranks, *cls._on_hosts(), python, "-m", "peers.turn"]
        futures = ["-m", "mpi4py.futures"] if kind == "tasks" else []
        return [*MPIRUN, "-n", ranks, python, *futures, "-m", "peers.turn"]

    @classmethod
    def first_command(cls, python: str) -> list[str]:
        return [*MPIRUN, "-n", "2", python, "-c", cls.first]

    @staticmethod
    def _on_hosts() -> list[str]:
        """The first rank runs here, and the others on the hosts. Only the network between them is used."""
        network = os.environ["PEERS_NETWORK"]
        settings = [f"--mca {layer}_tcp_if_include {network}" for layer in ("btl", "oob")]
        exported = [f"-x {name}" for name in ("PYTHONPATH", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
        return " ".join([f"--host {os.environ['PEERS_HOSTS']}", *settings, *exported]).split()

    def _join(self) -> None:
        from mpi4py import MPI

        self.comm: Any = MPI.COMM_WORLD

    def start_actors(self, workers: int) -> None:
        self._join()
        if self.comm.Get_rank() != 0:
            serve(self.comm)
            sys.exit(0)
        self.actors = range(1, self.comm.Get_size())

    def calls(self, count: int) -> int:
        comm, received = self.comm, []
        for _ in range(count):
            comm.send(("small_value", None), dest=1)
            received.append(comm.recv(source=1))
        return right(received)

    def calls_in_flight(self, count: int) -> int:
        comm = self.comm
        requests = [comm.isend(("small_value", None), dest=1) for _ in range(count)]
        answers = [comm.recv(source=1) for _ in range(count)]
        for request in requests:
            request.wait()
        return right(answers)

    def call_each(self) -> int:
        for rank in self.actors:
            self.comm.send(("small_value", None), dest=rank)
        return right([self.comm.recv(source=rank) for rank in self.actors])

    def echo(self, array: Any) -> Any:
        import numpy as np

        self.comm.send(("echo", array.nbytes), dest=1)
        self.comm.Send(array.view(np.uint8), dest=1)
        back = np.empty_like(array)
        self.comm.Recv(back.view(np.uint8), source=1)
        return back

    def broadcast(self, array: Any) -> list[float]:
        for rank in self.actors:
            self.comm.send(("checksum", len(array)), dest=rank)
        self.comm.Bcast(array, root=0)
        return [self.comm.recv(source=rank) for rank in self.actors]

    def start_nodes(self, hosts: dict[str, str], here: str, workers: int) -> None:
        self.start_actors(workers * len(hosts))

    def start_clients(self, clients: int) -> None:
        self._join()
        self.clients = clients
        if self.comm.Get_rank() != 0:
            serve_pair(self.comm, clients)
            sys.exit(0)

    def client_calls(self, count: int) -> int:
        others = range(1, self.clients)
        for rank in others:
            self.comm.send(count, dest=rank)
        return call_partner(self.comm, self.clients, count) + sum(self.comm.recv(source=rank) for rank in others)

    def start_tasks(self, workers: int) -> None:
        from mpi4py.futures import MPIPoolExecutor

        self.executor = MPIPoolExecutor(workers)
        self.executor.bootup()

    def tasks(self, count: int) -> int:
        return right([self.executor.submit(nothing).result() for _ in range(count)])

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [future.result() for future in [self.executor.submit(function, *some) for some in arguments]]

    def cpp_command(self, work: str, processes: int) -> list[str]:
        if shutil.which("mpirun") is None:
            raise NoSuchThing("not installed: there is no mpirun")
        return [*MPIRUN, "-n", str(processes), program("peer_mpi_cpp"), work]

    def stop(self) -> None:
        if hasattr(self, "executor"):
            self.executor.shutdown()
        if hasattr(self, "clients"):
            for rank in range(
                1, self.clients + 1
            ):  # the other clients, which tell their actors, and the client's own actor
                self.comm.send(None, dest=rank)
        for rank in getattr(self, "actors", []):
            self.comm.send(None, dest=rank)


PEER = Mpi

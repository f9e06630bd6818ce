"""The interface of a peer. A peer is one file in this folder, with one class.

A system of workers is started in one of three ways, used, and stopped. What a peer does not override, it does not have.
The library of the peer is imported when it is started and no sooner: the one who only asks for its title has none of
them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from peers.work import OK

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
CLIENT_START_TIMEOUT_S = 60.0


class NoSuchThing(Exception):
    """The peer does not support the operation; the text says why."""


class Peer:
    title = ""
    colour = "#888888"
    limit = False  # True: shows the limit of the system; nobody would use it instead of MiniRay
    place = 9  # position in tables and pictures; peers of equal position are sorted by name
    distribution: str | None = None  # its name on PyPI; None: part of Python or of the compiler
    requirements: tuple[str, ...] = ()  # what pip installs
    module: str | None = None  # can be imported if the peer is installed
    debian: tuple[str, ...] = ()  # Debian packages that it needs at run time; they count for its size
    first = ""  # the shortest program that prints 49, computed by a worker, then waits for a line and stops
    how: ClassVar[dict[str, str]] = {}  # how the peer is used, for each kind of system that it has

    # --- The process in which it is measured --------------------------------------------------------------------------
    @classmethod
    def command(cls, python: str, kind: str, workers: int) -> list[str]:
        """The command that runs `peers.turn`; its arguments follow. The kind is "actors", "tasks" or "clients"."""
        return [python, "-m", "peers.turn"]

    @classmethod
    def first_command(cls, python: str) -> list[str]:
        if not cls.first:
            raise NoSuchThing("no such thing")
        return [python, "-c", cls.first]

    # --- Actors: an object in each worker, which is called by name ----------------------------------------------------
    def start_actors(self, workers: int) -> None:
        raise NoSuchThing("no such thing")

    def calls(self, count: int) -> int:
        """Calls `small_value` of the first actor, one call after the other. Returns how many answers were right."""
        raise NoSuchThing("no such thing")

    def calls_in_flight(self, count: int) -> int:
        """The same, with all calls in flight at once."""
        raise NoSuchThing("no such thing")

    def call_each(self) -> int:
        """Calls `small_value` of every actor."""
        raise NoSuchThing("no such thing")

    def echo(self, array: Any) -> Any:
        """Sends the array to the first actor and back."""
        raise NoSuchThing("no such thing")

    def broadcast(self, array: Any) -> list[float]:
        """Sends the array to every actor, and returns the checksums that they compute."""
        raise NoSuchThing("no such thing")

    # --- Clients: processes, each with an actor of its own ------------------------------------------------------------
    def start_clients(self, clients: int) -> None:
        """By default, forks processes, each of which starts a system with one actor."""
        context = multiprocessing.get_context("fork")
        self._clients = []
        for _ in range(clients):
            here, there = context.Pipe()
            child = context.Process(target=_be_client, args=(type(self), there))
            child.start()
            there.close()
            self._clients.append((child, here))
        for _, pipe in self._clients:
            if not pipe.poll(CLIENT_START_TIMEOUT_S):
                raise TimeoutError("a client does not start")
            problem = pipe.recv()
            if problem is not None:
                raise NoSuchThing(problem)

    def client_calls(self, count: int) -> int:
        """Each client makes `count` calls, all in flight at once. Returns how many answers were right in total."""
        for _, pipe in self._clients:
            pipe.send(count)
        return sum(pipe.recv() for _, pipe in self._clients)

    # --- Tasks: functions, run by whichever worker is free ------------------------------------------------------------
    def start_tasks(self, workers: int) -> None:
        raise NoSuchThing("no such thing")

    def tasks(self, count: int) -> int:
        """Submits `nothing`, one task after the other. Returns how many answers were right."""
        raise NoSuchThing("no such thing")

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Submits each call as a task, and returns the results in order."""
        raise NoSuchThing("no such thing")

    # --- Other machines -----------------------------------------------------------------------------------------------
    def start_nodes(self, hosts: dict[str, str], here: str, workers: int) -> None:
        """Starts `workers` actors on each host. The hosts are known to ssh by these names and addresses."""
        raise NoSuchThing("no such thing")

    # --- C++ ----------------------------------------------------------------------------------------------------------
    def cpp_command(self, work: str, processes: int) -> list[str]:
        """The command of the peer's C++ program for this work; its last argument follows. `processes` is how many
        processes take part, including the one that starts the others where there is one."""
        raise NoSuchThing("no such thing")

    # --- The end ------------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        for child, pipe in getattr(self, "_clients", []):
            pipe.send(None)  # closing is not enough: processes forked later have the pipe too
            child.join()


def _be_client(kind: type[Peer], pipe: Any) -> None:
    peer = kind()
    try:
        peer.start_actors(1)
    except NoSuchThing as reason:
        pipe.send(str(reason))
        return
    pipe.send(None)
    while (count := pipe.recv()) is not None:
        pipe.send(peer.calls_in_flight(count))
    peer.stop()


def right(answers: Sequence[Any]) -> int:
    return sum(bytes(answer) == OK for answer in answers)


def find_peers() -> dict[str, type[Peer]]:
    """Every peer in this folder under its short name, in the order of their positions."""
    names = sorted(file.stem.removesuffix("_peer") for file in FOLDER.glob("*_peer.py"))
    found = {name: find_peer(name) for name in names}
    return dict(sorted(found.items(), key=lambda item: item[1].place))


def find_peer(name: str) -> type[Peer]:
    module = import_module(f"peers.{name}_peer")
    found: type[Peer] = module.PEER
    return found

"""Raw sockets in C++ (sockets.cpp), which show how fast the kernel moves bytes; no objects, no tasks."""

from __future__ import annotations

import subprocess
from typing import Any, ClassVar

from peers.peer import ROOT, NoSuchThing, Peer
from peers.work import checksum

PROGRAM = ROOT / "build/release/bench/peer_sockets"


class Sockets(Peer):
    title = "raw sockets, C++"
    colour = "#7f7f7f"
    place = 8
    limit = True
    how: ClassVar[dict[str, str]] = {
        "actors": "64 bytes over a socket pair, `read` and `write`; in flight: many in one `write`",
        "broadcast": "`write` to each process",
    }

    @classmethod
    def command(cls, python: str, kind: str, workers: int) -> list[str]:
        if not PROGRAM.exists():
            raise NoSuchThing("not built: make library")
        return super().command(python, kind, workers)

    @classmethod
    def first_command(cls, python: str) -> list[str]:
        return [str(PROGRAM), "first"]

    def start_actors(self, workers: int) -> None:
        self.workers = workers
        self.program = subprocess.Popen(
            [PROGRAM, str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def _ask(self, order: str, number: int) -> list[float]:
        """The program checks the answers, and prints how many were right."""
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        print(order, number, file=self.program.stdin, flush=True)
        return [float(word) for word in self.program.stdout.readline().split()]

    def calls(self, count: int) -> int:
        return int(self._ask("calls", count)[0])

    def calls_in_flight(self, count: int) -> int:
        return int(self._ask("flight", count)[0])

    def call_each(self) -> int:
        return int(self._ask("each", 1)[0])

    def echo(self, array: Any) -> Any:
        return array if self._ask("echo", array.nbytes)[0] == array.nbytes else None

    def broadcast(self, array: Any) -> list[float]:
        """The program sends bytes of its own instead of the array, so that it can check what comes back."""
        received = self._ask("broadcast", array.nbytes)
        return [checksum(array) if count == array.nbytes else 0.0 for count in received]

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "program"):
            self.program.communicate()


PEER = Sockets

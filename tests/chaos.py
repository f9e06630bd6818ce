"""Faults at random, from a seed, among the hosts of a testbed: who is struck when, and how it is made good again."""

# Without "from __future__ import annotations": see testbed.py.

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed import Process, Testbed

PAUSE_S = (0.2, 0.6)  # between two faults
SHORT_S = (0.1, 1.0)  # how long a host or a process is away that nobody should miss
LONG_S = (4.0, 7.0)  # how long one is away that has to be missed
WEIGHTS = {"kill worker": 6, "kill server": 2, "stop worker": 3, "stop server": 2, "short cut": 2, "cut": 1}


@dataclass(frozen=True)
class Fault:
    """What was done."""

    time: float
    kind: str
    host: str
    pid: int = 0


@dataclass(frozen=True)
class Repair:
    due: float
    what: Callable[[], None]
    host: str


class Chaos:
    """Strikes one host after another; at most one is cut off at a time, so that work can go on."""

    def __init__(self, testbed: Testbed, seed: int) -> None:
        self.testbed, self.source = testbed, random.Random(seed)
        self.faults: list[Fault] = []
        self._repairs: list[Repair] = []

    def pause_s(self) -> float:
        return self.source.uniform(*PAUSE_S)

    def strike(self) -> None:
        self._repair(time.monotonic())
        troubled = {repair.host for repair in self._repairs}
        calm = [host for host in sorted(self.testbed.hosts) if host not in troubled]
        kind = self.source.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if not calm or (kind.endswith("cut") and self._is_one_cut()):
            return
        host = self.source.choice(calm)
        if kind.endswith("cut"):
            self._cut(kind, host)
            return
        servers, workers = self._processes(host)
        victims = servers if kind.endswith("server") else workers
        if not victims:
            return
        victim = self.source.choice(victims)
        if kind.startswith("kill"):
            send(victim.pid, signal.SIGKILL)
        else:
            send(victim.pid, signal.SIGSTOP)
            self._later(
                SHORT_S if self.source.random() < 0.7 else LONG_S, host, lambda: send(victim.pid, signal.SIGCONT)
            )
        self._note(kind, host, victim.pid)

    def end(self) -> None:
        """All is well again."""
        self._repair(float("inf"))

    def counts(self) -> dict[str, int]:
        return {kind: sum(fault.kind == kind for fault in self.faults) for kind in WEIGHTS}

    def _cut(self, kind: str, host: str) -> None:
        self.testbed.cut(host)
        self._later(LONG_S if kind == "cut" else SHORT_S, host, lambda: self.testbed.heal(host))
        self._note(kind, host)

    def _is_one_cut(self) -> bool:
        """Whether the last fault of a host that waits for a repair was that."""
        waiting = {repair.host for repair in self._repairs}
        return any(next(f for f in reversed(self.faults) if f.host == host).kind.endswith("cut") for host in waiting)

    def _later(self, within: tuple[float, float], host: str, what: Callable[[], None]) -> None:
        self._repairs.append(Repair(time.monotonic() + self.source.uniform(*within), what, host))

    def _repair(self, now: float) -> None:
        for repair in [one for one in self._repairs if one.due <= now]:
            repair.what()
            self._repairs.remove(repair)

    def _note(self, kind: str, host: str, pid: int = 0) -> None:
        self.faults.append(Fault(time.time(), kind, host, pid))

    def _processes(self, host: str) -> tuple[list[Process], list[Process]]:
        """Servers, and their workers, which are forks of them."""
        found = {one.pid: one for one in self.testbed.processes(host) if "worker_server" in one.command_line}
        servers = [one for one in found.values() if parent_of(one.pid) not in found]
        return servers, [one for one in found.values() if parent_of(one.pid) in found]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it was quicker

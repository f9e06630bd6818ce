"""Runs a turn of a peer in a process of its own, with a time limit, and leaves no process of it behind."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from peers import processes
from peers.peer import ROOT, Peer
from peers.turn import MARK

END_TIMEOUT_S = 20.0
SETTLE_S = 1.0  # how long a system idles before it is measured, and while it is measured
THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # there is a worker for each core, so each needs one thread
Answer = dict[str, float | str]


class Turn:
    """The process of a peer and all processes that it starts. Afterwards none of them is left.

    wrap  makes of a command the one that is run instead, for instance elsewhere
    """

    def __init__(self, command: list[str], limit_s: float, wrap: Callable[[list[str]], list[str]]) -> None:
        self.token = secrets.token_hex(8)
        self.deadline = time.monotonic() + limit_s
        self.folder = tempfile.mkdtemp(prefix="peer-")  # a short path, because the names of sockets are limited
        self.environment = {
            **os.environ,
            **dict.fromkeys(THREADS, "1"),
            "PYTHONPATH": str(ROOT / "bench"),
            "TMPDIR": self.folder,
            "PYTHONWARNINGS": "ignore",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            processes.MARK: self.token,
        }
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.started = time.perf_counter()
        self.child = subprocess.Popen(
            wrap(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )
        self.rest = b""

    def __enter__(self) -> Turn:
        return self

    def lines(self) -> Iterator[str]:
        """Returns what it prints until it closes its output. Raises TimeoutError if that takes too long."""
        assert self.child.stdout is not None
        descriptor = self.child.stdout.fileno()
        while True:
            while b"\n" in self.rest:
                line, self.rest = self.rest.split(b"\n", 1)
                yield line.decode(errors="replace")
            left_s = self.deadline - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise TimeoutError
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            self.rest += chunk

    def let_go_on(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(b"\n")
        self.child.stdin.flush()

    def wait(self) -> None:
        """Waits for the process and for all processes that it started."""
        self.child.wait(max(0.1, self.deadline - time.monotonic()))
        processes.wait_for_end(self.token, END_TIMEOUT_S)

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:200] if lines else "without a word"

    def __exit__(self, *_: object) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()
        processes.end_all(self.token)
        self.child.wait()
        self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Runner:
    def __init__(self, python: str, sizes: dict[str, Any], limit_s: float) -> None:
        self.python, self.sizes, self.limit_s = python, sizes, limit_s
        self.wrap: Callable[[list[str]], list[str]] = lambda command: command

    def figures(self, name: str, peer: type[Peer], work: str, kind: str, workers: int) -> Answer:
        """A figure or a reason for each row that was measured; under "", a reason for all other rows."""
        answer: Answer = {}
        with self._turn(name, peer, work, kind, workers) as turn:
            try:
                for line in turn.lines():
                    if line.startswith(MARK):
                        told = json.loads(line.removeprefix(MARK))
                        if told["row"] == "stopping":
                            turn.deadline = min(turn.deadline, time.monotonic() + END_TIMEOUT_S)
                        else:
                            answer[told["row"] or ""] = told["value"]
                turn.wait()
            except (TimeoutError, subprocess.TimeoutExpired):
                answer.setdefault("", f"took over {self.limit_s:.0f} s")
            answer.setdefault("", f"failed: {turn.last_words()}")
        return answer

    def first(self, peer: type[Peer]) -> Answer:
        with Turn(peer.first_command(self.python), self.limit_s, self.wrap) as turn:
            try:
                for line in turn.lines():
                    if line.strip() == "49":
                        took = time.perf_counter() - turn.started
                        turn.let_go_on()
                        turn.wait()
                        return {"first": took}
            except (TimeoutError, subprocess.TimeoutExpired):
                return {"": f"took over {self.limit_s:.0f} s"}
            return {"": f"failed: {turn.last_words()}"}

    def system(self, name: str, peer: type[Peer], work: str, kind: str, workers: int) -> Answer:
        """How long it takes until all workers have answered, and what they use while they idle."""
        with self._turn(name, peer, work, kind, workers) as turn:
            try:
                for line in turn.lines():
                    if line.startswith(MARK):
                        told = json.loads(line.removeprefix(MARK))
                        if told["row"] == "ready":
                            return self._looked_at(turn)
                        if told["row"] is None:
                            return {"": told["value"]}
            except (TimeoutError, subprocess.TimeoutExpired):
                return {"": f"took over {self.limit_s:.0f} s"}
            return {"": f"failed: {turn.last_words()}"}

    def _looked_at(self, turn: Turn) -> Answer:
        ready_s = time.perf_counter() - turn.started
        time.sleep(self.sizes["linger_s"])
        before = processes.usage(processes.marked(turn.token))
        start = time.perf_counter()
        time.sleep(SETTLE_S if self.sizes["linger_s"] > 0.1 else 0.05)
        after = processes.usage(processes.marked(turn.token))
        passed_s = time.perf_counter() - start
        start = time.perf_counter()
        turn.let_go_on()
        turn.wait()
        return {
            "ready": ready_s,
            "stop": time.perf_counter() - start,
            "memory": float(after.memory_bytes),
            "processes": float(after.processes),
            "threads": float(after.threads),
            "ports": float(after.ports),
            "idle_cpu": max(0.0, after.cpu_s - before.cpu_s) / passed_s,
        }

    def _turn(self, name: str, peer: type[Peer], work: str, kind: str, workers: int) -> Turn:
        arguments = [name, work, str(workers), json.dumps(self.sizes)]
        return Turn([*peer.command(self.python, kind, workers), *arguments], self.limit_s, self.wrap)

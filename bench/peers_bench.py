"""Compares MiniRay with its peers, and writes bench/results/peers.json and docs/benchmarks.md.

    python bench/peers_bench.py [--quick] [--only WORD] [--rounds N] [--peers a,b] [--python PATH] [--output FILE]

Every figure comes from a turn: a process of the peers' own interpreter, in which one peer does one job and is then
stopped. In each round of a job, every peer has one turn. The medians of the rounds are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from peers.document import write_document  # noqa: E402
from peers.measure import CORES, loops_per_us  # noqa: E402
from peers.peer import NoSuchThing, Peer, find_peers  # noqa: E402
from peers.runner import Answer, Runner  # noqa: E402
from peers.tables import FULL, NODES, QUICK, SYSTEM_WORKERS, Job, jobs  # noqa: E402
from run import machine  # noqa: E402
from testbed import HUB_ADDRESS, Testbed  # noqa: E402

VENV_PYTHON = ROOT / "build/peers-venv/bin/python"
RESULTS = ROOT / "bench/results/peers.json"
TURN_LIMIT_S = 120.0
JOB_LIMIT_S = 20.0  # if the turns of a peer took longer, it gets no more rounds of this job
MANY_WORKERS = 50  # from this number on, a system that would need too much is not started
MEMORY_SHARE_MAX = 0.6  # the share of the available memory that a growing system may use
NETWORK = "10.77.0.0/24"
Peers = dict[str, type[Peer]]


class Results:
    """For each row and peer, the figures of all rounds, or the reason why there are none."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.reasons: dict[str, dict[str, str]] = {}

    def take(self, row: str, name: str, value: float | str) -> None:
        if isinstance(value, str):
            self.reasons.setdefault(row, {})[name] = value.replace(f"{ROOT}/", "")
        else:
            self.values.setdefault(row, {}).setdefault(name, []).append(value)

    def has_reason(self, job: Job, name: str) -> bool:
        return all(name in self.reasons.get(row, {}) for row in job.rows)

    def cells(self) -> dict[str, dict[str, dict[str, Any]]]:
        rows: dict[str, dict[str, dict[str, Any]]] = {}
        for row in [*self.values, *(row for row in self.reasons if row not in self.values)]:
            rows[row] = {name: {"why": why} for name, why in self.reasons.get(row, {}).items()}
            for name, values in self.values.get(row, {}).items():
                if name not in self.reasons.get(row, {}):  # if one round failed, the failure is shown
                    rows[row][name] = {"median": statistics.median(values), "rounds": values}
        return rows


class Bench:
    def __init__(self, options: argparse.Namespace, peers: Peers, installed: dict[str, dict[str, Any]]) -> None:
        self.options, self.peers, self.installed = options, peers, installed
        self.sizes = {**(QUICK if options.quick else FULL), "cores": CORES, "loops_per_us": loops_per_us()}
        self.runner = Runner(options.python, self.sizes, TURN_LIMIT_S)
        self.results = Results()
        self.work = [job for job in jobs(self.sizes) if options.only in " ".join((job.work, *job.rows))]

    def rounds(self, job: Job) -> int:
        return 1 if self.options.quick else min(self.options.rounds, job.rounds_max)

    def run(self) -> None:
        turns = sum(self.rounds(job) for job in self.work) * len(self.peers)
        print(f"{len(self.work)} jobs for {len(self.peers)} peers, {turns} turns at most", flush=True)
        for job in self.work:
            with self._place(job):
                used_s = dict.fromkeys(self.peers, 0.0)
                for number in range(self.rounds(job)):
                    for name in self.peers:
                        if not self.results.has_reason(job, name) and used_s[name] < JOB_LIMIT_S:
                            used_s[name] += self._take_turn(job, name, number)

    def _take_turn(self, job: Job, name: str, number: int) -> float:
        """Returns how long it took, in seconds."""
        start = time.monotonic()
        try:
            answer = self._missing(job, name) or self._too_much(job, name) or self._answer(job, name)
        except NoSuchThing as reason:
            answer = {"": str(reason)}
        for row in job.rows:
            self.results.take(row, name, answer.get(row, answer.get("", "no figure came")))
        told = ", ".join(f"{value:.4g}" if isinstance(value, float) else value for value in answer.values())
        took_s = time.monotonic() - start
        where = f"{job.work} {job.workers}, round {number + 1}/{self.rounds(job)}"
        print(f"{where:32} {name:16} {took_s:6.1f} s   {told[:110]}", flush=True)
        return took_s

    def _missing(self, job: Job, name: str) -> Answer | None:
        if "missing" in self.installed[name]:
            return {"": str(self.installed[name]["missing"])}
        needed = {"clients": "actors"}.get(job.kind, job.kind)
        return {"": "no such thing"} if job.needs_kind and needed not in self.peers[name].how else None

    def _answer(self, job: Job, name: str) -> Answer:
        peer = self.peers[name]
        if job.work == "installed":
            size = self.installed[name]["bytes"]
            return {"installed": float(size) if size else "comes with Python"}
        if job.work == "first":
            return self.runner.first(peer)
        if job.work == "task_system":
            kind = "tasks" if "tasks" in peer.how else "actors"
            return self.runner.system(name, peer, job.work, kind, job.workers)
        if job.work == "actor_system":
            kind = "actors" if "actors" in peer.how else "tasks"
            answer = self.runner.system(name, peer, job.work, kind, job.workers)
            if "ready" in answer:
                self.results.take(f"memory_{job.workers}", name, answer["memory"])
                answer = {f"workers_{job.workers}": float(answer["ready"]) / job.workers}
            return answer
        answer = self.runner.figures(name, peer, job.work, job.kind, job.workers)
        if set(job.rows) <= answer.keys():
            answer.pop("")
        return answer

    def _too_much(self, job: Job, name: str) -> Answer | None:
        """Leaves out a system that would need too much time or memory, as the smaller system before it shows."""
        values = self.results.values
        known = [n for n in self.sizes["workers"] if name in values.get(f"workers_{n}", {})]
        if job.work != "actor_system" or job.workers < MANY_WORKERS or not known:
            return None
        expected_s = values[f"workers_{known[-1]}"][name][-1] * job.workers
        expected_bytes = values[f"memory_{known[-1]}"][name][-1] / known[-1] * job.workers
        if expected_s > 2 * self.sizes["point_limit_s"]:
            return {"": f"would take about {expected_s:.0f} s"}
        if expected_bytes > MEMORY_SHARE_MAX * available_bytes():
            return {"": f"would need about {expected_bytes / 1e9:.0f} GB of memory"}
        return None

    @contextmanager
    def _place(self, job: Job) -> Iterator[None]:
        """Jobs on other machines run in the hub of a testbed, from where ssh reaches them; other jobs run here."""
        if job.work != "nodes":
            yield
            return
        reason = Testbed.available()
        if reason is not None:
            for name in self.peers:
                self.results.take("nodes", name, f"not measured: {reason}")
            yield
            return
        each = job.workers // len(NODES)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, Testbed(Path(folder), NODES) as testbed:
            self.sizes["hosts"] = {name: host.address for name, host in testbed.hosts.items()}
            self.sizes["here"] = HUB_ADDRESS
            os.environ["PEERS_NETWORK"] = NETWORK
            os.environ["PEERS_HOSTS"] = ",".join(["localhost:1", *(f"{name}:{each}" for name in NODES)])
            self.runner.wrap = lambda command: testbed.command(*command)
            try:
                yield
            finally:
                self.runner.wrap = lambda command: command

    def document(self) -> dict[str, Any]:
        return {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "quick": self.options.quick,
            "rounds": self.options.rounds,
            "system_workers": SYSTEM_WORKERS,
            "sizes": {key: value for key, value in self.sizes.items() if key not in ("hosts", "here")},
            "peers": {
                name: {
                    "title": peer.title,
                    "colour": peer.colour,
                    "limit": peer.limit,
                    "how": peer.how,
                    **self.installed[name],
                }
                for name, peer in self.peers.items()
            },
            "rows": self.results.cells(),
        }


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


def look_at_installed(python: str) -> dict[str, dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    command = [python, "-m", "peers.installed"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one round; does not change docs/")
    parser.add_argument("--only", default="", help="only jobs that contain this word; does not change docs/")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="", help="only these peers, separated by commas; does not change docs/")
    parser.add_argument("--python", default=str(VENV_PYTHON if VENV_PYTHON.exists() else sys.executable))
    parser.add_argument("--output", type=Path, help="write the figures to this file, and the document beside it")
    options = parser.parse_args()
    options.python = os.path.abspath(options.python)  # links are kept: Python finds its virtual environment by the link
    found = find_peers()
    wanted = options.peers.split(",") if options.peers else list(found)
    unknown = set(wanted) - found.keys()
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the turn is ended too
    start = time.monotonic()
    bench = Bench(options, {name: found[name] for name in found if name in wanted}, look_at_installed(options.python))
    bench.run()
    print(f"{time.monotonic() - start:.0f} s in all")
    whole = not (options.quick or options.only or options.peers)
    output = options.output or (RESULTS if whole else None)
    if output is not None:
        output.write_text(json.dumps(bench.document(), indent=1) + "\n")
        folder = ROOT / "docs" if output == RESULTS else output.parent
        print(f"Written to {output} and {write_document(output, folder)}")


if __name__ == "__main__":
    main()

"""Compares clusters with simpler programs, on real ssh hosts, and writes the table to bench/results/cluster.md.

    python bench/cluster_bench.py [--rounds 7] [--quick]

The hosts are network namespaces of this machine, each with an sshd (tests/testbed.py), so this needs root. The two
sides of a row take turns, and their medians are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from run import machine  # noqa: E402
from testbed import Testbed  # noqa: E402

from miniray import Worker, WorkerServer, create_remote_workers  # noqa: E402

HEAD = ["| what | MiniRay | yardstick | result | budget | met |", "|---|---|---|---|---|---|"]

START = """
import json, sys, time
from miniray import Cluster, NodeConfig
def work(handle):
    while True:
        handle.send(handle.recv())
if __name__ == "__main__":
    start = time.perf_counter()
    with Cluster([NodeConfig(host, num_workers=1) for host in sys.argv[1:]]) as cluster:
        cluster.start(work)
        print(time.perf_counter() - start)
"""

BROADCAST = """
import sys, time
import numpy
from miniray import Cluster, NodeConfig
def work(handle):
    while True:
        handle.send(len(handle.recv()))
def wire_bytes():
    rows = [line.split() for line in open("/proc/net/dev") if "br0:" in line]
    return int(rows[0][9])
if __name__ == "__main__":
    message = numpy.ones(int(sys.argv[1]) << 20, numpy.uint8)
    with Cluster([NodeConfig("mr-a", num_workers=int(sys.argv[2]))]) as cluster:
        cluster.start(work)
        before = wire_bytes()
        cluster.broadcast(message)
        cluster.gather()
        print(wire_bytes() - before)
"""


def number(testbed: Testbed, *command: str | Path) -> float:
    done = testbed.run(*command, timeout=120)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return float(done.stdout)


def bare_ssh(testbed: Testbed) -> float:
    start = time.perf_counter()
    done = testbed.run("ssh", "mr-a", sys.executable, "-c", "'import miniray'")
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - start


def start_row(folder: Path, script: Path, rounds: int) -> str:
    ours, theirs = [], []
    with Testbed(folder) as testbed:
        for _ in range(rounds):
            theirs.append(bare_ssh(testbed))
            ours.append(number(testbed, sys.executable, script, "mr-a", "mr-b", "mr-c"))
    a, b = statistics.median(ours), statistics.median(theirs)
    spread = f"{min(ours) / b:.2f} to {max(ours) / b:.2f}"
    return (
        f"| `Cluster.start` on 3 hosts | {a * 1000:.0f} ms | `ssh host python -c 'import miniray'`: {b * 1000:.0f} ms "
        f"| {a / b:.2f}x ({spread}) | 2x | {verdict(a / b <= 2)} |"
    )


def delay_row(folder: Path, script: Path, rounds: int, hosts: int) -> str:
    names = [f"mr-{chr(97 + i)}" for i in range(hosts)]
    took: dict[float, list[float]] = {0.0: [], 1.0: []}
    for _ in range(rounds):
        for delay in took:
            with Testbed(folder, names, login_delay_s=delay) as testbed:
                took[delay].append(number(testbed, sys.executable, script, *names))
    slow, quick = statistics.median(took[1.0]), statistics.median(took[0.0])
    return (
        f"| `Cluster.start` on {hosts} hosts, each login 1 s slower | {slow:.2f} s | the same without the delay: "
        f"{quick:.2f} s | {slow - quick:.2f} s more | 1.5 s more | {verdict(slow - quick <= 1.5)} |"
    )


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def serve(handle: Any) -> None:
    server = WorkerServer("127.0.0.1", 0, echo)
    handle.send(server.port)
    server.serve_forever()


def bare_forks(count: int) -> float:
    read, write = os.pipe()
    children = []
    start = time.perf_counter()
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        children.append(child)
    took = time.perf_counter() - start
    os.close(write)
    os.close(read)
    for child in children:
        os.waitpid(child, 0)
    return took


def many_workers(port: int, count: int) -> float:
    start = time.perf_counter()
    workers = create_remote_workers([("127.0.0.1", port)] * count)
    for worker in workers:
        worker.send(1)
    for worker in workers:
        worker.recv()
    took = time.perf_counter() - start
    for worker in workers:
        worker._end()
    for worker in workers:
        worker.close()
    return took


def workers_row(rounds: int, count: int) -> str:
    ours, theirs = [], []
    with Worker(serve) as server:
        port = server.recv()
        for _ in range(rounds):
            theirs.append(bare_forks(count))
            ours.append(many_workers(port, count))
        server.kill()
    a, b = statistics.median(ours), statistics.median(theirs)
    extra = (a - b) / count * 1000
    return (
        f"| {count} workers on one server, each answers once | {a:.2f} s | {count} bare `os.fork()`: {b:.2f} s "
        f"| {extra:.2f} ms more a worker | 1 ms more | {verdict(extra <= 1)} |"
    )


def broadcast_row(folder: Path, script: Path, mebibytes: int) -> str:
    with Testbed(folder, ["mr-a"]) as testbed:
        alone = number(testbed, sys.executable, script, str(mebibytes), "1")
        four = number(testbed, sys.executable, script, str(mebibytes), "4")
    ratio = four / alone
    return (
        f"| broadcast of {mebibytes} MiB to 4 workers on a host, bytes on the wire | {four / 2**20:.1f} MiB "
        f"| to 1 worker: {alone / 2**20:.1f} MiB | {ratio:.2f}x | 1.1x | {verdict(ratio <= 1.1)} |"
    )


def verdict(met: bool) -> str:
    return "yes" if met else "**no**"


def print_table(name: str, title: str, remark: str, rows: Callable[[Path, int, bool], list[Callable[[], str]]]) -> None:
    """Parses the command line, measures each row, and writes bench/results/NAME.md unless --quick was given."""
    parser = argparse.ArgumentParser(description=f"{title}, on real ssh hosts.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="measure one small round and write nothing")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    missing = Testbed.available()
    if missing is not None:
        sys.exit(f"cannot make ssh hosts here: {missing}")
    lines = [
        f"# {title}",
        "",
        f"Measured on {time.strftime('%Y-%m-%d')} with {machine()}. Hosts are network namespaces, each with an sshd. "
        f"{remark}The figures are medians of {rounds} rounds, in which the two sides take turns. `make bench` makes "
        "this page.",
        "",
        *HEAD,
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows(Path(scratch), rounds, options.quick):
            lines.append(row())
            print(lines[-1], flush=True)
    if not options.quick:
        (ROOT / f"bench/results/{name}.md").write_text("\n".join(lines) + "\n")
        print(f"Written to bench/results/{name}.md")


def cluster_rows(folder: Path, rounds: int, quick: bool) -> list[Callable[[], str]]:
    start, broadcast = folder / "start.py", folder / "broadcast.py"
    start.write_text(START)
    broadcast.write_text(BROADCAST)
    return [
        lambda: workers_row(rounds, 20 if quick else 1000),
        lambda: start_row(folder, start, rounds),
        lambda: delay_row(folder, start, max(1, rounds // 2), 2 if quick else 16),
        lambda: broadcast_row(folder, broadcast, 1 if quick else 32),
    ]


if __name__ == "__main__":
    print_table("cluster", "Clusters compared with yardsticks", "", cluster_rows)

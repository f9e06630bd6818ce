"""Interrupting, restarting and killing a notebook's kernel: the session goes on, or nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Kernel
from waiting import is_gone, until

DEFINITIONS = """
import os, subprocess, time
from miniray import *

def square(n):
    return n * n

def sleep(*_):
    subprocess.run(["sleep", "1000"])

def processes(of=os.getpid()):
    found = []
    for task in os.listdir(f"/proc/{of}/task"):
        for child in open(f"/proc/{of}/task/{task}/children").read().split():
            found += [int(child), *processes(int(child))]
    return found
"""

# A pool, workers and a cluster, all of them busy, and the processes of all.
BUSY = """
pool = Pool(2)
futures = [pool.submit(sleep) for _ in range(2)]
forked, spawned = Worker(sleep), Worker(sleep, start="spawn")
cluster = Cluster([NodeConfig("localhost", 1, base_port=0)])
cluster.start(sleep)
print("begun", flush=True)
"""


def descendants(pid: int) -> set[int]:
    """Processes that it started, and those that they started. Some may have ended meanwhile."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found |= {child, *descendants(child)}
    return found


def sleeps(kernel: Kernel) -> set[int]:
    """The processes that the session's workers wait for."""
    found = set()
    for pid in descendants(kernel.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                found.add(pid)
    return found


def busy(kernel: Kernel) -> set[int]:
    """Of the kernel's processes, all that the session started."""
    kernel.run(DEFINITIONS + BUSY)
    until(lambda: len(sleeps(kernel)) == 5)
    found = descendants(kernel.pid)
    assert len(found) > 10
    return found


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    made.run(DEFINITIONS)
    yield made
    made.close()


def interrupt(kernel: Kernel, code: str) -> None:
    """Interrupts a cell that waits for workers which sleep; it ends."""
    before = sleeps(kernel)
    cell = kernel.begin(code)
    until(lambda: sleeps(kernel) - before)
    kernel.interrupt()
    shown = kernel.show(cell)
    assert shown.error == "KeyboardInterrupt", shown


WAITS = [
    "worker = Worker(sleep)\nworker.recv()",
    "worker = Worker(sleep, start='spawn')\nworker.recv()",
    "worker = Worker()\nworker.register(sleep)\nworker.call_remote('sleep')",
    "cluster = Cluster([NodeConfig('localhost', 2, base_port=0)])\ncluster.start(sleep)\ncluster.gather()",
    "pool.submit(sleep).result()",
    "list(pool.map(sleep, range(100), chunksize=1))",
    "list(pool.imap_unordered(sleep, range(100), chunksize=1))",
    "list(pool.map(sleep, range(100), chunksize=1, progress=True))",
]


@pytest.mark.parametrize("code", WAITS)
def test_an_interrupt_ends_the_cell_and_nothing_else(kernel: Kernel, code: str) -> None:
    kernel.run("pool = Pool(2)")
    interrupt(kernel, code)
    assert kernel.run("print(Pool(1).submit(square, 3).result())").stdout == "9\n"
    kernel.run("""
for each in ("worker", "cluster", "pool"):
    thing = globals().pop(each, None)
    if isinstance(thing, Worker): thing.kill(); thing.close()
    if isinstance(thing, Cluster): [each.kill() for each in thing.workers]; thing.stop()
    if isinstance(thing, Pool): [os.kill(each.pid, 9) for each in thing.workers]; thing.shutdown(cancel_futures=True)
""")


@pytest.mark.usefixtures("kernel")  # what a first kernel opens in this process stays open
@pytest.mark.parametrize("way", ["restart", "shut down", "kill"])
def test_nothing_is_left_of_a_session(tmp_path: Path, way: str) -> None:
    kernel = Kernel(tmp_path)
    try:
        started = busy(kernel)
        if way == "restart":
            kernel.restart()
            assert kernel.run("print('pool' in globals())").stdout == "False\n"
        elif way == "shut down":
            kernel.close(now=False)
        else:
            os.kill(kernel.pid, signal.SIGKILL)
        assert until(lambda: all(is_gone(pid) for pid in started))
    finally:
        kernel.close()


@pytest.mark.parametrize("code", [code for code in WAITS if "map" in code])
def test_after_an_interrupted_map_the_pool_is_free(kernel: Kernel, code: str) -> None:
    kernel.run("pool = Pool(2)")
    interrupt(kernel, code)
    shown = kernel.run("print(list(pool.map(square, range(3))), pool.status()['failed'])")
    assert re.fullmatch(r"\[0, 1, 4\] [0-2]\n", shown.stdout)  # what never began has not failed
    kernel.run("pool.shutdown()")


@pytest.mark.parametrize(
    "code",
    [
        "with Pool(2) as pool: pool.submit(sleep).result()",
        "with Pool(2) as pool: list(pool.map(sleep, range(10), chunksize=1))",
        "with Worker(sleep) as worker: worker.recv()",
        "with Cluster([NodeConfig('localhost', 1, base_port=0)]) as cluster: cluster.start(sleep); cluster.gather()",
    ],
)
def test_an_interrupt_ends_what_a_with_block_holds(kernel: Kernel, code: str) -> None:
    """Without waiting for work that would take for ever."""
    before = kernel.run("print(processes())").stdout
    interrupt(kernel, code)
    assert until(lambda: kernel.run("print(processes())").stdout == before)

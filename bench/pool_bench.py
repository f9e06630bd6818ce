"""Compares calls and pools with yardsticks and with the standard library, and writes bench/results/pool.md.

    python bench/pool_bench.py [--rounds 5] [--quick] [--only WORD]

Each side has a process of its own. The sides take turns, and their medians are compared. Tasks are busy loops of a
measured CPU time, so a slower machine slows the yardstick down too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from cluster_bench import verdict  # noqa: E402
from peers.measure import loops_per_us  # noqa: E402
from peers.work import spin  # noqa: E402
from run import machine  # noqa: E402

from miniray import Pool, Worker  # noqa: E402

CORES = len(os.sched_getaffinity(0))
ARRAY_BYTES = 1 << 20
SIZES_US = [0, 10, 100, 1000, 10_000]


# --- Tasks ------------------------------------------------------------------------------------------------------------
def spin_array(array: Any) -> int:
    return spin(int(array[0]))


def wait_for_writer(pipe: str) -> None:
    os.close(os.open(pipe, os.O_RDONLY))


# --- Sides: each is a worker that does what it is told, and answers how long it took ---------------------------------
class OurPool:
    def __init__(self) -> None:
        self.pool = Pool(CORES)

    def submit(self, task: Callable[..., Any], arguments: list[Any]) -> list[Any]:
        return [future.result() for future in [self.pool.submit(task, argument) for argument in arguments]]

    def map(self, task: Callable[..., Any], arguments: list[Any]) -> list[Any]:
        return list(self.pool.map(task, arguments))

    def queue(self, count: int) -> tuple[float, float]:
        """The cost of a task in seconds if `count` tasks wait, and by how many bytes this process grew for them."""
        with tempfile.TemporaryDirectory() as folder:
            gate = os.path.join(folder, "gate")
            os.mkfifo(gate)
            closed = [self.pool.submit(wait_for_writer, gate) for _ in range(CORES)]
            before = reset_peak_bytes()
            start = time.perf_counter()
            futures = [self.pool.submit(spin, 0) for _ in range(count)]
            with open(gate, "w"):
                for future in closed + futures:
                    future.result()
            took = time.perf_counter() - start
            return took / count, peak_bytes() - before

    def close(self) -> None:
        self.pool.shutdown()


class Executor(OurPool):
    def __init__(self) -> None:
        self.pool: Any = ProcessPoolExecutor(CORES, multiprocessing.get_context("fork"))


class Multiprocessing:
    def __init__(self) -> None:
        self.pool = multiprocessing.get_context("fork").Pool(CORES)

    def submit(self, task: Callable[..., Any], arguments: list[Any]) -> list[Any]:
        return [result.get() for result in [self.pool.apply_async(task, (argument,)) for argument in arguments]]

    def map(self, task: Callable[..., Any], arguments: list[Any]) -> list[Any]:
        return self.pool.map(task, arguments)

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()


def side(handle: Any) -> None:
    pool = {"ours": OurPool, "executor": Executor, "multiprocessing": Multiprocessing}[handle.recv()]()
    while (order := handle.recv()) is not None:
        if "queue" in order:
            handle.send(pool.queue(order["queue"]))
            continue
        count, loops = order["count"], order["loops"]
        if order["large"]:
            one = np.full(ARRAY_BYTES // 8, loops, np.int64)
            task, arguments = spin_array, [one.copy() for _ in range(count)]
        else:
            task, arguments = spin, [loops] * count
        start = time.perf_counter()
        results = getattr(pool, order["through"])(task, arguments)
        took = time.perf_counter() - start
        assert results == [loops] * count
        handle.send(took)
    pool.close()


class Sides:
    """Made by a process that has no threads, so that every side may fork."""

    def __init__(self, *names: str) -> None:
        self.workers = {name: Worker(side) for name in names}
        for name, worker in self.workers.items():
            worker.send(name)

    def ask(self, name: str, **order: Any) -> Any:
        self.workers[name].send(order)
        return self.workers[name].recv()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.send(None)
            worker.wait()
            worker.close()


def forked_loops(count: int, loops: int) -> tuple[float, float]:
    """The ideal: one process for each core, each of which does its share in a loop. Returns the time that it took,
    and the CPU time."""
    go_read, go_write = os.pipe()
    done_read, done_write = os.pipe()
    children = []
    for number in range(CORES):
        child = os.fork()
        if child == 0:
            os.write(done_write, struct.pack("d", 0))
            os.read(go_read, 1)
            start = time.thread_time()
            for _ in range(number, count, CORES):
                spin(loops)
            os.write(done_write, struct.pack("d", time.thread_time() - start))
            os._exit(0)
        children.append(child)
    sum_of_all(done_read)
    begun = time.perf_counter()
    os.write(go_write, b"." * CORES)
    cpu_s = sum_of_all(done_read)
    took = time.perf_counter() - begun
    for child in children:
        os.waitpid(child, 0)
    for descriptor in (go_read, go_write, done_read, done_write):
        os.close(descriptor)
    return took, cpu_s


def sum_of_all(descriptor: int) -> float:
    """The sum of what the children write. A write to a pipe is atomic if it is this short."""
    said = b""
    while len(said) < 8 * CORES:
        said += os.read(descriptor, 8 * CORES - len(said))
    return sum(struct.unpack(f"{CORES}d", said))


def reset_peak_bytes() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no peak")


# --- Calls ------------------------------------------------------------------------------------------------------------
def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def same(data: Any) -> Any:
    return data


def per_call(count: int, one: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(count):
        one()
    return (time.perf_counter() - start) / count


def calls_row(worker: Worker, rounds: int, count: int, what: str, data: Any) -> str:
    def message() -> None:
        worker.send(data)
        worker.recv()

    ours, theirs = [], []
    for _ in range(5 * rounds):
        theirs.append(per_call(count, message))
        ours.append(per_call(count, lambda: worker.call_remote("same", data)))
    a, b = statistics.median(ours), statistics.median(theirs)
    return (
        f"| `call_remote` of {what}, local | {a * 1e6:.1f} us | `send` and `recv` of the same: {b * 1e6:.1f} us "
        f"| {a / b:.2f}x ({spread(ours, b)}) | 1.3x | {verdict(a / b <= 1.3)} |"
    )


def in_flight_row(worker: Worker, rounds: int, count: int) -> str:
    def all_at_once() -> None:
        for future in [worker.call_async("same", 7) for _ in range(count)]:
            future.result()

    ours, theirs = [], []
    for _ in range(5 * rounds):
        theirs.append(per_call(count, lambda: worker.call_remote("same", 7)))
        ours.append(per_call(1, all_at_once) / count)
    a, b = statistics.median(ours), statistics.median(theirs)
    return (
        f"| {count:,} calls in flight on one worker, each | {a * 1e6:.1f} us | `call_remote` one after the other: "
        f"{b * 1e6:.1f} us | {b / a:.1f} times the rate | 3 times | {verdict(b / a >= 3)} |"
    )


# --- Pools ------------------------------------------------------------------------------------------------------------
def busy_row(sides: Sides, rounds: int, task_us: int, count: int, through: str, rate: float, bar: float) -> str:
    loops = int(task_us * rate)
    busy, ideal, shares = [], [], []
    sides.ask("ours", count=count // 10 + 1, loops=loops, through=through, large=False)
    for _ in range(rounds):
        theirs, cpu_s = forked_loops(count, loops)
        ours = sides.ask("ours", count=count, loops=loops, through=through, large=False)
        busy.append(cpu_s / CORES / ours)
        ideal.append(cpu_s / CORES / theirs)
        shares.append(theirs / ours)
    share, best = statistics.median(shares), statistics.median(ideal)
    met = verdict(share >= bar) if best >= bar else "unknown: the machine was busy with other things"
    return (
        f"| {count:,} tasks of {task_us:,} us through `{through}` on {CORES} cores "
        f"| busy {statistics.median(busy):.1%} | forked loops: busy {best:.1%} "
        f"| {share:.1%} of that ({min(shares):.1%} to {max(shares):.1%}) | {bar:.0%} | {met} |"
    )


def queue_rows(sides: Sides, rounds: int, many: int, few: int) -> list[str]:
    costs, base, grown = [], [], []
    sides.ask("ours", queue=few)
    for _ in range(max(1, min(3, rounds))):
        base += [sides.ask("ours", queue=few)[0] for _ in range(5)]
        cost, growth = sides.ask("ours", queue=many)
        costs.append(cost)
        grown.append(growth)
    a, b = statistics.median(costs), statistics.median(base)
    most = max(grown)
    return [
        f"| {many:,} tasks that wait, each | {a * 1e6:.2f} us | of {few:,}: {b * 1e6:.2f} us | {a / b:.2f}x "
        f"({spread(costs, b)}) | 1x | {verdict(a <= b)} |",
        f"| memory that the coordinator takes for them, at most | {most / 2**20:.0f} MiB | | {most / many:.0f} bytes "
        f"each | 1 GiB | {verdict(most <= 1 << 30)} |",
    ]


def duel_row(sides: Sides, rounds: int, task_us: int, large: bool, through: str, rate: float, count: int) -> str:
    order = {"loops": int(task_us * rate), "through": through, "large": large}
    took: dict[str, list[float]] = {name: [] for name in sides.workers}
    for name in took:
        sides.ask(name, count=min(count, 2 * CORES), **order)
    for number in range(rounds):
        names = list(took)
        for name in names[number % 3 :] + names[: number % 3]:  # the sides take turns to be first
            took[name].append(sides.ask(name, count=count, **order) / count)
    ours, executor, pool = took.values()
    faster = [statistics.median(b / a for a, b in zip(ours, them, strict=True)) for them in (executor, pool)]
    times = [f"{statistics.median(times) * 1e6:.1f} us" for times in took.values()]
    return (
        f"| {size(task_us)} | {'1 MiB' if large else 'small'} | `{through}` | {times[0]} | {times[1]} | {times[2]} "
        f"| {faster[0]:.2f}x | {faster[1]:.2f}x | {verdict(min(faster) > 1)} |"
    )


def duel_count(task_us: int, large: bool) -> int:
    """How many tasks take a few tenths of a second."""
    fewest = 60 if large else 40 * CORES
    return max(fewest, min(2000 if not large else fewest, 150_000 * CORES // max(task_us, 1)))


def size(task_us: int) -> str:
    if task_us == 0:
        return "nothing"
    return f"{task_us} us" if task_us < 1000 else f"{task_us // 1000} ms"


def spread(times: list[float], yardstick: float) -> str:
    return f"{min(times) / yardstick:.2f} to {max(times) / yardstick:.2f}"


# --- Tables -----------------------------------------------------------------------------------------------------------
class Table:
    """Prints lines, and keeps them for the file."""

    def __init__(self, only: str) -> None:
        self.lines: list[str] = []
        self.only = only

    def say(self, *lines: str) -> None:
        self.lines += lines
        print("\n".join(lines), flush=True)

    def wants(self, *words: str) -> bool:
        return self.only in " ".join(words)


def budgets(table: Table, rounds: int, quick: bool, rate: float) -> None:
    few = 50 if quick else 1000
    if table.wants("calls", "call_remote"):
        with Worker(echo) as worker:
            worker.register("same", same)
            table.say(calls_row(worker, rounds, few, "a small dict", {"cmd": "step", "lr": 0.1, "batch": [1, 2, 3]}))
            array = np.zeros(ARRAY_BYTES // 8)
            table.say(calls_row(worker, rounds, few // 20, "an array of 1 MiB", {"batch": array}))
            table.say(in_flight_row(worker, rounds, few))
    sides = Sides("ours")
    if table.wants("busy", "map", "submit"):
        for task_us, bar, count in [(1000, 0.95, 250 * CORES), (100, 0.8, 2500 * CORES)]:
            for through in ("map", "submit"):
                count = 20 * CORES if quick else count
                table.say(busy_row(sides, rounds, task_us, count, through, rate, bar))
    if table.wants("queue", "memory"):
        table.say(*queue_rows(sides, rounds, 2000 if quick else 1_000_000, 100 if quick else 10_000))
    sides.close()


def duels(table: Table, rounds: int, quick: bool, rate: float) -> None:
    sides = Sides("ours", "executor", "multiprocessing")
    for through in ("submit", "map"):
        for large in (False, True):
            for task_us in SIZES_US:
                count = 4 * CORES if quick else duel_count(task_us, large)
                table.say(duel_row(sides, rounds, task_us, large, through, rate, count))
    sides.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="measure one small round and write nothing")
    parser.add_argument("--only", default="", help="measure only calls, busy, queue or duel, and write nothing")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    rate = loops_per_us()
    table = Table(options.only)
    table.say(
        "# Calls and pools compared with yardsticks",
        "",
        f"Measured on {time.strftime('%Y-%m-%d')} with {machine()}. The figures are medians of {rounds} rounds, in "
        "which the sides take turns; the best and the worst round are in brackets. Busy is the share of all cores' "
        "time that went into the tasks; it is compared with that of forked processes that only run the tasks. `make "
        "bench` makes this page.",
        "",
        "| what | MiniRay | yardstick | result | budget | met |",
        "|---|---|---|---|---|---|",
    )
    budgets(table, rounds, options.quick, rate)
    if table.wants("duel"):
        table.say(
            "",
            f"Pools of the standard library, each with {CORES} processes and its own default `chunksize`: the time for "
            "each task, and how many times faster MiniRay is.",
            "",
            "| task | argument | through | MiniRay | `ProcessPoolExecutor` | `multiprocessing.Pool` "
            "(`apply_async`, `map`) | faster than the first | faster than the second | met |",
            "|---|---|---|---|---|---|---|---|---|",
        )
        duels(table, rounds, options.quick, rate)
    if not options.quick and not options.only:
        (ROOT / "bench/results/pool.md").write_text("\n".join(table.lines) + "\n")
        print("Written to bench/results/pool.md")


if __name__ == "__main__":
    main()

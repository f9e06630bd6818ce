"""The work, the same for every peer. Each function starts a system, checks the results, and yields figures.

A figure is a row's key and a number: seconds for each operation, unless the row says otherwise.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from peers.cpp import figures
from peers.peer import NoSuchThing, Peer
from peers.work import OK, checksum, linger, multiply, nothing, spin, verify

CORES = len(os.sched_getaffinity(0))
Sizes = dict[str, Any]
Figures = Iterator[tuple[str, float | str]]
OVERHEAD_MAX = 0.1
SYSTEM_TIMEOUT_S = 60.0
LADDER_US = [us * 10**power for power in range(1, 6) for us in (1, 2, 5)]


# --- How time is taken ------------------------------------------------------------------------------------------------
def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def seconds_each(action: Callable[[int], int], batch: int, enough_s: float) -> float:
    """The time of one operation. `action(count)` does `count` operations and returns how many were right."""

    def checked(count: int) -> None:
        good = action(count)
        if good != count:
            raise AssertionError(f"{good} of {count} answers were right")

    checked(max(1, batch // 10))
    took, batches = 0.0, 0
    while batches == 0 or took < enough_s:
        took += seconds(lambda: checked(batch))
        batches += 1
    return took / batches / batch


def loops_per_us() -> float:
    """How many loops take a microsecond of CPU time: the fastest of several tries, which was disturbed least."""
    loops, times = 200_000, []
    for _ in range(20):
        start = time.thread_time()
        spin(loops)
        times.append(time.thread_time() - start)
    return loops / min(times) / 1e6


def forked_seconds(work: Callable[[], Any], processes: int) -> float:
    """How long the work takes if this number of bare processes each do all of it at once."""

    def run() -> None:
        children = []
        for _ in range(processes):
            child = os.fork()
            if child == 0:
                work()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)

    return seconds(run)


def start_all_workers(peer: Peer, workers: int, sizes: Sizes) -> None:
    """Submits tasks that take a while, until every worker has had one."""
    peer.start_tasks(workers)
    pids: set[int] = set()
    deadline = time.monotonic() + SYSTEM_TIMEOUT_S
    while len(pids) < workers:
        assert time.monotonic() < deadline, f"{len(pids)} of {workers} workers answered"
        pids.update(peer.run(linger, [(sizes["linger_s"],)] * workers))


# --- Operations -------------------------------------------------------------------------------------------------------
def calls(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    peer.start_actors(workers)
    yield "call", seconds_each(peer.calls, sizes["batch"] // 5, sizes["enough_s"])
    yield "calls_in_flight", seconds_each(peer.calls_in_flight, sizes["batch"], sizes["enough_s"])
    yield "array_echo", seconds_of_echo(peer, sizes["array_bytes"], sizes["enough_s"])


def seconds_of_echo(peer: Peer, size_bytes: int, enough_s: float) -> float:
    import numpy as np

    count = max(1, size_bytes // 8)
    array = np.arange(count, dtype=np.float64) if size_bytes >= 8 else np.ones(size_bytes, np.uint8)

    def checked(times: int) -> int:
        backs = [peer.echo(array) for _ in range(times)]
        return sum(len(back) == len(array) and bool((back[::512] == array[::512]).all()) for back in backs)

    return seconds_each(checked, 1 if size_bytes > 100_000 else 10, enough_s)


def clients(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    peer.start_clients(workers)
    each = seconds_each(lambda count: peer.client_calls(count) // workers, sizes["batch"], sizes["enough_s"])
    yield "clients", each / workers


def tasks(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    start_all_workers(peer, workers, sizes)
    yield "task", seconds_each(peer.tasks, sizes["batch"] // 5, sizes["enough_s"])
    yield "tasks_in_flight", seconds_each(lambda count: empty_tasks(peer, count), sizes["batch"], sizes["enough_s"])


def empty_tasks(peer: Peer, count: int) -> int:
    return sum(answer == OK for answer in peer.run(nothing, [(None,)] * count))


def broadcast(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    peer.start_actors(workers)
    yield "node", seconds_of_broadcast(peer, workers, sizes)


def nodes(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    hosts = sizes["hosts"]
    peer.start_nodes(hosts, sizes["here"], workers // len(hosts))
    yield "nodes", seconds_of_broadcast(peer, workers, sizes)


def seconds_of_broadcast(peer: Peer, workers: int, sizes: Sizes) -> float:
    import numpy as np

    array = np.arange(sizes["array_bytes"] // 8, dtype=np.float64)
    expected = [checksum(array)] * workers
    return seconds_each(lambda _: int(peer.broadcast(array) == expected), 1, sizes["enough_s"])


# --- Programs ---------------------------------------------------------------------------------------------------------
def matrices(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    import numpy as np

    side, pairs = sizes["matrix_side"], sizes["matrix_pairs"]
    random = np.random.default_rng(1)
    work = [(random.random((side, side)), random.random((side, side))) for _ in range(pairs)]
    few = work[: max(2, pairs // 10)]
    bare = forked_seconds(lambda: [multiply(*pair) for pair in few], workers) / len(few) * pairs / workers
    start_all_workers(peer, workers, sizes)
    peer.run(multiply, few[:workers])
    results: list[Any] = []
    took = seconds(lambda: results.extend(peer.run(multiply, work)))
    vector = random.random(side)
    for (left, right), product in zip(work, results, strict=True):
        np.testing.assert_allclose(product @ vector, left @ (right @ vector), rtol=1e-9)
    yield "matrices", took
    yield "not_multiplication", max(0.0, 1 - bare / took)


def verification(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    count, loops = sizes["verification_tasks"], int(sizes["loops_per_us"] * sizes["verification_us"])
    problems = [
        {"id": number, "question": [number, 7], "answer": number * 7 + number % 2, "loops": loops}
        for number in range(count)
    ]
    start_all_workers(peer, workers, sizes)
    peer.run(verify, [(problem,) for problem in problems[: 2 * workers]])
    verdicts: list[Any] = []
    took = seconds(lambda: verdicts.extend(peer.run(verify, [(problem,) for problem in problems])))
    assert verdicts == [{"problem_id": number, "correct": number % 2 == 0} for number in range(count)]
    yield f"verification_{workers}", count / took * 60


def overhead(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    """The shortest task, in seconds, of which less than a tenth of the time goes to other things; between two rungs of
    the ladder a straight line is drawn."""
    per_us = sizes["loops_per_us"]
    probe_us = sizes["overhead_s"] * 1e6
    true_us = forked_seconds(lambda: spin(int(per_us * probe_us)), workers) / probe_us * 1e6
    start_all_workers(peer, workers, sizes)
    empty_tasks(peer, sizes["batch"])
    before: tuple[float, float] | None = None
    for us in LADDER_US:
        count = min(sizes["batch"], max(10 * workers, int(sizes["overhead_s"] * workers / us * 1e6)))
        loops = int(per_us * us)
        results: list[int] = []
        took = seconds(lambda c=count, n=loops, r=results: r.extend(peer.run(spin, [(n,)] * c)))  # type: ignore[misc]
        assert results == [loops] * count
        lost = 1 - us * 1e-6 * true_us * count / workers / took
        if lost < OVERHEAD_MAX:
            yield "overhead", crossing(before, (us, lost)) * 1e-6
            return
        before = (us, lost)
    yield "overhead", f"over {LADDER_US[-1] / 1000:.0f} ms"


def crossing(before: tuple[float, float] | None, after: tuple[float, float]) -> float:
    if before is None:
        return after[0]
    share = (before[1] - OVERHEAD_MAX) / (before[1] - after[1])
    return math.exp(math.log(before[0]) + share * (math.log(after[0]) - math.log(before[0])))


# --- Growth -----------------------------------------------------------------------------------------------------------
def message_growth(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    peer.start_actors(workers)
    yield from grown("message", sizes["message_bytes"], sizes, lambda size: seconds_of_echo(peer, size, 0.05))


def task_growth(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    start_all_workers(peer, workers, sizes)
    empty_tasks(peer, 100)

    def once(count: int) -> float:
        times = max(1, 100 // count)

        def checked() -> None:
            for _ in range(times):
                assert empty_tasks(peer, count) == count

        return seconds(checked) / times / count

    yield from grown("in_flight", sizes["in_flight"], sizes, once, per_unit=True)


def grown(
    key: str, points: list[int], sizes: Sizes, once: Callable[[int], float], *, per_unit: bool = False
) -> Figures:
    """Measures points one after the other, until the next one would take too long, or fails."""
    limit_s, last = sizes["point_limit_s"], None
    for point in points:
        if last is not None:
            expected_s = last[1] * point if per_unit else 2 * last[1] * point / last[0]  # one more run to warm up
            if point > last[0] and expected_s > limit_s and expected_s > 1:
                yield f"{key}_{point}", f"would take about {expected_s:.0f} s"
                continue
        try:
            took = once(point)
        except (MemoryError, OSError) as error:
            yield f"{key}_{point}", f"failed: {error}"
            return
        yield f"{key}_{point}", took
        last = (point, took)


# --- C++ --------------------------------------------------------------------------------------------------------------
def cpp(peer: Peer, work: str, processes: int, sizes: Sizes) -> Figures:
    yield from figures([*peer.cpp_command(work, processes), "1" if sizes["quick"] else "0"])


def cpp_calls(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    return cpp(peer, "calls", 2, sizes)


def cpp_tasks(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    return cpp(peer, f"tasks_{workers}", workers, sizes)


def cpp_all_reduce(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    return cpp(peer, f"all_reduce_{workers}", workers, sizes)


# --- A system that does nothing ---------------------------------------------------------------------------------------
def actor_system(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    """Every actor answers once. Then the system idles, and is measured from outside, until a line arrives."""
    try:
        peer.start_actors(workers)
        answered = peer.call_each()
    except NoSuchThing:
        peer.start_tasks(workers)
        answered = empty_tasks(peer, workers)  # any worker may have run them: all were started
    yield from stand_still(answered, workers)


def task_system(peer: Peer, workers: int, sizes: Sizes) -> Figures:
    """The same with workers for tasks, or with actors if the peer has no tasks."""
    try:
        start_all_workers(peer, workers, sizes)
        answered = workers
    except NoSuchThing:
        peer.start_actors(workers)
        answered = peer.call_each()
    yield from stand_still(answered, workers)


def stand_still(answered: int, workers: int) -> Figures:
    assert answered == workers, f"{answered} of {workers} workers answered"
    yield "ready", 0.0
    input()


WORKS: dict[str, Callable[[Peer, int, Sizes], Figures]] = {
    "calls": calls,
    "clients": clients,
    "tasks": tasks,
    "broadcast": broadcast,
    "nodes": nodes,
    "matrices": matrices,
    "verification": verification,
    "overhead": overhead,
    "message_growth": message_growth,
    "task_growth": task_growth,
    "cpp_calls": cpp_calls,
    "cpp_tasks": cpp_tasks,
    "cpp_all_reduce": cpp_all_reduce,
    "actor_system": actor_system,
    "task_system": task_system,
}

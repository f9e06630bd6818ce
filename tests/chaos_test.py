"""A pool over three hosts in chaos: every result is right, none is lost, none comes twice, and nothing is left.

Every few hundred milliseconds a worker or a server is killed or stopped, or a host is cut off and healed. `make test`
runs it for some 10 seconds; `make chaos` for some two minutes. A run is repeated with its seed as far as one can repeat
it: the same faults at the same times.

    MINIRAY_CHAOS_TASKS=20000 MINIRAY_CHAOS_SEED=7 pytest tests/chaos_test.py
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from chaos import Chaos, Fault
from coordinator import Coordinator, coordinating
from testbed import Testbed
from waiting import until

TASKS_COUNT = int(os.environ.get("MINIRAY_CHAOS_TASKS", "1500"))
SEED = int(os.environ.get("MINIRAY_CHAOS_SEED", "1"))
TASKS_PER_S_MIN = 20  # even in chaos
LIMIT_S = 60 + TASKS_COUNT / TASKS_PER_S_MIN
UNREACHABLE_S = 2
WORKERS_OF_HOST = 3
GROWTH_BYTES_MAX = 24 << 20
SETTLE_S = 60.0

TASKS = """
import hashlib, random, time
from collections import Counter
import miniray

def digest(number):
    return hashlib.sha256(str(number).encode()).hexdigest()

def task(number):
    time.sleep(random.Random(number).uniform(0.005, 0.03))
    return number, digest(number)

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def run(pool, count):
    '''Half of them by map, half by submit; what came back, how often, and how large this process was.'''
    view = pool.options(retries=1000, timeout=10, retry_on=(miniray.TaskTimeout,))
    delivered, wrong, sizes = Counter(), [], []

    def take(result):
        number, text = result
        delivered[number] += 1
        if text != digest(number):
            wrong.append(number)
        if sum(delivered.values()) % max(1, count // 20) == 0:
            sizes.append(resident_bytes())

    for begin in range(0, count, 500):
        numbers = range(begin, min(begin + 500, count))
        futures = [view.submit(task, number) for number in numbers if number % 2]
        for result in view.imap_unordered(task, [number for number in numbers if number % 2 == 0]):
            take(result)
        for future in futures:
            take(future.result())
    return {
        "missing": sorted(set(range(count)) - set(delivered)),
        "twice": sorted(number for number, times in delivered.items() if times != 1),
        "wrong": wrong,
        "sizes": sizes,
    }

def events(pool):
    return [[one.time, one.kind, one.node, one.worker, one.text] for one in pool.events]
"""


def begin(coordinator: Coordinator) -> None:
    (coordinator.code / "tasks.py").write_text(TASKS)
    nodes = ", ".join(f"node({host!r}, {WORKERS_OF_HOST})" for host in coordinator.testbed.hosts)
    coordinator.do("import tasks; from miniray import Pool, RestartPolicy")
    coordinator.do(f"cluster = Cluster([{nodes}], unreachable_s={UNREACHABLE_S}, progress=False)")
    policy = "RestartPolicy(max_restarts=1_000_000, backoff_s=0.1, backoff_max_s=1.0)"
    coordinator.do(f"pool = Pool(cluster, restart={policy})")
    coordinator.begin(f"tasks.run(pool, {TASKS_COUNT})")


@pytest.mark.timeout(LIMIT_S + 3 * SETTLE_S)
def test_a_pool_in_chaos(testbed: Testbed, tmp_path: Path) -> None:
    chaos = Chaos(testbed, SEED)
    with coordinating(testbed, tmp_path / "run") as coordinator:
        try:
            begin(coordinator)
            deadline = time.monotonic() + LIMIT_S
            while not coordinator.has_result(chaos.pause_s()) and time.monotonic() < deadline:
                chaos.strike()
        finally:
            chaos.end()
        outcome = coordinator.result(SETTLE_S)
        assert not outcome.error, outcome
        found = outcome.value
        print(f"seed {SEED}: {TASKS_COUNT} tasks in {outcome.seconds:.0f} s; {chaos.counts()}; {found['sizes']}")
        assert found["missing"] == []
        assert found["twice"] == []
        assert found["wrong"] == []
        early, late = found["sizes"][len(found["sizes"]) // 4], found["sizes"][-1]
        assert late - early < GROWTH_BYTES_MAX
        assert sum(chaos.counts().values()) > 5
        assert until(lambda: not untold(coordinator, chaos.faults), SETTLE_S), untold(coordinator, chaos.faults)
        # In peace, all of it is as it was: every worker of every host.
        assert until(lambda: is_complete(coordinator), SETTLE_S), coordinator.do("pool.status()")
        coordinator.do("pool.shutdown(); cluster.stop()", SETTLE_S)
        assert coordinator.do("zombies()").value == []
        assert until(lambda: not coordinator.others()), coordinator.others()


def is_complete(coordinator: Coordinator) -> bool:
    pids = coordinator.do("[one[2] for one in pool.workers]").value
    return len(pids) == WORKERS_OF_HOST * len(coordinator.testbed.hosts) and all(
        os.path.exists(f"/proc/{p}") for p in pids
    )


def untold(coordinator: Coordinator, faults: list[Fault]) -> list[Fault]:
    events = coordinator.do("tasks.events(pool)").value
    return [fault for fault in faults if not is_told(fault, faults, events)]


def is_told(fault: Fault, faults: list[Fault], events: list[list[Any]]) -> bool:
    """What was stopped or cut off for a moment only may pass unnoticed. Of a worker that was killed its own death is
    told, by its pid; unless all of its host was in trouble at that time."""
    if fault.kind not in ("kill worker", "kill server", "cut"):
        return True
    said = [f"{node} {worker} {text}" for when, _, node, worker, text in events if when >= fault.time - 0.5]
    trouble = any(one is not fault and one.host == fault.host and abs(one.time - fault.time) < 10 for one in faults)
    if fault.kind == "kill worker" and not trouble:
        return any(re.search(rf"\b{fault.pid}\b", text) for text in said)
    return any(fault.host in text for text in said)

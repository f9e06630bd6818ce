"""A pool over a cluster of real ssh hosts: where tasks run, and that it outlives workers, servers and hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordinator import Coordinator, coordinating
from hosts import Hosts
from testbed import Testbed
from waiting import PATIENCE_S, until

UNREACHABLE_S = 3

TASKS = """
import os, signal, socket, time

def square(x):
    return x * x

def where(seconds=0.0, _=None):
    time.sleep(seconds)
    return socket.gethostname()

def meet(folder, number, count):
    '''Returns where it ran, when so many are running at once.'''
    open(f"{folder}/{number}", "w").close()
    until(lambda: len(os.listdir(folder)) >= count, f"{count} tasks at once")
    return socket.gethostname()

def wait_for(path):
    until(lambda: os.path.exists(path), path)
    return socket.gethostname()

def until(wish, what):
    deadline = time.monotonic() + 60
    while not wish():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.01)

def slow_square(x):
    time.sleep(0.02)
    return x * x
"""


@pytest.fixture
def coordinator(testbed: Testbed, tmp_path: Path) -> Iterator[Coordinator]:
    """With `pool`, over two hosts with two workers each, and `tasks`, a module that the hosts do not have."""
    with coordinating(testbed, tmp_path / "run") as made:
        try:
            (made.code / "tasks.py").write_text(TASKS)
            made.do("import tasks; from miniray import Pool")
            nodes = "[node('mr-a', 2), node('mr-b', 2)]"
            made.do(f"cluster = Cluster({nodes}, unreachable_s={UNREACHABLE_S}, progress=False)")
            made.do("pool = Pool(cluster, resources={'mr-b': {'gpu_ram': 80}})")
            yield made
        finally:
            testbed.heal("mr-a")


def goes_on(coordinator: Coordinator, count: int = 200) -> None:
    code = f"list(pool.options(retries=3).map(tasks.square, range({count}))) == [n * n for n in range({count})]"
    assert coordinator.do(code).value is True


def end(coordinator: Coordinator) -> None:
    coordinator.do("pool.shutdown(); cluster.stop()")
    assert coordinator.do("zombies()").value == []
    until(lambda: not coordinator.others(), what="nothing is left")


def hosts_used(coordinator: Coordinator, view: str, folder: Path, count: int) -> list[str]:
    """Where so many tasks run that run at the same time."""
    folder.mkdir(exist_ok=True)
    coordinator.do(f"futures = [{view}.submit(tasks.meet, {str(folder)!r}, n, {count}) for n in range({count})]")
    found: list[str] = coordinator.do("[future.result() for future in futures]", 2 * PATIENCE_S).value
    return sorted(found)


def test_all_hosts_work(coordinator: Coordinator, shared_folder: Path) -> None:
    goes_on(coordinator)
    assert hosts_used(coordinator, "pool", shared_folder, 4) == ["mr-a", "mr-a", "mr-b", "mr-b"]
    workers = coordinator.do("[list(map(str, worker)) for worker in pool.workers]").value
    assert sorted(worker[1] for worker in workers) == ["mr-a", "mr-a", "mr-b", "mr-b"]
    assert coordinator.do("pool.submit(lambda: (1, {2})).result() == (1, {2})").value is True
    end(coordinator)


def test_strategies(coordinator: Coordinator, shared_folder: Path) -> None:
    for number in range(3):
        folder = shared_folder / f"{number}"
        folder.mkdir()
        assert hosts_used(coordinator, "pool.options(strategy='spread')", folder / "s", 2) == ["mr-a", "mr-b"]
        packed = hosts_used(coordinator, "pool.options(strategy='pack')", folder / "p", 2)
        assert packed in (["mr-a"] * 2, ["mr-b"] * 2)
        for host in ("mr-a", "mr-b"):
            view = f"pool.options(node={host!r})"
            assert hosts_used(coordinator, view, folder / host, 2) == [host] * 2
    end(coordinator)


def test_resources_of_one_host(coordinator: Coordinator) -> None:
    view = "pool.options(resources={'gpu_ram': 40})"
    found = coordinator.do(f"sorted(set({view}.map(tasks.where, [0.01] * 20)))").value
    assert found == ["mr-b"]
    outcome = coordinator.attempt("pool.options(resources={'gpu_ram': 81}).submit(tasks.where)")
    assert (outcome.error, "gpu_ram" in outcome.text) == ("UsageError", True)
    outcome = coordinator.attempt("pool.options(resources={'gpu_ram': 1}, node='mr-a').submit(tasks.where)")
    assert (outcome.error, "gpu_ram" in outcome.text) == ("UsageError", True)
    outcome = coordinator.attempt("pool.options(num_cpus=3).submit(tasks.where)")  # no one host has three
    assert (outcome.error, "cpu" in outcome.text) == ("UsageError", True)
    end(coordinator)


def test_workers_are_replaced_where_they_were(coordinator: Coordinator, shared_folder: Path) -> None:
    goes_on(coordinator, 20)
    for pid in coordinator.do("[worker[2] for worker in pool.workers]").value[:3]:
        os.kill(pid, signal.SIGKILL)
    goes_on(coordinator)
    assert hosts_used(coordinator, "pool.options(retries=3)", shared_folder, 4) == ["mr-a", "mr-a", "mr-b", "mr-b"]
    assert coordinator.do("len(pool.events.events(kind='worker_died'))").value == 3
    end(coordinator)


def test_a_server_that_is_killed_is_started_again(coordinator: Coordinator, shared_folder: Path) -> None:
    goes_on(coordinator, 20)
    coordinator.begin("list(pool.options(retries=9).map(tasks.slow_square, range(500), chunksize=1))")
    [server] = [s for s in coordinator.testbed.processes("mr-a") if "worker_server" in s.command_line][:1]
    os.kill(server.pid, signal.SIGKILL)
    outcome = coordinator.result(PATIENCE_S)
    assert not outcome.error, outcome
    assert outcome.value == [n * n for n in range(500)]
    assert hosts_used(coordinator, "pool.options(retries=3)", shared_folder, 4) == ["mr-a", "mr-a", "mr-b", "mr-b"]
    end(coordinator)


def test_a_host_that_is_cut_off_and_comes_back(coordinator: Coordinator, shared_folder: Path) -> None:
    goes_on(coordinator, 20)
    coordinator.begin("list(pool.options(retries=9).map(tasks.slow_square, range(500), chunksize=1))")
    coordinator.testbed.cut("mr-a")
    outcome = coordinator.result(PATIENCE_S)
    assert not outcome.error, outcome
    assert outcome.value == [n * n for n in range(500)]
    until(lambda: coordinator.do("len(pool.events.events(kind='node_lost'))").value >= 1)
    coordinator.testbed.heal("mr-a")
    until(lambda: coordinator.do("len(pool.events.events(kind='node_back'))").value >= 1)
    assert hosts_used(coordinator, "pool.options(retries=3)", shared_folder, 4) == ["mr-a", "mr-a", "mr-b", "mr-b"]
    end(coordinator)


def test_tasks_without_retries_on_a_host_that_vanished_say_so(coordinator: Coordinator, shared_folder: Path) -> None:
    never = str(shared_folder / "never")
    coordinator.do(f"future = pool.options(node='mr-a').submit(tasks.wait_for, {never!r})")
    goes_on(coordinator, 20)
    coordinator.testbed.cut("mr-a")
    outcome = coordinator.attempt("future.result()", PATIENCE_S)
    assert (outcome.error, "unreachable" in outcome.text) == ("WorkerDied", True), outcome
    goes_on(coordinator, 20)
    coordinator.testbed.heal("mr-a")
    end(coordinator)


def test_kill_9_of_the_coordinator_leaves_nothing(coordinator: Coordinator, shared_folder: Path) -> None:
    coordinator.do(f"futures = [pool.submit(tasks.wait_for, {str(shared_folder / 'never')!r}) for _ in range(50)]")
    goes_on_elsewhere = coordinator.do("len(pool.workers)").value
    assert goes_on_elsewhere == 4
    coordinator.process.send_signal(signal.SIGKILL)
    coordinator.process.wait()
    until(lambda: not coordinator.testbed.survivors(), what="nothing is left")


def test_what_a_function_holds_goes_to_a_host_once(hosts: Hosts) -> None:
    """Counted on the host's cable: 32 MiB for each worker at most, not for each of 50 tasks."""
    before = received(hosts, "mr-a")
    printed = hosts.run(
        """
        import functools
        import numpy
        from miniray import Cluster, NodeConfig, Pool

        def look_up(table, number):
            return int(table[number])

        if __name__ == "__main__":
            table = numpy.arange(4 << 20)
            with Cluster([NodeConfig("mr-a", 2, base_port=0)], progress=False) as cluster, Pool(cluster) as pool:
                print(list(pool.map(functools.partial(look_up, table), range(50), chunksize=1)) == list(range(50)))
        """
    )
    assert printed == "True\n"
    assert received(hosts, "mr-a") - before < 4 * (32 << 20)


def received(hosts: Hosts, name: str) -> int:
    lines = hosts.on_host(name, "cat", "/proc/net/dev").splitlines()
    [counts] = [line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:")]
    return int(counts[0])


def test_a_program_that_just_ends(hosts: Hosts) -> None:
    printed = hosts.run(
        """
        from miniray import Cluster, NodeConfig, Pool

        def cube(x):
            return x ** 3

        if __name__ == "__main__":
            pool = Pool(Cluster([NodeConfig(host, 1, base_port=0) for host in ("mr-a", "mr-b")], progress=False))
            print(sum(pool.map(cube, range(100))))
        """
    )
    assert printed == f"{sum(n**3 for n in range(100))}\n"

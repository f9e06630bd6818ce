"""Groups of ranks on several real ssh hosts: results, and what the other ranks hear when one of them fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, ended_with
from waiting import PATIENCE_S

UNREACHABLE_S = 4

# Two workers on mr-a, one on mr-b, three on mr-c; the ranks of one host do not follow each other.
CLUSTER = """
import json, sys, time
import miniray
from miniray import Cluster, NodeConfig
import ranks

ORDER = [3, 0, 2, 4, 1, 5]
NODES = [NodeConfig("mr-a", 2, base_port=0), NodeConfig("mr-b", 1, base_port=0), NodeConfig("mr-c", 3, base_port=0)]

def start(cluster, work_fn):
    workers = cluster.start(work_fn)
    return [workers[i] for i in ORDER]

def reports(workers, but=()):
    return [worker.recv(timeout=60) for rank, worker in enumerate(workers) if rank not in but]
"""

RANKS = """
    import os, signal, socket, sys, threading, time
    import numpy as np
    import miniray

    def report(handle, function):
        try:
            handle.send({"result": function()})
        except Exception as error:
            handle.send({"error": type(error).__name__, "text": str(error)})
        while True:
            handle.recv()

    def everything(handle):
        report(handle, lambda: _everything(miniray.Group(handle)))

    def _everything(group):
        size, rank = group.size, group.rank
        for dtype in ("float32", "float64", "int8", "uint16", "int64", "complex64"):
            for count in (0, 1, 3, 1000, 4097, 200_001):
                array = np.full(count, rank + 1, dtype)
                assert group.all_reduce(array) is array
                assert (array == size * (size + 1) // 2).all() and len(array) == count, (dtype, count)
        for count in (0, 1, 7, 60_000):
            everyone = np.arange(size * count, dtype=np.int32).reshape(size, -1)
            part = group.scatter(everyone if rank == 1 else None, np.empty(count, np.int32), root=1)
            np.testing.assert_array_equal(part, everyone[rank])
            np.testing.assert_array_equal(group.all_gather(part), everyone)
            gathered = group.gather(part, root=2)
            assert (gathered is None) == (rank != 2)
            if gathered is not None:
                np.testing.assert_array_equal(gathered, everyone)
            np.testing.assert_array_equal(group.reduce_scatter(everyone, part), size * everyone[rank])
            for root in range(size):
                total = group.reduce(np.full(count, rank + 1.0), "max", root=root)
                assert (total == (size if rank == root else rank + 1)).all()
                assert (group.broadcast(total, root=root) == size).all()
        truths = group.broadcast(np.array([rank == 3, True]), root=3)
        assert truths.tolist() == [True, True]
        group.barrier()
        return socket.gethostname()

    def large(handle):
        report(handle, lambda: _large(miniray.Group(handle)))

    def _large(group):
        import hashlib
        array = np.random.default_rng(group.rank).random(8 << 20)   # 64 MiB
        total = sum(np.random.default_rng(rank).random(1000) for rank in range(group.size))
        group.all_reduce(array)
        np.testing.assert_allclose(array[:1000], total)
        return hashlib.sha256(array).hexdigest()

    def dies(handle, step, victim_rank):
        group = miniray.Group(handle)
        victim = group.rank == victim_rank
        def calls():
            array = np.ones(1_000_000, np.float32)
            if step == "after a call":
                group.all_reduce(array)
            if victim and step in ("after it has joined", "after a call"):
                os.kill(os.getpid(), signal.SIGKILL)
            if victim and step == "in a call":
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
            if victim and step == "by an error":
                raise RuntimeError("no more")
            while True:
                group.all_reduce(array, "max")
        if victim:
            calls()
        report(handle, calls)

    def waits(handle):
        group = miniray.Group(handle)
        handle.send("joined")
        def wait():
            while True:
                group.all_reduce(np.ones(100_000), "max")
        report(handle, wait)

    def joins(handle):
        while True:
            try:
                handle.send({"result": miniray.Group(handle).rank})
            except miniray.GroupBroken as error:
                handle.send({"error": str(error)})
"""


def run(hosts: Hosts, text: str, **options: Any) -> Any:
    return hosts.value(CLUSTER + text, files={"ranks.py": RANKS}, timeout=120, **options)


def test_every_operation_on_three_hosts(hosts: Hosts) -> None:
    found = run(
        hosts,
        """
if __name__ == "__main__":
    with Cluster(NODES, progress=False) as cluster:
        workers = start(cluster, "ranks.everything")
        miniray.create_group(workers)
        print(json.dumps(reports(workers)))
""",
    )
    where = ["mr-c", "mr-a", "mr-b", "mr-c", "mr-a", "mr-c"]
    assert found == [{"result": host} for host in where]


@pytest.mark.parametrize("tunnel", [False, True])
def test_64_mib_and_the_same_bits_everywhere(hosts: Hosts, tunnel: bool) -> None:
    found = run(
        hosts,
        f"""
if __name__ == "__main__":
    with Cluster(NODES, progress=False, tunnel={tunnel}) as cluster:
        hashes = []
        for turn in range(2):
            workers = start(cluster, "ranks.large")
            miniray.create_group(workers)
            hashes += [report["result"] for report in reports(workers)]
        print(json.dumps(hashes))
""",
    )
    assert len(found) == 12
    assert len(set(found)) == 1


def test_workers_of_this_machine_and_of_others(hosts: Hosts) -> None:
    found = run(
        hosts,
        """
if __name__ == "__main__":
    with Cluster(NODES[:2], progress=False) as cluster, miniray.Worker(ranks.everything) as here:
        with miniray.Worker(ranks.everything) as too:
            workers = [here, *cluster.start("ranks.everything"), too]
            miniray.create_group(workers)
            print(json.dumps(reports(workers)[1:4]))
""",
    )
    assert found == [{"result": host} for host in ("mr-a", "mr-a", "mr-b")]


@pytest.mark.parametrize("step", ["after it has joined", "after a call", "in a call", "by an error"])
@pytest.mark.parametrize("victim", [0, 3])  # the first rank of its host, which leads it, and another one
def test_a_rank_that_dies_is_named_to_all_others(hosts: Hosts, step: str, victim: int) -> None:
    found = run(
        hosts,
        f"""
if __name__ == "__main__":
    with Cluster(NODES, progress=False) as cluster:
        workers = start(cluster, lambda handle: ranks.dies(handle, {step!r}, {victim}))
        miniray.create_group(workers)
        found = reports(workers, but=[{victim}])
        try:
            workers[{victim}].recv(timeout=60)
        except (miniray.WorkerDied, miniray.WorkerError) as error:
            print(json.dumps([workers[{victim}].name, type(error).__name__, found]))
""",
    )
    name, kind, reports = found
    assert kind == ("WorkerError" if step == "by an error" else "WorkerDied")
    how = "has left the group" if step == "by an error" else "has died"
    assert len(reports) == 5
    for report in reports:
        assert report["error"] == "GroupBroken"
        assert f"rank {victim} ({name}) " in report["text"]
        if step != "by an error":  # an error ends its process right after it has left
            assert how in report["text"]


def test_a_rank_that_dies_before_it_joins_ends_create_group(hosts: Hosts) -> None:
    found = run(
        hosts,
        """
if __name__ == "__main__":
    with Cluster(NODES, progress=False) as cluster:
        workers = start(cluster, "ranks.joins")
        workers[2].kill()
        try:
            miniray.create_group(workers)
        except miniray.WorkerDied as error:
            print(json.dumps([str(error).splitlines()[0], reports(workers, but=[2])]))
""",
    )
    death, reports = found
    assert "was killed by SIGKILL" in death
    assert ["was killed by SIGKILL" in report["error"] for report in reports] == [True] * 5


def test_a_group_can_be_made_again_after_a_death(hosts: Hosts) -> None:
    found = run(
        hosts,
        """
if __name__ == "__main__":
    with Cluster(NODES, progress=False) as cluster:
        workers = start(cluster, "ranks.joins")
        workers[2].kill()
        try:
            miniray.create_group(workers)
        except miniray.WorkerDied:
            reports(workers, but=[2])
        left = workers[:2] + workers[3:]
        miniray.create_group(left)
        print(json.dumps(reports(left)))
""",
    )
    assert found == [{"result": rank} for rank in range(5)]


def test_a_host_that_is_cut_off_is_named(hosts: Hosts) -> None:
    hosts.write({"ranks.py": RANKS})
    script = hosts.start(
        CLUSTER
        + f"""
if __name__ == "__main__":
    with Cluster(NODES, progress=False, unreachable_s={UNREACHABLE_S}) as cluster:
        workers = start(cluster, "ranks.waits")
        miniray.create_group(workers, unreachable_s={UNREACHABLE_S})
        reports(workers)
        print("ready", flush=True)
        print(json.dumps([reports(workers, but=[2]), workers[2].name]), flush=True)
        sys.stdin.readline()
""",
        cwd=hosts.folder,
    )
    assert script.stdout is not None
    try:
        assert script.stdout.readline() == "ready\n"
        hosts.testbed.cut("mr-b")
        line = script.stdout.readline()
        assert line, script.communicate(timeout=PATIENCE_S)
        reports, name = json.loads(line)
        for report in reports:
            assert report["error"] == "GroupBroken"
            assert f"rank 2 ({name}) cannot be reached: its host did not answer for {UNREACHABLE_S} s" in report["text"]
    finally:
        hosts.testbed.heal("mr-b")
    ended_with(script)  # closes standard input, which ends the script


@pytest.fixture
def closed_ports(hosts: Hosts) -> Iterator[tuple[int, int]]:
    """A range of ports that mr-a does not let anybody connect to."""
    rules = "tcp dport 41000-41010 reject with tcp reset"
    hosts.on_host(
        "mr-a", "nft", "add table inet closed; add chain inet closed in { type filter hook input priority 0; }"
    )
    hosts.on_host("mr-a", "nft", f"add rule inet closed in {rules}")
    yield 41000, 41010
    hosts.on_host("mr-a", "nft", "delete table inet closed")


def test_a_port_that_cannot_be_reached_is_named_with_its_cure(hosts: Hosts, closed_ports: tuple[int, int]) -> None:
    found = run(
        hosts,
        f"""
if __name__ == "__main__":
    with Cluster(NODES, progress=False) as cluster:
        workers = start(cluster, "ranks.joins")
        try:
            miniray.create_group(workers, ports={closed_ports})
        except miniray.GroupBroken as error:
            text = str(error)
        failed = reports(workers)
        miniray.create_group(workers, ports=(42000, 42010))
        print(json.dumps([text, failed, reports(workers)]))
""",
    )
    text, failed, after = found
    address = hosts.testbed.hosts["mr-a"].address
    assert f"at {address}:410" in text
    assert "Connection refused" in text
    assert "in Python ports=" in text
    assert [report["error"] for report in failed] == [text] * 6
    assert after == [{"result": rank} for rank in range(6)]


def test_ranks_in_cpp_and_python(hosts: Hosts) -> None:
    program = Path(__file__).resolve().parents[1] / "build/release/tests/interop_program"
    found = hosts.value(
        CLUSTER
        + f"""
if __name__ == "__main__":
    with Cluster(NODES[:2], progress=False, program={str(program)!r}) as cpp, Cluster(NODES[2:], progress=False) as py:
        one, two, three = cpp.start("add_up")
        workers = [one, *py.start("ranks.add_up"), two, three]
        miniray.create_group(workers)
        for count in (0, 5, 3_000_000):
            for worker in workers:
                worker.send(count)
            answers = [worker.recv(timeout=60).tolist() for worker in workers]
            assert answers == [[21.0 if count else 0.0] * 6] * 6, answers
        print(json.dumps("right"))
""",
        files={
            "ranks.py": """
                import numpy as np
                import miniray
                def add_up(handle):
                    group = miniray.Group(handle)
                    while True:
                        count = handle.recv()
                        numbers = group.all_reduce(np.full(count, group.rank + 1, np.float32))
                        handle.send(group.all_gather(np.array([numbers[-1] if count else 0.0], np.float64)).reshape(-1))
            """,
        },
        timeout=120,
    )
    assert found == "right"


def test_nothing_is_left_when_the_coordinator_is_killed(hosts: Hosts) -> None:
    hosts.write({"ranks.py": RANKS})
    script = hosts.start(
        CLUSTER
        + """
if __name__ == "__main__":
    with Cluster(NODES, progress=False) as cluster:
        workers = start(cluster, "ranks.waits")
        miniray.create_group(workers)
        reports(workers)
        print("ready", flush=True)
        time.sleep(1000)
""",
        cwd=hosts.folder,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "ready\n"
    script.kill()
    ended_with(script)
    hosts.assert_nothing_is_left()

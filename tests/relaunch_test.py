"""Workers on some nodes only, and nodes whose server died, stands still or was cut off: each comes back on its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coordinator import coordinating
from hosts import Hosts
from testbed import Testbed
from waiting import is_gone, until

UNREACHABLE_S = 2
PORT = 12345


@pytest.fixture
def coordinator(testbed: Testbed, tmp_path: Path) -> Iterator[Any]:
    """Afterwards all hosts can be reached, and nothing runs there."""
    with coordinating(testbed, tmp_path / "run") as made:
        try:
            yield made
        finally:
            testbed.heal("mr-b")


def start(coordinator: Any, options: str = "", port: int = 0) -> None:
    """A worker on mr-a and one on mr-b, `workers`, which echo."""
    nodes = f"[NodeConfig(name, num_workers=1, base_port={port}, python_bin=PYTHON) for name in ('mr-a', 'mr-b')]"
    coordinator.do(f"cluster = Cluster({nodes}, unreachable_s={UNREACHABLE_S}, progress=False, {options})")
    coordinator.do("workers = cluster.start('work.echo')")
    coordinator.do("pids = [worker.pid for worker in workers]")


def server(coordinator: Any) -> int:
    """The process of mr-b's server."""
    pid = coordinator.do("cluster.servers[1].pid").value
    assert isinstance(pid, int)
    return pid


def require_all_work(coordinator: Any) -> None:
    """A new worker on mr-b, and the one on mr-a that was never touched."""
    coordinator.do("workers[1] = cluster.replace(workers[1])")
    coordinator.do("cluster.broadcast(bytes(1 << 20))")
    assert coordinator.do("[len(answer) for answer in cluster.gather(timeout=20)]").value == [1 << 20] * 2
    assert coordinator.do("(workers[0].pid == pids[0], cluster.workers == workers)").value == [True, True]
    assert coordinator.do("[cluster.node_of(worker) for worker in workers]").value == [0, 1]


def test_workers_on_some_nodes(hosts: Hosts) -> None:
    """By host or by position; workers that were closed are not the cluster's any more."""
    printed = hosts.value("""
        import json, socket
        from miniray import Cluster, NodeConfig, UsageError

        def where(handle):
            handle.send(socket.gethostname())
            handle.recv()

        def refusal(call):
            try:
                call()
            except UsageError as error:
                return str(error)

        with Cluster([NodeConfig(name, 2, base_port=0) for name in ("mr-a", "mr-b", "mr-c")]) as cluster:
            first = cluster.start(where, nodes=["mr-c", 0])
            more = cluster.start(where, nodes=[1], num_workers=1)
            told = [worker.recv() for worker in first + more]
            for worker in first:
                worker.close()
            last = cluster.connect_to_servers(where, nodes=["mr-a"], num_workers=1)
            refusals = [
                refusal(lambda: cluster.start(where, nodes=["mr-d"])),
                refusal(lambda: cluster.start(where, nodes=[3])),
                refusal(lambda: cluster.start(where, nodes=[1, "mr-b"])),
                refusal(lambda: cluster.relaunch("mr-d")),
            ]
            print(json.dumps([told, cluster.workers == more + last, refusals]))
        """)
    no_such_host = 'the cluster has no node "mr-d"; its nodes are mr-a, mr-b, mr-c'
    no_such_position = "the cluster has no node 3; its nodes are 0 to 2"
    refusals = [no_such_host, no_such_position, "nodes names mr-b twice; name each node once", no_such_host]
    assert printed == [["mr-c", "mr-c", "mr-a", "mr-a", "mr-b"], True, refusals]


@pytest.mark.parametrize("options", ["", "tunnel=True"], ids=["open port", "tunnel"])
def test_a_server_that_died(coordinator: Any, options: str) -> None:
    """Launched again by a thread that does not live on."""
    start(coordinator, options)
    os.kill(server(coordinator), signal.SIGKILL)
    assert coordinator.attempt("workers[1].recv()").error == "WorkerDied"
    gone = coordinator.attempt("cluster.replace(workers[1])")
    assert (gone.error, "mr-b: " in gone.text, "mr-a" in gone.text) == ("ClusterError", True, False)
    coordinator.do("import threading; thread = threading.Thread(target=cluster.relaunch, args=('mr-b', 30))")
    coordinator.do("thread.start(); thread.join()")
    require_all_work(coordinator)
    assert coordinator.do("zombies()").value == [
        entry for entry in coordinator.do("zombies()").value if "Z" not in entry
    ]


def test_a_server_that_stands_still(coordinator: Any) -> None:
    """It holds its port, so the new one takes another; when it goes on, it ends by itself, and so does its worker."""
    start(coordinator, port=PORT)
    old, worker = server(coordinator), coordinator.do("pids[1]").value
    os.kill(old, signal.SIGSTOP)
    try:
        coordinator.do("cluster.relaunch(1)")
        assert coordinator.do(f"[server.port == {PORT} for server in cluster.servers]").value == [True, False]
        require_all_work(coordinator)
        assert not is_gone(old)
    finally:
        os.kill(old, signal.SIGCONT)
    assert until(lambda: is_gone(old) and is_gone(worker))
    require_all_work(coordinator)


def test_a_server_that_runs(coordinator: Any) -> None:
    """It is ended, and the new one gets its port."""
    start(coordinator, port=PORT)
    old = server(coordinator)
    coordinator.do("cluster.relaunch('mr-b')")
    assert coordinator.do(f"[server.port == {PORT} for server in cluster.servers]").value == [True, True]
    assert until(lambda: is_gone(old))
    require_all_work(coordinator)


def test_a_host_that_is_cut_off_and_back(testbed: Testbed, coordinator: Any) -> None:
    start(coordinator)
    testbed.cut("mr-b")
    assert coordinator.attempt("workers[1].recv()").error == "WorkerDied"
    failed = coordinator.attempt("cluster.relaunch('mr-b', 3)")
    assert failed.error == "ClusterError"
    assert "mr-b: the node was not ready within 3 s (timeout_s); it was connecting" in failed.text
    refused = coordinator.attempt("cluster.start('work.echo')")
    assert refused.error == "ClusterError"
    assert "mr-b: the node has no server. Call relaunch() to try again" in refused.text
    coordinator.do("[one] = cluster.start('work.echo', nodes=['mr-a']); one.close()")
    assert until(lambda: not testbed.processes("mr-b"))  # what was there has ended by itself
    testbed.heal("mr-b")
    coordinator.do("cluster.relaunch('mr-b', 30)")
    require_all_work(coordinator)
    coordinator.do("cluster.stop()")
    assert until(lambda: not coordinator.others())

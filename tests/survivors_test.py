"""Nothing is left behind: whatever is killed, at whatever stage, everything of the cluster ends.

The clusters take no host to be gone for want of an answer, so whatever ends has noticed in another way.

Each scenario brings a cluster to a stage, strikes, and counts what lives on all hosts and in the hub. Not every blow
is dealt at every stage, but every stage is struck, by every kind of blow, with every kind of worker.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coordinator import coordinating
from testbed import LOGIN_DELAY_MARK, Testbed
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(Testbed.available() is not None, reason=f"no testbed: {Testbed.available()}")

STRUCK, SPARED = "mr-a", "mr-b"
KINDS = 7  # of workers, in coordinator.py
LOGIN_DELAY_S = 1.5
BUNDLE_BYTES = 30 << 20


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Testbed(tmp_path_factory.mktemp("hosts"), [STRUCK, SPARED]) as made:
        yield made


@pytest.fixture(scope="module")
def slow_testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Testbed(tmp_path_factory.mktemp("slow"), [STRUCK, SPARED], login_delay_s=LOGIN_DELAY_S) as made:
        yield made


# --- Stages: each leaves the coordinator in the middle of something, or about to do `NEXT` ---------------------------
def make(struck: int = 1, spared: int = 1) -> str:
    nodes = f"[node('{STRUCK}', {struck}), node('{SPARED}', {spared})]"
    return f"cluster = Cluster({nodes}, unreachable_s=1000, progress=False)"


MAKE = make()


def connecting(coordinator: Any) -> None:
    coordinator.testbed.cut(STRUCK)  # so that nobody answers the first packet
    coordinator.do(MAKE)
    coordinator.begin("cluster.start('work.idle')")
    until(lambda: ssh_processes(coordinator.testbed), what="ssh runs")


def logging_in(coordinator: Any) -> None:
    coordinator.do(MAKE)
    coordinator.begin("cluster.start('work.idle')")
    until(
        lambda: any(
            LOGIN_DELAY_MARK in one.command_line for one in coordinator.testbed.processes(STRUCK, include_ssh=True)
        ),
        what="the login is slow",
    )


def importing(coordinator: Any) -> None:
    coordinator.do(MAKE)
    coordinator.begin("cluster.start('slow.fn')")
    until(lambda: is_importing(coordinator), what="the module is being imported")


def sending_code(coordinator: Any) -> None:
    """The rest of the code does not get out: ssh has been stopped after the first file."""
    (coordinator.code / "zz_large.so").write_bytes(random.randbytes(BUNDLE_BYTES))
    files = coordinator.testbed.hosts[STRUCK].home / ".cache/miniray/files"
    before = set(files.iterdir()) if files.exists() else set()
    (coordinator.code / "aa_first.py").write_text(f"# {random.random()}\n")
    coordinator.do(MAKE)
    coordinator.begin("cluster.start('work.idle')")
    until(lambda: files.exists() and set(files.iterdir()) - before, what="the first file has arrived")
    for process in ssh_processes(coordinator.testbed):
        os.kill(process.pid, signal.SIGSTOP)


def ready(coordinator: Any) -> None:
    coordinator.do(MAKE)
    coordinator.do("cluster.launch_servers()")


def starting_workers(coordinator: Any) -> None:
    """The servers are up, and import for ever what the first worker needs."""
    ready(coordinator)
    coordinator.begin("cluster.connect_to_servers('slow.fn')")
    until(lambda: is_importing(coordinator), what="the module is being imported")


def starting_a_second_set(coordinator: Any) -> None:
    """Its import never ends, while workers of the first set are busy."""
    coordinator.do(MAKE)
    coordinator.do("workers = cluster.start('work.endless_loop')")
    coordinator.do("assert cluster.gather() == ['up', 'up']")
    coordinator.begin("cluster.start('slow.fn')")
    until(lambda: is_importing(coordinator), what="the module is being imported")


def starting_many(coordinator: Any) -> None:
    coordinator.do(make(200, 200))
    coordinator.do("cluster.launch_servers('work.idle')")
    coordinator.begin("cluster.connect_to_servers('work.idle')")
    until(lambda: len(coordinator.testbed.processes(STRUCK)) > 10, what="some workers are there")


def working(coordinator: Any) -> None:
    """One worker of each kind on the host that is struck, and an idle one on the other."""
    coordinator.do(make(KINDS))
    coordinator.do("workers = cluster.start('work.crowd')")
    coordinator.do("for i, worker in enumerate(workers): worker.send(i % work.KINDS_COUNT)")
    coordinator.do("assert [worker.recv() for worker in workers] == ['up'] * len(workers)")


def waiting(coordinator: Any) -> None:
    working(coordinator)
    coordinator.begin("workers[0].recv()")


def waiting_for_any(coordinator: Any) -> None:
    working(coordinator)
    coordinator.begin("[worker.recv() for worker in wait_any([workers[0], workers[-1]])]")


def idle(coordinator: Any) -> None:
    coordinator.do(MAKE)
    coordinator.do("workers = cluster.start('work.idle')")
    coordinator.do("assert cluster.gather() == ['up', 'up']")


def sending(coordinator: Any) -> None:
    """To a worker that does not read."""
    coordinator.do(MAKE)
    coordinator.do("workers = cluster.start('work.blocked')")
    coordinator.do("assert cluster.gather() == ['up', 'up']")
    coordinator.begin("workers[0].send(bytes(64 << 20))")


def receiving(coordinator: Any) -> None:
    """From a worker that sends without end, and the inbox is full."""
    coordinator.do(MAKE)
    coordinator.do("workers = cluster.start('work.flood')")
    coordinator.begin("while True: workers[0].recv()")
    until(lambda: coordinator.testbed.processes(STRUCK), what="the worker is there")


def stopping(coordinator: Any) -> None:
    working(coordinator)
    coordinator.begin("cluster.stop()")
    # The idle one has heard of it and gone, and the endless one has not.
    until(lambda: len(coordinator.testbed.processes(SPARED)) < 2, what="the spared host's worker has ended")


# --- Blows ------------------------------------------------------------------------------------------------------------
def ssh_processes(testbed: Any, host: str = STRUCK) -> list[Any]:
    """Those of the hub that lead to a host."""
    return [one for one in testbed.processes("hub") if "ssh" in one.command_line and f" {host} " in one.command_line]


def is_importing(coordinator: Any) -> bool:
    return (coordinator.testbed.hosts[STRUCK].tmp / "importing").exists()


def kill_each(processes: list[Any]) -> None:
    assert processes, "there is nothing to strike"
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has gone with the one before


def kill_ssh(coordinator: Any) -> None:
    kill_each(ssh_processes(coordinator.testbed))


def kill_attendant(coordinator: Any) -> None:
    hub = coordinator.testbed.processes("hub")
    kill_each([one for one in hub if Path(f"/proc/{one.pid}/comm").read_text() == "miniray-attend\n"])


def kill_server(coordinator: Any) -> None:
    """The oldest process with that command line; its workers are forks of it."""
    found = [one for one in coordinator.testbed.processes(STRUCK) if "miniray.worker_server" in one.command_line]
    kill_each(found[:1])


def kill_session(coordinator: Any) -> None:
    with_ssh = coordinator.testbed.processes(STRUCK, include_ssh=True)
    own = {one.pid for one in coordinator.testbed.processes(STRUCK)}
    kill_each([one for one in with_ssh if one.pid not in own])


BLOWS = {"ssh": kill_ssh, "attendant": kill_attendant, "server": kill_server, "session": kill_session}


def require_nobody(coordinator: Any, own: bool = True) -> None:
    """Nobody is left, but for the coordinator itself if it lives."""
    left = coordinator.testbed.survivors if own else coordinator.others
    until(lambda: not left(), what=lambda: f"the end of {left()}")


# --- The coordinator is struck ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stage", "blow"),
    [
        (connecting, signal.SIGKILL),
        (importing, signal.SIGTERM),
        (importing, signal.SIGINT),
        (sending_code, signal.SIGKILL),
        (ready, signal.SIGTERM),
        (starting_workers, signal.SIGKILL),
        (starting_workers, signal.SIGINT),
        (starting_a_second_set, signal.SIGINT),
        (starting_many, signal.SIGKILL),
        (idle, signal.SIGINT),
        (working, signal.SIGKILL),
        (waiting, signal.SIGINT),
        (waiting_for_any, signal.SIGTERM),
        (sending, signal.SIGKILL),
        (receiving, signal.SIGTERM),
        (stopping, signal.SIGKILL),
        (stopping, signal.SIGINT),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else value.__name__,
)
def test_the_coordinator_is_struck(testbed: Any, tmp_path: Path, stage: Any, blow: signal.Signals) -> None:
    try:
        with coordinating(testbed, tmp_path / "run") as coordinator:
            stage(coordinator)
            coordinator.process.send_signal(blow)
            coordinator.process.wait(PATIENCE_S)  # Ctrl-C: it ends its workers first, with their grace
            require_nobody(coordinator)
    finally:
        testbed.heal(STRUCK)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_the_coordinator_is_struck_during_a_slow_login(slow_testbed: Any, tmp_path: Path, blow: signal.Signals) -> None:
    with coordinating(slow_testbed, tmp_path / "run") as coordinator:
        logging_in(coordinator)
        coordinator.process.send_signal(blow)
        coordinator.process.wait(PATIENCE_S)

        # The login may still succeed; then what it starts must end too.
        def nobody_logs_in() -> bool:
            return not any(slow_testbed.processes(host, include_ssh=True) for host in (STRUCK, SPARED))

        until(nobody_logs_in, what="the sessions have ended")
        require_nobody(coordinator)


# --- Something else is struck, and the coordinator is told ------------------------------------------------------------
@pytest.mark.parametrize(
    ("stage", "blow", "error", "words"),
    [
        (connecting, "ssh", "ClusterError", "ssh"),
        (connecting, "attendant", "ClusterError", STRUCK),
        (importing, "ssh", "ClusterError", "ssh"),
        (importing, "server", "ClusterError", "server"),
        (importing, "session", "ClusterError", STRUCK),
        (sending_code, "session", "ClusterError", STRUCK),
        (starting_workers, "server", "ClusterError", STRUCK),
        (starting_workers, "attendant", "ClusterError", STRUCK),
        (starting_many, "ssh", "ClusterError", STRUCK),
        (waiting, "server", "WorkerDied", "server"),
        (waiting, "session", "WorkerDied", "server"),
        (waiting_for_any, "ssh", "WorkerDied", "server"),
        (waiting, "attendant", "WorkerDied", "server"),
        (sending, "server", "WorkerDied", "server"),
        (receiving, "ssh", "WorkerDied", "server"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_coordinator_is_told(testbed: Any, tmp_path: Path, stage: Any, blow: str, error: str, words: str) -> None:
    try:
        with coordinating(testbed, tmp_path / "run") as coordinator:
            stage(coordinator)
            BLOWS[blow](coordinator)
            if stage is sending_code:
                for process in ssh_processes(testbed, SPARED) + ssh_processes(testbed):
                    os.kill(process.pid, signal.SIGCONT)
            outcome = coordinator.result()
            assert (outcome.error, STRUCK in outcome.text, words in outcome.text) == (error, True, True), outcome
            if blow != "attendant" and stage in (waiting, waiting_for_any):
                coordinator.do("workers[-1].send('still there')")
                assert coordinator.do("workers[-1].is_alive()").value is True
            coordinator.do("cluster.stop()")
            require_nobody(coordinator, own=False)
            assert coordinator.do("zombies()").value == []
    finally:
        testbed.heal(STRUCK)


@pytest.mark.parametrize("blow", BLOWS)
def test_a_cluster_that_stands_ready_is_struck(testbed: Any, tmp_path: Path, blow: str) -> None:
    """Nobody waits for anything; the next call tells, and the cluster can be started again."""
    with coordinating(testbed, tmp_path / "run") as coordinator:
        ready(coordinator)
        BLOWS[blow](coordinator)
        until(lambda: not testbed.processes(STRUCK), what="the server has ended")
        outcome = coordinator.attempt("cluster.connect_to_servers('work.idle')")
        assert (outcome.error, STRUCK in outcome.text) == ("ClusterError", True), outcome
        coordinator.do("cluster.stop()")
        require_nobody(coordinator, own=False)
        coordinator.do("cluster.start('work.idle')")
        coordinator.do("assert cluster.gather() == ['up', 'up']")
        coordinator.do("cluster.stop()")
        require_nobody(coordinator, own=False)
        assert coordinator.do("zombies()").value == []


@pytest.mark.parametrize("blow", ["server", "session", "attendant"])
def test_a_stop_is_struck(testbed: Any, tmp_path: Path, blow: str) -> None:
    with coordinating(testbed, tmp_path / "run") as coordinator:
        stopping(coordinator)
        BLOWS[blow](coordinator)
        assert coordinator.result().error == ""
        require_nobody(coordinator, own=False)
        assert coordinator.do("zombies()").value == []


def test_output_survives_its_server(testbed: Any, tmp_path: Path) -> None:
    with coordinating(testbed, tmp_path / "run") as coordinator:
        coordinator.do(MAKE)
        coordinator.do("workers = cluster.start('work.talker')")
        coordinator.do("assert cluster.gather() == ['up', 'up']")
        coordinator.do("cluster.connect_to_servers('work.idle')")  # so its server has been round its loop
        kill_server(coordinator)
        assert coordinator.attempt("workers[0].recv()").error == "WorkerDied"
        coordinator.do("cluster.stop()")
        printed = coordinator.printed()
        for host in (STRUCK, SPARED):
            assert [line for line in printed.splitlines() if line.startswith(f"[{host}/0]")] == [
                f"[{host}/0] line {number}" for number in range(1000)
            ]
        require_nobody(coordinator, own=False)


def test_output_that_nobody_reads(testbed: Any, tmp_path: Path) -> None:
    """The pipe on the coordinator's side is full, and so is everything up to the worker."""
    read_end, write_end = os.pipe()
    try:
        with coordinating(testbed, tmp_path / "run", stdout=write_end) as coordinator:
            os.close(write_end)
            working(coordinator)
            coordinator.do("assert all(worker.is_alive() for worker in workers)")
            coordinator.process.kill()
            coordinator.process.wait()
            require_nobody(coordinator)
    finally:
        os.close(read_end)

"""A host is cut off from the others: no call hangs beyond the named limit, and nothing lives on there.

The cable is pulled for real, so packets vanish and nobody is told.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from coordinator import PYTHON, coordinating
from testbed import Testbed
from waiting import PATIENCE_S, until

from miniray import limits

pytestmark = pytest.mark.skipif(Testbed.available() is not None, reason=f"no testbed: {Testbed.available()}")

CUT, OTHER = "mr-a", "mr-b"
UNREACHABLE_S = 4
NEVER_S = 1000  # as unreachable_s: nothing ends because of it while a test runs
LARGE = 64 << 20
CODE_BYTES = 30 << 20


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Testbed(tmp_path_factory.mktemp("hosts"), [CUT, OTHER]) as made:
        yield made


@pytest.fixture
def coordinator(testbed: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """One that can make clusters; afterwards both hosts are reachable, and nothing runs there."""
    with coordinating(testbed, tmp_path / "run", **getattr(request, "param", {})) as made:
        try:
            yield made
        finally:
            testbed.heal(CUT)
            testbed.lose(CUT, 0)


@contextmanager
def coordinators(testbed: Any, folder: Path, names: Iterable[Any]) -> Iterator[dict[Any, Any]]:
    """Several, one for each name."""
    with ExitStack() as stack:
        stack.callback(testbed.heal, CUT)
        yield {
            name: stack.enter_context(coordinating(testbed, folder / str(number))) for number, name in enumerate(names)
        }


def make(coordinator: Any, work_fn: str, tunnel: bool = False, unreachable_s: float = UNREACHABLE_S) -> None:
    """`workers`: one on the host that will be cut off, and one on the other; both are up."""
    nodes = f"[node('{CUT}'), node('{OTHER}')]"
    options = f"unreachable_s={unreachable_s}, tunnel={tunnel}, progress=False"
    coordinator.do(f"cluster = Cluster({nodes}, {options})")
    coordinator.do(f"workers = cluster.start('work.{work_fn}')")
    if work_fn != "echo":
        coordinator.do("assert cluster.gather() == ['up', 'up']")


def require_unreachable(outcome: Any) -> None:
    assert (outcome.error, "unreachable" in outcome.text) == ("WorkerDied", True), outcome


def require_gone(coordinator: Any) -> None:
    """The cut-off host has noticed by itself."""
    until(
        lambda: not coordinator.testbed.processes(CUT), what=lambda: f"the end of {coordinator.testbed.processes(CUT)}"
    )


def require_new_ones_work(coordinator: Any, tunnel: bool = False, others: bool = False) -> None:
    """The other host was not harmed; what is left can be stopped; and the host that is back is as good as new."""
    assert coordinator.do("workers[1].is_alive()").value is True
    coordinator.do("cluster.stop()")
    coordinator.testbed.heal(CUT)
    make(coordinator, "echo", tunnel)
    coordinator.do("for worker in workers: worker.send('again')")
    assert coordinator.do("cluster.gather()").value == ["again", "again"]
    coordinator.do("cluster.stop()")
    if not others:
        until(lambda: not coordinator.others(), what="nothing is left")


def test_the_default_limits_keep_the_promise() -> None:
    """A host that was cut off has nothing alive after 30 s, and by then the coordinator knows."""
    assert limits.unreachable_ms + limits.orphan_grace_ms + 5000 <= 30_000


# --- Cut during ... ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """What a coordinator does when the cable is pulled; each has a cluster of its own, and all share one cut."""

    work_fn: str
    code: str
    before: str = ""  # done before the cut
    begun: bool = True  # before the cut; else after it, with the link dead already
    tunnel: bool = False
    error: str = "WorkerDied"


VOID = "workers[0].send('into the void'); "  # never acknowledged, so TCP's own probes do not run
CASES = {
    "recv": Case("idle", "workers[0].recv()"),
    "send": Case("sink", f"while True: workers[0].send(bytes({LARGE}))", before="workers[0].send(0)"),
    "send to one that does not read": Case("blocked", f"workers[0].send(bytes({LARGE}))"),
    "large recv": Case("flood", "while True: workers[0].recv()"),
    "wait_any": Case("idle", "[one.recv() for one in wait_any(workers)]"),
    "wait_any after a send": Case("idle", VOID + "[one.recv() for one in wait_any(workers)]", begun=False),
    "recv after a send": Case("idle", VOID + "workers[0].recv()", begun=False),
    "awaited recv": Case("idle", "asyncio.run(workers[0].recv_async())"),
    "awaited recv after a send": Case("idle", VOID + "asyncio.run(workers[0].recv_async())", begun=False),
    "awaited send": Case("blocked", f"asyncio.run(workers[0].send_async(bytes({LARGE})))"),
    "wait": Case("endless_loop", "workers[0].wait()"),
    "printing": Case("printing", "workers[0].recv()"),
    "broadcast": Case(
        "idle",
        f"cluster.broadcast(bytes({LARGE}))",
        before="more = cluster.start('work.idle'); cluster.broadcast(bytes(1 << 20))",
        begun=False,
    ),
    "stop": Case("stubborn", "cluster.stop()", error=""),
    "stop afterwards": Case("idle", "cluster.stop()", begun=False, error=""),
    "recv in a tunnel": Case("idle", "workers[0].recv()", tunnel=True),
    "send in a tunnel": Case("blocked", f"workers[0].send(bytes({LARGE}))", tunnel=True),
}


def test_a_cut_ends_whatever_is_being_done(testbed: Any, tmp_path: Path) -> None:
    """All calls report it in time, nothing lives on there, and the other host is none the worse for it."""
    with coordinators(testbed, tmp_path, CASES) as all_of_them:
        for name, case in CASES.items():
            make(all_of_them[name], case.work_fn, case.tunnel)
            all_of_them[name].do(case.before)
        for name, case in CASES.items():
            if case.begun:
                all_of_them[name].begin(case.code)
        testbed.cut(CUT)
        for name, case in CASES.items():
            if not case.begun:
                all_of_them[name].begin(case.code)
        limit = time.monotonic() + PATIENCE_S
        wrong = {}
        for name, case in CASES.items():
            try:
                outcome = all_of_them[name].result(max(0.1, limit - time.monotonic()))
            except TimeoutError:
                wrong[name] = "hangs"
                continue
            if (outcome.error, bool(case.error)) != (case.error, "unreachable" in outcome.text):
                wrong[name] = str(outcome)
        assert not wrong
        require_gone(all_of_them["recv"])
        require_new_ones_work(all_of_them["recv"], others=True)
        require_new_ones_work(all_of_them["recv in a tunnel"], tunnel=True, others=True)


def test_while_idle(coordinator: Any) -> None:
    """Nobody waits for anything. The next call tells."""
    make(coordinator, "idle")
    coordinator.testbed.cut(CUT)
    require_gone(coordinator)
    require_unreachable(coordinator.attempt("workers[0].send(1); workers[0].recv()"))
    require_new_ones_work(coordinator)


# --- Cut while the cluster comes up -----------------------------------------------------------------------------------
def start_slowly(coordinator: Any, work_fn: str) -> None:
    nodes = f"[node('{CUT}'), node('{OTHER}')]"
    coordinator.do(f"cluster = Cluster({nodes}, unreachable_s={UNREACHABLE_S}, progress=False)")
    coordinator.begin(f"cluster.start('{work_fn}')")


def require_start_fails(coordinator: Any) -> None:
    outcome = coordinator.result()
    assert (outcome.error, CUT in outcome.text) == ("ClusterError", True), outcome
    require_gone(coordinator)
    assert not coordinator.others()
    coordinator.testbed.heal(CUT)
    make(coordinator, "echo")


def test_during_a_start_that_imports(coordinator: Any) -> None:
    start_slowly(coordinator, "slow.fn")
    until((coordinator.testbed.hosts[CUT].tmp / "importing").exists, what="the module is being imported")
    coordinator.testbed.cut(CUT)
    require_start_fails(coordinator)


def test_during_a_start_that_sends_code(coordinator: Any) -> None:
    """With a lossy link, so that the code is under way for long enough."""
    (coordinator.code / "zz_large.so").write_bytes(bytes(range(256)) * (CODE_BYTES // 256))
    (coordinator.code / "aa_first.py").write_text(f"# {coordinator.code}\n")
    files = coordinator.testbed.hosts[CUT].home / ".cache/miniray/files"
    before = set(files.iterdir()) if files.exists() else set()
    start_slowly(coordinator, "work.idle")
    until(lambda: files.exists() and set(files.iterdir()) - before, what="the first file has arrived")
    coordinator.testbed.cut(CUT)
    require_start_fails(coordinator)


# --- Not dead -----------------------------------------------------------------------------------------------------
BUSY_S = 3 * UNREACHABLE_S  # tests check that it took longer than the limit, as on any machine
BUSY = {
    "worker": ("sink", f"workers[0].send({BUSY_S}); workers[0].send(bytes({LARGE})); size = workers[0].recv()"),
    "coordinator": ("source", f"workers[0].send([1, {LARGE}]); time.sleep({BUSY_S}); size = len(workers[0].recv())"),
}


def test_who_is_busy_is_not_dead(testbed: Any, tmp_path: Path) -> None:
    """One side computes for three times the limit, while a send of the other waits for room; also through a tunnel."""
    cases = {(who, tunnel): BUSY[who] for who in BUSY for tunnel in (False, True)}
    with coordinators(testbed, tmp_path, cases) as all_of_them:
        for case, (work_fn, code) in cases.items():
            make(all_of_them[case], work_fn, tunnel=case[1])
            all_of_them[case].begin(code)
        for case, one in all_of_them.items():
            outcome = one.result()
            assert not outcome.error, (case, outcome)
            assert outcome.seconds > 2 * UNREACHABLE_S
            assert one.do("size").value == LARGE
            one.do("cluster.stop()")


@pytest.mark.parametrize("coordinator", [{"slow_import_s": 3 * UNREACHABLE_S}], indirect=True)
@pytest.mark.parametrize("launched", [False, True])
def test_a_host_that_imports_is_not_dead(coordinator: Any, launched: bool) -> None:
    """Neither before its server is ready, nor when the server is asked for one more function, by several at once."""
    nodes = f"[node('{CUT}', 20), node('{OTHER}')]"
    coordinator.do(f"cluster = Cluster({nodes}, unreachable_s={UNREACHABLE_S}, progress=False)")
    if launched:
        coordinator.do("assert cluster.start('work.idle')[0].recv() == 'up'")
    outcome = coordinator.do("workers = cluster.start('slow.fn')")
    assert outcome.seconds > 2 * UNREACHABLE_S
    assert coordinator.do("[worker.recv() for worker in workers]").value == ["up"] * 21
    coordinator.do("cluster.stop()")


@pytest.mark.parametrize("tunnel", [False, True])
def test_a_short_cut_harms_nothing(coordinator: Any, tunnel: bool) -> None:
    make(coordinator, "echo", tunnel)
    coordinator.testbed.cut(CUT)
    coordinator.do("workers[0].send('late')")
    assert coordinator.attempt(f"workers[0].recv(timeout={UNREACHABLE_S / 3})").error == "TimeoutError"
    coordinator.testbed.heal(CUT)
    assert coordinator.do("workers[0].recv()").value == "late"
    coordinator.do("workers[1].send('other')")
    assert coordinator.do("workers[1].recv()").value == "other"
    coordinator.do("cluster.stop()")


def test_a_lossy_link(coordinator: Any) -> None:
    """Every fifth packet is lost, each way: all messages arrive, in order."""
    make(coordinator, "echo", unreachable_s=NEVER_S)
    coordinator.testbed.lose(CUT, 20)
    coordinator.do("for i in range(50): workers[0].send([i, bytes(1000)])")
    assert coordinator.do("[workers[0].recv()[0] for i in range(50)]").value == list(range(50))
    coordinator.testbed.lose(CUT, 0)
    require_new_ones_work(coordinator)


# --- A single worker, without a cluster -------------------------------------------------------------------------------
KEY = "ab" * 32


def test_a_remote_worker(coordinator: Any) -> None:
    """The server that somebody started by hand lives on, without the worker; after the cut it takes a new one."""
    testbed = coordinator.testbed
    shutil.copy(coordinator.code / "work.py", testbed.hosts[CUT].home)
    python = PYTHON or sys.executable
    server = f"MINIRAY_KEY={KEY} exec {python} -m miniray.worker_server --host 0.0.0.0 --port 10001"
    server += " --work-fn work.endless_loop"
    with testbed.popen("ssh", CUT, server, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as ssh:
        try:
            assert b"listening" in ssh.stdout.readline()
            remote = f"RemoteWorker('{testbed.hosts[CUT].address}', 10001, key='{KEY}'"
            new = f"{remote}, unreachable_s={UNREACHABLE_S})"
            coordinator.do(f"worker, patient = {new}, {remote}, unreachable_s={NEVER_S})")
            coordinator.do("assert [worker.recv(), patient.recv()] == ['up', 'up']")
            coordinator.begin("worker.recv()")
            testbed.cut(CUT)
            require_unreachable(coordinator.result())
            until(lambda: len(testbed.processes(CUT)) == 2, what="only the server and the patient worker are left")
            assert coordinator.attempt("patient.recv(timeout=0)").error == "TimeoutError"
            testbed.heal(CUT)
            coordinator.do(f"worker = {new}")
            coordinator.do("assert worker.recv() == 'up'")
            coordinator.do("worker.close(0); patient.close(0)")
            until(lambda: len(testbed.processes(CUT)) == 1, what="only the server is left")
        finally:
            ssh.kill()


def test_no_remote_worker_while_the_host_is_cut_off(coordinator: Any) -> None:
    coordinator.testbed.cut(CUT)
    outcome = coordinator.attempt(
        f"RemoteWorker('{coordinator.testbed.hosts[CUT].address}', 10001, key='{KEY}', connect_timeout_s=1)"
    )
    assert outcome.error == "TimeoutError", outcome

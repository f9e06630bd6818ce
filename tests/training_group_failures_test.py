"""Training groups that cannot come together, or cannot go on: who is to blame is told, and nobody is left hanging.

After each failure no process of the group is left on any host, while the cluster is still up.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, ended_with
from waiting import is_gone, until

UNREACHABLE_S = 2
BASE_PORT = 10000

# Ranks do what an expression says. What a call raises is printed; then the script waits, with its cluster up.
RANK = """
    import json, os, resource, signal, sys, time
    from miniray import Cluster, GroupError, NCCLConfig, NodeConfig, setup_nccl_env

    def prepare(handle):
        config = NCCLConfig(**handle.recv())
        setup_nccl_env(config)
        return config

    def obey(handle, config):
        handle.send({"status": "ready"})
        while True:
            handle.send(eval(handle.recv(), globals(), {"config": config}))

    def rank(handle):
        obey(handle, prepare(handle))

    def tell(call, workers):
        try:
            call()
        except (GroupError, TimeoutError) as error:
            told = {"kind": type(error).__name__, "text": str(error), "pids": [worker.pid for worker in workers]}
            print(json.dumps(told | {"rank": getattr(error, "rank", None), "failures": getattr(error, "failures", {})}))
            sys.stdin.readline()
"""
NODES = f'[NodeConfig(name, 2, base_port=0) for name in ("mr-a", "mr-b")], unreachable_s={UNREACHABLE_S}'
GROUP = f"""
    with Cluster({NODES}, progress=False) as cluster:
        group = cluster.training_group(cluster.start(rank))
"""
GLOO = """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)

    def gloo_rank(handle):
        config = prepare(handle)
        dist.init_process_group(backend="gloo", init_method="env://")
        obey(handle, config)

    def all_reduce():
        dist.all_reduce(torch.ones(1000))

    def compute(config, failing_rank, failure):
        for step in range(1000000):
            if (step, config.rank) == (5, failing_rank):
                failure()
            all_reduce()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def fail():
        raise ValueError("no gradient")
"""


@dataclass
class Told:
    """What a script said of the exception, and the processes of the group."""

    kind: str
    text: str
    pids: list[int]
    rank: int | None
    failures: dict[str, str]


@pytest.fixture
def told(hosts: Hosts) -> Callable[..., list[Told]]:
    """Runs a script that tells of so many exceptions, and sees that no rank is left after each."""

    def run(text: str, count: int = 1, *, ranks_end: bool = True, at_begin: Callable[[], None] | None = None) -> Any:
        child, made = hosts.start(text), []
        assert child.stdin is not None
        assert child.stdout is not None
        for line in child.stdout:
            if line == "begun\n" and at_begin is not None:
                at_begin()
            if line.startswith("{"):
                made.append(Told(**json.loads(line)))
                assert not ranks_end or until(lambda: all(is_gone(pid) for pid in made[-1].pids)), made[-1]
                child.stdin.write("\n")
                child.stdin.flush()
        _, errors = ended_with(child)
        assert len(made) == count, errors
        return made

    return run


# --- Groups that cannot come together ---------------------------------------------------------------------------------
@pytest.fixture
def firewalled(hosts: Hosts) -> Iterator[Hosts]:
    """mr-b drops what comes in, but for ssh and its worker server."""
    rules = f"""
        add table inet wall
        add chain inet wall arriving {{ type filter hook input priority 0; policy drop; }}
        add rule inet wall arriving iif lo accept
        add rule inet wall arriving ct state established accept
        add rule inet wall arriving tcp dport {{ 22, {BASE_PORT} }} accept
        add rule inet wall arriving icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
    """
    for rule in rules.strip().splitlines():
        hosts.on_host("mr-b", "nft", *rule.split())
    yield hosts
    hosts.on_host("mr-b", "nft", "delete", "table", "inet", "wall")


@pytest.mark.parametrize(
    ("order", "purpose"),
    [
        ("workers", "but NCCL and Gloo connect all nodes, on ports of their own choice"),
        ("[workers[1], workers[0], workers[2]]", "where the group's rank 0 is"),
    ],
)
def test_a_firewall(firewalled: Hosts, told: Callable[..., list[Told]], order: str, purpose: str) -> None:
    [failure] = told(
        f"""{RANK}
    with Cluster([NodeConfig(name, 1) for name in ("mr-a", "mr-b", "mr-c")]) as cluster:
        workers = cluster.start(rank)
        tell(lambda: cluster.training_group({order}), workers)
    """,
        ranks_end=False,
    )
    assert (failure.kind, failure.rank, failure.failures) == ("GroupError", None, {})
    address = re.escape(firewalled.testbed.hosts["mr-b"].address)
    blocked = [
        rf"  from {name} to {address}:\d+: no answer in 3 s: a firewall drops the packets, or the answers find no way "
        r"back"
        for name in ("mr-a", "mr-c")
    ]
    first, *seen, cure = failure.text.splitlines()
    assert first == f"not all nodes can reach mr-b, {purpose}:"
    assert len(seen) == 2
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(blocked, sorted(seen), strict=True)), seen
    assert cure.startswith("Open the firewall on mr-b, e.g. `sudo ufw allow from NODE`")


def test_a_rank_that_is_never_ready(told: Callable[..., list[Told]]) -> None:
    [failure] = told(
        f"""{RANK}
    def waits_for_something():
        time.sleep(1000)

    def late_rank(handle):
        config = prepare(handle)
        if config.rank == 2:
            waits_for_something()
        obey(handle, config)

    with Cluster({NODES}) as cluster:
        workers = cluster.start(late_rank)
        tell(lambda: cluster.training_group(workers, timeout=1, progress=False), workers)
        for worker in workers:
            worker.kill()
    """,
        ranks_end=False,
    )
    assert failure.kind == "TimeoutError"
    lines = failure.text.splitlines()
    assert lines[0] == "1 of 4 ranks are not ready after 1 s."
    assert lines[1] == f"  rank 2 of 4 (worker {failure.pids[2]} at mr-b (mr-b/0, __main__.late_rank)):"
    assert re.fullmatch(r"    sleeping, after \d+\.\d s of computing", lines[2])
    assert re.search(r'\n      File ".*script\.py", line \d+ in waits_for_something\n', failure.text)
    assert "rank 1 of 4" not in failure.text


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        ("handle.send('hello')", """sent "hello" instead of {"status": "ready"}"""),
        (
            "handle.send({'status': 'loading'})",
            """sent {"status": "loading"} instead of {"status": "ready"}""",
        ),
        ("raise ImportError('no torch')", "raised ImportError: no torch"),
        ("os._exit(3)", "exited with code 3"),
    ],
)
def test_a_rank_that_fails_before_it_is_ready(told: Callable[..., list[Told]], work: str, cause: str) -> None:
    [failure] = told(f"""{RANK}
    def failing_rank(handle):
        config = prepare(handle)
        if config.rank == 3:
            {work}
        time.sleep(1000)

    with Cluster({NODES}) as cluster:
        workers = cluster.start(failing_rank)
        tell(lambda: cluster.training_group(workers), workers)
    """)
    assert (failure.kind, failure.rank, list(failure.failures)) == ("GroupError", 3, ["3"])
    assert failure.text.startswith("rank 3 of 4 has failed: ")
    assert cause in failure.text
    assert failure.text.endswith("\nAll ranks of the group were killed. Start them again from your last checkpoint")


def test_ctrl_c_while_a_group_comes_together(hosts: Hosts) -> None:
    child = hosts.start(f"""{RANK}
    def never_ready(handle):
        prepare(handle)
        print("has its rank", flush=True)
        handle.recv()

    with Cluster({NODES}) as cluster:
        cluster.training_group(cluster.start(never_ready))
    """)
    assert child.stdout is not None
    said = sorted(child.stdout.readline() for _ in range(4))
    assert said == [f"[{worker}] has its rank\n" for worker in ("mr-a/0", "mr-a/1", "mr-b/0", "mr-b/1")]
    child.send_signal(signal.SIGINT)
    _, errors = ended_with(child)
    assert child.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    hosts.assert_nothing_is_left()


def test_a_node_that_is_gone_is_no_matter_for_a_group_without_it(hosts: Hosts) -> None:
    child = hosts.start(f"""{RANK}
    names = ("mr-a", "mr-b", "mr-c")
    with Cluster([NodeConfig(name, 1, base_port=0) for name in names], unreachable_s={UNREACHABLE_S}) as cluster:
        workers = cluster.start(rank)
        print("begun")
        sys.stdin.readline()
        group = cluster.training_group(workers[:2])
        group.broadcast("config.world_size")
        print(group.gather())
    """)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    hosts.testbed.cut("mr-c")
    try:
        out, errors = child.communicate("\n", timeout=60)
    finally:
        hosts.testbed.heal("mr-c")
    assert out == "[2, 2]\n", errors


# --- Groups that cannot go on -----------------------------------------------------------------------------------------
def test_a_rank_that_fails_in_the_middle_of_a_step(told: Callable[..., list[Told]]) -> None:
    """The others learn of it from Gloo."""
    pytest.importorskip("torch")
    failures = told(
        f"""{RANK}{GLOO}
    with Cluster({NODES}, progress=False) as cluster:
        for failure in ("die", "fail"):
            group = cluster.training_group(cluster.start(gloo_rank))
            group.broadcast(f"compute(config, 2, {{failure}})")
            tell(group.gather, group)
    """,
        2,
    )
    causes = "was killed by SIGKILL", "raised ValueError: no gradient"
    for failure, cause, worker in zip(failures, causes, ("mr-b/0", "mr-b/2"), strict=True):
        assert (failure.kind, failure.rank) == ("GroupError", 2), failure.text
        first, *_, last = failure.text.splitlines()
        assert first.startswith("rank 2 of 4 has failed: ")
        assert f"worker {failure.pids[2]} at mr-b ({worker}, __main__.gloo_rank) {cause}" in first
        assert cause in failure.failures["2"]
        assert last == "All ranks of the group were killed. Start them again from your last checkpoint"


@pytest.mark.parametrize(
    ("failing", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("sys.exit()", "has returned; there are no more messages"),
        ("sys.exit(3)", "exited with code 3"),
        ("resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)) or bytearray(2**31)", "raised MemoryError"),
    ],
)
def test_those_who_would_wait_for_ever_are_ended(told: Callable[..., list[Told]], failing: str, cause: str) -> None:
    [failure] = told(f"""{RANK}{GROUP}
        group.broadcast("time.sleep(1000) if config.rank != 1 else {failing}")
        tell(group.gather, group)
    """)
    assert (failure.kind, failure.rank, list(failure.failures)) == ("GroupError", 1, ["1"])
    assert cause in failure.text


@pytest.mark.parametrize("call", ["broadcast('1')", "scatter(['1'] * 4)"])
def test_who_sends_is_told_too(told: Callable[..., list[Told]], call: str) -> None:
    [failure] = told(f"""{RANK}{GROUP}
        group.broadcast("1 // config.rank")
        group[0].wait()
        tell(lambda: [group.{call} for _ in range(100000)], group)
    """)
    assert (failure.kind, failure.rank) == ("GroupError", 0)
    assert "ZeroDivisionError" in failure.text


def test_a_rank_that_is_killed_for_want_of_memory(told: Callable[..., list[Told]], memory_group: Path) -> None:
    [failure] = told(f"""{RANK}
    def devour():
        with open({str(memory_group / "cgroup.procs")!r}, "w") as members:
            members.write(str(os.getpid()))
        return len([bytearray(2**20) for _ in range(500)])
    {GROUP}
        group.broadcast("time.sleep(1000) if config.rank != 1 else devour()")
        tell(group.gather, group)
    """)
    assert (failure.rank, list(failure.failures)) == (1, ["1"])
    assert "was killed: out of memory" in failure.text


def test_a_host_that_is_cut_off(hosts: Hosts, told: Callable[..., list[Told]]) -> None:
    try:
        [failure] = told(
            f"""{RANK}{GROUP}
        group.broadcast("time.sleep(1000)")
        print("begun")
        tell(group.gather, group)
    """,
            at_begin=lambda: hosts.testbed.cut("mr-b"),
        )
    finally:
        hosts.testbed.heal("mr-b")
    assert (failure.kind, set(failure.failures)) == ("GroupError", {"2", "3"})
    assert failure.rank in (2, 3)
    assert f"its host did not answer for {UNREACHABLE_S} s" in failure.text


# --- Whose fault it is ------------------------------------------------------------------------------------------------
def test_ranks_that_abort_when_another_has_failed_are_not_the_cause(told: Callable[..., list[Told]]) -> None:
    """As NCCL's watchdog has it."""
    [failure] = told(f"""{RANK}
    def when_the_first_is_gone(path):
        for _ in range(60_000):
            if not os.path.exists(path):
                os.abort()
            time.sleep(0.001)
        raise TimeoutError(f"{{path}} is still there")
    {GROUP}
        group[0].send("os.getpid()")
        proc = f"/proc/{{group[0].recv()}}/environ"
        group.broadcast(f"when_the_first_is_gone({{proc!r}}) if config.rank else 1 // 0")
        tell(group.gather, group)
    """)
    assert failure.rank == 0, failure.text


def test_the_cause_is_still_known_when_the_group_is_used_again(told: Callable[..., list[Told]]) -> None:
    [failure] = told(f"""{RANK}{GROUP}
        group.broadcast("time.sleep(1000) if config.rank != 3 else 1 // 0")
        try:
            group.gather()
        except GroupError:
            tell(group.gather, group)
    """)
    assert failure.rank == 3, failure.text

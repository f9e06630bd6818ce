"""Gang restart: a run that loses ranks, a server or a node on its way finishes with the loss that it would have had."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, ended_with
from testbed import Testbed

from miniray import Cluster, GroupError, NodeConfig, RestartPolicy, Worker, WorkerError

EXAMPLE = "train_restart.py"
STEPS = ("--steps", "8", "--save-every", "3")
PATIENCE_S = 100.0
UNREACHABLE_S = 2

# Ranks that need no torch: each answers with its rank and where it is, or dies.
RANKS = """
    import json, os, signal, socket, sys
    from miniray import Cluster, GroupError, NCCLConfig, NodeConfig, RestartPolicy

    def rank(handle):
        config = NCCLConfig(**handle.recv())
        handle.send({"status": "ready"})
        while True:
            order = handle.recv()
            if order == config.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            handle.send([config.rank, socket.gethostname(), os.getpid()])

    def ask(group, order=-1):
        group.broadcast(order)
        return group.gather()

    def told(call):
        try:
            return call()
        except Exception as error:
            return [type(error).__name__, str(error)]

    quick = {"max_restarts": 2, "window_s": 1000, "backoff_s": 0}
    nodes = [NodeConfig(name, 2, base_port=0) for name in ("mr-a", "mr-b")]
"""


def last_loss(printed: str) -> str:
    """To the last bit."""
    [loss] = re.findall(r"^the last loss: .* \((.*)\)$", printed, re.MULTILINE)
    assert isinstance(loss, str)
    return loss


def run_example(run: Callable[..., Any], root: Path, *arguments: object) -> str:
    ended = run(sys.executable, root / "examples" / EXAMPLE, *map(str, arguments), *STEPS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert isinstance(ended.stdout, str)
    return ended.stdout


@pytest.fixture(scope="module")
def undisturbed(testbed: Testbed) -> str:
    """The last loss of a run of four ranks on two hosts that nothing happened to."""
    pytest.importorskip("torch")
    printed = run_example(testbed.run, Path(__file__).parent.parent, "mr-a", "mr-b", "--kill-at", 0)
    assert "attempt 1" not in printed
    return last_loss(printed)


# --- The same loss ----------------------------------------------------------------------------------------------------
def test_a_rank_is_killed_on_this_machine(root: Path, undisturbed: str, tmp_path: Path) -> None:
    def run(*words: Any) -> Any:
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE_S)

    events = tmp_path / "events.jsonl"
    printed = run_example(run, root, "--kill-at", 5, "--events", events)
    assert re.findall(r"^attempt (\d), step (\d)", printed, re.MULTILINE) == [
        *(("0", str(step)) for step in range(1, 5)),
        *(("1", str(step)) for step in range(4, 9)),
    ]
    assert last_loss(printed) == undisturbed
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["kind"] for event in told] == ["group_started", "group_failed", "group_restarted", "group_finished"]
    assert told[1]["details"] == {"rank": 3}


def test_a_rank_is_killed_on_a_host(root: Path, hosts: Hosts, undisturbed: str) -> None:
    printed = run_example(hosts.testbed.run, root, "mr-a", "mr-b", "--kill-at", 8)
    assert "attempt 1, step 7" in printed
    assert last_loss(printed) == undisturbed


@pytest.fixture
def healed(testbed: Testbed) -> Iterator[None]:
    yield
    testbed.heal("mr-b")


@pytest.mark.usefixtures("healed")
def test_a_node_is_cut_off_and_comes_back(root: Path, hosts: Hosts, undisturbed: str) -> None:
    """Its ranks go to the node that is left; after the next death they are where they were."""
    names = (EXAMPLE, "training.py", "language_model.py")
    hosts.write({name: (root / "examples" / name).read_text() for name in names})
    child = hosts.start(f"""
        import sys
        from train_restart import train
        from miniray import Cluster, NodeConfig, RestartPolicy

        def before_step(group, step):
            if (group.attempt, step) == (0, 5):
                print("cut", flush=True)
                sys.stdin.readline()
            if (group.attempt, step) == (1, 8):
                print("heal", flush=True)
                sys.stdin.readline()
                group[0].kill()
            print("hosts", *(cluster.node_of(worker) for worker in group), flush=True)

        nodes = [NodeConfig(name, 2, base_port=0) for name in ("mr-a", "mr-b")]
        with Cluster(nodes, unreachable_s={UNREACHABLE_S}, progress=False) as cluster:
            policy = RestartPolicy(max_restarts=2, window_s=1000, backoff_s=0, other_nodes=True)
            loss = train(cluster, 8, 3, before_step, restart=policy, progress=False)
            print("events", *(event.kind for event in cluster.events))
            print(f"the last loss: {{loss:.6f}} ({{loss.hex()}})")
        """)
    assert child.stdin is not None
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line.strip())
        if lines[-1] in ("cut", "heal"):
            getattr(hosts.testbed, lines[-1])("mr-b")
            child.stdin.write("\n")
            child.stdin.flush()
    _, errors = ended_with(child)
    assert child.returncode == 0, errors
    places = [line.split()[1:] for line in lines if line.startswith("hosts")]
    assert places[:5] == [["0", "0", "1", "1"]] * 5
    assert places[5:10] == [["0", "0", "0", "0"]] * 5
    assert places[10:] == [["0", "0", "1", "1"]] * 2
    [told] = [line.split()[1:] for line in lines if line.startswith("events")]
    assert told == [
        *("group_started", "group_failed", "node_lost", "relaunch_failed", "ranks_moved", "group_restarted"),
        *("group_failed", "node_lost", "node_back", "group_restarted", "group_finished"),
    ]
    assert last_loss("\n".join(lines)) == undisturbed


# --- How often, and for what ------------------------------------------------------------------------------------------
def test_all_ranks_are_new_and_meet_elsewhere(hosts: Hosts) -> None:
    attempts, kinds, left = hosts.value(f"""{RANKS}
    attempts = []
    def drive(group):
        attempts.append([group.attempt, group.configs[0].master_port, ask(group)])
        if group.attempt < 2:
            ask(group, order=group.attempt + 1)
        return "done"

    with Cluster(nodes, progress=False) as cluster:
        assert cluster.run_group(rank, drive, restart=RestartPolicy(**quick), progress=False) == "done"
        print(json.dumps([attempts, [event.kind for event in cluster.events], len(cluster.workers)]))
    """)
    assert [number for number, _, _ in attempts] == [0, 1, 2]
    assert len({port for _, port, _ in attempts}) == 3
    pids = {pid for _, _, answers in attempts for _, _, pid in answers}
    assert len(pids) == 12
    for _, _, answers in attempts:
        assert [answer[:2] for answer in answers] == [[0, "mr-a"], [1, "mr-a"], [2, "mr-b"], [3, "mr-b"]]
    assert kinds == ["group_started", *("group_failed", "group_restarted") * 2, "group_finished"]
    assert left == 0


def test_too_many_deaths_and_what_is_none(hosts: Hosts) -> None:
    deaths, bug, never, lasting = hosts.value(f"""{RANKS}
    def always(group):
        attempts.append(group.attempt)
        ask(group, order=2)

    def buggy(group):
        attempts.append(group.attempt)
        raise KeyError("a bug in the driver")

    def wrong_rank(handle):
        handle.send("hello")
        handle.recv()

    with Cluster(nodes, progress=False) as cluster:
        results, options = [], {{"restart": RestartPolicy(**quick), "progress": False}}
        for work, drive in ((rank, always), (rank, buggy), (wrong_rank, buggy)):
            attempts = []
            results.append([*told(lambda: cluster.run_group(work, drive, **options)), attempts])
        [other] = cluster.start(rank, nodes=["mr-a"], num_workers=1)
        print(json.dumps([*results, len(cluster.workers)]))
    """)
    assert (deaths[0], deaths[2]) == ("GroupError", [0, 1, 2])
    assert deaths[1].startswith("rank 2 of 4 has failed: worker ")
    assert deaths[1].endswith("The policy allows no more: 2 restarts within 1000 s (max_restarts, window_s)")
    assert bug == ["KeyError", "'a bug in the driver'", [0]]
    assert (never[0], never[2]) == ("GroupError", [])
    assert lasting == 1


def test_a_server_dies(hosts: Hosts) -> None:
    """It is launched again; the ranks of the others are new, their servers are not."""
    places, servers = hosts.value(f"""{RANKS}
    def drive(group):
        if group.attempt == 0:
            os.kill(cluster.servers[1].pid, signal.SIGKILL)
            while True:
                ask(group)
        return [answer[:2] for answer in ask(group)]

    with Cluster(nodes, progress=False) as cluster:
        cluster.launch_servers(rank)
        before = cluster.servers
        places = cluster.run_group(rank, drive, restart=RestartPolicy(**quick), progress=False)
        print(json.dumps([places, [a == b for a, b in zip(before, cluster.servers)]]))
    """)
    assert places == [[0, "mr-a"], [1, "mr-a"], [2, "mr-b"], [3, "mr-b"]]
    assert servers == [True, False]


def test_a_call_that_raises_is_no_death() -> None:
    attempts = []

    def ready_rank(handle: Any) -> None:
        handle.recv()
        handle.send({"status": "ready"})
        handle.recv()

    def drive(group: Any) -> None:
        attempts.append(group.attempt)
        with Worker(start="spawn", pickle=False) as other:
            other.call_remote("math.sqrt", -1)

    with Cluster([NodeConfig("localhost", 1, base_port=0)], ship_code=False, progress=False) as cluster:
        with pytest.raises(WorkerError, match="math domain error"):
            cluster.run_group(ready_rank, drive, restart=RestartPolicy(backoff_s=0), progress=False)
        assert attempts == [0]


def test_what_is_raised_arrives_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """The very same object, with its traceback; a death says what the policy refused, and whose it was."""
    bug, groups = KeyError("a bug in the driver"), []

    def small_rank(handle: Any) -> None:
        handle.recv()
        handle.send({"status": "ready"})
        handle.recv()
        os.kill(os.getpid(), signal.SIGKILL)

    def buggy(group: Any) -> None:
        raise bug

    def fatal(group: Any) -> None:
        groups.append(group.attempt)
        group.broadcast("die")
        group.gather()

    policy = RestartPolicy(1, window_s=1000, backoff_s=0)
    with Cluster([NodeConfig("localhost", 1, base_port=0)], ship_code=False, progress=False) as cluster:
        with pytest.raises(KeyError) as caught:
            cluster.run_group(small_rank, buggy, restart=policy, progress=False)
        assert caught.value is bug
        assert caught.traceback[-1].name == "buggy"
        with pytest.raises(GroupError) as died:
            cluster.run_group(small_rank, fatal, restart=policy)
        assert str(died.value).startswith("rank 0 of 1 has failed: ")
        assert str(died.value).endswith(
            "\n\nThe policy allows no more: 1 restart within 1000 s (max_restarts, window_s)"
        )
        assert (died.value.rank, list(died.value.failures), groups) == (0, [0], [0, 1])
        assert [entry.name for entry in died.traceback][-2:] == ["fatal", "gather"]
        assert "All ranks start again (restart 1 of 1 within 1000 s)" in capfd.readouterr().err
        kinds = [event.kind for event in cluster.events]
        assert kinds == [
            *("group_started", "group_started", "group_failed", "group_restarted", "group_failed"),
            "restart_refused",
        ]
        assert [event.details for event in cluster.events.events("group_failed")] == [{"rank": 0}] * 2
        assert cluster.workers == []

"""Training groups on real ssh hosts, without torch: who has which rank, where they meet, and what they say.

A rank answers with what an expression is there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from described_machine import described_machine
from hosts import Hosts

RANK = """
    import json, os, signal, socket, sys, time
    from miniray import Cluster, GroupError, NCCLConfig, NodeConfig, setup_nccl_env, wait_any

    def rank(handle):
        config = NCCLConfig(**handle.recv())
        setup_nccl_env(config)
        handle.send({"status": "ready"})
        while True:
            handle.send(eval(handle.recv(), globals(), {"config": config}))

    def hold_port(handle):
        with socket.create_server(("", handle.recv())):
            handle.send("held")
            handle.recv()

    WHO = "[config.rank, config.local_rank, socket.gethostname(), os.environ['MASTER_ADDR'], os.environ['RANK']]"
    TWO, THREE = ([NodeConfig(name, 2, base_port=0) for name in ("mr-a", "mr-b", "mr-c")[:count]] for count in (2, 3))
"""


def address(hosts: Hosts, name: str) -> str:
    return hosts.testbed.hosts[name].address


def test_ranks_follow_the_list_and_the_first_ones_node_is_the_master(hosts: Hosts) -> None:
    seen = hosts.value(f"""{RANK}
    with Cluster(THREE) as cluster:
        workers = cluster.start(rank)
        groups = [cluster.training_group(some) for some in ([workers[5], workers[0], workers[4]], workers[1:3])]
        for group in groups:
            group.broadcast(WHO)
        print(json.dumps([group.gather() for group in groups]))
    """)
    a, c = address(hosts, "mr-a"), address(hosts, "mr-c")
    assert seen == [
        [[0, 0, "mr-c", c, "0"], [1, 0, "mr-a", c, "1"], [2, 1, "mr-c", c, "2"]],
        [[0, 0, "mr-a", a, "0"], [1, 0, "mr-b", a, "1"]],
    ]


def test_a_group_of_all_workers_and_of_one_machine(hosts: Hosts) -> None:
    everybody, [alone, its_master] = hosts.value(f"""{RANK}
    with Cluster(TWO) as cluster:
        workers = cluster.start(rank, num_workers=1) + cluster.start(rank, num_workers=1)
        group = cluster.training_group()
        group.broadcast("config.rank")
        everybody = [group.gather(), [worker.name for worker in group] == [worker.name for worker in cluster.workers]]
        alone = cluster.training_group(cluster.start(rank, num_workers=3)[:3])
        alone.broadcast("config.local_rank")
        print(json.dumps([everybody, [alone.gather(), alone.configs[0].master_addr]]))
    """)
    assert everybody == [[0, 1, 2, 3], True]
    assert (alone, its_master) == ([0, 1, 2], "127.0.0.1")


def test_every_group_has_a_port_of_its_own(hosts: Hosts) -> None:
    """Those that the cluster gave out are passed over, and those that another process has."""
    ports = hosts.value(f"""{RANK}
    with Cluster(TWO) as cluster:
        holders = cluster.start(hold_port, num_workers=1)
        for holder, port in zip(holders, (29501, 29502)):  # on the first node, and on the second
            holder.send(port)
            holder.recv()
        options = [{{}}, {{}}, {{}}, {{"master_port": 29600}}, {{"master_port": 29600}}]
        groups = [cluster.training_group(cluster.start(rank, num_workers=1), **each) for each in options]
        print(json.dumps([group.configs[0].master_port for group in groups]))
    """)
    assert ports == [29500, 29502, 29503, 29600, 29601]


def test_no_port_is_left(hosts: Hosts) -> None:
    told = hosts.fail(f"""{RANK}
    with Cluster(TWO) as cluster:
        holder, _ = cluster.start(hold_port, num_workers=1)
        holder.send(65535)
        holder.recv()
        cluster.training_group(cluster.start(rank), master_port=65535)
    """)
    refusal = "miniray.errors.UsageError: there is no free port on mr-a from 65535 to 65535: 65535 is taken by process "
    assert told.startswith(refusal), told


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("[]", "UsageError: a training group needs at least one worker, and workers is empty"),
        (
            "[workers[0], workers[1], workers[0]]",
            "UsageError: workers has a worker twice, and each can have only one rank",
        ),
        ("workers, master_port=0", "UsageError: master_port is a number from 1 to 65535, not 0"),
        ("workers, master_port=65536", "UsageError: master_port is a number from 1 to 65535, not 65536"),
        (
            "other.start(rank)",
            r"UsageError: worker \d+ at localhost \(localhost/0, __main__.rank\) is not a worker of this cluster",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(hosts: Hosts, arguments: str, error: str) -> None:
    told = hosts.fail(f"""{RANK}
    other = Cluster([NodeConfig("localhost", 1, base_port=0)])
    with Cluster(TWO[:1]) as cluster, other:
        workers = cluster.start(rank)
        try:
            cluster.training_group({arguments})
        finally:  # and nobody was told anything
            group = cluster.training_group(workers)
            group.broadcast("config.rank")
            assert group.gather() == [0, 1]
    """)
    assert re.fullmatch(f"miniray.errors.{error}", told), told


# --- Messages ---------------------------------------------------------------------------------------------------------
def test_broadcast_scatter_and_gather(hosts: Hosts) -> None:
    same, own, refused, codec = hosts.value(f"""{RANK}
    with Cluster(TWO, codec="json") as cluster:
        group = cluster.training_group(cluster.start(rank))
        group.broadcast("config.rank * 10")
        same = group.gather()
        group.scatter(str(number) for number in range(4))
        own = group.gather()
        try:
            group.scatter(["1"] * 3)
        except ValueError as error:
            refused = str(error)
        group.broadcast("config.rank")
        print(json.dumps([same, own, refused, group.gather(timeout=20)]))
    """)
    assert (same, own) == ([0, 10, 20, 30], [0, 1, 2, 3])
    assert refused == "scatter takes one message for each of the 4 ranks, not 3"
    assert codec == [0, 1, 2, 3]  # nobody has got a part of what was refused


def test_a_gather_that_takes_too_long_loses_nothing(hosts: Hosts) -> None:
    told, later, more = hosts.value(f"""{RANK}
    def wait_for_word(path):
        for _ in range(6_000):
            if os.path.exists(path):
                return "released"
            time.sleep(0.01)
        raise TimeoutError(f"{{path}} did not come")

    with Cluster(TWO) as cluster:
        group = cluster.training_group(cluster.start(rank))
        slow = "wait_for_word('/tmp/word')"
        group.scatter(["'quick'", slow, "b'x' * 300000", slow])
        told = []
        for _ in range(2):
            try:
                group.gather(timeout=0.2)
            except TimeoutError as error:
                told.append(str(error))
        others = cluster.start(rank, num_workers=1)
        for worker in cluster.training_group(others):
            worker.send("open('/tmp/word', 'w').close()")
            worker.recv()
        later = group.gather()
        group.broadcast("config.rank")
        print(json.dumps([told, [str(each)[:8] for each in later], group.gather()]))
    """)
    for text in told:
        assert text.startswith("2 of 4 ranks have sent no message within the time-out.\n  rank 1 of 4 (worker "), text
        assert re.search(
            r"\n  rank 3 of 4 \(worker \d+ at mr-b \(mr-b/1, __main__.rank\)\):\n    (running|sleeping), after", text
        )
        assert text.count("in wait_for_word") == 2
        assert "rank 0 of" not in text
        assert "rank 2 of" not in text
    assert later == ["quick", "released", str(b"x" * 8)[:8], "released"]
    assert more == [0, 1, 2, 3]


def test_who_scatters_does_not_wait_for_those_who_wait_for_the_dead(hosts: Hosts) -> None:
    told = hosts.fail(f"""{RANK}
    with Cluster(TWO) as cluster:
        group = cluster.training_group(cluster.start(rank))
        group.broadcast("time.sleep(1000)")
        group[3].kill()
        group[3].wait()
        group.scatter([bytes(50_000_000)] * 4)
    """)
    assert told.startswith("miniray.errors.GroupError: rank 3 of 4 has failed: worker ")
    assert "was killed by SIGKILL" in told


# --- As a sequence ----------------------------------------------------------------------------------------------------
def test_a_group_is_a_sequence_of_its_workers(hosts: Hosts) -> None:
    told = hosts.value(f"""{RANK}
    with Cluster(TWO[:1]) as cluster:
        workers, others = cluster.start(rank), cluster.start(rank)
        group, other = cluster.training_group(workers), cluster.training_group(others)
        told = {{
            "len": len(group) == 2,
            "index": (group[0], group[-1]) == (workers[0], workers[1]),
            "slice": group[1:] == workers[1:],
            "iteration": list(group) == workers and list(reversed(group)) == workers[::-1],
            "membership": workers[1] in group and others[0] not in group and group.index(workers[1]) == 1,
            "sum": group + other == workers + others and group + others == workers + others,
            "sum of a list": others + group == others + workers,
            "unpacking": [*group, *other] == workers + others,
            "wait_any": wait_any(group, timeout=0) == [],
        }}
        try:
            group[2]
        except IndexError:
            told["beyond"] = True
        cluster.broadcast("config.rank", group)
        told["of the cluster"] = cluster.gather(group) == [0, 1]
        told["repr"] = repr(group)
    told["stopped"] = len(group)
    print(json.dumps(told))
    """)
    assert told.pop("repr") == "<miniray.TrainingGroup of 2 ranks, master 127.0.0.1:29500>"
    assert told.pop("stopped") == 2
    assert [name for name, kept in told.items() if kept is not True] == []


# --- Starts with fewer workers, and with GPUs -------------------------------------------------------------------------
def test_groups_that_split_the_gpus(hosts: Hosts, root: Path) -> None:
    seen = hosts.value(
        f"""{RANK}
    env = json.loads(sys.argv[1])
    with Cluster([NodeConfig(name, 8, base_port=0, env=env) for name in ("mr-a", "mr-b")]) as cluster:
        training = cluster.training_group(cluster.start(rank, num_workers=2, gpus=range(4), gpus_per_worker=2))
        rollouts = cluster.training_group(cluster.start(rank, num_workers=4, gpus=range(4, 8), gpus_per_worker=1))
        for group in (training, rollouts):
            group.broadcast("[config.rank, config.local_rank, os.environ['CUDA_VISIBLE_DEVICES']]")
        print(json.dumps([training.gather(), rollouts.gather()]))
    """,
        json.dumps(described_machine(root)),
    )
    assert seen == [
        [[0, 0, "0,1"], [1, 1, "2,3"], [2, 0, "0,1"], [3, 1, "2,3"]],
        [[rank, rank % 4, str(4 + rank % 4)] for rank in range(8)],
    ]

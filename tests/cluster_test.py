"""A cluster as people write it: the seeds' own snippets, its options, and its life from start to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from described_machine import described_machine
from hosts import Hosts, ended_with
from seed_parts import MATRIX_WORKER, SEND_AND_COLLECT
from waiting import until

SEED_MATRIX = (
    """
from miniray import Cluster, NodeConfig
import numpy as np
"""
    + MATRIX_WORKER
    + """
# 2. Launch cluster (SSH + TCP)
cluster = Cluster(nodes=[
    NodeConfig("mr-a", num_workers=4),
    NodeConfig("mr-b", num_workers=4),
])

workers = cluster.start(work_fn="__main__.matrix_worker")

# 3. Generate work
matrices = [(np.random.rand(20, 20), np.random.rand(20, 20))
            for _ in range(50)]

# 4. Simple round-robin scheduling
"""
    + SEND_AND_COLLECT
    + """
cluster.stop()
"""
)

SEED_QUICK_START = """
    # On coordinator node
    from miniray import Cluster, NodeConfig

    cluster = Cluster(nodes=[
        NodeConfig("mr-a", num_workers=4, base_port=10000),
        NodeConfig("mr-b", num_workers=4, base_port=10000),
    ])

    workers = cluster.start(work_fn="my_module.train_fn")

    # Use workers
    for worker in workers:
        worker.send({"cmd": "train"})

    results = [w.recv() for w in workers]
    cluster.stop()
    print(results)
"""

SEED_ACTOR_AND_CRITIC = """
    from miniray import Cluster, NodeConfig

    cluster = Cluster(nodes=[
        NodeConfig("mr-c", num_workers=2),
        NodeConfig("mr-a", num_workers=1),
    ])

    # Start workers (SSH + TCP)
    actor_workers = cluster.start(work_fn="module.actor_training_work_fn")
    critic_workers = cluster.start(work_fn="module.critic_training_work_fn")

    # Wait for ready
    for worker in actor_workers + critic_workers:
        status = worker.recv()
        assert status["status"] == "ready"

    for worker in actor_workers:
        worker.send({"cmd": "forward_backward", "batch": [1, 2]})
    for worker in critic_workers:
        worker.send({"cmd": "forward_backward", "batch": [3, 4]})

    # Collect metrics
    actor_metrics = [w.recv() for w in actor_workers]
    critic_metrics = [w.recv() for w in critic_workers]
    print(actor_metrics)
    print(critic_metrics)
    print(cluster.workers == actor_workers + critic_workers)

    # 5. Cleanup
    cluster.stop()
"""

ACTOR_AND_CRITIC = """
    import os
    import socket


    def train(handle, role, loss):
        handle.send({"status": "ready"})
        while True:
            msg = handle.recv()
            if msg["cmd"] == "forward_backward":
                handle.send([role, socket.gethostname(), loss(msg["batch"])])


    def actor_training_work_fn(handle):
        train(handle, "actor", sum)


    def critic_training_work_fn(handle):
        train(handle, "critic", max)
"""

# A worker that answers with what an expression is there.
EVALUATE = """
    from miniray import Cluster, NodeConfig

    def evaluate(handle):
        import os, socket, sys
        while True:
            handle.send(eval(handle.recv()))
"""


# --- As the seeds have it ---------------------------------------------------------------------------------------------
def test_the_matrix_example_of_seed_004(hosts: Hosts) -> None:
    assert hosts.run(SEED_MATRIX) == "Computed 50 matrix products\n"


def test_the_quick_start_of_seed_001(hosts: Hosts) -> None:
    module = """
        import socket

        def train_fn(handle):
            while True:
                handle.send([handle.recv()["cmd"], socket.gethostname()])
    """
    printed = hosts.run(SEED_QUICK_START, files={"my_module.py": module})
    assert printed == str([["train", "mr-a"]] * 4 + [["train", "mr-b"]] * 4) + "\n"


def test_actor_and_critic_of_seed_000_live_side_by_side(hosts: Hosts) -> None:
    printed = hosts.run(SEED_ACTOR_AND_CRITIC, files={"module.py": ACTOR_AND_CRITIC})
    nodes = ["mr-c", "mr-c", "mr-a"]
    actors, critics = [["actor", node, 3] for node in nodes], [["critic", node, 4] for node in nodes]
    assert printed.splitlines() == [str(actors), str(critics), "True"]


def test_the_server_and_the_remote_worker_of_seed_001(hosts: Hosts) -> None:
    module = """
        def work_fn(handle):
            while True:
                handle.send(handle.recv()["data"])
    """
    hosts.write({"my_module.py": module})
    server = hosts.testbed.popen(
        sys.executable,
        *("-m", "miniray.worker_server", "--port", "10000", "--work-fn", "my_module.work_fn"),
        stdout=subprocess.PIPE,
        cwd=hosts.folder,
    )
    assert server.stdout is not None
    assert b"listening on 127.0.0.1:10000" in server.stdout.readline()
    printed = hosts.run("""
        from miniray import RemoteWorker

        worker = RemoteWorker("localhost", 10000)
        worker.send({"cmd": "echo", "data": "hello"})
        print(worker.recv())
    """)
    assert printed == "hello\n"
    server.terminate()
    assert server.wait(10) == 0
    server.stdout.close()


# --- Options of a node ------------------------------------------------------------------------------------------------
def test_options_of_nodes(hosts: Hosts, shared_folder: Path, root: Path) -> None:
    awkward = shared_folder / "it's a $HOME of pythons"
    awkward.mkdir()
    (awkward / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (awkward / "python").chmod(0o755)
    script = f"""{EVALUATE}
    import json, sys
    python = sys.argv[1]
    nodes = [
        NodeConfig("mr-a", 2, base_port=0, gpus_per_worker=2, env=json.loads(sys.argv[2]), workdir="/usr"),
        NodeConfig("root@mr-b", 1, python_bin=python),
        NodeConfig("localhost", 1, base_port=0),
        NodeConfig("localhost", 1, base_port=0, env={{"COLOUR": "red"}}, workdir="/var"),
        NodeConfig("localhost", 1, base_port=0, env={{"COLOUR": "green"}}),
    ]
    with Cluster(nodes) as cluster:
        cluster.start(evaluate)
        names = ["COLOUR", "EMPTY", "CUDA_VISIBLE_DEVICES"]
        cluster.broadcast("[socket.gethostname(), os.getcwd(), *map(os.environ.get, " + str(names) + ")]")
        seen = cluster.gather()
        servers = [[server.node, server.host, server.port > 0, server.pid > 1] for server in cluster.servers]
    print(json.dumps([seen, servers, repr(cluster)]))
    """
    described = described_machine(root) | {"COLOUR": "blue", "EMPTY": ""}
    seen, servers, text = hosts.value(script, str(awkward / "python"), json.dumps(described))
    here = os.uname().nodename
    assert seen == [
        ["mr-a", "/usr", "blue", "", "0,1"],
        ["mr-a", "/usr", "blue", "", "2,3"],
        ["mr-b", str(hosts.testbed.hosts["mr-b"].home), None, None, None],
        [here, str(hosts.folder), None, None, None],
        [here, "/var", "red", None, None],
        [here, str(hosts.folder), "green", None, None],
    ]
    assert servers == [
        ["mr-a", hosts.testbed.hosts["mr-a"].address, True, True],
        ["root@mr-b", hosts.testbed.hosts["mr-b"].address, True, True],
        ["localhost", "127.0.0.1", True, True],
        ["localhost#3", "127.0.0.1", True, True],
        ["localhost#4", "127.0.0.1", True, True],
    ]
    assert text == "<miniray.Cluster of 5 nodes, not running>"


def test_localhost_needs_no_ssh_and_does_not_heed_how_one_came_here(hosts: Hosts, tmp_path: Path) -> None:
    script = f"""{EVALUATE}
    with Cluster([NodeConfig("localhost", 1)]) as cluster:
        [worker] = cluster.start(evaluate)
        worker.send("6 * 7")
        print(worker.recv(), cluster.servers[0].host)
    """
    coming_by_ssh = {"SSH_CONNECTION": "192.0.2.1 1234 192.0.2.2 22"}
    assert hosts.run(script, env={"PATH": str(tmp_path), **coming_by_ssh}) == "42 127.0.0.1\n"


def test_ssh_key(hosts: Hosts) -> None:
    key, host = hosts.folder / "another_key", hosts.testbed.hosts["mr-b"]
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    authorized = host.folder / "authorized_keys"
    before = authorized.read_text()
    script = f"""{EVALUATE}
    import sys
    with Cluster([NodeConfig("mr-b", 1, ssh_key=sys.argv[1] or None)]) as cluster:
        [worker] = cluster.start("__main__.evaluate")
        worker.send("socket.gethostname()")
        print(worker.recv())
    """
    try:
        authorized.write_text(key.with_suffix(".pub").read_text())
        assert "ssh refused the login (key rejected)" in hosts.fail(script, "")
        assert hosts.run(script, str(key)) == "mr-b\n"
    finally:
        authorized.write_text(before)


def test_secrets_are_in_no_command_line(hosts: Hosts) -> None:
    child = hosts.start(f"""{EVALUATE}
    import sys
    nodes = [NodeConfig(host, 1, env={{"PASSWORD": "open-sesame"}}) for host in ("mr-a", "localhost")]
    with Cluster(nodes) as cluster:
        for worker in cluster.start(evaluate):
            worker.send("os.environ['PASSWORD']")
            print(worker.recv())
        print("up")
        sys.stdin.read()
    """)
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(3)] == ["open-sesame\n", "open-sesame\n", "up\n"]
    commands = [
        process.command_line for name in ("hub", "mr-a") for process in hosts.testbed.processes(name, include_ssh=True)
    ]
    assert len([command for command in commands if "--stdio" in command]) >= 4  # two servers, and how they came up
    assert not [command for command in commands if "sesame" in command or re.search("[0-9a-f]{32}", command)]
    assert ended_with(child) == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("[]", "UsageError: a cluster needs at least one node, and nodes is empty"),
        ("['mr-a']", "TypeError: nodes are NodeConfig objects, not the str 'mr-a'; write NodeConfig(\"mr-a\")"),
        ("[NodeConfig('')]", 'UsageError: a node\'s host is a name or an address, not ""'),
        (
            "[NodeConfig('-oProxyCommand=true')]",
            'UsageError: a node\'s host is a name or an address, not "-oProxyCommand=true"',
        ),
        ("[NodeConfig('mr-a', 0)]", "UsageError: mr-a: num_workers is 1 or more, not 0"),
        (
            "[NodeConfig('mr-a', base_port=70000)]",
            "UsageError: mr-a: base_port is a port from 1 to 65535, or 0 for any free port, not 70000",
        ),
        (
            "[NodeConfig('mr-a', gpus_per_worker=-1)]",
            "UsageError: mr-a: gpus_per_worker is 0 (each worker sees all GPUs), a whole number, or a share of one GPU "
            "such as 0.5, not -1",
        ),
        (
            "[NodeConfig('mr-a')], unreachable_s=0",
            "UsageError: unreachable_s is a number of seconds, 1 at least, not 0",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_starts(arguments: str, message: str) -> None:
    import miniray
    from miniray import Cluster, NodeConfig

    with pytest.raises((miniray.UsageError, TypeError)) as raised:
        eval(f"Cluster({arguments})", {"Cluster": Cluster, "NodeConfig": NodeConfig})
    assert f"{type(raised.value).__name__}: {raised.value}" == message


# --- From start to stop -----------------------------------------------------------------------------------------------
def test_servers_and_workers_one_by_one(hosts: Hosts) -> None:
    script = f"""{EVALUATE}
    import json
    from miniray import MiniRayError, RemoteWorker
    cluster = Cluster([NodeConfig("mr-a", 2), NodeConfig("localhost", 1)])
    told = []
    for call in (lambda: cluster.connect_to_servers(evaluate), lambda: cluster.broadcast("1")):
        try:
            call()
        except RuntimeError as error:
            told.append(str(error))
    servers = cluster.launch_servers(evaluate)
    told.append(servers == cluster.servers and [server.node for server in servers])
    try:
        cluster.launch_servers()
    except RuntimeError as error:
        told.append(str(error))
    first, second = cluster.connect_to_servers(evaluate), cluster.connect_to_servers("__main__.evaluate")
    for worker in first + second:
        worker.send("os.getpid()")
    told.append(len({{worker.recv() for worker in first + second}}))
    told.append(repr(first[1]))
    try:
        RemoteWorker(servers[0].host, servers[0].port, key="0" * 64)
    except MiniRayError as error:
        told.append(f"{{type(error).__name__}}: {{error}}")
    cluster.stop()
    cluster.stop()
    told.append(cluster.servers + cluster.workers)
    for _ in range(2):  # and again
        [*_, last] = cluster.start(evaluate)
        last.send("2 + 3")
        told.append(last.recv())
        cluster.stop()
    print(json.dumps(told))
    """
    address = hosts.testbed.hosts["mr-a"].address
    ended = hosts.ends(script)
    # One line for each of a worker's connections. The first that fails closes the other, which may have said nothing.
    for line in ended.stderr.splitlines():
        assert re.fullmatch(
            r"\[mr-a\] miniray worker-server: refused 10\.77\.0\.1:\d+: it closed the connection "
            "(before it proved that it has the key; probably it has another one|and sent nothing)",
            line,
        )
    assert "probably it has another one" in ended.stderr or not ended.stderr
    told = json.loads(ended.stdout)
    assert re.fullmatch(r"<miniray\.worker \d+ at mr-a \(mr-a/1, __main__\.evaluate\)>", told.pop(5))
    refused = told.pop(5)
    assert refused == (
        f"Refused: cannot talk to the server at {address}:10000: it has another key. Give both sides the same one: "
        "copy ~/.miniray/key, or set MINIRAY_KEY on both (this side's is the one in the argument key)"
    )
    assert told == [
        "the cluster's servers are not up. Call launch_servers() or start()",
        "the cluster's servers are not up. Call launch_servers() or start()",
        ["mr-a", "localhost"],
        "the cluster's servers are up already. stop() ends them",
        6,
        [],
        5,
        5,
    ]


def test_a_child_of_the_coordinator_stops_nothing(hosts: Hosts) -> None:
    printed = hosts.run(f"""{EVALUATE}
    import os, sys
    with Cluster([NodeConfig("localhost", 2)]) as cluster:
        workers = cluster.start(evaluate)
        if os.fork() == 0:
            sys.exit()  # in the way of a whole program, atexit included
        os.wait()
        for worker in workers:
            worker.send("print('still here')")
            worker.recv()
        cluster.start(evaluate)[0].send("1")
        print(cluster.workers[2].recv())
    """)
    assert sorted(printed.splitlines()) == ["1", "[localhost/0] still here", "[localhost/1] still here"]


def test_a_script_that_stops_nothing_leaves_nothing(hosts: Hosts) -> None:
    printed = hosts.run(f"""{EVALUATE}
    cluster = Cluster([NodeConfig("mr-a", 2)])
    workers = cluster.start(evaluate)
    workers[0].send("print('still shown')")
    workers[0].recv()
    """)
    assert printed == "[mr-a/0] still shown\n"


SLOW_IMPORT = """
    from miniray import Cluster, NodeConfig

    def wait(handle):
        handle.recv()

    if __name__ == "__main__":
        cluster = Cluster([NodeConfig("mr-a", 2), NodeConfig("mr-b", 1)])
        print("starting")
        workers = cluster.start({work_fn})
        print("started")
        workers[0].recv()
"""


def interrupt(child: subprocess.Popen[str]) -> tuple[str, str]:
    child.send_signal(signal.SIGINT)
    out, errors = ended_with(child)
    assert child.returncode == -signal.SIGINT
    return out, errors.splitlines()[-1]


def test_ctrl_c_while_nodes_come_up(hosts: Hosts) -> None:
    hosts.write({"slow.py": "import time; time.sleep(1000)"})
    child = hosts.start(SLOW_IMPORT.format(work_fn='"slow.work"'))
    until(lambda: all(server_of(hosts, name) for name in ("mr-a", "mr-b")))
    assert interrupt(child) == ("starting\n", "KeyboardInterrupt")
    hosts.assert_nothing_is_left()


def test_ctrl_c_while_a_result_is_awaited(hosts: Hosts) -> None:
    child = hosts.start(SLOW_IMPORT.format(work_fn="wait"))
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(2)] == ["starting\n", "started\n"]
    assert interrupt(child) == ("", "KeyboardInterrupt")
    hosts.assert_nothing_is_left()


def server_of(hosts: Hosts, name: str) -> bool:
    return any("--stdio" in process.command_line for process in hosts.testbed.processes(name))

"""Nodes that do not come up: the error names each with its cause and the cure, and nothing is left running."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import SHARED_FOLDER, Hosts
from testbed import Testbed

import miniray

# Every cause at once: each is a node of one cluster, beside one that is well.
SCRIPT = """
    import json, sys
    from miniray import Cluster, ClusterError, NodeConfig

    nodes = [NodeConfig(**node) for node in json.loads(sys.argv[1])]
    try:
        Cluster(nodes, ship_code=len(sys.argv) < 3).start("module.work")
    except ClusterError as error:
        print(json.dumps([str(error), error.failures]))
"""

MODULE = """
    import socket

    if socket.gethostname() == "mr-c":
        import no_such_package

    def work(handle):
        handle.recv()
"""

LISTEN = """
import socket, sys
listener = socket.create_server(("10.77.0.12", 10000))
print("listening", flush=True)
sys.stdin.read()
"""


def ssh_aliases(folder: Path, testbed: Testbed) -> str:
    """Other ways to mr-a, on each of which something is wrong."""
    key = folder / "other_host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    address = testbed.hosts["mr-a"].address
    (folder / "changed").write_text(f"{address} {key.with_suffix('.pub').read_text()}")
    ways = {
        "mr-refusing": "Port 1",
        "mr-strict": "PubkeyAuthentication no",
        "mr-changed": f"UserKnownHostsFile {folder}/changed",
        "mr-new": "UserKnownHostsFile /dev/null",
    }
    return "".join(f"Host {name}\n  HostName {address}\n  {line}\n" for name, line in ways.items())


def other_version(folder: Path) -> Path:
    """An interpreter that has another MiniRay."""
    (folder / "miniray").mkdir()
    (folder / "miniray/__init__.py").touch()
    hello = 'miniray-server {"version": "0.0.1", "protocol": 1}'
    (folder / "miniray/worker_server.py").write_text(f"print({hello!r}, flush=True)\ninput()\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec /usr/bin/python3 "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, dict[str, object]]]:
    """By what the cluster calls them."""
    with tempfile.TemporaryDirectory(dir=SHARED_FOLDER) as folder:
        yield {
            "mr-nowhere": {"host": "mr-nowhere"},
            "mr-refusing": {"host": "mr-refusing"},
            "mr-strict": {"host": "mr-strict"},
            "mr-changed": {"host": "mr-changed"},
            "mr-new": {"host": "mr-new"},
            "mr-a": {"host": "mr-a"},
            "mr-a:1": {"host": "mr-a", "base_port": 1, "python_bin": "/nowhere/python"},
            "mr-a:2": {"host": "mr-a", "base_port": 2, "python_bin": "/usr/bin/python3"},
            "mr-a:3": {"host": "mr-a", "base_port": 3, "python_bin": str(other_version(Path(folder)))},
            "mr-a:4": {"host": "mr-a", "base_port": 4, "workdir": "/nowhere"},
            "mr-b": {"host": "mr-b"},
            "mr-c": {"host": "mr-c"},
        }


@pytest.fixture(scope="module")
def told(
    testbed: Testbed, nodes: dict[str, dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, str]]:
    """The error of a cluster of all these nodes, and what it says of each."""
    hosts = Hosts(testbed, tmp_path_factory.mktemp("failures"))
    before = testbed.ssh_config.read_text()
    testbed.ssh_config.write_text(ssh_aliases(hosts.folder, testbed) + before)
    # On mr-b, somebody else has the port.
    listener = testbed.popen(
        *("ssh", "mr-b", f"exec /usr/bin/python3 -c '{LISTEN}' a-listener"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert listener.stdout is not None
    assert listener.stdout.readline() == b"listening\n"
    try:
        ended = hosts.ends(SCRIPT, json.dumps(list(nodes.values())), files={"module.py": MODULE})
    finally:
        testbed.ssh_config.write_text(before)
        listener.communicate()
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    hosts.assert_nothing_is_left()
    text, failures = json.loads(ended.stdout)
    return text, failures


def test_all_that_failed_are_named_and_no_other(told: tuple[str, dict[str, str]], nodes: dict[str, object]) -> None:
    text, failures = told
    assert list(failures) == [name for name in nodes if name != "mr-a"]
    parts = [f"{name}: {why}" for name, why in failures.items()]
    assert text == "\n\n".join(["11 of 12 nodes failed, and nothing of this start was left running.", *parts])


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (
            "mr-nowhere",
            r"the host is unknown. Check the name: `ssh mr-nowhere` must work on this machine\n"
            "ssh: Could not resolve hostname mr-nowhere: .*",
        ),
        (
            "mr-refusing",
            r"no ssh server listens there \(connection refused\). Check that sshd runs on the host, and that ssh uses "
            r"the right port\n"
            "ssh: connect to host 10.77.0.11 port 1: Connection refused",
        ),
        (
            "mr-strict",
            r"ssh refused the login \(key rejected\). Run `ssh-copy-id mr-strict`, or load your key with ssh-add, or "
            r"set ssh_key\nroot@10.77.0.11: Permission denied \(.*\).",
        ),
        (
            "mr-changed",
            r"its host key has changed. If the machine was set up anew, run `ssh-keygen -R mr-changed`, then `ssh "
            r"mr-changed` once and accept the new key\n@@@(.|\n)*REMOTE HOST IDENTIFICATION HAS CHANGED(.|\n)*",
        ),
        (
            "mr-new",
            "this machine does not know its host key. Run `ssh mr-new` once and accept the key\n"
            "No ED25519 host key is known for 10.77.0.11 and you have requested strict checking.\r?\n"
            "Host key verification failed.",
        ),
        (
            "mr-a:1",
            "the node has no program /nowhere/python. Set python_bin to an interpreter that the node has\n"
            "/bin/sh: 1: exec: /nowhere/python: not found",
        ),
        (
            "mr-a:2",
            "its Python has no MiniRay. Run on the node: /usr/bin/python3 -m pip install "
            rf"miniray=={miniray.__version__}; or set python_bin to a Python that has it\n"
            "/usr/bin/python3: .* No module named .?miniray.*",
        ),
        (
            "mr-a:3",
            f"the node has MiniRay 0.0.1, but this machine has {miniray.__version__}. Install the same version on the "
            f"node: pip install miniray=={miniray.__version__}",
        ),
        ("mr-a:4", r"cannot change to the folder /nowhere \(workdir\): No such file or directory"),
        (
            "mr-b",
            r"cannot listen on 10.77.0.12:10000, because process \d+ \(/usr/bin/python3 -c (.|\n)* a-listener\) "
            r"listens there. End that process, or choose another port \(0: any free port\): Address already in use",
        ),
        (
            "mr-c",
            r"cannot import module.work:\nTraceback \(most recent call last\):\n"
            r'  File ".*/module.py", line 5, in <module>\n    import no_such_package\n'
            r"ModuleNotFoundError: No module named 'no_such_package'\n"
            r"Check the spelling, install no_such_package on this machine, or put its file beside the coordinator's "
            r"script.",
        ),
    ],
)
def test_the_cause(told: tuple[str, dict[str, str]], node: str, why: str) -> None:
    assert re.fullmatch(why, told[1][node]), told[1][node]


def test_one_node_alone(hosts: Hosts) -> None:
    text = hosts.fail("""
        from miniray import Cluster, NodeConfig
        Cluster([NodeConfig("localhost", python_bin="/nowhere/python")]).start("module.work")
    """)
    assert text.splitlines()[:3] == [
        "miniray.errors.ClusterError: 1 of 1 node failed, and nothing of this start was left running.",
        "",
        "localhost: the node has no program /nowhere/python. Set python_bin to an interpreter that the node has",
    ]


def test_without_ssh(hosts: Hosts, tmp_path: Path) -> None:
    script = 'from miniray import Cluster, NodeConfig\nCluster([NodeConfig("mr-a")]).start("json.loads")'
    text = hosts.fail(script, env={"PATH": str(tmp_path)})
    assert text.splitlines()[2].startswith(
        "mr-a: cannot start ssh on this machine. Install openssh-client, or put ssh into PATH"
    )


def test_a_cluster_that_failed_may_be_started_again(hosts: Hosts) -> None:
    printed = hosts.run(
        """
        from miniray import Cluster, ClusterError, NodeConfig

        with Cluster([NodeConfig("mr-a", 1), NodeConfig("localhost", 1)]) as cluster:
            try:
                cluster.start("module.nothing")
            except ClusterError as error:
                print(list(error.failures), cluster.servers, cluster.workers)
            print([worker.recv() for worker in cluster.start("module.work")])
        """,
        files={"module.py": "def work(handle):\n    handle.send(5)"},
    )
    assert printed == "['mr-a', 'localhost'] [] []\n[5, 5]\n"


def test_a_second_function_that_is_not_there_harms_nobody(hosts: Hosts) -> None:
    printed = hosts.ends(
        """
        from miniray import Cluster, ClusterError, NodeConfig

        with Cluster([NodeConfig("mr-a", 2), NodeConfig("mr-b", 2)]) as cluster:
            workers = cluster.start("module.work")
            try:
                cluster.start("module.nothing")
            except ClusterError as error:
                print(error)
            for worker in workers:
                worker.send(None)
                print(worker.recv())
        """,
        files={"module.py": "def work(handle):\n    handle.send(handle.recv())"},
    ).stdout
    assert re.fullmatch(
        "2 of 2 nodes failed, and nothing of this start was left running.\n\n"
        "mr-a: the server at mr-a refused: module.nothing is not there: <module 'module' from .*> has no 'nothing'\n\n"
        "mr-b: the server at mr-b refused: module.nothing is not there: <module 'module' from .*> has no 'nothing'\n"
        "(None\n){4}",
        printed,
    ), printed


def test_the_server_is_killed_while_it_comes_up(hosts: Hosts) -> None:
    text = hosts.fail(
        """
        from miniray import Cluster, NodeConfig
        Cluster([NodeConfig("mr-a"), NodeConfig("localhost")]).start("module.work")
        """,
        files={"module.py": "import os; print('so far', flush=True); os.kill(os.getpid(), 9)"},
    )
    assert text.splitlines()[2:] == [
        "mr-a: its server was killed, or the ssh connection to it broke, while it was importing:",
        "so far",
        "",
        "localhost: its server was killed by signal 9 while it was importing:",
        "so far",
    ]


def test_start_takes_too_long(hosts: Hosts) -> None:
    text = hosts.fail(
        """
        from miniray import Cluster, NodeConfig
        nodes = [NodeConfig("mr-a"), NodeConfig("localhost")]
        Cluster(nodes, start_timeout_s=1.5, progress=False).start("module.work")
        """,
        files={"module.py": "import time; print('patience', flush=True); time.sleep(1000)"},
    )
    why = r"the node was not ready within 1 s \(start_timeout_s\); it was importing, and printed:\npatience\n*"
    if_slow = r"the node was not ready within 1 s \(start_timeout_s\); it was (connecting|importing)\n*"
    one = f"({why}|{if_slow})"
    assert re.search(
        f"2 of 2 nodes failed, and nothing of this start was left running.\n\nmr-a: {one}\nlocalhost: {one}$", text
    ), text


def test_a_login_that_talks(hosts: Hosts) -> None:
    """What login scripts print is no harm, wherever they print it."""
    profile = hosts.testbed.hosts["mr-a"].home / ".bashrc"
    profile.write_text("echo welcome; echo 'miniray is great'; echo mind the gap >&2\n")
    try:
        ended = hosts.ends(
            """
            from miniray import Cluster, NodeConfig
            with Cluster([NodeConfig("mr-a", 1)]) as cluster:
                [worker] = cluster.start("module.work")
                print(worker.recv())
            """,
            files={"module.py": "def work(handle):\n    handle.send('here')"},
        )
    finally:
        profile.unlink()
    assert (ended.stdout, ended.stderr) == ("here\n", "[mr-a] mind the gap\n")


def test_a_failed_start_does_not_wait_for_a_slow_node(hosts: Hosts) -> None:
    text = hosts.fail(
        """
        from miniray import Cluster, NodeConfig
        Cluster([NodeConfig("mr-a"), NodeConfig("no-such-host.invalid")]).start("module.work")
        """,
        files={"module.py": "import time; time.sleep(1000)"},
    )
    lines = text.splitlines()
    assert lines[0].endswith("1 of 2 nodes failed, and nothing of this start was left running.")
    assert [line.split(":")[0] for line in lines[2:3]] == ["no-such-host.invalid"]


def test_who_waits_is_told_for_whom(hosts: Hosts) -> None:
    """Progress: not on a terminal, so a line after 3 s; and nothing for a start that is quick."""
    script = """
        from miniray import Cluster, NodeConfig
        with Cluster([NodeConfig("mr-a", 1), NodeConfig("mr-b", 1)]) as cluster:
            cluster.start("module.work")
    """
    module = "import socket, time\nif socket.gethostname() == 'mr-b': time.sleep({})\ndef work(handle): pass\n"
    ended = hosts.ends(script, files={"module.py": module.format(5)})
    assert ended.returncode == 0, ended.stderr
    [line] = ended.stderr.splitlines()
    assert re.fullmatch(r"miniray: 1 of 2 nodes ready after \d+ s; waiting for mr-b \(importing\)", line)
    assert hosts.ends(script, files={"module.py": module.format(0)}).stderr == ""


def test_every_worker_that_raised_is_reported_with_what_it_raised(hosts: Hosts) -> None:
    """The program ends by the first failure, while those of the other workers are on their way."""
    script = """
        from miniray import Cluster, NodeConfig

        def fail(handle):
            number = handle.recv()
            raise ValueError(f"the fault of {number}")

        if __name__ == "__main__":
            cluster = Cluster([NodeConfig(host, 2, base_port=0) for host in ("mr-a", "mr-b", "mr-c")])
            workers = cluster.start(fail)
            for number, worker in enumerate(workers):
                worker.send(number)
            workers[0].recv()
    """
    for _ in range(3):
        ended = hosts.ends(script)
        assert ended.returncode == 1
        assert "exited with code" not in ended.stderr, ended.stderr
        for number in range(6):
            assert f"ValueError: the fault of {number}" in ended.stderr

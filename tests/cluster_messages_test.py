"""One message to many workers, and answers from all: in order, and large arrays over each link once. And tunnels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent, indent

import pytest
from hosts import Hosts
from testbed import Host, Testbed

MIB = 1 << 20
LISTENING = "0A"

SCRIPT = """
    import json, os, subprocess, sys
    import numpy as np
    from miniray import Cluster, NodeConfig, WorkerDied

    def work(handle):
        import os, signal, socket
        while True:
            message = handle.recv()
            if isinstance(message, dict) and "run" in message:
                handle.send(eval(message["run"], {{**globals(), "message": message, "os": os, "socket": socket}}))
            else:
                handle.send(message)

    def changed(array, value):
        first = int(array[0])
        array[:] = value
        return [first, int(array.sum()) // len(array), len(array)]

    def moved(link):
        shown = subprocess.run(["ip", "-s", "-j", "link", "show", "dev", link], capture_output=True, check=True).stdout
        return json.loads(shown)[0]["stats64"]["tx"]["bytes"]

    if __name__ == "__main__":
        with Cluster([NodeConfig(host, count) for host, count in {nodes}]{options}) as cluster:
            workers = cluster.start(work)
            seen = []
{body}
        print(json.dumps(seen))
"""


def script(body: str, nodes: list[tuple[str, int]], options: str = "") -> str:
    return SCRIPT.format(body=indent(dedent(body), " " * 12), nodes=nodes, options=options)


# --- Broadcast and gather ---------------------------------------------------------------------------------------------
def test_to_all_and_from_all_in_order(hosts: Hosts) -> None:
    body = """
        for number in range(3):
            workers[0].send(f"before {number}")
            cluster.broadcast({"number": number})
            workers[0].send(f"after {number}")
        for _ in range(3):
            seen.append(cluster.gather(timeout=20))
        seen.append([workers[0].recv() for _ in range(6)])
        cluster.broadcast({"run": "[socket.gethostname(), os.getpid()]"})
        seen.append(cluster.gather() == [[node, worker.pid] for node, worker in zip(("mr-b", "mr-b", "mr-a"), workers)])
        cluster.broadcast({"run": "7"}, workers[1:])
        seen.append(cluster.gather(workers[:0:-1]))
        try:
            cluster.gather(timeout=0.01)
        except TimeoutError:
            seen.append("late")
    """
    seen = hosts.value(script(body, [("mr-b", 2), ("mr-a", 1)]))
    numbers = [{"number": number} for number in range(3)]
    assert [answers[1:] for answers in seen[:3]] == [[number, number] for number in numbers]
    first = [f for number in range(3) for f in (f"before {number}", numbers[number], f"after {number}")]
    assert [answers[0] for answers in seen[:3]] + seen[3] == first
    assert seen[4:] == [True, [7, 7], "late"]


@pytest.mark.parametrize("tunnel", [False, True])
def test_large_arrays_are_everybodys_own_and_travel_once(hosts: Hosts, tunnel: bool) -> None:
    link = hosts.testbed.hosts["mr-a"].link
    body = f"""
        array = np.full({4 * MIB}, 5, dtype=np.int64)  # 32 MiB
        before = moved({link!r})
        cluster.broadcast({{"run": "changed(message['array'], message['value'] + os.getpid() % 2)", "array": array,
                           "value": 7, "small": np.zeros(3)}})
        answers = cluster.gather()
        seen += [moved({link!r}) - before, answers, [7 + worker.pid % 2 for worker in workers]]
        seen.append(int(array.sum()) == 5 * len(array))
        cluster.broadcast([array, array[:10]])  # and again, with the way already open
        seen.append([[bool((a == array).all()), b.tolist()] for a, b in cluster.gather()])
    """
    nodes = [("mr-a", 4), ("localhost", 2)]
    options = ", tunnel=True" if tunnel else ""
    sent, answers, sums, unchanged, again = hosts.value(script(body, nodes, options))
    assert 32 * MIB < sent < 36 * MIB  # once, with what TCP and the messages add
    assert answers == [[5, total, 4 * MIB] for total in sums]
    assert unchanged
    assert again == [[True, [5] * 10]] * 6


def test_a_dead_worker_does_not_keep_a_message_from_the_others(hosts: Hosts) -> None:
    body = """
        try:
            workers[1].send({"run": "os.kill(os.getpid(), 9)"})
            workers[1].recv()
        except WorkerDied:
            pass
        for size in (10, 100_000):
            try:
                cluster.broadcast({"run": "len(message['array'])", "array": np.zeros(size)})
            except WorkerDied as error:
                seen.append(str(error).splitlines()[0])
            seen.append([worker.recv(timeout=20) for worker in workers if worker is not workers[1]])
        workers[1].close()
        cluster.broadcast({"run": "1"}, [workers[0], workers[2]])
        seen.append(cluster.gather([workers[0], workers[2]]))
    """
    seen = hosts.value(script(body, [("mr-a", 3)]))
    died = seen[0]
    assert re.match(r"worker \d+ at mr-a \(mr-a/1, __main__.work\) was killed by SIGKILL", died), died
    assert seen == [died, [10, 10], died, [100_000] * 2, [1, 1]]


def test_broadcasts_in_a_row(hosts: Hosts) -> None:
    """More is on its way than anybody has asked for yet."""
    body = """
        for number in range(20):
            cluster.broadcast({"run": "[int(message['array'][-1]), message['array'].size]",
                               "array": np.full(200_000 + number, number)})
        for number in range(20):
            seen.append(cluster.gather())
    """
    seen = hosts.value(script(body, [("mr-a", 2), ("mr-b", 1)]))
    assert seen == [[[number, 200_000 + number]] * 3 for number in range(20)]


# --- Tunnels ----------------------------------------------------------------------------------------------------------
def listening_ports(hosts: Hosts, name: str) -> set[int]:
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in hosts.on_host(name, "cat", f"/proc/net/{table}").splitlines()
    ]
    return {int(words[1].rsplit(":", 1)[1], 16) for words in lines if words[3] == LISTENING}


@pytest.mark.parametrize("tunnel", [True, False])
def test_a_tunnel_opens_no_port(hosts: Hosts, tunnel: bool) -> None:
    body = """
        [first, *_] = workers
        for size in (3, 10_000_000):
            first.send(np.arange(size))
            back = first.recv()
            seen.append(bool((back == np.arange(size)).all()))
        print(json.dumps(seen), flush=True)
        sys.stdin.readline()
    """
    temporary = hosts.folder / "tmp"
    temporary.mkdir()
    child = hosts.start(script(body, [("mr-a", 2)], f", tunnel={tunnel}"), env={"TMPDIR": str(temporary)})
    assert child.stdout is not None
    assert json.loads(child.stdout.readline()) == [True, True]
    assert listening_ports(hosts, "mr-a") == {22} if tunnel else {22, 10000}
    assert len(list(temporary.iterdir())) == tunnel
    folders = list(hosts.testbed.hosts["mr-a"].tmp.glob("miniray-*"))
    assert len(folders) == tunnel
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * tunnel
    _, errors = child.communicate("\n", timeout=20)
    assert errors == ""
    assert not list(hosts.testbed.hosts["mr-a"].tmp.glob("miniray-*"))
    assert not list(temporary.iterdir())


class WithoutForwarding(Testbed):
    """Its sshd forwards no sockets."""

    def _write_files_of(self, host: Host, authorized_key: str, host_key: Path) -> None:
        super()._write_files_of(host, authorized_key, host_key)
        with host.sshd_config.open("a") as file:
            file.write("AllowStreamLocalForwarding no\n")


def test_a_host_that_forbids_tunnels(testbed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "testbed").mkdir()
    (tmp_path / "scripts").mkdir()
    with WithoutForwarding(tmp_path / "testbed", ["mr-strict"]) as strict:
        hosts = Hosts(strict, tmp_path / "scripts")
        text = hosts.fail(script("", [("mr-strict", 2)], ", tunnel=True"))
        hosts.assert_nothing_is_left()
    assert text.splitlines()[2:] == [
        "mr-strict: cannot agree on a key with mr-strict: the server closed the connection. Its sshd probably does not "
        "forward Unix-domain sockets: set AllowStreamLocalForwarding yes in its sshd_config, or do not use tunnel"
    ]

"""The cluster examples, in both languages, on three real ssh hosts."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Hosts

NODES = ("mr-a", "mr-b", "mr-c")
PROGRAMS = ".cache/miniray/programs"


def printed(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # On a busy machine it says what it waits for.
    assert [line for line in ended.stderr.splitlines() if "nodes ready after" not in line] == []
    return ended.stdout


def copies(hosts: Hosts, name: str, program: Path) -> list[Path]:
    """The host's copies of this program: other tests leave other programs there."""
    folder = hosts.testbed.hosts[name].home / PROGRAMS
    return [path for path in folder.iterdir() if filecmp.cmp(path, program, shallow=False)]


@pytest.mark.parametrize("options", [[], ["--tunnel"]], ids=["tcp", "tunnel"])
def test_in_python(hosts: Hosts, root: Path, options: list[str]) -> None:
    words = ["--pairs", "12", "--size", "50", "--workers", "2", *options]
    ended = hosts.testbed.run(sys.executable, root / "examples/cluster_matmul.py", *NODES, *words)
    assert printed(ended) == "Computed 12 matrix products with 6 workers on 3 nodes\n"


def test_in_cpp(hosts: Hosts, root: Path) -> None:
    """Twice: the program goes along the first time, and is there the second."""
    program = root / "build/release/examples/cluster_matmul"
    for _ in range(2):
        ended = hosts.testbed.run(program, "12", "50", "2", *NODES)
        assert printed(ended) == "Computed 12 matrix products with 6 workers on 3 nodes\n"
    for name in NODES:
        assert len(copies(hosts, name, program)) == 1


def test_a_copy_that_was_cut_short_is_not_the_program(hosts: Hosts, root: Path) -> None:
    """What a shell that was killed leaves does no harm."""
    program = root / "build/release/examples/cluster_matmul"
    folder = hosts.testbed.hosts["mr-a"].home / PROGRAMS
    printed(hosts.testbed.run(program, "1", "8", "1", "mr-a"))
    [copy] = copies(hosts, "mr-a", program)
    copy.rename(folder / f"{copy.name}.1234")
    printed(hosts.testbed.run(program, "1", "8", "1", "mr-a"))
    assert copy.exists()
    (folder / f"{copy.name}.1234").unlink()


def test_a_python_coordinator_of_cpp_workers(hosts: Hosts, root: Path) -> None:
    program = root / "build/release/examples/cluster_matmul"
    script = f"""
        import numpy
        from miniray import Cluster, NodeConfig
        with Cluster([NodeConfig("mr-a", 2), NodeConfig("mr-b", 2)], program={str(program)!r}) as cluster:
            cluster.start("matrix_worker")
            cluster.broadcast({{"cmd": "multiply", "A": numpy.eye(200), "B": numpy.full((200, 200), 2.0)}})
            print([float(answer["result"].sum()) for answer in cluster.gather()])
    """
    assert hosts.run(script) == "[80000.0, 80000.0, 80000.0, 80000.0]\n"

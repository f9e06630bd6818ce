"""Which GPUs a worker sees and which CPUs it runs on, on hosts that are described as having 8 GPUs on 2 NUMA nodes."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from described_machine import described_machine
from hosts import Hosts
from missing import NOT_HERE

import miniray

ALL_CPUS = sorted(os.sched_getaffinity(0))
NEXT_TO_0, NEXT_TO_1 = [0], [1]  # the CPUs of the two NUMA nodes
NO_GPU = "miniray: there is no GPU on mr-a; the workers there run without one\n"

pytestmark = pytest.mark.skipif(not {0, 1} <= set(ALL_CPUS), reason=NOT_HERE + "the described CPUs 0 and 1")

# Prints what the workers of each start are given.
SHOW = """
    import json, os, sys
    from miniray import Cluster, NodeConfig

    def show(handle):
        handle.send([os.environ.get("CUDA_VISIBLE_DEVICES"), sorted(os.sched_getaffinity(0))])
        handle.recv()

    env, node, *starts = map(json.loads, sys.argv[1:])
    with Cluster([NodeConfig("mr-a", base_port=0, env=env, **node)]) as cluster:
        print(json.dumps([[worker.recv() for worker in cluster.start(show, **options)] for options in starts]))
"""


@pytest.fixture
def described(root: Path) -> dict[str, str]:
    return described_machine(root)


def given(hosts: Hosts, env: dict[str, str], node: dict[str, Any], *starts: dict[str, Any]) -> Any:
    """What the workers of each start see."""
    return hosts.value(SHOW, *map(json.dumps, (env, node, *starts)))


def refused(hosts: Hosts, env: dict[str, str], **options: Any) -> str:
    return hosts.fail(SHOW, *map(json.dumps, (env, {}, options)))


# --- Workers of a cluster ---------------------------------------------------------------------------------------------
def test_a_gpu_for_each_worker(hosts: Hosts, described: dict[str, str]) -> None:
    [seen] = given(hosts, described, {"num_workers": 8, "gpus_per_worker": 1}, {})
    assert seen == [[str(gpu), NEXT_TO_0 if gpu < 4 else NEXT_TO_1] for gpu in range(8)]


def test_several_gpus_for_each_worker(hosts: Hosts, described: dict[str, str]) -> None:
    two, five, all_of_them = given(
        hosts,
        described,
        {"num_workers": 8, "gpus_per_worker": 1},  # which the starts replace
        {"num_workers": 4, "gpus_per_worker": 2},
        {"num_workers": 1, "gpus_per_worker": 5},
        {"num_workers": 2, "gpus_per_worker": 0},
    )
    assert two == [["0,1", NEXT_TO_0], ["2,3", NEXT_TO_0], ["4,5", NEXT_TO_1], ["6,7", NEXT_TO_1]]
    assert five == [["0,1,2,3,4", ALL_CPUS]]  # of both NUMA nodes
    assert all_of_them == [[None, ALL_CPUS]] * 2


def test_a_share_of_a_gpu(hosts: Hosts, described: dict[str, str]) -> None:
    halves, thirds, most = given(
        hosts,
        described,
        {},
        {"num_workers": 10, "gpus_per_worker": 0.5},
        {"num_workers": 4, "gpus_per_worker": 1 / 3},
        {"num_workers": 2, "gpus_per_worker": 0.6},
    )
    assert halves == [[str(worker // 2), NEXT_TO_0 if worker < 8 else NEXT_TO_1] for worker in range(10)]
    assert thirds == [["0", NEXT_TO_0]] * 3 + [["1", NEXT_TO_0]]
    assert most == [["0", NEXT_TO_0], ["1", NEXT_TO_0]]


def test_two_starts_split_the_gpus_or_share_them(hosts: Hosts, described: dict[str, str]) -> None:
    training, rollouts, more_rollouts, backwards, everyone = given(
        hosts,
        described,
        {"num_workers": 4, "gpus_per_worker": 1},
        {"gpus": [0, 1, 2, 3]},
        {"gpus": [4, 5, 6, 7]},
        {"gpus": [4, 5, 6, 7], "gpus_per_worker": 2, "num_workers": 2},
        {"gpus": [7, 0], "num_workers": 2},
        {"gpus": [5, 6], "gpus_per_worker": 0, "num_workers": 2},
    )
    assert training == [[str(gpu), NEXT_TO_0] for gpu in range(4)]
    assert rollouts == [[str(gpu), NEXT_TO_1] for gpu in range(4, 8)]
    assert more_rollouts == [["4,5", NEXT_TO_1], ["6,7", NEXT_TO_1]]
    assert backwards == [["7", NEXT_TO_1], ["0", NEXT_TO_0]]
    assert everyone == [["5,6", NEXT_TO_1]] * 2


def test_gpus_may_be_a_range(hosts: Hosts, described: dict[str, str]) -> None:
    script = SHOW.replace("**options", 'gpus=range(*options["range"])')
    node = {"num_workers": 4, "gpus_per_worker": 1}
    [seen] = hosts.value(script, *map(json.dumps, (described, node, {"range": [4, 8]})))
    assert [gpu for gpu, _ in seen] == ["4", "5", "6", "7"]


def test_workers_need_not_be_pinned(hosts: Hosts, described: dict[str, str]) -> None:
    [seen] = given(hosts, described, {"num_workers": 2, "gpus_per_worker": 4}, {"pin_cpus": False})
    assert seen == [["0,1,2,3", ALL_CPUS], ["4,5,6,7", ALL_CPUS]]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("2,3", [["2", NEXT_TO_0], ["3", NEXT_TO_0]]),
        ("5, 1", [["5", NEXT_TO_1], ["1", NEXT_TO_0]]),
        ("GPU-fake-6,GPU-fake-0", [["GPU-fake-6", NEXT_TO_1], ["GPU-fake-0", NEXT_TO_0]]),
    ],
)
def test_a_host_that_is_given_some_gpus(hosts: Hosts, described: dict[str, str], visible: str, seen: list[Any]) -> None:
    """As a batch system does; CUDA numbers the rest anew."""
    env = described | {"CUDA_VISIBLE_DEVICES": visible}
    node = {"num_workers": 2, "gpus_per_worker": 1}
    assert given(hosts, env, node, {}, {"gpus": [1, 0]}) == [seen, seen[::-1]]


TOO_FEW = "mr-a has too few GPUs:"


@pytest.mark.parametrize(
    ("visible", "options", "error"),
    [
        ("", {"num_workers": 9, "gpus_per_worker": 1}, f"{TOO_FEW} 8 GPUs can serve 8 workers with gpus_per_worker=1"),
        ("", {"num_workers": 3, "gpus_per_worker": 3}, f"{TOO_FEW} 8 GPUs can serve 2 workers with gpus_per_worker=3"),
        (
            "",
            {"num_workers": 17, "gpus_per_worker": 0.5},
            f"{TOO_FEW} 8 GPUs can serve 16 workers with gpus_per_worker=0.5",
        ),
        (
            "2,3",
            {"num_workers": 3, "gpus_per_worker": 1},
            f"{TOO_FEW} 2 GPUs can serve 2 workers with gpus_per_worker=1",
        ),
        (
            "",
            {"num_workers": 3, "gpus": [4, 5], "gpus_per_worker": 1},
            f"{TOO_FEW} 2 GPUs (named by gpus) can serve 2 workers with gpus_per_worker=1",
        ),
    ],
)
def test_too_few_gpus(
    hosts: Hosts, described: dict[str, str], visible: str, options: dict[str, Any], error: str
) -> None:
    env = described | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    told = refused(hosts, env, **options)
    workers = options["num_workers"]
    assert told.startswith(
        f"miniray.errors.UsageError: {error}, and num_workers is {workers}. Start fewer workers, or set "
        "gpus_per_worker="
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"gpus": [0, 8]}, "mr-a has no GPU 8, which gpus names: it has 8 GPUs, numbered from 0"),
        ({"gpus": [-1]}, "a GPU in gpus is 0 or more, not -1"),
        ({"num_workers": 0}, "num_workers is 1 or more, not 0"),
        (
            {"gpus_per_worker": 1.5},
            "mr-a: gpus_per_worker is 0 (each worker sees all GPUs), a whole number, or a share of one GPU such as "
            "0.5, not 1.5",
        ),
        (
            {"gpus": [3, 3], "gpus_per_worker": 2, "num_workers": 1},
            "gpus names GPU 3 twice",
        ),
        (
            {"gpus_per_worker": 1e-300},
            "mr-a: gpus_per_worker is 0 (each worker sees all GPUs), a whole number, or a share of one GPU such as "
            "0.5, not 1e-300",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(
    hosts: Hosts, described: dict[str, str], options: dict[str, Any], error: str
) -> None:
    assert refused(hosts, described, **options) == f"miniray.errors.UsageError: {error}"


@pytest.mark.parametrize(("workers", "each"), [(9, 1), (5, 2)])
def test_the_share_that_an_error_suggests_is_enough(
    hosts: Hosts, described: dict[str, str], workers: int, each: float
) -> None:
    told = refused(hosts, described, num_workers=workers, gpus_per_worker=each)
    suggested = float(told.rpartition("gpus_per_worker=")[2])
    [seen] = given(hosts, described, {}, {"num_workers": workers, "gpus_per_worker": suggested})
    assert len(seen) == workers


@pytest.mark.parametrize("env", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}])
def test_without_gpus_the_same_code_runs(hosts: Hosts, described: dict[str, str], env: dict[str, str]) -> None:
    """A machine without a driver, and one whose GPUs are hidden."""
    machine = described | env if env else {}
    starts = ({}, {"gpus": [0, 1]})
    ended = hosts.ends(SHOW, *map(json.dumps, (machine, {"num_workers": 2, "gpus_per_worker": 1}, *starts)))
    assert (ended.returncode, ended.stderr) == (0, NO_GPU)  # once, however often workers are started
    assert json.loads(ended.stdout) == [[[env.get("CUDA_VISIBLE_DEVICES"), ALL_CPUS]] * 2] * 2


# --- A host without hwloc ---------------------------------------------------------------------------------------------
@pytest.fixture
def without_hwloc(hosts: Hosts) -> Iterator[Hosts]:
    """On mr-a an empty file is in the library's place."""
    library = ctypes.util.find_library("hwloc")
    if library is None:
        pytest.skip("there is no hwloc to hide")
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    path = os.path.realpath(next(line.split()[-1] for line in found.splitlines() if line.split()[:1] == [library]))
    host = hosts.testbed.hosts["mr-a"]
    (host.folder / "empty_library").touch()
    hosts.testbed.run("ssh", "mr-a", f"mount --bind {host.folder}/empty_library {path}").check_returncode()
    yield hosts
    hosts.testbed.run("ssh", "mr-a", f"umount {path}").check_returncode()


def test_without_hwloc_workers_have_their_gpus(without_hwloc: Hosts, described: dict[str, str]) -> None:
    script = SHOW.replace("os.sched_getaffinity(0))]", "os.sched_getaffinity(0)), miniray.discover_machine().notes]")
    script = script.replace("import json,", "import miniray, json,")
    node = {"num_workers": 2, "gpus_per_worker": 4}
    [seen] = without_hwloc.value(script, *map(json.dumps, (described, node, {})))
    assert [entry[:2] for entry in seen] == [["0,1,2,3", ALL_CPUS], ["4,5,6,7", ALL_CPUS]]
    for *_, [note] in seen:
        assert note.startswith("it is not known which CPUs are next to which GPU, because hwloc is missing (")
        assert note.endswith("). Install it: apt-get install libhwloc15")


# --- In a process of one's own ----------------------------------------------------------------------------------------
def evaluate(expression: str, **env: str) -> Any:
    """In a new process, as the affinity of this one is to stay."""
    code = f"import json, os, dataclasses, miniray; print(json.dumps({expression}))"
    surroundings = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | env
    ended = subprocess.run([sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_described_machine(described: dict[str, str]) -> None:
    machine = evaluate("dataclasses.asdict(miniray.discover_machine())", **described, CUDA_VISIBLE_DEVICES="6,1")
    assert machine["gpus"] == [
        {
            "index": index,
            "name": "Fake GPU",
            "uuid": f"GPU-fake-{index}",
            "pci_address": f"0000:{0x1A + index:02x}:00.0",
            "memory_bytes": 80 << 30,
            "numa_node": index // 4,
            "visible_as": str(index),
        }
        for index in (6, 1)
    ]
    assert machine["numa_nodes"] == [{"index": 0, "cpus": [0]}, {"index": 1, "cpus": [1]}]
    assert (machine["driver_version"], machine["notes"]) == ("999.01", [])


def test_next_to_ones_gpu(described: dict[str, str]) -> None:
    assert evaluate("[miniray.get_gpu_numa_node(gpu) for gpu in range(8)]", **described) == [0] * 4 + [1] * 4
    pinned = "[miniray.set_gpu_affinity({gpu}), sorted(os.sched_getaffinity(0))]"
    assert evaluate(pinned.format(gpu=2), **described) == [NEXT_TO_0, NEXT_TO_0]
    assert evaluate(pinned.format(gpu=0), **described, CUDA_VISIBLE_DEVICES="7") == [NEXT_TO_1, NEXT_TO_1]
    one_node = described | {"HWLOC_SYNTHETIC": "numa:1 core:2 pu:1"}  # all are next to it
    assert evaluate(pinned.format(gpu=2), **one_node) == [[], ALL_CPUS]


def test_a_gpu_that_is_not_there(described: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in described.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    for call in (miniray.get_gpu_numa_node, miniray.set_gpu_affinity):
        for gpu in (-1, 2):
            with pytest.raises(miniray.UsageError) as raised:
                call(gpu)
            seen = f"there is no GPU {gpu}: this process sees 2 GPUs (CUDA_VISIBLE_DEVICES=2,3)"
            assert str(raised.value) == ("gpu_id is 0 or more, not -1" if gpu < 0 else seen)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it has."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = miniray.discover_machine()
    if machine.numa_nodes:
        assert sorted(cpu for node in machine.numa_nodes for cpu in node.cpus) == ALL_CPUS
    else:
        assert any("hwloc" in note for note in machine.notes)
    if machine.gpus:
        assert miniray.get_gpu_numa_node(0) == machine.gpus[0].numa_node
        return
    assert "NVIDIA driver" in machine.notes[0]
    with pytest.raises(miniray.UsageError) as raised:
        miniray.set_gpu_affinity(0)
    assert str(raised.value) == "there is no GPU 0: this process sees 0 GPUs; " + "; ".join(machine.notes)
    assert sorted(os.sched_getaffinity(0)) == ALL_CPUS

"""`miniray doctor` and cluster.check(): each fault is planted for real, and found with its node, cause and cure.

A clock that differs is the one that is missing here: all hosts of a testbed have the time of this machine.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clinic import DOCTOR, Clinic
from described_machine import described_machine
from hosts import SHARED_FOLDER, WHOLE_LINES
from missing import NOT_HERE
from testbed import HUB_ADDRESS, Testbed
from waiting import until

import miniray

PORT = 29500
SYSTEM_PYTHON = "/usr/bin/python3"
BROKEN_TORCH = """
print("torch has something to say")
raise ImportError("libsomething.so.12: cannot open shared object file")
"""
# Only what says how old it is, as an interpreter of another age cannot load this MiniRay.
SAYS_3_12 = "import sys; sys.version_info = (3, 12, 1, 'final', 0)"


def folder_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    """Three hosts, and one without torch."""
    reason = Testbed.available()
    if reason is not None:
        pytest.skip(f"no ssh hosts: {reason}")
    names = ("mr-a", "mr-b", "mr-c", "mr-bare")
    with Testbed(tmp_path_factory.mktemp("testbed"), names, hidden={"mr-bare": [folder_of("torch")]}) as testbed:
        made = Clinic(testbed, tmp_path_factory.mktemp("scripts"))
        made.introduce()
        yield made


@pytest.fixture
def clinic(hospital: Clinic) -> Iterator[Clinic]:
    """Afterwards nothing of the doctor runs on any host."""
    yield hospital
    hospital.end_scripts()
    hospital.assert_nothing_is_left()


@pytest.fixture
def pythons() -> Iterator[Path]:
    """A folder for interpreters, which all hosts see, with a space in its name."""
    with tempfile.TemporaryDirectory(dir=SHARED_FOLDER, prefix="miniray pythons ") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def other_version() -> str:
    """The version of the system's Python: not this one's, and close enough to load the same MiniRay."""
    code = "import sys; print(sys.implementation.cache_tag, '.'.join(map(str, sys.version_info[:3])))"
    try:
        said = subprocess.run([SYSTEM_PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip(f"{NOT_HERE}{SYSTEM_PYTHON}")
    tag, version = said.split()
    if tag != sys.implementation.cache_tag or version == version_here():
        pytest.skip(f"{NOT_HERE}a second Python of the same kind ({SYSTEM_PYTHON} is {version}, this {version_here()})")
    return version


def version_here() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def system_python(*folders: Path) -> str:
    """The command line of the system's Python, with MiniRay, torch and what is in these folders."""
    path = ":".join(map(str, [*folders, folder_of("miniray").parent, folder_of("torch").parent]))
    return f'PYTHONPATH="{path}" exec {SYSTEM_PYTHON}'


# --- Nothing wrong ----------------------------------------------------------------------------------------------------
def test_healthy_hosts(clinic: Clinic) -> None:
    exit_code, text = clinic.text("mr-a", "mr-b", "mr-c")
    assert exit_code == 0, text
    about = rf"Python {re.escape(version_here())}, torch .*, \d+ CPUs? on \d+ NUMA nodes?\n"
    assert re.fullmatch(f"mr-a: {about}mr-b: {about}mr-c: {about}\n3 nodes: no problem\n", text), text


def test_healthy_hosts_for_programs(clinic: Clinic) -> None:
    report = clinic.report("mr-a", "root@mr-b")
    assert report.found() == []
    assert report.value["failed_nodes"] == []
    assert [node["node"] for node in report.value["nodes"]] == ["mr-a", "root@mr-b"]
    for node in report.value["nodes"]:
        assert node["host_name_means"] == [clinic.address(node["host_name"])]
        assert node["language"]["python"] == version_here()
        assert node["language"]["executable"] == sys.executable


def test_a_node_that_is_listed_twice(clinic: Clinic) -> None:
    """Neither takes the other's ports for a stranger's."""
    report = clinic.report("mr-a", "mr-a", "mr-b")
    assert report.found() == []
    assert len(report.checked) == 3


# --- Ports ------------------------------------------------------------------------------------------------------------
def cure_for(clinic: Clinic, source: str, node: str) -> str:
    address = clinic.address(source)
    return (
        f"On {node}: sudo ufw allow from {address} (or: sudo iptables -I INPUT -s {address} -j ACCEPT). "
        "Open all ports, because NCCL and Gloo use ports that the system chooses"
    )


def test_a_firewall_that_drops_what_one_host_sends(clinic: Clinic) -> None:
    """One way of the six between three hosts."""
    with clinic.firewall("mr-b", f"ip saddr {clinic.address('mr-a')} tcp dport {PORT} drop"):
        report = clinic.report("mr-a", "mr-b", "mr-c")
    assert report.exit_code == 1
    assert report.found() == [("problem", "mr-a -> mr-b", "reach")]
    what, cure = report.of("mr-a -> mr-b", "reach")
    silent = "no answer in 3 s: a firewall drops the packets, or the answers find no way back"
    assert what == f"not all ports can be reached:\n    10.77.0.12:{PORT}: {silent}"
    assert cure == cure_for(clinic, "mr-a", "mr-b")


def test_a_firewall_that_rejects(clinic: Clinic) -> None:
    """And how it is told to people."""
    with clinic.firewall("mr-b", f"tcp dport {PORT} reject"):
        exit_code, text = clinic.text("mr-a", "mr-b")
    assert exit_code == 1
    assert text.endswith(
        f"""
problem (reach), mr-a -> mr-b: not all ports can be reached:
    10.77.0.12:{PORT}: refused by a firewall, because the port is open on the node
  -> {cure_for(clinic, "mr-a", "mr-b")}

2 nodes: 1 problem
"""
    ), text


def test_a_firewall_that_lets_ssh_and_the_coordinator_through(clinic: Clinic) -> None:
    """The cluster starts, and so would training, if it were not for the ports that NCCL and Gloo choose."""
    well = ["tcp dport 22 accept", "ct state established accept", "iif lo accept", f"ip saddr {HUB_ADDRESS} accept"]
    with clinic.firewall("mr-b", *well, "reject"):
        report = clinic.report("mr-a", "mr-b", "--port", "29501")
    assert report.found() == [("problem", "mr-a -> mr-b", "reach")]
    what, cure = report.of("mr-a -> mr-b", "reach")
    refused = ": refused by a firewall, because the port is open on the node"
    chosen = r" \(a port that the system chose\)"
    assert re.fullmatch(rf"no port can be reached:(\n    10\.77\.0\.12:\d+{refused}({chosen})?){{2}}", what), what
    assert f":29501{refused}" in what
    assert cure == cure_for(clinic, "mr-a", "mr-b")


def test_an_address_that_all_have_is_no_way(clinic: Clinic) -> None:
    """As docker0 has one on every host: who calls it there reaches itself."""
    with (
        clinic.bridge("mr-a", "docker0", "172.17.0.1/16"),
        clinic.bridge("mr-b", "docker0", "172.17.0.1/16"),
        clinic.firewall("mr-b", f"ip saddr {clinic.address('mr-a')} tcp dport {PORT} reject"),
    ):
        report = clinic.report("mr-a", "mr-b")
    assert report.found() == [("problem", "mr-a -> mr-b", "reach")]
    what, _ = report.of("mr-a -> mr-b", "reach")
    assert what.endswith(f"172.17.0.1:{PORT}: another process answers, so another machine has this address too")


def test_ipv6_is_a_way(clinic: Clinic) -> None:
    """Where it is the only one, and then none."""
    closed = [f"ip saddr {clinic.address(name)} tcp dport 1024-65535 reject" for name in ("mr-a", "mr-b")]
    with (
        clinic.firewall("mr-a", *closed),
        clinic.firewall("mr-b", *closed),
        clinic.extra_address("mr-a", "fd00:77::1/64"),
    ):
        with clinic.extra_address("mr-b", "fd00:77::2/64"):
            assert clinic.report("mr-a", "mr-b").found("reach") == []
        assert clinic.report("mr-a", "mr-b").found("reach") == [
            ("problem", "mr-b -> mr-a", "reach"),
            ("problem", "mr-a -> mr-b", "reach"),
        ]


def test_a_firewall_that_lets_ssh_and_the_base_port_through(clinic: Clinic) -> None:
    well = ["tcp dport {22, 10000} accept", "ct state established accept", "iif lo accept"]
    with clinic.firewall("mr-b", *well, "reject"):
        report = clinic.report("mr-a", "mr-b", "--base-port", "10000")
    assert report.found() == [("problem", "mr-a -> mr-b", "reach")]


def test_ports_that_others_have(clinic: Clinic) -> None:
    """One that training needs, and one where the node's server is to be; whoever has them is named."""
    with clinic.listener("mr-b", PORT, 10000) as pid:
        report = clinic.report("mr-a", "mr-b", "--base-port", "10000")
    assert report.exit_code == 1
    assert report.found() == [("problem", "mr-b", "port")] * 2
    told = {finding["cure"]: finding["what"] for finding in report.value["findings"]}
    cures = {
        10000: "End that process, or give NodeConfig another base_port, or 0 for any free port",
        PORT: "End that process, or choose another master_port; cluster.training_group() takes the next free port by "
        "itself",
    }
    for port, cure in cures.items():
        assert re.fullmatch(
            rf"the port {port} is taken by process {pid} \({SYSTEM_PYTHON} -c .* a-listener .*\)",
            told[cure],
        ), told


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_no_such_port(clinic: Clinic, port: str) -> None:
    ended = clinic.testbed.run(*DOCTOR, "mr-a", "--port", port)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"miniray: a port to check is a number from 1 to 65535, not {port}\n"


def test_ports_before_nodes(clinic: Clinic) -> None:
    assert clinic.report("--port", "29501", "--port", "29502", "mr-a").checked == ["mr-a"]


@pytest.mark.parametrize("option", [("--workers", "0"), ("--base-port", "65536"), ("--gpus-per-worker", "1.5")])
def test_what_no_cluster_would_take(clinic: Clinic, option: tuple[str, str]) -> None:
    ended = clinic.testbed.run(*DOCTOR, "mr-a", *option)
    assert (ended.returncode, ended.stdout) == (2, "")


# --- Names ------------------------------------------------------------------------------------------------------------
def test_names_that_mean_the_loopback_address(clinic: Clinic) -> None:
    with clinic.names("mr-b", {"mr-b": "127.0.1.1", "mr-a": "127.0.0.1"}):
        report = clinic.report("mr-a", "mr-b")
    assert report.exit_code == 1
    assert report.value["findings"] == [
        {
            "severity": "problem",
            "node": "mr-b",
            "check": "name",
            "what": "its own name, mr-b, stands for 127.0.1.1 there, a loopback address. Gloo announces itself with "
            "that address, so the other nodes would look for it on themselves",
            "cure": 'On mr-b, put "10.77.0.12 mr-b" into /etc/hosts; or set NodeConfig(env={"GLOO_SOCKET_IFNAME": '
            '"eth0"}), which cluster.training_group() does by itself',
        },
        {
            "severity": "problem",
            "node": "mr-b",
            "check": "name",
            "what": "the name mr-a stands for 127.0.0.1 on mr-b, a loopback address: a process there that connects to "
            "mr-a reaches mr-b",
            "cure": "Correct the name in /etc/hosts on mr-b, or name nodes by their addresses",
        },
    ]


def test_a_name_that_means_another_host(clinic: Clinic) -> None:
    with clinic.names("mr-b", {"mr-b": clinic.address("mr-c")}):
        assert clinic.report("mr-a", "mr-b").found() == [("problem", "mr-b", "name")]


def test_this_machine_beside_others(clinic: Clinic) -> None:
    elsewhere = [found for found in clinic.report("localhost", "mr-a").found() if found[1] != "localhost"]
    assert elsewhere == []


# --- Versions ---------------------------------------------------------------------------------------------------------
def test_torch_is_missing(clinic: Clinic) -> None:
    report = clinic.report("mr-a", "mr-bare")
    assert report.exit_code == 1
    assert report.found() == [("problem", "mr-bare", "version")]
    what, cure = report.of("mr-bare", "version")
    assert re.fullmatch(r"torch is missing, but other nodes have it: 2\S+ on mr-a; none on mr-bare", what), what
    assert cure == f"On mr-bare: {sys.executable} -m pip install torch"


def test_a_torch_that_cannot_be_imported(clinic: Clinic, pythons: Path) -> None:
    """What it prints does not get into the JSON, either."""
    clinic.write({"torch/__init__.py": BROKEN_TORCH}, pythons)
    python = clinic.python_on("mr-b", pythons, f'PYTHONPATH="{pythons}" exec {sys.executable}')
    report = clinic.report("mr-a", "mr-b", "--python", str(python))
    assert report.exit_code == 1
    assert report.found() == [("problem", "mr-b", "version")]
    assert report.of("mr-b", "version") == (
        "torch is installed, but cannot be imported: ImportError: libsomething.so.12: cannot open shared object file",
        f"Try `{sys.executable} -c 'import torch'` on mr-b",
    )


def test_pythons_that_differ_a_little(clinic: Clinic, pythons: Path, other_version: str) -> None:
    python = clinic.python_on("mr-b", pythons, system_python())
    report = clinic.report("mr-a", "mr-b", "--python", str(python))
    assert report.exit_code == 0
    assert report.found() == [("warning", "all", "version")]
    what, cure = report.of("all", "version")
    versions = sorted([(other_version, "mr-b"), (version_here(), "mr-a")])
    assert what == "versions of Python differ: " + "; ".join(f"{version} on {node}" for version, node in versions)
    assert cure == "Use the same Python on all nodes: set NodeConfig(python_bin=...) or `miniray doctor --python ...`"


@pytest.mark.usefixtures("other_version")
def test_pythons_that_differ(clinic: Clinic, pythons: Path) -> None:
    """A stand-in: the system's Python, which says that it is a later one. So its torch does not load."""
    clinic.write({"sitecustomize.py": SAYS_3_12}, pythons)
    python = clinic.python_on("mr-b", pythons, system_python(pythons))
    report = clinic.report("mr-a", "mr-b", "--python", str(python))
    assert report.exit_code == 1
    assert report.found()[0] == ("problem", "all", "version")
    what, _ = report.of("all", "version")
    assert what == f"versions of Python differ: {version_here()} on mr-a; 3.12.1 on mr-b"


# --- Nodes that do not come up ----------------------------------------------------------------------------------------
def test_the_others_are_checked(clinic: Clinic, pythons: Path) -> None:
    """One does not let ssh in, one has no name, one has no MiniRay; between the two that are left is a firewall."""
    python = clinic.python_on("mr-b", pythons, f"exec {SYSTEM_PYTHON}")
    with (
        clinic.firewall("mr-c", f"tcp dport {PORT} reject"),
        clinic.firewall("mr-bare", "tcp dport 22 reject with tcp reset"),
    ):
        report = clinic.report("mr-a", "mr-bare", "mr-nowhere", "mr-b", "mr-c", "--python", str(python))
    failed = ["mr-bare", "mr-nowhere", "mr-b"]
    assert report.exit_code == 1
    assert sorted(report.value["failed_nodes"]) == sorted(failed)
    assert report.checked == ["mr-a", "mr-c"]
    assert sorted(report.found("start")) == sorted(("problem", name, "start") for name in failed)
    assert report.found("reach") == [("problem", "mr-a -> mr-c", "reach")]
    told = {name: report.of(name, "start")[0].splitlines()[0] for name in failed}
    assert told == {
        "mr-bare": "no ssh server listens there (connection refused). Check that sshd runs on the host, and that ssh "
        "uses the right port",
        "mr-nowhere": "the host is unknown. Check the name: `ssh mr-nowhere` must work on this machine",
        "mr-b": f"its Python has no MiniRay. Run on the node: {python} -m pip install "
        f"miniray=={miniray.__version__}; or set python_bin to a Python that has it",
    }


def test_a_node_is_cut_off_in_the_middle(clinic: Clinic) -> None:
    """While all call each other, which a firewall that drops makes them do for seconds."""
    script = """
        import json
        from miniray import Cluster, NodeConfig

        report = Cluster([NodeConfig(f"mr-{name}") for name in "abc"], unreachable_s=2).check()
        print(json.dumps([report.failed_nodes, [node["node"] for node in report.nodes]]))
    """
    with clinic.firewall("mr-c", f"tcp dport {PORT} drop"):
        child = clinic.start(script)
        assert until(lambda: clinic.listens_on("mr-b", PORT))
        clinic.testbed.cut("mr-b")
        try:
            out, errors = child.communicate(timeout=60)
            assert until(lambda: not clinic.testbed.processes("mr-b"))  # without being told
        finally:
            clinic.testbed.heal("mr-b")
    assert errors == ""
    assert json.loads(out) == [["mr-b"], ["mr-a", "mr-c"]]


def test_none_comes_up(clinic: Clinic) -> None:
    exit_code, text = clinic.text("mr-nowhere")
    assert exit_code == 1
    assert text.startswith("\nproblem (start), mr-nowhere: the host is unknown.")
    assert """\n  -> Make this command work: ssh mr-nowhere "python3 -c 'import miniray'"\n""" in text
    assert text.endswith("\n\n1 node: 1 problem\n")


# --- GPUs and room ----------------------------------------------------------------------------------------------------
def test_too_few_gpus_and_none(clinic: Clinic, root: Path) -> None:
    script = """
        import json, sys
        from miniray import Cluster, NodeConfig

        env = json.loads(sys.argv[1])
        nodes = [NodeConfig("mr-a", 4, gpus_per_worker=4, env=env), NodeConfig("mr-b", 4, gpus_per_worker=4)]
        print(json.dumps([[f.severity, f.node, f.what, f.cure] for f in Cluster(nodes).check().findings]))
    """
    found = clinic.value(script, json.dumps(described_machine(root)))
    # A torch for CPUs only is a problem of its own beside these GPUs.
    assert [finding for finding in found if "is built without CUDA" not in finding[2]] == [
        [
            "problem",
            "mr-a",
            "has too few GPUs: 8 GPUs can serve 2 workers with gpus_per_worker=4, and num_workers is 4",
            "Start fewer workers, or set gpus_per_worker=2",
        ],
        [
            "problem",
            "mr-b",
            "has no GPU, so its workers would run without one: there is no NVIDIA driver (libnvidia-ml.so.1: cannot "
            "open shared object file: No such file or directory)",
            "Run `nvidia-smi` on mr-b; if no GPU is needed there, leave gpus_per_worker out",
        ],
    ]


def test_little_shared_memory_and_few_open_files(clinic: Clinic) -> None:
    with clinic.little_shared_memory("mr-b", "64m"), clinic.few_open_files("mr-b", 1000):
        report = clinic.report("mr-a", "mr-b")
    assert report.exit_code == 0
    assert report.found() == [("warning", "mr-b", "memory"), ("warning", "mr-b", "limit")]
    assert report.of("mr-b", "memory") == (
        "/dev/shm has 64 MiB, but NCCL and torch's data loaders need more",
        "On mr-b: sudo mount -o remount,size=8G /dev/shm (in Docker: run with --shm-size=8g)",
    )
    assert report.of("mr-b", "limit") == (
        "a process may have 1000 files open, but data loaders need thousands",
        "On mr-b: ulimit -n 65536, or set nofile in /etc/security/limits.conf",
    )


# --- A cluster checks itself ------------------------------------------------------------------------------------------
def test_before_and_while_the_cluster_runs(clinic: Clinic) -> None:
    """Its servers have their base_port; that is no problem, and no worker is disturbed."""
    printed = clinic.run("""
        from miniray import Cluster, NodeConfig

        def work(handle):
            while True:
                handle.send(handle.recv())

        def check():
            report = cluster.check()
            print(bool(report), report.findings, str(report).endswith("2 nodes: no problem\\n"))

        if __name__ == "__main__":
            with Cluster([NodeConfig("mr-a", 2), NodeConfig("mr-b", 2)]) as cluster:
                check()
                print(cluster.servers)
                cluster.start(work)
                cluster.broadcast("before")
                check()
                cluster.broadcast("after")
                print(cluster.gather(), cluster.gather(), [server.port for server in cluster.servers])
    """)
    assert printed.splitlines() == [
        "True [] True",
        "[]",
        "True [] True",
        f"{['before'] * 4} {['after'] * 4} [10000, 10000]",
    ]


def test_a_port_of_the_clusters_is_taken_before_it_starts(clinic: Clinic) -> None:
    with clinic.listener("mr-b", 10000):
        printed = clinic.run("""
            from miniray import Cluster, NodeConfig
            report = Cluster([NodeConfig("mr-b")]).check(ports=[])
            print(bool(report), [(finding.node, finding.check) for finding in report.findings])
        """)
    assert printed == "False [('mr-b', 'port')]\n"


@pytest.mark.parametrize("moment", ["as it starts", "as it calls"])
def test_ctrl_c_leaves_nothing(clinic: Clinic, moment: str) -> None:
    """The fixture looks for what is left. A firewall that drops keeps the hosts calling each other until then."""
    with clinic.firewall("mr-a", f"tcp dport {PORT} drop"):
        command = (*DOCTOR, "mr-a", "mr-b")
        child = clinic.testbed.popen(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=WHOLE_LINES
        )
        if moment == "as it starts":
            assert until(lambda: clinic.testbed.processes("mr-b"))
        else:
            assert until(lambda: clinic.listens_on("mr-b", PORT))
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=30)
    assert (child.returncode, out, errors) == (130, "", "")

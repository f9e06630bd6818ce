"""examples/verify_rollouts.py: every kind of candidate gets its verdict, and none outlives it."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hosts import Hosts, ended_with
from testbed import Process
from waiting import is_gone, until

VERDICTS = {
    "answers a lot": "refused: MessageTooLarge",
    "answers right": "passed",
    "answers wrong": "wrong answer",
    "crashes": "died by SIGABRT",
    "eats memory": "memory limit",
    "exits": "no answer",
    "has a syntax error": "raised SyntaxError",
    "has another name": "raised KeyError",
    "kills its verifier": "ended its verifier",
    "leaves a process behind": "passed",
    "never ends": "time limit",
    "prints a lot": "passed",
    "raises an exception": "raised ZeroDivisionError",
    "says that it passed": "wrong answer",
    "waits for ever": "time limit",
    "waits for processes": "time limit",
}
# The limits leave milliseconds of work ten seconds, and whoever takes more would take for ever.
SMALL = ("--candidates", "40", "--time-limit", "10", "--memory-limit-mib", "64")


def assert_verdicts(ended: subprocess.CompletedProcess[str], *first_lines: str) -> None:
    """This is all that was printed: a rate for each number of workers, then one verdict for each kind."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    for line, expected in zip(lines, first_lines, strict=False):
        assert re.fullmatch(expected + r": [\d,]+ verifications/minute", line)
    table = [line.split(maxsplit=1) for line in lines[len(first_lines) :]]
    assert [rest for _, rest in table] == [f"{kind:<25}{verdict}" for kind, verdict in VERDICTS.items()]
    assert sum(int(number) for number, _ in table) == 40
    assert all(int(number) >= 1 for number, _ in table)


def test_on_this_machine(root: Path) -> None:
    command = [sys.executable, root / "examples/verify_rollouts.py", *SMALL, "--workers", "6"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert_verdicts(ended, "6 workers on 1 nodes")


def test_on_two_hosts(hosts: Hosts, root: Path) -> None:
    words = ("mr-a", "mr-b", *SMALL, "--workers", "3")
    ended = hosts.testbed.run(sys.executable, root / "examples/verify_rollouts.py", *words, timeout=110)
    assert_verdicts(ended, "6 workers on 2 nodes")


def test_a_rate_for_each_number_of_workers(root: Path) -> None:
    command = [sys.executable, root / "examples/verify_rollouts.py", "--candidates", "2", "--workers", "1", "2"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True).stdout
    assert re.findall(r"(\d) workers on 1 nodes: [\d,]+ verifications", printed) == ["1", "2"]


def test_the_demo_shows_a_death_and_the_same_verdicts_on_two_servers(root: Path) -> None:
    command = [sys.executable, root / "examples/demo.py", "--candidates", "48", "--workers", "4", "--time-limit", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    one, pool, cluster = re.split(r"^Pool\(", ended.stdout, flags=re.MULTILINE)
    assert re.search(r"^  24 verdicts, \d+ a second. Program 25 crashes:\n  \| .*killed by SIGABRT", one, re.MULTILINE)
    assert re.search(r"^  \| worker \d+ .*killed by SIGKILL", pool, re.MULTILINE)
    assert "It was verifying a program that kills its verifier: import os; os.kill(os.getppid(), 9)\n" in pool
    assert re.findall(r"^ +\d+  (\w.{24})(\w.*)$", pool, re.MULTILINE) == [
        (f"{kind:<25}", verdict) for kind, verdict in VERDICTS.items()
    ]
    for part in (pool, cluster):
        assert "  48 verdicts in " in part
        lines = re.findall(r"^  worker \d+ +\|([ #+~]{64})\|$", part, re.MULTILINE)
        assert 4 <= len(lines) <= 5  # a worker that had no verdict before its death has no line
        assert any("~" in line for line in lines)
    assert cluster.endswith("  The same verdicts, 1 worker replaced.\n")


VERIFIER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import verify_rollouts
print(json.dumps([verify_rollouts.outcome(task) for task in json.load(sys.stdin)]))
"""


def task(source: str, time_limit_s: float) -> dict[str, Any]:
    return {"source": source, "questions": [1], "time_limit_s": time_limit_s, "memory_limit_bytes": 64 << 20}


def outcomes(root: Path, *sources: str) -> Any:
    """Of candidates that one process starts. Whoever prints in their place spoils it."""
    command = [sys.executable, "-c", VERIFIER, root / "examples"]
    tasks = json.dumps([task(source, time_limit_s=30) for source in sources])
    ended = subprocess.run(command, input=tasks, capture_output=True, text=True, timeout=110, check=False)
    assert ended.stderr == ""
    return json.loads(ended.stdout)


INTO_EVERY_DESCRIPTOR = """
import os
for number in range(3, 100):
    try:
        os.write(number, {!r})
    except OSError:
        pass
while True: pass
"""

TO_THE_LAST_BYTE = """
import sys
sys.hog, size, error = None, 1 << 20, MemoryError("x" * 50_000)
while size > 1:
    try:
        sys.hog = sys.hog, bytes(size)
    except MemoryError:
        size //= 2
raise error
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os; os.kill(os.getpid(), 9)", {"verdict": "died by SIGKILL"}),
        ("import os; os.killpg(0, 9)", {"verdict": "died by SIGKILL"}),
        ("import os; os._exit(0)", {"verdict": "exited with 0"}),
        ("raise SystemExit(3)", {"verdict": "exited with 3"}),
        ("raise TimeoutError", {"verdict": "raised TimeoutError"}),
        ("raise type('X\\n1 passed', (Exception,), {})", {"verdict": r"raised candidate.X\n1 passed"}),
        ("def f(): f()\nf()", {"verdict": "raised RecursionError"}),
        ("def solve(n): return {n}", {"verdict": "raised TypeError"}),
        ("class One(int):\n    def __eq__(self, other): return True\ndef solve(n): return One(7)", {"answers": "[7]"}),
        (TO_THE_LAST_BYTE, {"verdict": "memory limit"}),
        ("def solve(n): return bytes(1 << 30)", {"verdict": "memory limit"}),
        (INTO_EVERY_DESCRIPTOR.format(b"passed" * 100), {"verdict": "refused: ProtocolError"}),
        (INTO_EVERY_DESCRIPTOR.format(b"MR\x02" + bytes(13)), {"verdict": "no answer"}),
    ],
)  # fmt: skip
def test_a_hostile_candidate(root: Path, source: str, expected: dict[str, str]) -> None:
    assert outcomes(root, source, "def solve(n): return n + 1") == [expected, {"answers": "[2]"}]


def test_what_a_candidate_prints_is_not_ours(root: Path) -> None:
    source = "import os, sys; print(1); print(2, file=sys.stderr); os.system('echo 3'); os.abort()"
    assert outcomes(root, source) == [{"verdict": "died by SIGABRT"}]


WITH_CHILDREN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.fork()
        break
with open({!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
while True: pass
"""


@pytest.fixture
def example(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(root / "examples")
    return importlib.import_module("verify_rollouts")


def test_a_runaway_candidate_leaves_no_process_behind(example: ModuleType, tmp_path: Path) -> None:
    pids: list[str] = []
    for time_limit_s in (0.25, 1, 4, 16):  # until all of them had the time to begin
        file = tmp_path / str(time_limit_s)
        runaway = task(WITH_CHILDREN.format(str(file)), time_limit_s)
        assert example.outcome(runaway) == {"verdict": "time limit"}
        pids = file.read_text().split() if file.exists() else []
        assert until(lambda: all(is_gone(int(pid)) for pid in pids))  # noqa: B023 (called at once)
        if len(pids) == 7:
            break
    assert len(set(pids)) == 7


COORDINATOR = """
    import sys
    import verify_rollouts
    from miniray import Cluster, NodeConfig, Pool

    nodes = [NodeConfig("mr-a", 1, base_port=0), NodeConfig("mr-b", 1, base_port=0)]
    with Cluster(nodes) as cluster, Pool(cluster) as pool:
        print("up")
        sys.stdin.readline()
        wanted = ("leaves a process behind", "waits for processes", "never ends", "answers right")
        sources = [source for _, kind, source in verify_rollouts.ROLLOUTS if kind in wanted]
        limits = {"time_limit_s": 5, "memory_limit_bytes": 64 << 20}
        print(sorted(verify_rollouts.verify(pool, 2 * sources, limits, [0, 1, 10, 95])))
        sys.stdin.readline()
"""


def test_nothing_is_left_beside_a_verifier_that_lives(hosts: Hosts, root: Path) -> None:
    """Not even before the end of the cluster, which would end it."""

    def running() -> dict[str, list[Process]]:
        return {name: hosts.testbed.processes(name) for name in ("mr-a", "mr-b")}

    shutil.copy(root / "examples/verify_rollouts.py", hosts.folder)
    coordinator = hosts.start(COORDINATOR)
    assert coordinator.stdin is not None
    assert coordinator.stdout is not None
    assert coordinator.stdout.readline() == "up\n"
    before = running()
    assert all(before.values())
    coordinator.stdin.write("\n")
    coordinator.stdin.flush()
    assert coordinator.stdout.readline() == f"{['passed'] * 4 + ['time limit'] * 4}\n"
    assert until(lambda: running() == before), running()
    assert ended_with(coordinator) == ("", "")

"""The examples and the benchmarks run, small, so that none rots."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from seed_parts import MATRIX_WORKER, SEND_AND_COLLECT
from testbed import Testbed


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_matmul(root: Path) -> None:
    printed = run(sys.executable, root / "examples/matmul.py", "--pairs", "6", "--size", "40", "--workers", "3")
    assert "Computed 6 matrix products of 40x40 with 3 workers" in printed
    assert "one process" in printed


def test_calls(root: Path) -> None:
    printed = run(sys.executable, root / "examples/calls.py", "--numbers", "50", "--workers", "2")
    assert "can't multiply sequence by non-int of type 'str'" in printed
    assert ", in square\n" in printed
    assert printed.endswith("The sum of 50 squares is 40425, and 40425 one after the other.\n")


@pytest.mark.parametrize("nodes", [[], ["localhost"]])
def test_pool(root: Path, nodes: list[str]) -> None:
    printed = run(sys.executable, root / "examples/pool.py", *nodes, "--tasks", "20", "--samples", "1000")
    assert re.match(r"pi is about 3\.\d+: 20 tasks on 2 workers, ", printed)
    assert re.findall(r"^(\w+): (\w+): ", printed, re.MULTILINE) == [
        ("raise", "ValueError"),
        ("crash", "WorkerDied"),
        ("hang", "TaskTimeout"),
    ]
    assert re.findall(r"^(task_\w+): ", printed, re.MULTILINE) == ["task_retried", "task_timeout"]


SEED_LOCAL = (
    """
from miniray import Worker
import numpy as np
"""
    + MATRIX_WORKER
    + """
# 2. Spawn local workers (os.fork + socketpair)
workers = [Worker(matrix_worker) for _ in range(8)]

# 3. Generate work
matrices = [(np.random.rand(SIZE, SIZE), np.random.rand(SIZE, SIZE))
            for _ in range(PAIRS)]

# 4. Distribute work
"""
    + SEND_AND_COLLECT
    + """    worker.wait()
"""
)


def test_the_first_local_example_runs_as_it_was_written(tmp_path: Path) -> None:
    """Every matrix is sent before any result is received, and both directions hold more than the sockets do."""
    script = tmp_path / "seed.py"
    script.write_text(SEED_LOCAL.replace("SIZE", "300").replace("PAIRS", "100"))
    assert run(sys.executable, script) == "Computed 100 matrix products\n"


@pytest.mark.skipif(Testbed.available() is not None, reason=f"no testbed: {Testbed.available()}")
@pytest.mark.parametrize("name", ["cluster_bench.py", "training_bench.py"])
def test_the_benchmarks_on_ssh_hosts_run(root: Path, name: str) -> None:
    printed = run(sys.executable, root / "bench" / name, "--quick")
    assert printed.count("| yes |") + printed.count("| **no** |") >= 3


def test_the_benchmark_of_pools_runs(root: Path) -> None:
    printed = run(sys.executable, root / "bench/pool_bench.py", "--quick")
    assert sum(printed.count(f"| {verdict}") for verdict in ("yes |", "**no** |", "unknown: ")) == 29


def test_the_benchmark_runs(root: Path) -> None:
    printed = run(sys.executable, root / "bench/run.py", "--quick")
    assert textwrap.dedent(printed).count("| raw ") >= 8

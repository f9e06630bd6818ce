"""Compares training groups with torchrun, on real ssh hosts, and writes the table to bench/results/training.md.

    python bench/training_bench.py [--rounds 7] [--quick]

The hosts are network namespaces of this machine, each with an sshd (tests/testbed.py), so this needs root. The two
sides of a row take turns, and their medians are compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from cluster_bench import print_table, verdict  # noqa: E402
from testbed import Testbed  # noqa: E402

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--master-port", "29600"]

# torchrun and MiniRay run the same script: four ranks, one all-reduce.
START = """
import os, sys, time
import torch
import torch.distributed as dist
from miniray import Cluster, NCCLConfig, NodeConfig, setup_nccl_env

def all_reduce():
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == 4

def work(handle):
    setup_nccl_env(NCCLConfig(**handle.recv()))
    all_reduce()
    handle.send({"status": "ready"})

if __name__ == "__main__" and "RANK" in os.environ:
    all_reduce()
    if os.environ["RANK"] == "0":
        print(time.time() - float(sys.argv[1]))
    dist.destroy_process_group()
elif __name__ == "__main__":
    start = time.perf_counter()
    with Cluster([NodeConfig(host, num_workers=2) for host in sys.argv[1:]], progress=False) as cluster:
        cluster.training_group(cluster.start(work), progress=False)
        print(time.perf_counter() - start)
"""

# The same step is driven by messages, and by torchrun's own loop.
STEP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn import Linear, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel
from miniray import Cluster, NCCLConfig, NodeConfig, setup_nccl_env

WIDTH, BATCH, STEPS = 1024, 64, 5

def make_step():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = Sequential(Linear(WIDTH, WIDTH), ReLU(), Linear(WIDTH, WIDTH), ReLU(), Linear(WIDTH, WIDTH))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    def step(batch):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step

def work(handle):
    setup_nccl_env(NCCLConfig(**handle.recv()))
    step = make_step()
    handle.send({"status": "ready"})
    while True:
        msg = handle.recv()
        if msg["cmd"] == "shutdown":
            break
        handle.send({"loss": step(msg["batch"])})

def torchrun_rank(go, done):
    step = make_step()
    batch = torch.ones(BATCH, WIDTH)
    rank = dist.get_rank()
    orders = open(go) if rank == 0 else None
    more = torch.ones(1)
    while True:
        if rank == 0:
            more.fill_(1 if orders.readline() else 0)
        dist.broadcast(more, 0)
        if more.item() == 0:
            break
        start = time.perf_counter()
        for _ in range(STEPS):
            step(batch)
        if rank == 0:
            with open(done, "w") as answers:
                print((time.perf_counter() - start) / STEPS, file=answers)
    dist.destroy_process_group()

def by_turns(go, done, rounds):
    batch = torch.ones(2 * BATCH, WIDTH)
    with Cluster([NodeConfig("localhost", 2, base_port=0)], progress=False) as cluster:
        group = cluster.training_group(cluster.start(work), progress=False)
        orders = open(go, "w")
        for round in range(rounds + 2):
            print("go", file=orders, flush=True)
            with open(done) as answers:
                theirs = float(answers.read())
            start = time.perf_counter()
            for _ in range(STEPS):
                group.scatter([{"cmd": "step", "batch": shard} for shard in batch.chunk(2)])
                group.gather()
            ours = (time.perf_counter() - start) / STEPS
            if round >= 2:
                print(ours, theirs, flush=True)
        group.broadcast({"cmd": "shutdown"})

if __name__ == "__main__":
    torchrun_rank(*sys.argv[1:]) if "RANK" in os.environ else by_turns(*sys.argv[1:3], int(sys.argv[3]))
"""

DEATH = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from miniray import Cluster, GroupError, NCCLConfig, NodeConfig, setup_nccl_env

def work(handle):
    setup_nccl_env(NCCLConfig(**handle.recv()))
    dist.init_process_group("gloo")
    handle.send({"status": "ready"})
    handle.recv()
    while True:  # this step does not end while all ranks live
        dist.all_reduce(torch.ones(1 << 20))

if __name__ == "__main__":
    with Cluster([NodeConfig(host, num_workers=2) for host in sys.argv[1:]], progress=False) as cluster:
        group = cluster.training_group(cluster.start(work), progress=False)
        group.broadcast({})
        time.sleep(0.5)
        start = time.perf_counter()
        os.kill(group[2].pid, signal.SIGKILL)
        try:
            group.gather()
        except GroupError as error:
            took = time.perf_counter() - start
            assert error.rank == 2 and "SIGKILL" in str(error), error
        for worker in group:
            worker.wait(timeout=10)
        print(took, time.perf_counter() - start)
"""


def numbers(testbed: Testbed, *command: str | Path) -> list[float]:
    """The numbers of the last line that it printed. torch may print other lines before."""
    done = testbed.run(*command, timeout=120)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def torchrun_start(testbed: Testbed, script: Path) -> float:
    words = [*TORCHRUN, "--nproc-per-node", "4", script, str(time.time())]
    return numbers(testbed, "ssh", "mr-a", "env", "OMP_NUM_THREADS=1", *map(str, words))[0]


def start_row(folder: Path, rounds: int) -> str:
    ours, theirs = [], []
    with Testbed(folder, ["mr-a", "mr-b"]) as testbed:
        script = testbed.hosts["mr-a"].home / "start.py"  # ssh logs in there
        script.write_text(START)
        for _ in range(rounds):
            theirs.append(torchrun_start(testbed, script))
            ours += numbers(testbed, sys.executable, script, "mr-a", "mr-b")
    a, b = statistics.median(ours), statistics.median(theirs)
    return (
        f"| from `Cluster.start` to the first all-reduce of 4 ranks on 2 ssh hosts | {a:.2f} s "
        f"| `torchrun`, 4 ranks on one host: {b:.2f} s | {a / b:.2f}x ({min(ours) / b:.2f} to {max(ours) / b:.2f}) "
        f"| 1.25x | {verdict(a / b <= 1.25)} |"
    )


def step_row(script: Path, folder: Path, rounds: int) -> str:
    go, done = folder / "go", folder / "done"
    for pipe in (go, done):
        os.mkfifo(pipe)
    words = [*TORCHRUN, "--log-dir", folder / "logs", "--nproc-per-node", "2", script, go, done]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(list(map(str, words)), env=environment) as torchrun:
        turns = [sys.executable, script, go, done, str(rounds)]
        printed = subprocess.run(turns, capture_output=True, text=True, check=False)
        if printed.returncode != 0:
            torchrun.terminate()
            sys.exit(printed.stdout + printed.stderr)
    pairs = [tuple(map(float, line.split())) for line in printed.stdout.splitlines()]
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    return (
        f"| a DDP step of 2 ranks, driven by messages | {a * 1000:.1f} ms | `torchrun`'s loop: {b * 1000:.1f} ms "
        f"| {statistics.median(ratios):.3f}x (half of them {low:.3f} to {high:.3f}) | 1.02x "
        f"| {verdict(statistics.median(ratios) <= 1.02)} |"
    )


def death_row(folder: Path, script: Path, rounds: int) -> str:
    known, gone = [], []
    with Testbed(folder, ["mr-a", "mr-b"]) as testbed:
        for _ in range(rounds):
            first, second = numbers(testbed, sys.executable, script, "mr-a", "mr-b")
            known.append(first)
            gone.append(second)
    a = statistics.median(known)
    return (
        f"| a rank is killed in the middle of a step: known which, and why | {a:.2f} s (at most {max(known):.2f}) "
        f"| the other 3 have ended after {statistics.median(gone):.2f} s | | 2 s | {verdict(max(known) <= 2)} |"
    )


def training_rows(folder: Path, rounds: int, quick: bool) -> list[Callable[[], str]]:
    step, death = folder / "step.py", folder / "death.py"
    step.write_text(STEP)
    death.write_text(DEATH)
    return [
        lambda: start_row(folder, rounds),
        lambda: step_row(step, folder, 10 * rounds),
        lambda: death_row(folder, death, rounds),
    ]


if __name__ == "__main__":
    remark = "Ranks use Gloo on CPUs. The row about a step has ten times as many rounds. "
    print_table("training", "Training groups compared with torchrun", remark, training_rows)

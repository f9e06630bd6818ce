"""Training groups on real ssh hosts: the seeds' own snippets, and torch's Gloo through cluster.training_group."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts
from seed_parts import FSDP_BACKEND

torch = pytest.importorskip("torch")

TORCH_TALKS = "[c10d] The hostname of the client socket cannot be retrieved"  # there is no name server
PATIENCE_S = 100.0  # of what takes a few seconds on a machine that is not busy

SEED_000_WORK = (
    """
    from parts import *
    from miniray import Cluster, NodeConfig, Worker, NCCLConfig, setup_nccl_env
    import torch.distributed as dist

    # 1. Define work function (runs on each GPU)
    def training_work_fn(handle):
        \"\"\"This runs in each worker process.\"\"\"
        # Receive NCCL config from coordinator
        config = NCCLConfig(**handle.recv())
        setup_nccl_env(config)

        # Initialize torch.distributed
        dist.init_process_group(backend="gloo", init_method="env://")

        # Create FSDP model
"""
    + FSDP_BACKEND
    + """
        # Message loop
        handle.send({"status": "ready"})

        while True:
            msg = handle.recv()

            if msg["cmd"] == "forward_backward":
                # Training step
                batch = msg["batch"]
                metrics = backend.forward_backward(batch)
                handle.send(metrics)

            elif msg["cmd"] == "optim_step":
                metrics = backend.optim_step()
                handle.send(metrics)

            elif msg["cmd"] == "shutdown":
                break

    actor_training_work_fn = critic_training_work_fn = training_work_fn
"""
)

SEED_000 = """
    num_steps = 3
    def generate_rollouts(prompts):
        return [[1.0, 2.0, 3.0, 4.0], [0.5, 0.0, -0.5, 1.0]]
    def avg(metrics):
        return sum(m["loss"] for m in metrics) / len(metrics)

    from miniray import Cluster, NodeConfig
    # 2. Launch cluster
    cluster = Cluster(nodes=[
        NodeConfig("10.77.0.11", num_workers=4),  # Node 1: 4 GPUs
        NodeConfig("10.77.0.12", num_workers=4),  # Node 2: 4 GPUs
    ])

    # Start workers (SSH + TCP)
    actor_workers = cluster.start(work_fn="module.actor_training_work_fn")
    critic_workers = cluster.start(work_fn="module.critic_training_work_fn")

    # 3. Send NCCL configs
    from miniray import create_nccl_configs

    actor_configs = create_nccl_configs(
        master_addr="10.77.0.11",
        nodes=[("node1", 4), ("node2", 4)],
        master_port=29500,
    )
    critic_configs = create_nccl_configs(
        master_addr="10.77.0.11",
        nodes=[("node1", 4), ("node2", 4)],
        master_port=29501,  # Different port!
    )

    for worker, config in zip(actor_workers, actor_configs):
        worker.send(config.__dict__)
    for worker, config in zip(critic_workers, critic_configs):
        worker.send(config.__dict__)

    # Wait for ready
    for worker in actor_workers + critic_workers:
        status = worker.recv()
        assert status["status"] == "ready"

    # 4. Training loop
    for step in range(num_steps):
        # Generate rollouts
        batch = generate_rollouts(...)

        # Send to all workers (explicit!)
        for worker in actor_workers:
            worker.send({"cmd": "forward_backward", "batch": batch})
        for worker in critic_workers:
            worker.send({"cmd": "forward_backward", "batch": batch})

        # Collect metrics
        actor_metrics = [w.recv() for w in actor_workers]
        critic_metrics = [w.recv() for w in critic_workers]

        # Optimizer step
        for worker in actor_workers + critic_workers:
            worker.send({"cmd": "optim_step"})

        opt_metrics = [w.recv() for w in actor_workers + critic_workers]

        print(f"Step {step}: actor_loss={avg(actor_metrics)}, critic_loss={avg(critic_metrics)}")

    # 5. Cleanup
    cluster.stop()
    assert opt_metrics == opt_metrics[:1] * 16, opt_metrics
"""

SEED_001_WORK = (
    """
    from parts import *
    from miniray import NCCLConfig, setup_nccl_env

    def training_work_fn(handle):
        \"\"\"Training worker for distributed FSDP.\"\"\"
        # 1. Receive NCCL config
        config = NCCLConfig(**handle.recv())
        setup_nccl_env(config)

        # 2. Initialize torch.distributed
        dist.init_process_group(backend="gloo", init_method="env://")

        # 3. Create FSDP backend
"""
    + FSDP_BACKEND
    + """
        # 4. Training loop
        handle.send({"status": "ready"})

        while True:
            msg = handle.recv()

            if msg["cmd"] == "forward_backward":
                metrics = backend.forward_backward(msg["batch"])
                handle.send(metrics)

            elif msg["cmd"] == "optim_step":
                metrics = backend.optim_step()
                handle.send(metrics)

            elif msg["cmd"] == "shutdown":
                break
"""
)

SEED_001 = """
    import asyncio
    from miniray import Cluster, NodeConfig, create_nccl_configs
    num_steps, batch = 3, [[1.0, 2.0, 3.0, 4.0]]

    async def main():
        # 1. Define cluster
        cluster = Cluster(nodes=[
            NodeConfig("10.77.0.11", num_workers=4),
            NodeConfig("10.77.0.12", num_workers=4),
        ])

        # 2. Launch workers
        workers = cluster.start(work_fn="my_module.training_work_fn")

        # 3. Send NCCL configs
        nccl_configs = create_nccl_configs(
            master_addr="10.77.0.11",
            nodes=[("node1", 4), ("node2", 4)],
        )

        for worker, config in zip(workers, nccl_configs):
            worker.send(config.__dict__)

        # Wait for ready
        for worker in workers:
            assert worker.recv()["status"] == "ready"

        # 4. Training loop
        for step in range(num_steps):
            # Forward/backward
            for worker in workers:
                worker.send({"cmd": "forward_backward", "batch": batch})

            metrics = [worker.recv() for worker in workers]
            avg_loss = sum(m["loss"] for m in metrics) / len(metrics)

            # Optimizer step
            for worker in workers:
                worker.send({"cmd": "optim_step"})

            opt_metrics = [worker.recv() for worker in workers]

            print(f"Step {step}: loss={avg_loss:.4f}")

        # 5. Cleanup
        cluster.stop()

    asyncio.run(main())
"""

# A rank of a Gloo group, which answers with what an expression is there.
GLOO = """
    import json, os, socket, sys, time
    from miniray import Cluster, NCCLConfig, NodeConfig, setup_nccl_env
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)

    def all_reduce(number):
        tensor = torch.tensor([number])
        dist.all_reduce(tensor)
        return tensor.item()

    def rank(handle):
        config = NCCLConfig(**handle.recv())
        setup_nccl_env(config)
        dist.init_process_group(backend="gloo", init_method="env://")
        handle.send({"status": "ready"})
        while True:
            handle.send(eval(handle.recv(), globals(), {"config": config}))
"""


@pytest.fixture
def parts(root: Path) -> dict[str, str]:
    """The files beside a seed's script."""
    text = (root / "tests/training_parts.py").read_text()
    backend = {"rollouts/training/backends/fsdp.py": "from parts import FSDPTrainingBackend\n"}
    return {"parts.py": text, "rollouts/__init__.py": "", **backend}


def train(hosts: Hosts, text: str, *arguments: str, **options: Any) -> str:
    """What a script printed that ended well, and its workers but for torch; some take long enough to be mentioned."""
    ended = hosts.ends(text, *arguments, timeout=PATIENCE_S, **options)
    complaints = [line for line in ended.stderr.splitlines() if " ready after " not in line and TORCH_TALKS not in line]
    assert (ended.returncode, complaints) == (0, []), ended.stderr + ended.stdout
    return "".join(line for line in ended.stdout.splitlines(keepends=True) if TORCH_TALKS not in line)


def call_hosts(hosts: Hosts, entries: dict[str, str]) -> None:
    """Each host gets an /etc/hosts of its own."""
    for name, text in entries.items():
        file = hosts.testbed.hosts[name].folder / "hosts"
        file.write_text("127.0.0.1 localhost\n" + text)
        hosts.testbed.run("ssh", name, f"mount --bind {file} /etc/hosts").check_returncode()


def forget_names(hosts: Hosts) -> None:
    for name in hosts.testbed.hosts:
        hosts.testbed.run("ssh", name, "umount /etc/hosts").check_returncode()


@pytest.fixture
def named_hosts(hosts: Hosts) -> Iterator[Hosts]:
    """Each knows the others, and itself, by name; as Gloo would have it."""
    listed = "".join(f"{host.address} {host.name}\n" for host in hosts.testbed.hosts.values())
    call_hosts(hosts, dict.fromkeys(hosts.testbed.hosts, listed))
    yield hosts
    forget_names(hosts)


@pytest.fixture
def hosts_of_loopback(hosts: Hosts) -> Iterator[Hosts]:
    """Each takes its own name for a loopback address, as Debian's installer writes it."""
    call_hosts(hosts, {name: f"127.0.1.1 {name}\n" for name in hosts.testbed.hosts})
    yield hosts
    forget_names(hosts)


# --- As the seeds have it ---------------------------------------------------------------------------------------------
def test_actor_and_critic_of_seed_000(named_hosts: Hosts, parts: dict[str, str]) -> None:
    printed = train(named_hosts, SEED_000, files={**parts, "module.py": SEED_000_WORK})
    found = re.findall(r"^Step (\d): actor_loss=(\d+\.\d+), critic_loss=(\d+\.\d+)$", printed, re.MULTILINE)
    assert [step for step, *_ in found] == ["0", "1", "2"]
    for _, actor, critic in found:
        assert actor == critic  # the same model and the same batch, in groups of their own


def test_fsdp_training_of_seed_001(named_hosts: Hosts, parts: dict[str, str]) -> None:
    printed = train(named_hosts, SEED_001, files={**parts, "my_module.py": SEED_001_WORK})
    assert re.fullmatch(r"(Step \d: loss=\d+\.\d{4}\n){3}", printed)


# --- cluster.training_group with torch --------------------------------------------------------------------------------
@pytest.mark.parametrize("names", [["mr-a", "mr-b"], ["mr-c", "mr-a", "mr-b"]])
def test_all_reduce_on_several_hosts(hosts: Hosts, names: list[str]) -> None:
    script = f"""{GLOO}
    nodes = [NodeConfig(name, 2, base_port=0) for name in sys.argv[1:]]
    with Cluster(nodes) as cluster:
        groups = [cluster.training_group(cluster.start(rank, num_workers=number)) for number in (2, 1)]
        for group in groups:  # both compute at the same time
            group.broadcast("[config.rank, config.local_rank, socket.gethostname(), all_reduce(10 ** config.rank)]")
        print(json.dumps([[config.__dict__ for config in group.configs] for group in groups]))
        print(json.dumps([group.gather() for group in groups]))
        group.scatter(["all_reduce(config.rank)"] * len(names := sys.argv[1:]))
        print(json.dumps(group.gather()))
    """
    lines = [json.loads(line) for line in train(hosts, script, *names).splitlines()]
    [configs, others], [seen, seen_by_others], last = lines
    size = 2 * len(names)
    assert [config["rank"] for config in configs] == list(range(size))
    assert {config["world_size"] for config in configs} == {size}
    assert seen == [[rank, rank % 2, names[rank // 2], int("1" * size)] for rank in range(size)]
    assert seen_by_others == [[rank, 0, name, int("1" * len(names))] for rank, name in enumerate(names)]
    addresses = {config["master_addr"] for config in configs + others}
    assert addresses == {hosts.testbed.hosts[names[0]].address}
    assert ({config["master_port"] for config in configs}, {config["master_port"] for config in others}) == (
        {29500},
        {29501},
    )
    assert last == [sum(range(len(names)))] * len(names)


def test_hosts_whose_own_name_means_loopback(hosts_of_loopback: Hosts) -> None:
    script = f"""{GLOO}
    with Cluster([NodeConfig(name, 1, base_port=0) for name in ("mr-a", "mr-b")]) as cluster:
        workers = cluster.start(rank)
        group = cluster.training_group(workers)
        group.broadcast("[socket.gethostbyname(socket.gethostname()), config.interface, all_reduce(config.rank + 1)]")
        print(json.dumps(group.gather()))
    """
    assert json.loads(train(hosts_of_loopback, script)) == [["127.0.1.1", "eth0", 3]] * 2


def test_hosts_that_know_their_names_need_no_interface(named_hosts: Hosts) -> None:
    script = f"""{GLOO}
    with Cluster([NodeConfig(name, 1, base_port=0) for name in ("mr-a", "mr-b")]) as cluster:
        group = cluster.training_group(cluster.start(rank))
        group.broadcast("[config.interface, all_reduce(config.rank + 1)]")
        print(json.dumps(group.gather()))
    """
    assert json.loads(train(named_hosts, script)) == [[None, 3]] * 2

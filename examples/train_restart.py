"""A training run that loses a rank, restarts, and ends with the same loss as without the death.

    python examples/train_restart.py [node1 node2 ...] [--workers 2] [--steps 20] [--save-every 5] [--kill-at 13]

All ranks restart from the last checkpoint and meet at another port. Run the script with --kill-at 0 and compare: the
last loss is the same to the last bit. A node is a host name that ssh knows; without nodes, the script starts two
servers on this machine.
"""

import argparse

import torch
import torch.distributed as dist
from language_model import Transformer, sentences
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import get_state, own_device, set_state

from miniray import Cluster, NCCLConfig, NodeConfig, RestartPolicy, setup_nccl_env


def training_work_fn(handle):
    """One rank. It averages the gradients itself. DistributedDataParallel regroups them after its first step, so sums
    of more than two ranks would be rounded differently in a run that was restarted."""
    setup_nccl_env(NCCLConfig(**handle.recv()))
    device = own_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    handle.send({"status": "ready"})

    while (msg := handle.recv())["cmd"] != "shutdown":
        if msg["cmd"] == "step":
            optimizer.zero_grad()
            loss = model(msg["batch"].to(device))
            loss.backward()
            gradients = parameters_to_vector(weight.grad for weight in model.parameters())
            dist.all_reduce(gradients)
            vector_to_parameters(gradients / dist.get_world_size(), [weight.grad for weight in model.parameters()])
            optimizer.step()
            handle.send({"loss": loss.item()})
        elif msg["cmd"] == "save":
            handle.send(get_state(model, optimizer) if dist.get_rank() == 0 else None)
        elif msg["cmd"] == "load":
            set_state(model, optimizer, msg["state"])
            handle.send({"status": "loaded"})

    dist.destroy_process_group()


def train(cluster, steps, save_every, before_step, **options):
    """Return the last loss. The coordinator keeps the checkpoint in memory; training.py keeps it in a file."""
    checkpoint = {"step": 0}

    # MiniRay calls this once for the first group, and once for each group that replaces one that lost a rank.
    def drive(group):
        nonlocal checkpoint
        if checkpoint["step"] > 0:
            group.broadcast({"cmd": "load", "state": checkpoint["state"]})
            group.gather()
        for step in range(checkpoint["step"] + 1, steps + 1):
            before_step(group, step)
            shares = sentences(step).chunk(len(group))
            group.scatter([{"cmd": "step", "batch": share} for share in shares])
            loss = sum(metrics["loss"] for metrics in group.gather()) / len(group)
            print(f"attempt {group.attempt}, step {step}: loss {loss:.6f}", flush=True)
            if step % save_every == 0:
                group.broadcast({"cmd": "save"})
                checkpoint = {"step": step, "state": group.gather()[0]}
        group.broadcast({"cmd": "shutdown"})
        return loss

    return cluster.run_group(training_work_fn, drive, **options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*", default=["localhost", "localhost"])
    parser.add_argument("--workers", type=int, default=2, help="workers on each node")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5, metavar="STEPS")
    parser.add_argument("--kill-at", type=int, default=13, metavar="STEP", help="kill a rank before it; 0: never")
    parser.add_argument("--events", metavar="FILE", help="append the events to this file, one JSON object per line")
    arguments = parser.parse_args()

    def kill_a_rank(group, step):
        if step == arguments.kill_at and group.attempt == 0:
            group[-1].kill()

    nodes = [NodeConfig(host, arguments.workers, base_port=0, gpus_per_worker=1) for host in arguments.nodes]
    with Cluster(nodes) as cluster:
        if arguments.events:
            cluster.events.write_to(arguments.events)
        policy = RestartPolicy(max_restarts=3, window_s=600, other_nodes=True)
        loss = train(cluster, arguments.steps, arguments.save_every, kill_a_rank, restart=policy)
        for event in cluster.events:
            print(f"{event.kind}: {event.text.splitlines()[0]}")
        print(f"the last loss: {loss:.6f} ({loss.hex()})")

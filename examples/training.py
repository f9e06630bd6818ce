"""Code that train_ddp.py and train_fsdp.py share: the message loop of a rank, the state of a training, and the
coordinator."""

import argparse
import hashlib
import os

import torch
from language_model import BATCH, LOSS_MIN, sentences
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from miniray import Cluster, NodeConfig


# --- In the workers ---------------------------------------------------------------------------------------------------
def own_device():
    """Return the worker's own GPU, which is the first that it sees; without a GPU, one core of the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    torch.set_num_threads(1)  # the machine's other cores are for its other workers
    return torch.device("cpu")


# All ranks call these functions together. The state has whole weights under their names, however the ranks share them.
# FSDP can therefore load what DDP saved, and another number of ranks can load it too.
def get_state(model, optimizer):
    """Return, on rank 0, everything that is needed to continue, in main memory; nothing on other ranks."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    of_model, of_optimizer = get_state_dict(model, optimizer, options=options)
    return {"model": of_model, "optimizer": of_optimizer}


def set_state(model, optimizer, state):
    """Load the state. Every rank gets the whole state and takes its own part."""
    states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
    set_state_dict(model, optimizer, **states, options=StateDictOptions(full_state_dict=True))


def weights_digest(model):
    """Return a hash that is equal on two ranks if all weights are equal to the last bit."""
    digest = hashlib.sha256()
    for name, weight in get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)).items():
        digest.update(name.encode() + weight.cpu().numpy().tobytes())
    return digest.hexdigest()


def answer_orders(handle, model, optimizer, device):
    """One rank's message loop: do what the coordinator orders, until it orders the end."""
    handle.send({"status": "ready"})

    while True:
        msg = handle.recv()

        if msg["cmd"] == "forward_backward":  # gradients are averaged over ranks, and add up until optim_step
            loss = model(msg["batch"].to(device))
            loss.backward()
            handle.send({"loss": loss.item()})

        elif msg["cmd"] == "optim_step":
            norm = clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            handle.send({"gradient_norm": (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()})

        elif msg["cmd"] == "save":
            handle.send(get_state(model, optimizer))

        elif msg["cmd"] == "load":
            set_state(model, optimizer, msg["state"])
            handle.send({"status": "loaded"})

        elif msg["cmd"] == "digest":
            handle.send({"digest": weights_digest(model)})

        elif msg["cmd"] == "shutdown":
            break


# --- The coordinator --------------------------------------------------------------------------------------------------
def parse_options(description, checkpoint):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("nodes", nargs="*", default=["localhost", "localhost"])
    parser.add_argument("--workers", type=int, default=2, help="workers on each node")
    parser.add_argument("--gpus-per-worker", type=int, default=1, help="nodes without GPUs use the CPU")
    parser.add_argument("--steps", type=int, default=50, help="number of steps in this run")
    parser.add_argument("--checkpoint", default=checkpoint, help="a file on this machine")
    parser.add_argument("--save-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    return parser.parse_args()


def train(work_fn, options):
    # 1. Define the cluster. Port 0 means any free port.
    node = {"num_workers": options.workers, "gpus_per_worker": options.gpus_per_worker, "base_port": 0}
    nodes = [NodeConfig(host, **node) for host in options.nodes]
    ranks = options.workers * len(nodes)
    if BATCH % ranks != 0:
        raise SystemExit(f"{BATCH} sentences, the batch of a step, cannot be divided evenly among {ranks} workers")
    checkpoint = torch.load(options.checkpoint) if options.resume else {"step": 0}

    with Cluster(nodes) as cluster:
        # 2. Launch the workers, send each its rank and the address where they meet, and wait until all are ready
        group = cluster.training_group(cluster.start(work_fn))

        if options.resume:
            group.broadcast({"cmd": "load", "state": checkpoint["state"]})  # to each node once
            group.gather()

        # 3. Training loop
        last = checkpoint["step"] + options.steps
        for step in range(checkpoint["step"] + 1, last + 1):
            # Forward/backward, each rank with its share of the batch
            shares = sentences(step).chunk(ranks)
            group.scatter([{"cmd": "forward_backward", "batch": share} for share in shares])
            loss = sum(metrics["loss"] for metrics in group.gather()) / ranks

            # Optimizer step
            group.broadcast({"cmd": "optim_step"})
            norm = group.gather()[0]["gradient_norm"]
            print(f"step {step}: loss {loss:.6f}, gradient {norm:.4f}", flush=True)

            if step % options.save_every == 0 or step == last:
                group.broadcast({"cmd": "save"})
                save({"step": step, "state": group.gather()[0]}, options.checkpoint)
                print(f"step {step}: saved {options.checkpoint}", flush=True)

        # 4. Check that all ranks have the same weights
        group.broadcast({"cmd": "digest"})
        digests = [answer["digest"][:16] for answer in group.gather()]
        print(f"weights of the ranks: {' '.join(digests)}")
        if len(set(digests)) != 1:
            raise SystemExit("the ranks have drifted apart")
        print(f"No model of this language gets below a loss of {LOSS_MIN:.4f}")

        # 5. Cleanup
        group.broadcast({"cmd": "shutdown"})


def save(checkpoint, path):
    """Write the checkpoint. The state arrives as a message and is written here, so nodes need no shared file system.
    The new file replaces the old one atomically: if this program is killed, one of the two files is complete."""
    torch.save(checkpoint, f"{path}.new")
    os.replace(f"{path}.new", path)

"""What train_ddp.py and train_fsdp.py share: the state of a training, whole and by name, and the coordinator."""

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

from miniray import Cluster, NodeConfig


# --- In the workers ---------------------------------------------------------------------------------------------------
def own_device():
    """The worker's own GPU, the first of those that it sees; or else one core of the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    torch.set_num_threads(1)  # the machine's other cores are for its other workers
    return torch.device("cpu")


# All ranks call these together. The state is whole, and by the names of the weights, however they are distributed: what
# DDP saved FSDP can load, and so can another number of ranks.
def get_state(model, optimizer):
    """On rank 0 all that is needed to go on, in main memory; nothing on the others."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    of_model, of_optimizer = get_state_dict(model, optimizer, options=options)
    return {"model": of_model, "optimizer": of_optimizer}


def set_state(model, optimizer, state):
    """Every rank is given the whole state, and takes what is its own."""
    states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
    set_state_dict(model, optimizer, **states, options=StateDictOptions(full_state_dict=True))


def weights_digest(model):
    """The same on two ranks if all weights are, to the last bit."""
    digest = hashlib.sha256()
    for name, weight in get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)).items():
        digest.update(name.encode() + weight.cpu().numpy().tobytes())
    return digest.hexdigest()


# --- The coordinator --------------------------------------------------------------------------------------------------
def parse_options(description, checkpoint):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("nodes", nargs="*", default=["localhost", "localhost"])
    parser.add_argument("--workers", type=int, default=2, help="on each node")
    parser.add_argument("--gpus-per-worker", type=int, default=1, help="on nodes without GPUs the CPU computes")
    parser.add_argument("--steps", type=int, default=50, help="in this run")
    parser.add_argument("--checkpoint", default=checkpoint, help="a file on this machine")
    parser.add_argument("--save-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser.parse_args()


def train(work_fn, options):
    # 1. Define cluster. Port 0: any that is free.
    node = {"num_workers": options.workers, "gpus_per_worker": options.gpus_per_worker, "base_port": 0}
    nodes = [NodeConfig(host, **node) for host in options.nodes]
    ranks = options.workers * len(nodes)
    if BATCH % ranks != 0:
        raise SystemExit(f"{BATCH} sentences, the batch of a step, cannot be shared out evenly among {ranks} workers")
    checkpoint = torch.load(options.checkpoint) if options.resume else {"step": 0}

    with Cluster(nodes) as cluster:
        # 2. Launch workers, tell each its rank and where they meet, and wait until all are ready
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

        # 4. All ranks have arrived at the same weights
        group.broadcast({"cmd": "digest"})
        digests = [answer["digest"][:16] for answer in group.gather()]
        print(f"weights of the ranks: {' '.join(digests)}")
        if len(set(digests)) != 1:
            raise SystemExit("the ranks have drifted apart")
        print(f"No model of this language gets below a loss of {LOSS_MIN:.4f}")

        # 5. Cleanup
        group.broadcast({"cmd": "shutdown"})


def save(checkpoint, path):
    """The state comes as a message and is written here, so that the nodes need no file system in common. It replaces
    the file of before in one go: whenever this program is killed, one of the two is there, and whole."""
    torch.save(checkpoint, f"{path}.new")
    os.replace(f"{path}.new", path)

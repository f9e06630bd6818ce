"""Train on several machines with DistributedDataParallel: every rank has the whole model, and averages its gradients.

    python examples/train_ddp.py [node1 node2 ...] [--workers 2] [--steps 50] [--checkpoint ddp.pt] [--resume]

The nodes are what you would give ssh; without any, two servers on this machine take their place. They need Python,
torch and MiniRay; this script and the modules beside it go along. Where there are GPUs, each worker gets one.
"""

import torch
import torch.distributed as dist
from language_model import Transformer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from training import get_state, own_device, parse_options, set_state, train, weights_digest

from miniray import NCCLConfig, setup_nccl_env


def training_work_fn(handle):
    """Training worker: one rank."""
    # 1. Receive NCCL config
    config = NCCLConfig(**handle.recv())
    setup_nccl_env(config)

    # 2. Initialize torch.distributed
    device = own_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    # 3. Create the model. All ranks begin with the weights of rank 0.
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    # 4. Training loop
    handle.send({"status": "ready"})

    while True:
        msg = handle.recv()

        if msg["cmd"] == "forward_backward":  # gradients, averaged over the ranks, add up until the next optim_step
            loss = model(msg["batch"].to(device))
            loss.backward()
            handle.send({"loss": loss.item()})

        elif msg["cmd"] == "optim_step":
            norm = clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            handle.send({"gradient_norm": norm.item()})

        elif msg["cmd"] == "save":
            handle.send(get_state(model, optimizer))

        elif msg["cmd"] == "load":
            set_state(model, optimizer, msg["state"])
            handle.send({"status": "loaded"})

        elif msg["cmd"] == "digest":
            handle.send({"digest": weights_digest(model)})

        elif msg["cmd"] == "shutdown":
            break

    dist.destroy_process_group()


if __name__ == "__main__":
    train(training_work_fn, parse_options(__doc__.splitlines()[0], checkpoint="ddp.pt"))

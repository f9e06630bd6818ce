"""Train on several machines with FSDP: every rank has a part of each weight, gradient and optimizer state.

    python examples/train_fsdp.py [node1 node2 ...] [--workers 2] [--steps 50] [--checkpoint fsdp.pt] [--resume]

A node is a host name that ssh knows; without nodes, the script starts two servers on this machine. Nodes need Python,
torch and MiniRay; MiniRay copies this script and the modules beside it. On nodes with GPUs, each worker gets one.
"""

import torch
import torch.distributed as dist
from language_model import Transformer
from torch.distributed.fsdp import fully_shard
from training import answer_orders, own_device, parse_options, train

from miniray import NCCLConfig, setup_nccl_env


def training_work_fn(handle):
    """One rank of the training group."""
    # 1. Receive NCCL config
    config = NCCLConfig(**handle.recv())
    setup_nccl_env(config)

    # 2. Initialize torch.distributed
    device = own_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    # 3. Create the model. All ranks draw the same weights and keep their parts. A layer is whole while it computes.
    torch.manual_seed(0)
    model = Transformer().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    # 4. Training loop
    answer_orders(handle, model, optimizer, device)

    dist.destroy_process_group()


if __name__ == "__main__":
    train(training_work_fn, parse_options(__doc__.splitlines()[0], checkpoint="fsdp.pt"))

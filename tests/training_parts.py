"""What the seeds' training snippets leave out, small and real: a model, a batch, and a training backend with FSDP.

Tests send it along beside their scripts, under the names that the snippets use.
"""

# ruff: noqa: F401 (the snippets take what they need with *)
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)  # the machine's other cores are for its other ranks
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.functional.mse_loss


class FSDPTrainingBackend:
    def __init__(self, model, optimizer, loss_fn, checkpoint_dir):
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
        self.model, self.loss_fn, self.checkpoint_dir = model, loss_fn, checkpoint_dir
        self.optimizer = type(optimizer)(model.parameters(), **optimizer.defaults)

    def forward_backward(self, batch):
        inputs = torch.tensor(batch)
        loss = self.loss_fn(self.model(inputs)[:, 0], inputs.sum(1))
        loss.backward()
        return {"loss": loss.item()}

    def optim_step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"weights": [parameter.full_tensor().tolist() for parameter in self.model.parameters()]}

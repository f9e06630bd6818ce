"""torch.distributed.rpc: functions called in other ranks by name; no tasks."""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from typing import Any, ClassVar

from peers.peer import Peer, right
from peers.work import OK, checksum


def small_value() -> bytes:
    return OK


def echo(tensor: Any) -> Any:
    return tensor


def checksum_of_tensor(tensor: Any) -> float:
    return checksum(tensor.numpy())


def join(rank: int, size: int, store: str) -> Any:
    """Runs this process as a rank. Ranks that only serve wait in the shutdown until all are done."""
    warnings.simplefilter("ignore")
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}", rpc_timeout=0)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=size, rpc_backend_options=options)
    return rpc


def serve(rank: int, size: int, store: str) -> None:
    join(rank, size, store).shutdown()


class TorchRpc(Peer):
    title = "torch.distributed.rpc"
    colour = "#ee4c9c"
    place = 7
    distribution = "torch"
    requirements = ("torch==2.13.0", "numpy")
    module = "torch.distributed.rpc"
    how: ClassVar[dict[str, str]] = {
        "actors": "`rpc_sync`, `rpc_async`; tensors",
        "broadcast": "`rpc_async` to each rank",
    }
    first = """
import multiprocessing, os, tempfile, warnings
warnings.simplefilter("ignore")
def square(x):
    return x * x
def join(rank, store):
    from torch.distributed import rpc
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{store}"))
    if rank == 0:
        print(rpc.rpc_sync("rank1", square, (7,)), flush=True)
        input()
    rpc.shutdown()
with tempfile.TemporaryDirectory() as folder:
    child = multiprocessing.Process(target=join, args=(1, folder + "/store"))
    child.start()
    join(0, folder + "/store")
    child.join()
"""

    def start_actors(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")  # as its documentation recommends
        self.folder = tempfile.TemporaryDirectory()
        store = f"{self.folder.name}/store"
        self.children = [context.Process(target=serve, args=(n + 1, workers + 1, store)) for n in range(workers)]
        for child in self.children:
            child.start()
        self.rpc = join(0, workers + 1, store)
        self.ranks = [f"rank{n + 1}" for n in range(workers)]

    def calls(self, count: int) -> int:
        call = self.rpc.rpc_sync
        return right([call("rank1", small_value) for _ in range(count)])

    def calls_in_flight(self, count: int) -> int:
        call = self.rpc.rpc_async
        return right([future.wait() for future in [call("rank1", small_value) for _ in range(count)]])

    def call_each(self) -> int:
        return right([future.wait() for future in [self.rpc.rpc_async(rank, small_value) for rank in self.ranks]])

    def echo(self, array: Any) -> Any:
        import torch

        return self.rpc.rpc_sync("rank1", echo, (torch.from_numpy(array),)).numpy()

    def broadcast(self, array: Any) -> list[float]:
        import torch

        tensor = torch.from_numpy(array)
        futures = [self.rpc.rpc_async(rank, checksum_of_tensor, (tensor,)) for rank in self.ranks]
        return [future.wait() for future in futures]

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "rpc"):
            self.rpc.shutdown()
            for child in self.children:
                child.join()
            self.folder.cleanup()


PEER = TorchRpc

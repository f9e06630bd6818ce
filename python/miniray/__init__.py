"""MiniRay runs your functions in other processes, and exchanges plain messages with them.

    from miniray import Worker

    def work(handle):
        while True:
            msg = handle.recv()
            handle.send({"square": msg["x"] ** 2})

    with Worker(work) as worker:
        worker.send({"x": 7})
        print(worker.recv())          # {'square': 49}

A worker never outlives the process that started it. See `help(miniray.Worker)`; for other machines,
`help(miniray.RemoteWorker)` and `help(miniray.Cluster)`; for torch.distributed, `help(miniray.TrainingGroup)`.
"""

from miniray._core import Array, Channel, Handle, limits, wait_any
from miniray._core import version as __version__
from miniray.errors import (
    ClusterError,
    EndOfStream,
    GroupBroken,
    GroupError,
    InboxFull,
    MessageTooLarge,
    MiniRayError,
    ProtocolError,
    Refused,
    TaskOutOfMemory,
    TaskTimeout,
    UnknownHost,
    UsageError,
    WorkerDied,
    WorkerError,
    WorkerRestarted,
)
from miniray.worker import RemoteWorker, Worker, create_remote_workers

TYPE_CHECKING = bool(0)  # typing is slow to import; with a plain False, jedi would skip the names below
if TYPE_CHECKING:
    from miniray._arrays import empty
    from miniray.calls import CallFuture, RemoteObject, RemoteTraceback, as_completed, serve_calls
    from miniray.cluster import Cluster, NodeConfig
    from miniray.group import Group, create_group
    from miniray.hardware import Gpu, Machine, NumaNode, discover_machine, get_gpu_numa_node, set_gpu_affinity
    from miniray.nccl import NCCLConfig, create_nccl_configs, print_nccl_config, restore_nccl_env, setup_nccl_env
    from miniray.pool import Pool, PoolBroken, PoolFuture
    from miniray.supervision import Event, EventLog, RestartPolicy
    from miniray.training_group import TrainingGroup
    from miniray.worker_server import WorkerServer


_MODULES = {
    "_arrays": ("empty",),
    "calls": ("CallFuture", "RemoteObject", "RemoteTraceback", "as_completed", "serve_calls"),
    "cluster": ("Cluster", "NodeConfig"),
    "group": ("Group", "create_group"),
    "hardware": ("Gpu", "Machine", "NumaNode", "discover_machine", "get_gpu_numa_node", "set_gpu_affinity"),
    "nccl": ("NCCLConfig", "create_nccl_configs", "print_nccl_config", "restore_nccl_env", "setup_nccl_env"),
    "pool": ("Pool", "PoolBroken", "PoolFuture"),
    "supervision": ("Event", "EventLog", "RestartPolicy"),
    "training_group": ("TrainingGroup",),
    "worker_server": ("WorkerServer",),
}


def __getattr__(name: str) -> object:
    """Import a module of ``_MODULES`` when one of its names is used first: few programs need them."""
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module("miniray." + module), name)
    raise AttributeError(f"module 'miniray' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, including those that are not imported yet."""
    return sorted({name for name in globals() if name.endswith("__")} | set(__all__))


__all__ = [
    "Array",
    "CallFuture",
    "Channel",
    "Cluster",
    "ClusterError",
    "EndOfStream",
    "Event",
    "EventLog",
    "Gpu",
    "Group",
    "GroupBroken",
    "GroupError",
    "Handle",
    "InboxFull",
    "Machine",
    "MessageTooLarge",
    "MiniRayError",
    "NCCLConfig",
    "NodeConfig",
    "NumaNode",
    "Pool",
    "PoolBroken",
    "PoolFuture",
    "ProtocolError",
    "Refused",
    "RemoteObject",
    "RemoteTraceback",
    "RemoteWorker",
    "RestartPolicy",
    "TaskOutOfMemory",
    "TaskTimeout",
    "TrainingGroup",
    "UnknownHost",
    "UsageError",
    "Worker",
    "WorkerDied",
    "WorkerError",
    "WorkerRestarted",
    "WorkerServer",
    "__version__",
    "as_completed",
    "create_group",
    "create_nccl_configs",
    "create_remote_workers",
    "discover_machine",
    "empty",
    "get_gpu_numa_node",
    "limits",
    "print_nccl_config",
    "restore_nccl_env",
    "serve_calls",
    "set_gpu_affinity",
    "setup_nccl_env",
    "wait_any",
]

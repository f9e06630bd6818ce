"""MiniRay: your functions in other processes, and plain messages to them.

    from miniray import Worker

    def work(handle):
        while True:
            msg = handle.recv()
            handle.send({"square": msg["x"] ** 2})

    with Worker(work) as worker:
        worker.send({"x": 7})
        print(worker.recv())          # {'square': 49}

A worker never outlives the process that started it. See `help(miniray.Worker)`; for other machines,
`help(miniray.RemoteWorker)` and `help(miniray.Cluster)`.
"""

from miniray._core import Array, Channel, Handle, limits, wait_any
from miniray._core import version as __version__
from miniray.errors import (
    ClusterError,
    EndOfStream,
    InboxFull,
    MessageTooLarge,
    MiniRayError,
    ProtocolError,
    Refused,
    UnknownHost,
    UsageError,
    WorkerDied,
    WorkerError,
)
from miniray.worker import RemoteWorker, Worker, create_remote_workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from miniray.cluster import Cluster, NodeConfig
    from miniray.worker_server import WorkerServer


def __getattr__(name: str) -> object:
    """What few programs need is imported when it is first asked for."""
    if name == "WorkerServer":
        from miniray.worker_server import WorkerServer

        return WorkerServer
    if name in ("Cluster", "NodeConfig"):
        from miniray import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module 'miniray' has no attribute {name!r}")


__all__ = [
    "Array",
    "Channel",
    "Cluster",
    "ClusterError",
    "EndOfStream",
    "Handle",
    "InboxFull",
    "MessageTooLarge",
    "MiniRayError",
    "NodeConfig",
    "ProtocolError",
    "Refused",
    "RemoteWorker",
    "UnknownHost",
    "UsageError",
    "Worker",
    "WorkerDied",
    "WorkerError",
    "WorkerServer",
    "__version__",
    "create_remote_workers",
    "limits",
    "wait_any",
]

"""MiniRay: your functions in other processes, and plain messages to them.

    from miniray import Worker

    def work(handle):
        while True:
            msg = handle.recv()
            handle.send({"square": msg["x"] ** 2})

    with Worker(work) as worker:
        worker.send({"x": 7})
        print(worker.recv())          # {'square': 49}

A worker never outlives the process that started it. See `help(miniray.Worker)`.
"""

from miniray._core import Array, Channel, Handle, limits, wait_any
from miniray._core import version as __version__
from miniray.errors import (
    EndOfStream,
    InboxFull,
    MessageTooLarge,
    MiniRayError,
    ProtocolError,
    UsageError,
    WorkerDied,
    WorkerError,
)
from miniray.worker import Worker

__all__ = [
    "Array",
    "Channel",
    "EndOfStream",
    "Handle",
    "InboxFull",
    "MessageTooLarge",
    "MiniRayError",
    "ProtocolError",
    "UsageError",
    "Worker",
    "WorkerDied",
    "WorkerError",
    "__version__",
    "limits",
    "wait_any",
]

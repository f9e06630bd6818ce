"""A ``TrainingGroup``: workers that train together. When one dies, the others are killed instead of waiting forever."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from miniray import _check, _core
from miniray.nccl import NCCLConfig
from miniray.worker import RemoteWorker


class TrainingGroup(Sequence[RemoteWorker]):
    """The workers of a torch.distributed group, by rank. ``cluster.training_group(workers)`` makes one.

    When a rank has died or failed, ``broadcast``, ``scatter`` and ``gather`` kill the other ranks, which would wait for
    it forever, and raise a GroupError that says which rank failed and why.
    """

    def __init__(
        self,
        cluster: _core.Cluster,
        workers: list[RemoteWorker],
        timeout: float,
        master_port: int,
        progress: bool,
        codec: str,
        lock: threading.RLock,
    ) -> None:
        self.attempt = 0  # how often cluster.run_group has started the ranks again
        self._workers = workers
        self._codec = codec
        self._lock = lock  # the cluster's: a broadcast uses the cluster's links to its nodes
        self._core = _core.TrainingGroup(cluster, workers, timeout, master_port, progress)
        self.configs = [NCCLConfig(**config) for config in self._core.configs()]

    def broadcast(self, message: Any) -> None:
        """Send one message to all ranks. It is encoded once, and a large array crosses the network once for each
        node."""
        with self._lock:
            self._core.broadcast(message, self._codec)

    def scatter(self, messages: Iterable[Any]) -> None:
        """Send each rank its own message: the first to rank 0, and so on."""
        self._core.scatter(_check.listed("messages", messages, "a list with one for each rank"), self._codec)

    def gather(self, timeout: float | None = None) -> list[Any]:
        """Return the next message of each rank. Raises TimeoutError after ``timeout`` seconds; its text says which
        ranks sent no message, and what each is doing. No message is lost then, and the group goes on.
        """
        return self._core.gather(_check.seconds("timeout", timeout))

    @overload
    def __getitem__(self, rank: int) -> RemoteWorker: ...
    @overload
    def __getitem__(self, rank: slice) -> list[RemoteWorker]: ...
    def __getitem__(self, rank: int | slice) -> RemoteWorker | list[RemoteWorker]:
        return self._workers[rank]

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[RemoteWorker]:
        return iter(self._workers)

    def __add__(self, others: Iterable[RemoteWorker]) -> list[RemoteWorker]:
        return [*self._workers, *others]

    def __radd__(self, others: Iterable[RemoteWorker]) -> list[RemoteWorker]:
        return [*others, *self._workers]

    def __repr__(self) -> str:
        master = self.configs[0]
        return f"<miniray.TrainingGroup of {len(self)} ranks, master {master.master_addr}:{master.master_port}>"

    def _repr_html_(self) -> str:
        from miniray._html import table

        master = self.configs[0]
        rows = [
            (config.rank, worker.name, "alive" if worker.is_alive() else "ended")
            for config, worker in zip(self.configs, self._workers, strict=True)
        ]
        title = f"Training group of {len(self)} ranks, master {master.master_addr}:{master.master_port}"
        return table(title, ("rank", "worker", "state"), rows)

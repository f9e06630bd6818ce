"""Workers that train together, and that none of them is left hanging when one dies."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from miniray import _check, _core
from miniray.nccl import NCCLConfig
from miniray.worker import RemoteWorker


class TrainingGroup(Sequence[RemoteWorker]):
    """The workers of a torch.distributed group, by rank; ``cluster.training_group(workers)`` makes one.

    Where a rank dies or fails, ``broadcast``, ``scatter`` and ``gather`` end the other ranks, which would wait for it
    for ever, and raise GroupError: which rank, and why.
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
        self.attempt = 0  # of cluster.run_group, which starts the ranks again
        self._workers = workers
        self._codec = codec
        self._lock = lock  # of the cluster, whose links to the nodes a broadcast uses
        self._core = _core.TrainingGroup(cluster, workers, timeout, master_port, progress)
        self.configs = [NCCLConfig(**config) for config in self._core.configs()]

    def broadcast(self, message: Any) -> None:
        """Send one message to all ranks. It is encoded once, and large arrays go to each node once."""
        with self._lock:
            self._core.broadcast(message, self._codec)

    def scatter(self, messages: Iterable[Any]) -> None:
        """Send each rank its own message."""
        self._core.scatter(_check.listed("messages", messages, "a list with one for each rank"), self._codec)

    def gather(self, timeout: float | None = None) -> list[Any]:
        """The next message of each rank. After ``timeout`` seconds TimeoutError says which ranks sent nothing, and what
        each is doing; nothing is lost, and the group goes on.
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

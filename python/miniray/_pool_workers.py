"""Where a pool's workers come from, and what takes the place of one that is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from miniray import _calls, _check, _core, _lent, _script
from miniray.calls import serve_calls
from miniray.errors import EndOfStream, MiniRayError, ProtocolError, UsageError, WorkerDied, WorkerRestarted
from miniray.worker import RemoteWorker, Worker


class PoolNode(NamedTuple):
    """What the scheduler knows about a machine."""

    name: str
    cpus: float
    gpu_names: list[str]
    custom: dict[str, float]


def _make_node(name: str, workers: int, gpu_names: list[str], resources: Mapping[str, Any] | None) -> PoolNode:
    """``resources`` has amounts that hold for every node, and those of one node under its name."""
    custom: dict[str, float] = {}
    for key, amount in (resources or {}).items():
        if not isinstance(amount, Mapping):
            custom[key] = float(amount)
        elif key == name:
            custom.update({inner: float(value) for inner, value in amount.items()})
    if "num_gpus" in custom:
        gpu_names = [str(number) for number in range(int(custom.pop("num_gpus")))]
    return PoolNode(name, custom.pop("num_cpus", workers), gpu_names, custom)


def _gpu_names() -> list[str]:
    """Return the GPUs that a process here may use, under the names that CUDA_VISIBLE_DEVICES has for them."""
    from miniray.hardware import discover_machine

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(gpu.index) for gpu in discover_machine().gpus]


class WorkerSource:
    """Where a pool's workers come from: what the three kinds of sources have in common."""

    nodes: list[PoolNode]

    def snapshots(self) -> tuple[list[Any], bool]:
        """Return snapshots of the script when workers were forked, and whether all workers were forked."""
        return [], False

    def is_on(self, cluster: Any) -> bool:
        """Return whether the workers belong to that cluster."""
        return False

    def refused(self) -> list[tuple[str, str]]:
        """Return workers that the pool does not take, and why."""
        return []

    def links(self) -> dict[int, Any]:
        """Return connections to nodes over which a large argument goes to a node once."""
        return {}

    def may_be_silent(self, worker: Any) -> bool:
        """Return whether the worker has a work function of the user's, which may never answer a call."""
        return False

    def close(self) -> None:
        """Drop what was needed to make workers."""


class LocalWorkers(WorkerSource):
    """Workers of this machine. A server forks them that was itself forked when the pool was made, and has done nothing
    since: a fork of the coordinator would not be safe, because it has threads."""

    _snapshot: Any = None

    def __init__(
        self,
        count: int,
        start: str,
        resources: Mapping[str, Any] | None,
        message_bytes_max: int = _core.limits.message_bytes_max,
        takes_pickles: bool = True,
    ) -> None:
        self._message_bytes_max = message_bytes_max
        self._count = count
        self._takes_pickles = takes_pickles
        # A wait may spin only where that takes no core from a task.
        self._spin_us = None if (os.cpu_count() or 1) > count + 1 else 0
        self.nodes = [_make_node("localhost", count, _gpu_names(), resources)]
        self._server = self._make_server(start)

    def _make_server(self, start: str) -> Worker:
        """Start a server with a new name and a new key. The key goes through a socket of its own: a message is shown in
        errors and traces."""
        self._socket = f"@miniray-pool-{os.urandom(16).hex()}"  # it is in no folder, so nothing is left of it
        self._key = _core._Key.random()
        mine, theirs = socket.socketpair()
        with mine, theirs:
            theirs.set_inheritable(True)  # a spawned server gets it too
            name, descriptor = self._socket, theirs.fileno()
            if start == "fork":
                server = Worker(lambda handle: _serve_forks(handle, name, descriptor), name="pool")
                self._snapshot = server._snapshot
                if not self._takes_pickles:
                    self._snapshot = _script.Snapshot(keeps_all=True)
                    self._snapshot.pid = server.pid
            else:
                server = Worker(_serve_forks_when_told, start="spawn", name="pool")
                server.send([name, descriptor])
            self._key.write_to(mine.fileno())
        try:
            server.recv()  # now it listens
        except BaseException:  # such as Ctrl-C
            server.kill()
            server.close()
            raise
        return server

    def first(self) -> Iterable[tuple[int, Any]]:
        return [(0, ready) for ready in self._connect(self._count)]

    def in_core(self) -> _core._WorkerSource:
        return _core._WorkerSource.server(self._socket, self._key, self._spin_us, self._message_bytes_max)

    def replace(self, node: int, gone: Any) -> Any:
        """Make a worker where the core could not. The server may be gone, too."""
        if not self._server.is_alive():
            self._server.close()
            self._server = self._make_server("spawn")  # this process has threads by now
        return self._connect(1)[0]

    def _connect(self, count: int) -> list[Any]:
        return _core._connect_to_fork_server(count, self._socket, self._key, self._spin_us, self._message_bytes_max)

    def snapshots(self) -> tuple[list[Any], bool]:
        return ([self._snapshot], True) if self._snapshot is not None else ([], False)

    def close(self) -> None:
        self._server.kill()
        self._server.close()
        self._snapshot = None  # it refers to the script
        self._server.__dict__.pop("_snapshot", None)


def _serve_forks(handle: _core.Handle, name: str, descriptor: int) -> None:
    from miniray import _functions, _script

    with socket.socket(fileno=descriptor):
        key = _core._Key.read_from(descriptor)
    _script.forked_as = os.getpid() if not _script.main_is_foreign else 0
    _functions.prepare_for_forks()
    server = _core.WorkerServer(name, 0, serve_calls, 0, key)
    server._stop_when_readable(handle.fileno())  # nothing is ever sent there, so it becomes readable at the end
    handle.send("listening")
    server.serve_forever()


def _serve_forks_when_told(handle: _core.Handle) -> None:
    name, descriptor = handle.recv()
    _serve_forks(handle, name, descriptor)


class ClusterWorkers(WorkerSource):
    """Workers that a cluster's servers start. The core replaces them, and launches a server again that died."""

    def __init__(self, cluster: Any, resources: Mapping[str, Any] | None) -> None:
        self._cluster = cluster
        self._workers: list[Any] = cluster.start("miniray.serve_calls")
        positions = [cluster.node_of(worker) for worker in self._workers]
        self._placed = list(zip(positions, self._workers, strict=True))
        self._refused: list[tuple[str, str]] = []
        self.nodes = []
        for number, config in enumerate(cluster.nodes):
            there = [worker for position, worker in self._placed if position == number]
            gpus = self._gpus_of(number, there)
            self.nodes.append(_make_node(config.host, len(there), gpus, resources))
        if not self._placed:
            raise ProtocolError(f"no worker of the cluster can be used: {self._refused[0][1]}")

    def _gpus_of(self, number: int, workers: list[Any]) -> list[str]:
        """Ask the node's first worker. One that does not answer the question is closed, and the next one is asked."""
        for worker in list(workers):
            try:
                return self._ask_for_gpus(number, worker)
            except ProtocolError as error:
                self._refused.append((worker.name, str(error)))
                workers.remove(worker)
                self._placed = [placed for placed in self._placed if placed[1] is not worker]
                worker.close(0)
            except MiniRayError:
                pass  # it has died, which the pool will notice and make good
        return []

    def _ask_for_gpus(self, number: int, worker: Any) -> list[str]:
        if not self._cluster._program:
            patience_s = self._cluster._start_timeout_s
            names = _calls.own_question(worker, "miniray._pool_workers._gpu_names", patience_s)
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ProtocolError(f"{worker.name} answered MiniRay's own question with {_check.shown(names)}")
            return names
        [probe] = self._cluster.connect_to_servers("miniray.probe", num_workers=1, gpus_per_worker=0, nodes=[number])
        with probe:
            probe.send({"cmd": "machine"})
            return [gpu["visible_as"] or str(gpu["index"]) for gpu in probe.recv()["gpus"]]

    def first(self) -> Iterable[tuple[int, Any]]:
        placed, self._placed, self._workers = self._placed, [], []
        return placed

    def refused(self) -> list[tuple[str, str]]:
        return self._refused

    def in_core(self) -> _core._WorkerSource:
        return _core._WorkerSource.cluster(self._cluster._running_core())

    def links(self) -> dict[int, Any]:
        links = {}
        for node in range(len(self.nodes)):
            try:
                links[node] = self._cluster._running_core().open_link(node)
            except (MiniRayError, OSError):
                pass  # then each worker of the node gets its own copies
        return links

    def is_on(self, cluster: Any) -> bool:
        return cluster is self._cluster


class GivenWorkers(WorkerSource):
    """Workers that the user has started. One that dies is replaced if it was started with a restart policy."""

    def __init__(self, workers: Iterable[Any], resources: Mapping[str, Any] | None) -> None:
        self._workers = list(workers)
        for worker in self._workers:
            if not isinstance(worker, Worker):
                raise TypeError(f"a pool takes workers, not {_check.shown(worker)}")
            _lent.check(worker)
        if not self._workers:
            raise ValueError("a pool needs at least one worker")
        if len(set(map(id, self._workers))) < len(self._workers):
            raise UsageError("a worker is in the list twice")
        self._lent = list(self._workers)
        hosts = [_host_of(worker) for worker in self._workers]
        names = list(dict.fromkeys(hosts))
        self._numbers = [names.index(host) for host in hosts]
        counts = map(self._numbers.count, range(len(names)))
        self.nodes = [_make_node(name, there, [], resources) for name, there in zip(names, counts, strict=True)]

    def first(self) -> Iterable[tuple[int, Any]]:
        workers, self._workers = self._workers, []
        for worker in workers:
            _lent.lend(worker)
        return zip(self._numbers, workers, strict=True)

    def in_core(self) -> _core._WorkerSource:
        return _core._WorkerSource.program()

    def replace(self, node: int, gone: Any) -> Any:
        """Return the worker with its new process. Raises LookupError if it gets none."""
        if gone is None or gone._supervision is None:
            raise LookupError("it was started without a restart policy")
        _lent.give_back(gone)
        try:
            gone.recv(timeout=_core.limits.exit_wait_ms / 1000)
        except WorkerRestarted:
            _lent.lend(gone)
            return gone
        except (WorkerDied, EndOfStream, TimeoutError) as error:
            raise LookupError(str(error)) from None
        raise LookupError("it has not ended")

    def may_be_silent(self, worker: Any) -> bool:
        return "serve_calls" not in worker.name

    def snapshots(self) -> tuple[list[Any], bool]:
        found = [worker.__dict__.get("_snapshot") for worker in self._workers]
        return [snapshot for snapshot in found if snapshot is not None], None not in found

    def is_on(self, cluster: Any) -> bool:
        its_own = set(map(id, cluster.workers))
        return any(id(worker) in its_own for worker in self._lent)

    def close(self) -> None:
        for worker in self._lent:  # it was closed with the pool
            _lent.give_back(worker)
        self._lent = []


def _host_of(worker: Any) -> str:
    if not isinstance(worker, RemoteWorker):
        return "localhost"
    _, _, place = worker.name.partition(" at ")
    return place.rpartition(":")[0] or place or worker.name

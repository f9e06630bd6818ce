"""Workers on several machines, reached through ssh."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from miniray import _core, _functions
from miniray.worker import RemoteWorker, _stop_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from miniray.doctor import CheckReport
    from miniray.training_group import TrainingGroup


@dataclass(frozen=True)
class NodeConfig:
    """A machine, and how many workers it gets.

    ``host`` is what you would give ssh: a name, an alias of your ssh config, user@host. "localhost" needs no ssh.
    ``base_port`` is where the node's server listens (0: any that is free). With ``gpus_per_worker=n``, worker i of the
    node sees GPUs i*n to i*n+n-1 as its own, cuda:0 to cuda:n-1, and runs on the CPUs next to them; a share such as 0.5
    puts two workers on each GPU; 0: each sees all. On a node without GPUs it changes nothing. ``python_bin`` is the
    interpreter there; by default the same path as here, or else python3. ``env`` is added to the environment of the
    server and its workers, ``workdir`` is where they run.
    """

    host: str
    num_workers: int = 4
    base_port: int = 10000
    gpus_per_worker: float = 0
    ssh_key: str | os.PathLike[str] | None = None
    python_bin: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | os.PathLike[str] | None = None


class Server(NamedTuple):
    """A node's worker server."""

    node: str
    host: str
    port: int
    pid: int


class Cluster:
    """Start workers on several machines through ssh, and end all of them together.

        cluster = Cluster(nodes=[NodeConfig("node1", num_workers=4), NodeConfig("node2", num_workers=4)])
        workers = cluster.start(work_fn="my_module.work")     # or work_fn=work

    Your script and the modules beside it go along; the nodes need Python and MiniRay. ``ship_code=False`` if the nodes
    have your code already. ``tunnel=True`` carries everything inside the ssh connections: no port is open on the nodes.
    ``program`` is a C++ program that calls ``miniray::init``: the work functions are then its own.
    What workers print appears here, marked with node and worker; with ``output="folder"`` it goes to a file for each.

    When the cluster is stopped, or the program ends in whatever way, nothing of it is left on any node.
    """

    def __init__(
        self,
        nodes: Iterable[NodeConfig],
        *,
        program: str | os.PathLike[str] | None = None,
        ship_code: bool = True,
        tunnel: bool = False,
        output: str | os.PathLike[str] | None = None,
        progress: bool = True,
        start_timeout_s: float = _core.limits.start_timeout_ms / 1000,
        unreachable_s: float = _core.limits.unreachable_ms / 1000,
        codec: str = "msgpack",
        spin_us: int | None = None,
        inbox_bytes_max: int = _core.limits.inbox_bytes_max,
    ) -> None:
        self.nodes = list(nodes)
        for node in self.nodes:
            if not isinstance(node, NodeConfig):
                raise TypeError(f"nodes are NodeConfig objects, not {type(node).__name__}")
        self.codec = codec
        self._program = os.fspath(program) if program is not None else ""
        self._ship_code = ship_code
        self._options = (
            ship_code,
            tunnel,
            os.fspath(output) if output is not None else "",
            progress,
            start_timeout_s,
            unreachable_s,
            codec,
            spin_us,
            inbox_bytes_max,
        )
        self._core: _core.Cluster | None = None
        self._workers: list[RemoteWorker] = []
        self._make("")  # what is wrong with the configuration shows now

    def _configuration(self) -> tuple[list[Any], str, list[str], str, tuple[Any, ...]]:
        """What the core's Cluster and its check take first."""
        nodes = [
            (
                node.host,
                node.num_workers,
                node.base_port,
                node.gpus_per_worker,
                os.fspath(node.ssh_key) if node.ssh_key is not None else "",
                node.python_bin or "",
                dict(node.env),
                os.fspath(node.workdir) if node.workdir is not None else "",
            )
            for node in self.nodes
        ]
        return nodes, sys.executable, _attendant(), self._program, self._options

    def _make(self, work_fn: str) -> _core.Cluster:
        from miniray import _shipping

        files, setup = _shipping.collect(work_fn, self._ship_code) if work_fn and not self._program else ([], None)
        return _core.Cluster(*self._configuration(), files, json.dumps(setup))

    def _name_of(self, work_fn: str | Callable[[_core.Handle], Any]) -> str:
        if self._program and isinstance(work_fn, str):
            return work_fn
        return _functions.name_of(work_fn)

    def start(
        self,
        work_fn: str | Callable[[_core.Handle], Any],
        *,
        num_workers: int | None = None,
        gpus_per_worker: float | None = None,
        gpus: Iterable[int] = (),
        pin_cpus: bool = True,
    ) -> list[RemoteWorker]:
        """Start ``work_fn(handle)`` on every node, and return the workers: by node, then by worker.

        ``work_fn`` is a function at the top level of a module, or its name, "module.function" or "__main__.function".
        May be called again, for another function: both sets of workers live side by side.

        ``num_workers`` (of each node) and ``gpus_per_worker`` take the place of what the nodes' configuration says.
        ``gpus`` are the GPUs of each node, by their numbers there, that these workers share among them: range(4) for
        training and range(4, 8) for rollouts splits them, the same ones for two groups shares them. Workers with GPUs
        run on the CPUs next to them, unless ``pin_cpus=False``.
        """
        _stop_import()
        name = self._name_of(work_fn)
        launched = self._core is not None
        if not launched:
            self.launch_servers(name)
        try:
            return self.connect_to_servers(
                name, num_workers=num_workers, gpus_per_worker=gpus_per_worker, gpus=gpus, pin_cpus=pin_cpus
            )
        except BaseException:
            if not launched:
                self.stop()
            raise

    def launch_servers(self, work_fn: str | Callable[[_core.Handle], Any] | None = None) -> list[Server]:
        """Start a worker server on every node, all at once, and import ``work_fn`` there if it is given."""
        _stop_import()
        if self._core is not None:
            raise RuntimeError("the cluster's servers are up already; stop() ends them")
        name = self._name_of(work_fn) if work_fn is not None else ""
        core = self._make(name or "__main__.")
        core.launch_servers(name)
        self._core = core
        _running.append(self)
        return self.servers

    def connect_to_servers(
        self,
        work_fn: str | Callable[[_core.Handle], Any],
        *,
        num_workers: int | None = None,
        gpus_per_worker: float | None = None,
        gpus: Iterable[int] = (),
        pin_cpus: bool = True,
    ) -> list[RemoteWorker]:
        """Have the servers of all nodes start their workers; see ``start``."""
        if self._core is None:
            raise RuntimeError("the cluster's servers are not up; call launch_servers() or start()")
        ready = self._core.connect_to_servers(
            self._name_of(work_fn), num_workers, gpus_per_worker, list(gpus), pin_cpus
        )
        made = [RemoteWorker._take_over(worker) for worker in ready]
        self._workers += made
        return made

    @property
    def workers(self) -> list[RemoteWorker]:
        """All workers that were started, in the order in which they were."""
        return list(self._workers)

    @property
    def servers(self) -> list[Server]:
        return [Server(*server) for server in self._core.servers()] if self._core is not None else []

    def training_group(
        self,
        workers: Iterable[RemoteWorker] | None = None,
        *,
        timeout: float = _core.limits.group_timeout_ms / 1000,
        master_port: int = _core.limits.master_port,
        progress: bool = True,
    ) -> TrainingGroup:
        """Make a torch.distributed group of these workers (or of all), which get their ranks in this order.

        Picks a master address that all nodes can reach and a free port on it, from ``master_port`` on; sends each
        worker its config, as ``NCCLConfig(**handle.recv())`` takes it; and waits until each has answered
        ``{"status": "ready"}``. TimeoutError after ``timeout`` seconds: which ranks are not ready, and what each is
        doing. GroupError if a node cannot reach another, or a rank fails.
        """
        from miniray.training_group import TrainingGroup

        if self._core is None:
            raise RuntimeError("the cluster is not running")
        listed = list(workers) if workers is not None else self.workers
        return TrainingGroup(self._core, listed, timeout, master_port, progress, self.codec)

    def check(self, ports: Iterable[int] = (_core.limits.master_port,)) -> CheckReport:
        """Find what would make a training run hang or fail: every pair of nodes on these ports (and on one of the
        system's choice), versions of Python, torch and NCCL, names, clocks, GPUs, shared memory and limits.

        It starts processes of its own on the nodes for a few seconds, whether the cluster is running or not. The report
        is false if there is a problem; ``print(report)`` shows each, and the command that cures it.
        """
        from miniray.doctor import _report

        text, value = _core._check(*self._configuration(), list(ports), self._core is None)
        return _report(text, value)

    def broadcast(self, message: Any, workers: Iterable[RemoteWorker] | None = None) -> None:
        """Send one message to all workers (or to these). It is encoded once, and large arrays go to each node once."""
        if self._core is None:
            raise RuntimeError("the cluster is not running")
        self._core.broadcast(list(workers) if workers is not None else self._workers, message, self.codec)

    def gather(self, workers: Iterable[RemoteWorker] | None = None, timeout: float | None = None) -> list[Any]:
        """The next message of each worker (or of these), in order; TimeoutError if one is missing after ``timeout``.

        If one raises, the messages of the others are still there.
        """
        return _core.Cluster.gather(list(workers) if workers is not None else self._workers, timeout)

    def stop(self) -> None:
        """End all workers, then the servers, and wait for what was printed. The cluster may be started again."""
        if self._core is None:
            return
        core, self._core = self._core, None
        _running.remove(self)
        workers, self._workers = self._workers, []
        core.stop(workers)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"{len(self._workers)} workers" if self._core is not None else "not running"
        return f"<miniray.Cluster of {len(self.nodes)} nodes, {state}>"


def _attendant() -> list[str]:
    """A small interpreter that loads the core and nothing else."""
    code = "import sys; sys.path[:0] = [sys.argv[1]]; import _core; sys.exit(_core._attend(*map(int, sys.argv[2:])))"
    return [sys.executable, "-I", "-S", "-c", code, os.path.dirname(os.path.abspath(_core.__file__))]


_running: list[Cluster] = []  # so that each is stopped in good order when Python ends


@atexit.register
def _stop_all() -> None:
    for cluster in list(_running):
        cluster.stop()

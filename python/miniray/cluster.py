"""Workers on several machines, reached through ssh."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from miniray import _check, _core, _sent_work
from miniray._cluster_arguments import (
    FIXED,
    NodeConfig,
    Nodes,
    Placing,
    check_worker,
    checked_nodes,
    checked_placing,
)
from miniray.errors import ClusterError, UsageError
from miniray.supervision import EventLog, RestartPolicy
from miniray.worker import (
    FINISH,
    INTERRUPT,
    RemoteWorker,
    _channel_options,
    _check_restart,
    _show_output,
    _stop_import,
    ends_by_exception,
)

__all__ = ["Cluster", "NodeConfig", "Nodes", "Server"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from miniray.doctor import CheckReport
    from miniray.training_group import TrainingGroup


class Server(NamedTuple):
    """A node's worker server."""

    node: str
    host: str
    port: int
    pid: int


@_check.suggest_arguments()
class Cluster:
    """Start workers on several machines through ssh, and end all of them together.

        cluster = Cluster(nodes=[NodeConfig("node1", num_workers=4), NodeConfig("node2", num_workers=4)])
        workers = cluster.start(work_fn="my_module.work")     # or work_fn=work

    Your script and the modules beside it go along; the nodes need Python and MiniRay. ``ship_code=False`` if the nodes
    have your code already. ``tunnel=True`` carries everything inside the ssh connections: no port is open on the nodes.
    ``program`` is a C++ program that calls ``miniray::init``: the work functions are then its own.
    What workers print appears here, marked with node and worker; with ``output="folder"`` it goes to a file for each.

    When the cluster is stopped, or the program ends in whatever way, nothing of it is left on any node.

    Any thread may call it; calls wait for each other, but for ``gather``. A worker is for one thread at a time.
    ``events`` is a log of what was decided about workers, groups and nodes that went.
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
        self._nodes = checked_nodes(nodes)
        self.codec = codec
        self._program = _check.path("program", program)
        self._ship_code = _check.boolean("ship_code", ship_code)
        self._options = (
            ship_code,
            _check.boolean("tunnel", tunnel),
            _check.path("output", output),
            _check.boolean("progress", progress),
            _check.number("start_timeout_s", start_timeout_s, what="a number of seconds"),
            _check.number("unreachable_s", unreachable_s, what="a number of seconds"),
            *_channel_options(codec, spin_us, inbox_bytes_max),
        )
        self._core: _core.Cluster | None = None
        self._workers: list[RemoteWorker] = []
        self._lock = threading.RLock()
        self.events = EventLog()
        _show_output()
        self._make("")  # what is wrong with the configuration shows now

    @property
    def nodes(self) -> Nodes:
        """As they were given. They cannot be changed: make another cluster."""
        return self._nodes

    @nodes.setter
    def nodes(self, _: Any) -> None:
        raise UsageError(FIXED)

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

    def _reference(self, work_fn: str | Callable[[_core.Handle], Any]) -> tuple[str, dict[str, Any] | None]:
        """The name that the servers are asked for, and what a worker has to be sent first."""
        if self._program and isinstance(work_fn, str):
            return work_fn, None
        name, sent = _sent_work.reference(work_fn)
        if self._program and sent is not None:
            raise TypeError(f"the nodes run {self._program}: work_fn is the name of one of its functions")
        return name, sent

    def start(
        self,
        work_fn: str | Callable[[_core.Handle], Any],
        *,
        num_workers: int | None = None,
        gpus_per_worker: float | None = None,
        gpus: Iterable[int] = (),
        pin_cpus: bool = True,
        nodes: Iterable[int | str] = (),
        restart: RestartPolicy | None = None,
        on_restart: Callable[[Any], Any] | None = None,
    ) -> list[RemoteWorker]:
        """Start ``work_fn(handle)`` on every node, and return the workers: by node, then by worker.

        ``work_fn`` is a function, or its name, "module.function" or "__main__.function". The nodes import it; one that
        they cannot import, such as a lambda or a function of a notebook, is sent by value (with cloudpickle).
        May be called again, for another function: both sets of workers live side by side.

        ``num_workers`` (of each node) and ``gpus_per_worker`` take the place of what the nodes' configuration says.
        ``gpus`` are the GPUs of each node, by their numbers there, that these workers share among them: range(4) for
        training and range(4, 8) for rollouts splits them, the same ones for two groups shares them. Workers with GPUs
        run on the CPUs next to them, unless ``pin_cpus=False``. ``nodes`` are those that get workers, by host or by
        position; without it, all do.

        With ``restart=RestartPolicy()`` a worker that dies is replaced on its node, whose server is launched again if
        it is gone; or on another node, if that fails and the policy says ``other_nodes=True``. See ``Worker``;
        ``events`` tells of it.
        """
        _stop_import()
        name, sent = self._reference(work_fn)
        placing = checked_placing(num_workers, gpus_per_worker, gpus, pin_cpus, nodes)
        with self._lock:
            launched = self._core is not None
            if not launched:
                self._launch_servers(name)
            try:
                return self._connect(name, sent, placing, restart, on_restart)
            except BaseException:
                if not launched:
                    self._stop(INTERRUPT)
                raise

    def launch_servers(self, work_fn: str | Callable[[_core.Handle], Any] | None = None) -> list[Server]:
        """Start a worker server on every node, all at once, and import ``work_fn`` there if it is given."""
        _stop_import()
        return self._launch_servers(self._reference(work_fn)[0] if work_fn is not None else "")

    def _launch_servers(self, name: str) -> list[Server]:
        with self._lock:
            if self._core is not None:
                raise RuntimeError("the cluster's servers are up already. stop() ends them")
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
        nodes: Iterable[int | str] = (),
        restart: RestartPolicy | None = None,
        on_restart: Callable[[Any], Any] | None = None,
    ) -> list[RemoteWorker]:
        """Have the servers of all nodes (or of ``nodes``) start their workers; see ``start``."""
        placing = checked_placing(num_workers, gpus_per_worker, gpus, pin_cpus, nodes)
        return self._connect(*self._reference(work_fn), placing, restart, on_restart)

    def _connect(
        self,
        name: str,
        sent: dict[str, Any] | None,
        placing: Placing,
        restart: RestartPolicy | None,
        on_restart: Callable[[Any], Any] | None,
    ) -> list[RemoteWorker]:
        num_workers, gpus_per_worker, gpus, pin_cpus, nodes = placing
        _check_restart(restart, on_restart)
        with self._lock:
            core = self._running_core()
            positions = [self._position(node) for node in nodes]
            ready = core.connect_to_servers(name, num_workers, gpus_per_worker, gpus, pin_cpus, positions)
            made = [RemoteWorker._take_over(worker, sent) for worker in ready]
            if restart is not None:
                for worker in made:
                    self._supervise(worker, restart, on_restart)
            self._workers = self.workers + made
            return made

    def _supervise(self, worker: RemoteWorker, policy: RestartPolicy, on_restart: Callable[[Any], Any] | None) -> None:
        from miniray import _supervised

        home = self.node_of(worker)

        def replace(dead: RemoteWorker) -> RemoteWorker:
            with self._lock:
                core = self._running_core()
                [other] = _core._replace_in_cluster(core, dead, home, policy.other_nodes, self.events)
                return RemoteWorker._take_over(other, dead._sent)

        _supervised.supervise(worker, replace, policy, on_restart, self.events, self.servers[home].node)

    def relaunch(self, node: int | str, timeout: float | None = None) -> Server:
        """Bring back a node's server that died, or whose host was cut off; the other nodes go on.

        ``node`` is its host or its position. What is left of the old server, and its workers, end: at once, or as soon
        as they run again or can be reached. If the old one still holds its port, the new one takes any that is free.
        ClusterError says why if the node cannot be had within ``timeout`` seconds (by default the cluster's
        ``start_timeout_s``); it has no server then, and this may be tried again.
        """
        _check.seconds("timeout", timeout)
        with self._lock:
            core = self._running_core()
            position = self._position(node)
            try:
                core.relaunch(position, timeout)
            except ClusterError as error:
                [(name, why)] = error.failures.items()
                self.events.add("relaunch_failed", why, node=name)
                raise
            server = self.servers[position]
            self.events.add("node_back", "its server was launched again", node=server.node)
            return server

    def replace(self, worker: RemoteWorker, node: int | str | None = None) -> RemoteWorker:
        """A worker in the place of one that has died: the same function with the same GPUs, on the same node (or on
        ``node``). The old one is closed. ClusterError if the node's server is gone too; ``relaunch`` brings it back.
        """
        check_worker(worker)
        with self._lock:
            [ready] = self._running_core().replace(worker, None if node is None else self._position(node))
            made = RemoteWorker._take_over(ready, worker._sent)
            self._workers = [made if other is worker else other for other in self._workers]
        worker.close(0)
        return made

    def node_of(self, worker: RemoteWorker) -> int:
        """The position of the worker's node. UsageError if the worker is not this cluster's."""
        check_worker(worker)
        with self._lock:
            return self._running_core().node_of(worker)

    def _running_core(self) -> _core.Cluster:
        if self._core is None:
            raise RuntimeError("the cluster's servers are not up. Call launch_servers() or start()")
        return self._core

    def _workers_or_all(self, workers: Iterable[RemoteWorker] | None) -> list[RemoteWorker]:
        """Those that a call was given; without any, all that there are."""
        if workers is not None:
            listed = _check.listed("workers", workers, "a list of workers, or None for all")
            for worker in listed:
                check_worker(worker)
            return listed
        if not self.workers:
            raise RuntimeError("the cluster has no workers; start() starts them")
        return self.workers

    def _position(self, node: int | str) -> int:
        """Of a node that is given by its host or its position."""
        if isinstance(node, str):
            return self._running_core().position_of(node)
        _check.integer("node", node, what="the host of a node (a str), or its position (an int)")
        if not 0 <= node < len(self.nodes):
            known = "its only node is 0" if len(self.nodes) == 1 else f"its nodes are 0 to {len(self.nodes) - 1}"
            raise UsageError(f"the cluster has no node {node}; {known}")
        return node

    @property
    def workers(self) -> list[RemoteWorker]:
        """All workers that were started and not closed, in the order in which they were."""
        with self._lock:
            self._workers = [worker for worker in self._workers if not worker._closed]
            return list(self._workers)

    @property
    def servers(self) -> list[Server]:
        """The nodes' worker servers, in the order of ``nodes``; none before the start."""
        with self._lock:
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

        _check.number("timeout", timeout, what="a number of seconds")
        _check.integer("master_port", master_port)
        _check.boolean("progress", progress)
        with self._lock:
            core, listed = self._running_core(), self._workers_or_all(workers)
            return TrainingGroup(core, listed, timeout, master_port, progress, self.codec, self._lock)

    def run_group(
        self,
        work_fn: str | Callable[[_core.Handle], Any],
        drive: Callable[[TrainingGroup], Any],
        *,
        restart: RestartPolicy | None = None,
        num_workers: int | None = None,
        gpus_per_worker: float | None = None,
        gpus: Iterable[int] = (),
        pin_cpus: bool = True,
        nodes: Iterable[int | str] = (),
        timeout: float = _core.limits.group_timeout_ms / 1000,
        master_port: int = _core.limits.master_port,
        progress: bool = True,
    ) -> Any:
        """Start the ranks, make their training group, and return ``drive(group)``; if a rank dies, do it again.

        Then all ranks end, new ones get a new rendezvous, and ``drive`` is called with their group, whose ``attempt``
        counts from 0. It begins at its last checkpoint: with the same one and as many ranks, the run arrives where it
        would have. Nodes whose server is gone are launched again; with ``RestartPolicy(other_nodes=True)``, the ranks
        of a node that cannot be had go to the nodes that are left, and the node is tried again at the next restart.

        Without ``restart``, the policy is RestartPolicy(). When it allows no more, the last error is raised: GroupError
        as a rule. What else ``drive`` raises, and what keeps the first group from coming together, is raised at once.
        """
        _stop_import()
        policy = restart if restart is not None else RestartPolicy()
        _check_restart(policy, None)
        if not callable(drive):
            raise TypeError(f"drive is a function that takes the group, not {_check.shown(drive)}")
        placing = checked_placing(num_workers, gpus_per_worker, gpus, pin_cpus, nodes)
        name, sent = self._reference(work_fn)
        with self._lock:
            if self._core is None:
                self._launch_servers(name)

        ranks: list[RemoteWorker] = []
        group: TrainingGroup

        def begin(attempt: int) -> int:
            nonlocal group
            with self._lock:
                core, positions = self._running_core(), [self._position(node) for node in placing[4]]
                ready = _core._connect_again(core, name, *placing[:4], positions, policy.other_nodes, self.events)
                ranks.extend(RemoteWorker._take_over(worker, sent) for worker in ready)
                self._workers = self.workers + ranks
            group = self.training_group(list(ranks), timeout=timeout, master_port=master_port, progress=progress)
            group.attempt = attempt
            return len(group)

        def drive_group() -> Any:
            self.events._log_new()
            return drive(group)

        def end(how: int) -> None:
            self.events._log_new()
            _core._close_all(ranks, how)
            ranks.clear()

        try:
            return _core._run_group(begin, drive_group, end, policy._fields(), self.events, progress)
        finally:
            self.events._log_new()

    def check(self, ports: Iterable[int] = (_core.limits.master_port,)) -> CheckReport:
        """Find what would make a training run hang or fail: every pair of nodes on these ports (and on one of the
        system's choice), versions of Python, torch and NCCL, names, clocks, GPUs, shared memory and limits.

        It starts processes of its own on the nodes for a few seconds, whether the cluster is running or not. The report
        is false if there is a problem; ``print(report)`` shows each, and the command that cures it.
        """
        from miniray.doctor import _report

        listed = [_check.integer("a port", port) for port in _check.listed("ports", ports, "a list of ports")]
        text, value = _core._check(*self._configuration(), listed, self._core is None)
        return _report(text, value)

    def broadcast(self, message: Any, workers: Iterable[RemoteWorker] | None = None) -> None:
        """Send one message to all workers (or to these). It is encoded once, and large arrays go to each node once."""
        with self._lock:
            self._running_core().broadcast(self._workers_or_all(workers), message, self.codec)

    def gather(self, workers: Iterable[RemoteWorker] | None = None, timeout: float | None = None) -> list[Any]:
        """The next message of each worker (or of these), in order; TimeoutError if one is missing after ``timeout``.

        If one raises, the messages of the others are still there.
        """
        if isinstance(workers, int | float):
            raise TypeError(f"gather takes its time-out by name: gather(timeout={workers!r})")
        listed = self._workers_or_all(workers)
        return _core.Cluster.gather(listed, _check.seconds("timeout", timeout))

    def stop(self) -> None:
        """End all workers, then the servers, and wait for what was printed. The cluster may be started again.

        A pool on the cluster that is still open ends first: those of its tasks that are not done are cancelled.
        """
        self._stop(FINISH)

    def _stop(self, how: int) -> None:
        pools = sys.modules.get("miniray._pool_inside")
        if pools is not None:
            pools.end_those_on(self)
        with self._lock:
            if self._core is None:
                return
            workers = self.workers
            core, self._core, self._workers = self._core, None, []
            _running.remove(self)
            core.stop(workers, how)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        """After an exception, Ctrl-C for one, workers are not waited for: they are interrupted, and soon killed."""
        self._stop(FINISH if kind is None else INTERRUPT)

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *exception: object) -> None:
        from miniray import _async

        await _async.in_thread(self.__exit__, *exception)

    def __repr__(self) -> str:
        state = f"{len(self.workers)} workers" if self._core is not None else "not running"
        return f"<miniray.Cluster of {len(self.nodes)} nodes, {state}>"

    def _repr_html_(self) -> str:
        from miniray._html import table

        with self._lock:
            servers, workers = self.servers, self.workers
            homes = [self.node_of(worker) for worker in workers]
        title = f"Cluster of {len(self.nodes)} nodes, " + (f"{len(workers)} workers" if servers else "not running")
        rows = []
        for number, node in enumerate(self.nodes):
            server = servers[number] if servers else None
            where = (f"{server.host}:{server.port}", server.pid) if server is not None else ("", "")
            rows.append((node.host, *where, homes.count(number)))
        return table(title, ("node", "server", "pid", "workers"), rows)


def _attendant() -> list[str]:
    """A small interpreter that loads the core and nothing else."""
    output = sys.modules.get("miniray._output")
    relay = output.relay() if output is not None else None
    join = "" if relay is None else f"import _output; _output.join({relay}); "
    attend = "import _core; sys.exit(_core._attend(*map(int, sys.argv[2:])))"
    code = f"import sys; sys.path[:0] = [sys.argv[1]]; {join}{attend}"
    return [sys.executable, "-I", "-S", "-c", code, os.path.dirname(os.path.abspath(_core.__file__))]


_running: list[Cluster] = []  # so that each is stopped in good order when Python ends


@atexit.register
def _stop_all() -> None:
    how, interrupt = INTERRUPT if ends_by_exception() else FINISH, None
    for cluster in list(_running):
        try:
            cluster._stop(how)
        except KeyboardInterrupt as pressed:
            how, interrupt = INTERRUPT, pressed
    if interrupt is not None:
        raise interrupt

"""A ``Cluster`` starts workers on several machines, which it reaches through ssh."""

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
    attendant_command,
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
    """The worker server of a node."""

    node: str
    host: str
    port: int
    pid: int


@_check.suggest_arguments()
class Cluster:
    """Start workers on several machines through ssh, and end all of them together.

        cluster = Cluster(nodes=[NodeConfig("node1", num_workers=4), NodeConfig("node2", num_workers=4)])
        workers = cluster.start(work_fn="my_module.work")     # or work_fn=work

    The cluster copies your script and the modules beside it to the nodes; the nodes need Python and MiniRay. Set
    ``ship_code=False`` if they have your code already. ``tunnel=True`` carries all traffic inside the ssh connections,
    so that no port is opened on the nodes. Connections that leave this machine are encrypted, unless ``encrypt`` is
    False, which is for networks that you trust. ``program`` is a C++ program that calls ``miniray::init``; the work
    functions are then functions of that program.
    What workers print is shown on this machine, marked with node and worker. With ``output="folder"``, each worker's
    output goes to its own file there. With ``pickle=False``, calls of its workers, and a pool on it, send and take no
    pickles: no node can run code in this process.

    When the cluster is stopped, or your program ends in any way, no process of the cluster is left on any node.

    Any thread may call a cluster. Calls wait for each other, except ``gather``. Only one thread at a time may use a
    worker. ``events`` is a log of what happened to workers, groups and nodes, and what the cluster did about it.
    """

    def __init__(
        self,
        nodes: Iterable[NodeConfig],
        *,
        program: str | os.PathLike[str] | None = None,
        ship_code: bool = True,
        tunnel: bool = False,
        encrypt: bool | None = None,
        output: str | os.PathLike[str] | None = None,
        progress: bool = True,
        start_timeout_s: float = _core.limits.start_timeout_ms / 1000,
        unreachable_s: float = _core.limits.unreachable_ms / 1000,
        codec: str = "msgpack",
        spin_us: int | None = None,
        inbox_bytes_max: int = _core.limits.inbox_bytes_max,
        message_bytes_max: int = _core.limits.message_bytes_max,
        pickle: bool = True,
    ) -> None:
        self._nodes = checked_nodes(nodes)
        self.codec = codec
        self._takes_pickles = _check.boolean("pickle", pickle)
        self._start_timeout_s = _check.number("start_timeout_s", start_timeout_s, what="a number of seconds")
        self._program = _check.path("program", program)
        self._ship_code = _check.boolean("ship_code", ship_code)
        self._options = (
            ship_code,
            _check.boolean("tunnel", tunnel),
            _check.boolean_or_none("encrypt", encrypt),
            _check.path("output", output),
            _check.boolean("progress", progress),
            self._start_timeout_s,
            _check.number("unreachable_s", unreachable_s, what="a number of seconds"),
            *_channel_options(codec, spin_us, inbox_bytes_max, message_bytes_max),
        )
        self._core: _core.Cluster | None = None
        self._workers: list[RemoteWorker] = []
        self._lock = threading.RLock()
        self.events = EventLog()
        _show_output()
        self._make("")  # raises now if the configuration is wrong

    @property
    def nodes(self) -> Nodes:
        """The nodes as they were given. They cannot be changed."""
        return self._nodes

    @nodes.setter
    def nodes(self, _: Any) -> None:
        raise UsageError(FIXED)

    def _configuration(self) -> tuple[list[Any], str, list[str], str, tuple[Any, ...]]:
        """The first arguments of the core's Cluster and of its check."""
        nodes = [node._fields() for node in self.nodes]
        return nodes, sys.executable, attendant_command(), self._program, self._options

    def _make(self, work_fn: str) -> _core.Cluster:
        from miniray import _shipping

        files, setup = _shipping.collect(work_fn, self._ship_code) if work_fn and not self._program else ([], None)
        return _core.Cluster(*self._configuration(), files, json.dumps(setup))

    def _reference(self, work_fn: str | Callable[[_core.Handle], Any]) -> tuple[str, dict[str, Any] | None]:
        """The name under which the servers find the function, and the function itself if it is sent by value."""
        if self._program and isinstance(work_fn, str):
            return work_fn, None
        name, sent = _sent_work.reference(work_fn, takes_pickles=self._takes_pickles or bool(self._program))
        if self._program and sent is not None:
            raise TypeError(
                f"work_fn is a function of Python, but the nodes run {self._program}. Pass the name of one of its "
                "functions, a str"
            )
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
        """Start ``work_fn(handle)`` on every node, and return the workers, ordered by node and then by their number.

        ``work_fn`` is a function, or its name: "module.function" or "__main__.function". The nodes import it. A
        function that they cannot import, such as a lambda or one of a notebook, is sent by value (with cloudpickle).
        You may call ``start`` again for another function: both sets of workers then run side by side.

        ``num_workers`` (for each node) and ``gpus_per_worker`` replace the values in the nodes' configuration.
        ``gpus`` are the GPUs of each node that these workers may use, by their numbers there. For instance, range(4)
        for training and range(4, 8) for rollouts split the GPUs of a node; two sets with the same GPUs share them.
        Workers with GPUs run on the CPUs next to them, unless ``pin_cpus=False``. ``nodes`` are the nodes that get
        workers, by host or by position; the default is all nodes.

        With ``restart=RestartPolicy()``, a worker that dies is replaced on its node; if the node's server has died
        too, it is launched again. If that fails and the policy has ``other_nodes=True``, another node gets the worker.
        See ``Worker``; ``events`` logs each replacement. Raises ClusterError if a node fails.
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
        """Start the worker servers of all nodes at once, and import ``work_fn`` there if it is given."""
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
        """Start workers like ``start``, on servers that ``launch_servers`` has started."""
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
            made = [RemoteWorker._take_over(worker, sent, self._takes_pickles) for worker in ready]
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
                return RemoteWorker._take_over(other, dead._sent, self._takes_pickles)

        _supervised.supervise(worker, replace, policy, on_restart, self.events, self.servers[home].node)

    def relaunch(self, node: int | str, timeout: float | None = None) -> Server:
        """Launch a node's server again, after it died or its host was cut off. Other nodes are not disturbed.

        ``node`` is the node's host or position. The old server and its workers are ended: at once, or, if they hang or
        cannot be reached, as soon as that is over. If the old server still holds its port, the new one listens on any
        free port. Raises ClusterError, with the cause, if the server is not up within ``timeout`` seconds (default:
        the cluster's ``start_timeout_s``). The node then has no server, and you may call ``relaunch`` again.
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
        """Start a worker in place of one that has died, with the same function and the same GPUs, on the same node (or
        on ``node``), and return it. The old worker is closed. Raises ClusterError if the node's server has died too:
        ``relaunch`` the node then.
        """
        check_worker(worker)
        with self._lock:
            [ready] = self._running_core().replace(worker, None if node is None else self._position(node))
            made = RemoteWorker._take_over(ready, worker._sent, self._takes_pickles)
            self._workers = [made if other is worker else other for other in self._workers]
        worker.close(0)
        return made

    def node_of(self, worker: RemoteWorker) -> int:
        """The position of the worker's node. Raises UsageError if the worker does not belong to this cluster."""
        check_worker(worker)
        with self._lock:
            return self._running_core().node_of(worker)

    def _running_core(self) -> _core.Cluster:
        if self._core is None:
            raise RuntimeError("the cluster's servers are not up. Call launch_servers() or start()")
        return self._core

    def _workers_or_all(self, workers: Iterable[RemoteWorker] | None) -> list[RemoteWorker]:
        """The workers that a call was given, or all if it was given None."""
        if workers is not None:
            listed = _check.listed("workers", workers, "a list of workers, or None for all")
            for worker in listed:
                check_worker(worker)
            return listed
        if not self.workers:
            raise RuntimeError("the cluster has no workers. Call start()")
        return self.workers

    def _position(self, node: int | str) -> int:
        """The position of a node that is given by its host or its position."""
        if isinstance(node, str):
            return self._running_core().position_of(node)
        _check.integer("node", node, what="the host of a node (a str), or its position (an int)")
        if not 0 <= node < len(self.nodes):
            known = "its only node is 0" if len(self.nodes) == 1 else f"its nodes are 0 to {len(self.nodes) - 1}"
            raise UsageError(f"the cluster has no node {node}; {known}")
        return node

    @property
    def workers(self) -> list[RemoteWorker]:
        """All workers that are not closed, in the order in which they were started."""
        with self._lock:
            self._workers = [worker for worker in self._workers if not worker._closed]
            return list(self._workers)

    @property
    def servers(self) -> list[Server]:
        """The worker servers, in the order of ``nodes``; an empty list if they are not up."""
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
        """Make these workers (default: all) a torch.distributed group. They get their ranks in this order.

        The call picks a master address that all nodes can reach, and a free port there, from ``master_port`` on. It
        sends each worker its config, for ``NCCLConfig(**handle.recv())``, and waits until each has answered
        ``{"status": "ready"}``. Raises TimeoutError after ``timeout`` seconds; its text says which ranks are not ready
        and what each is doing. Raises GroupError if a node cannot reach another, or if a rank fails.
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
        """Start the ranks, make them a training group, and return ``drive(group)``. If a rank dies, start over.

        To start over, the cluster ends all ranks, starts new ones with a new rendezvous, and calls ``drive`` with
        their group, whose ``attempt`` counts from 0. ``drive`` should begin at its last checkpoint: with the same
        checkpoint and the same number of ranks, the run computes the same as without the failure. A node whose server
        has died is launched again. If that fails and the policy is ``RestartPolicy(other_nodes=True)``, other nodes get
        its ranks, and the next restart tries the node again.

        The default of ``restart`` is RestartPolicy(). When the policy allows no more restarts, the last error is
        raised, usually a GroupError. Other exceptions of ``drive``, and a failure to make the first group, are raised
        at once.
        """
        _stop_import()
        policy = restart if restart is not None else RestartPolicy()
        _check_restart(policy, None)
        if not callable(drive):
            raise TypeError(f"drive is a function that takes the group, not {_check.shown(drive)}")
        placing = checked_placing(num_workers, gpus_per_worker, gpus, pin_cpus, nodes)
        work = self._reference(work_fn)
        with self._lock:
            if self._core is None:
                self._launch_servers(work[0])
        from miniray._group_run import run_group

        options = {"timeout": timeout, "master_port": master_port}
        return run_group(self, work, placing, drive, policy, progress, **options)

    def check(self, ports: Iterable[int] = (_core.limits.master_port,)) -> CheckReport:
        """Find what would make a training run hang or fail: check every pair of nodes on these ports (and on one that
        the system chooses), versions of Python, torch and NCCL, names, clocks, GPUs, shared memory and limits.

        The check runs processes of its own on the nodes for a few seconds, whether the cluster is running or not. The
        report is false if there is a problem; ``print(report)`` shows each problem and its cure.
        """
        from miniray.doctor import _report

        listed = [_check.integer("a port", port) for port in _check.listed("ports", ports, "a list of ports")]
        text, value = _core._check(*self._configuration(), listed, self._core is None)
        return _report(text, value)

    def broadcast(self, message: Any, workers: Iterable[RemoteWorker] | None = None) -> None:
        """Send one message to these workers (default: all). It is encoded once, and a large array crosses the network
        once for each node."""
        with self._lock:
            self._running_core().broadcast(self._workers_or_all(workers), message, self.codec)

    def gather(self, workers: Iterable[RemoteWorker] | None = None, timeout: float | None = None) -> list[Any]:
        """Return the next message of each of these workers (default: all), in order. Raises TimeoutError if one is
        missing after ``timeout`` seconds.

        If it raises, no message is lost: the next ``gather`` or ``recv`` returns those that had arrived.
        """
        if isinstance(workers, int | float):
            raise TypeError(f"gather takes its time-out by name: gather(timeout={workers!r})")
        listed = self._workers_or_all(workers)
        return _core.Cluster.gather(listed, _check.seconds("timeout", timeout))

    def stop(self) -> None:
        """Close all workers, then end the servers, and wait until everything that the workers printed is shown.
        Afterwards the cluster may be started again.

        A pool on the cluster that is still open is shut down first; its unfinished tasks are cancelled.
        """
        self._stop(FINISH)

    def _stop(self, how: int) -> None:
        pools = sys.modules.get("miniray._pool_driver")
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
        """Stop the cluster. After an exception, such as Ctrl-C, the workers are interrupted, and soon killed."""
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


_running: list[Cluster] = []  # the clusters that _stop_all() stops when Python ends


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

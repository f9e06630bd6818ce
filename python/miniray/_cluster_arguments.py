"""The arguments of a cluster: its nodes, where workers start, and its attendant. They are checked before anything is
started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from miniray import _check, _core
from miniray.errors import UsageError
from miniray.worker import Worker


@_check.suggest_arguments()
@dataclass(frozen=True)
class NodeConfig:
    """A machine, and how many workers it gets.

    ``host`` is the name that you give to ssh: a host name, an alias of your ssh config, or user@host. "localhost" is
    reached without ssh. ``base_port`` is the port of the node's server (0: any free port). With ``gpus_per_worker=n``,
    worker i sees only the GPUs i*n to i*n+n-1 of the node, as cuda:0 to cuda:n-1, and runs on the CPUs next to them. A
    share such as 0.5 puts two workers on each GPU. With 0, each worker sees all GPUs. On a node without GPUs this has
    no effect. ``python_bin`` is the interpreter on the node (default: the path of this interpreter if the node has it,
    else python3). ``env`` is added to the environment of the server and its workers, and ``workdir`` is their folder.
    """

    host: str
    num_workers: int = 4
    base_port: int = 10000
    gpus_per_worker: float = 0
    ssh_key: str | os.PathLike[str] | None = None
    python_bin: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check the types. The core checks the values when a cluster is made."""
        _check.text("host", self.host, 'a str, such as "node1" or "user@10.0.0.2"')
        for name in ("num_workers", "base_port"):
            object.__setattr__(self, name, _check.integer(name, getattr(self, name)))
        object.__setattr__(self, "gpus_per_worker", _check.number("gpus_per_worker", self.gpus_per_worker))
        _check.path("ssh_key", self.ssh_key)
        if self.python_bin is not None:
            _check.text("python_bin", self.python_bin, "a str, the path of an interpreter, or None")
        _check.environment("env", self.env)
        _check.path("workdir", self.workdir)

    def _fields(self) -> tuple[str, int, int, float, str, str, dict[str, str], str]:
        """The fields as the core takes them."""
        return (
            self.host,
            self.num_workers,
            self.base_port,
            self.gpus_per_worker,
            _check.path("ssh_key", self.ssh_key),
            self.python_bin or "",
            dict(self.env),
            _check.path("workdir", self.workdir),
        )


class Nodes(tuple[NodeConfig, ...]):
    """The nodes of a cluster. They cannot be changed, and what a list would do to them raises."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UsageError(FIXED)

    append = extend = insert = remove = pop = clear = __setitem__ = __delitem__ = __iadd__ = _refuse


FIXED = (
    "the nodes of a cluster cannot be changed. Make another cluster: "
    'Cluster(nodes=[*cluster.nodes, NodeConfig("node3")])'
)


def checked_nodes(nodes: Any) -> Nodes:
    if isinstance(nodes, NodeConfig):
        raise TypeError("nodes is a list of NodeConfig objects, not one of them: Cluster(nodes=[NodeConfig(...)])")
    if isinstance(nodes, str):
        raise TypeError(f'nodes is a list of NodeConfig objects, not a str: Cluster(nodes=[NodeConfig("{nodes}")])')
    listed = _check.listed("nodes", nodes, "a list of NodeConfig objects")
    for node in listed:
        if not isinstance(node, NodeConfig):
            cure = f'; write NodeConfig("{node}")' if isinstance(node, str) else ""
            raise TypeError(f"nodes are NodeConfig objects, not {_check.shown(node)}{cure}")
    return Nodes(listed)


# The arguments of Cluster.start that say where workers go: num_workers, gpus_per_worker, gpus, pin_cpus, nodes.
Placing = tuple[int | None, float | None, list[int], bool, list[int | str]]


def checked_placing(num_workers: Any, gpus_per_worker: Any, gpus: Any, pin_cpus: Any, nodes: Any) -> Placing:
    if num_workers is not None:
        num_workers = _check.integer("num_workers", num_workers, what="an int, or None")
    if gpus_per_worker is not None:
        gpus_per_worker = _check.number("gpus_per_worker", gpus_per_worker, what="a number, or None")
    listed = _check.listed("gpus", gpus, "a list of GPUs by their numbers, such as range(4)")
    numbers = [_check.integer("a GPU in gpus", gpu, 0) for gpu in listed]
    chosen = _check.listed("nodes", nodes, 'a list of hosts or positions, such as ["node1"] or [0]')
    return num_workers, gpus_per_worker, numbers, _check.boolean("pin_cpus", pin_cpus), chosen


def check_worker(worker: Any) -> None:
    if not isinstance(worker, Worker):
        raise TypeError(f"worker is a worker of this cluster, not {_check.shown(worker)}")


def attendant_command() -> list[str]:
    """The command of the attendant (src/launch/attendant.hpp): an interpreter that loads only the core."""
    output = sys.modules.get("miniray._output")
    relay = output.relay() if output is not None else None
    join = "" if relay is None else f"import _output; _output.join({relay}); "
    attend = "import _core; sys.exit(_core._attend(*map(int, sys.argv[2:])))"
    code = f"import sys; sys.path[:0] = [sys.argv[1]]; {join}{attend}"
    return [sys.executable, "-I", "-S", "-c", code, os.path.dirname(os.path.abspath(_core.__file__))]

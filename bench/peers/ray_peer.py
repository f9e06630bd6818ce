"""Ray: actors and remote functions, on a local instance without dashboard, or on nodes that `ray start` joined."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from peers import processes
from peers.peer import ROOT, Peer, right
from peers.work import Actor, nothing

NODES_PORT = 26379
START_TIMEOUT_S = 60.0


class Client:
    """A client with an actor of its own. The client is an actor too, because everything in Ray runs in a Ray worker."""

    def __init__(self) -> None:
        import ray

        self.actor: Any = ray.remote(Actor).remote()

    def calls(self, count: int) -> int:
        import ray

        return right(ray.get([self.actor.small_value.remote() for _ in range(count)]))


class Ray(Peer):
    title = "Ray"
    colour = "#028cf0"
    place = 1
    distribution = "ray"
    requirements = ("ray==2.60.0",)
    module = "ray"
    how: ClassVar[dict[str, str]] = {
        "actors": "`ray.get(actor.method.remote())`",
        "tasks": "`ray.remote(function).remote()`",
        "broadcast": "`ray.put` once, the reference to each actor",
        "nodes": "`ray start` on each host, `ray.put` once, the reference to each actor",
    }
    first = """
import ray
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
@ray.remote
def square(x):
    return x * x
print(ray.get(square.remote(7)), flush=True)
input()
ray.shutdown()
"""

    def _init(self, workers: int) -> None:
        import ray

        self.ray: Any = ray
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
            _temp_dir=tempfile.gettempdir() + "/ray",
        )

    def start_actors(self, workers: int) -> None:
        self._init(workers)
        kind = self.ray.remote(Actor)
        self.actors = [kind.remote() for _ in range(workers)]

    def calls(self, count: int) -> int:
        get, method = self.ray.get, self.actors[0].small_value
        return right([get(method.remote()) for _ in range(count)])

    def calls_in_flight(self, count: int) -> int:
        method = self.actors[0].small_value
        return right(self.ray.get([method.remote() for _ in range(count)]))

    def call_each(self) -> int:
        return right(self.ray.get([actor.small_value.remote() for actor in self.actors]))

    def echo(self, array: Any) -> Any:
        return self.ray.get(self.actors[0].echo.remote(array))

    def broadcast(self, array: Any) -> list[float]:
        reference = self.ray.put(array)
        sums: list[float] = self.ray.get([actor.checksum.remote(reference) for actor in self.actors])
        return sums

    def start_clients(self, clients: int) -> None:
        self._init(2 * clients)
        kind = self.ray.remote(Client)
        self.clients = [kind.remote() for _ in range(clients)]

    def client_calls(self, count: int) -> int:
        return sum(self.ray.get([client.calls.remote(count) for client in self.clients]))

    def start_tasks(self, workers: int) -> None:
        self._init(workers)

    def tasks(self, count: int) -> int:
        function, get = self.ray.remote(nothing), self.ray.get
        return right([get(function.remote()) for _ in range(count)])

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        remote = self.ray.remote(function)
        results: list[Any] = self.ray.get([remote.remote(*some) for some in arguments])
        return results

    def start_nodes(self, hosts: dict[str, str], here: str, workers: int) -> None:
        import ray

        self.ray = ray
        self.command_line = str(Path(sys.executable).with_name("ray"))
        start = ["start", "--disable-usage-stats"]
        head = [*start, "--head", f"--node-ip-address={here}", f"--port={NODES_PORT}", "--num-cpus=0"]
        head += ["--include-dashboard=false", f"--temp-dir={tempfile.gettempdir()}/ray"]
        _check(_start([self.command_line, *head]))
        joining = []
        for host, address in hosts.items():
            words = [*start, f"--address={here}:{NODES_PORT}", f"--node-ip-address={address}", f"--num-cpus={workers}"]
            command = ["env", f"PYTHONPATH={ROOT / 'bench'}", self.command_line, *words]
            joining.append(_start(["ssh", host, shlex.join(command)]))
        for child in joining:
            _check(child)
        ray.init(address=f"{here}:{NODES_PORT}", logging_level="ERROR", log_to_driver=False, _node_ip_address=here)
        kind = ray.remote(num_cpus=1)(Actor)
        self.actors = [kind.remote() for _ in range(workers * len(hosts))]

    def stop(self) -> None:
        if hasattr(self, "ray"):
            self.ray.shutdown()
        if hasattr(self, "command_line"):
            # `ray stop` would end every Ray on the machine. Processes on the hosts end with the hosts.
            processes.end_all(os.environ[processes.MARK], spare=os.getpid())


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _check(child: subprocess.Popen[str]) -> None:
    _, errors = child.communicate(timeout=START_TIMEOUT_S)
    if child.returncode != 0:
        raise RuntimeError(f"{child.args}: {errors[-500:]}")


PEER = Ray

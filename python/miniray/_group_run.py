"""The inside of ``Cluster.run_group``: starts ranks, makes their group, drives it, and starts over if a rank dies. The
core decides whether and when to start over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from miniray import _core
from miniray._cluster_arguments import Placing
from miniray.supervision import RestartPolicy
from miniray.worker import RemoteWorker

if TYPE_CHECKING:
    from miniray.cluster import Cluster
    from miniray.training_group import TrainingGroup


def run_group(
    cluster: Cluster,
    work: tuple[str, dict[str, Any] | None],
    placing: Placing,
    drive: Callable[[TrainingGroup], Any],
    policy: RestartPolicy,
    progress: bool,
    **group_options: Any,
) -> Any:
    """``work`` is the name of the work function, and its value if it has to be sent. The servers are up."""
    name, sent = work
    ranks: list[RemoteWorker] = []
    group: TrainingGroup

    def begin(attempt: int) -> int:
        nonlocal group
        with cluster._lock:
            core, positions = cluster._running_core(), [cluster._position(node) for node in placing[4]]
            ready = _core._connect_again(core, name, *placing[:4], positions, policy.other_nodes, cluster.events)
            ranks.extend(RemoteWorker._take_over(worker, sent, cluster._takes_pickles) for worker in ready)
            cluster._workers = cluster.workers + ranks
        group = cluster.training_group(list(ranks), progress=progress, **group_options)
        group.attempt = attempt
        return len(group)

    def drive_group() -> Any:
        cluster.events._log_new()
        return drive(group)

    def end(how: int) -> None:
        cluster.events._log_new()
        _core._close_all(ranks, how)
        ranks.clear()

    try:
        return _core._run_group(begin, drive_group, end, policy._fields(), cluster.events, progress)
    finally:
        cluster.events._log_new()

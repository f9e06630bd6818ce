"""A training run that outlives the death of its ranks: cluster.run_group."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from miniray import _core
from miniray.errors import ClusterError, GroupError, WorkerDied, WorkerError
from miniray.supervision import RestartPolicy
from miniray.worker import FINISH, INTERRUPT, KILL, RemoteWorker

if TYPE_CHECKING:
    from miniray.cluster import Cluster
    from miniray.training_group import TrainingGroup

_DEATHS = (GroupError, WorkerDied, WorkerError, ClusterError)


def run(
    cluster: Cluster,
    connect: Callable[[], list[RemoteWorker]],
    make_group: Callable[[list[RemoteWorker]], TrainingGroup],
    drive: Callable[[TrainingGroup], Any],
    policy: RestartPolicy,
    progress: bool,
) -> Any:
    """Calls ``drive`` with a new group until it returns, as often as the policy allows."""
    budget, begun = policy._budget(), False
    for attempt in count():
        workers: list[RemoteWorker] = []
        try:
            workers = connect()
            group = make_group(workers)
            group.attempt, begun = attempt, True
            cluster.events.add("group_restarted" if attempt else "group_started", f"{len(group)} ranks")
            result = drive(group)
        except _DEATHS as error:
            _core._close_all(workers, KILL)
            if not begun or (pause_s := _pause(cluster, error, budget, progress)) is None:
                raise
        except BaseException:
            _core._close_all(workers, INTERRUPT)
            raise
        else:
            _core._close_all(workers, FINISH)
            cluster.events.add("group_finished", f"restarts: {attempt}", restarts=attempt)
            return result
        time.sleep(pause_s)


def _pause(cluster: Cluster, error: Exception, budget: _core._RestartBudget, progress: bool) -> float | None:
    """Before the next attempt; None if there is to be none."""
    rank = getattr(error, "rank", None)
    cluster.events.add("group_failed", str(error), **({} if rank is None else {"rank": rank}))
    pause_s = budget.take(time.monotonic())
    if pause_s is None:
        cluster.events.add("restart_refused", budget.refusal())
        error.args = (f"{error}\n\n{budget.refusal()}",)
    elif progress:
        first_line = str(error).partition("\n")[0]
        print(f"miniray: {first_line} All ranks start again ({budget.describe()})", file=sys.stderr)
    return pause_s

"""Checks the arguments of a pool and of its tasks, before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from miniray import _check
from miniray.cluster import NodeConfig
from miniray.errors import TaskOutOfMemory, TaskTimeout, UsageError, WorkerError
from miniray.supervision import RestartPolicy
from miniray.worker import Worker


@dataclass(frozen=True)
class TaskOptions:
    """What a task needs, and what is done when it fails; see ``Pool.options``."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    strategy: str = "spread"
    node: str | None = None
    timeout: float | None = None
    memory_bytes: int | None = None
    retries: int = 0
    retry_on: tuple[type[BaseException], ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        _check.choice("strategy", self.strategy, ("spread", "pack"))
        for name in ("num_cpus", "num_gpus"):
            object.__setattr__(self, name, _check.number(name, getattr(self, name), 0))
        object.__setattr__(self, "resources", _check.amounts("resources", self.resources))
        if self.node is not None:
            _check.text("node", self.node, "a str, the name of a node, or None")
        if self.name is not None:
            _check.text("name", self.name, "a str, or None")
        if self.timeout is not None and not _check.number("timeout", self.timeout, what=_SECONDS) > 0:
            raise ValueError(f"timeout is a number of seconds above 0, or None, not {self.timeout!r}")
        object.__setattr__(self, "retries", _check.integer("retries", self.retries, 0))
        if self.memory_bytes is not None:
            limit = _check.integer(
                "memory_bytes", self.memory_bytes, 1, what="an int, such as 2**30 for 1 GiB, or None"
            )
            if limit >= 1 << 63:
                raise ValueError(f"memory_bytes is more than any machine has: {limit}")
            object.__setattr__(self, "memory_bytes", limit)
        object.__setattr__(self, "retry_on", _exceptions(self.retry_on))


_SECONDS = "a number of seconds, or None"


def _exceptions(kinds: Any) -> tuple[type[BaseException], ...]:
    classes = kinds if isinstance(kinds, tuple | list | set | frozenset) else (kinds,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"retry_on is an exception class or several, such as ValueError, not {_check.shown(kind)}")
    return tuple(classes)


# What to write instead of a method of multiprocessing.Pool.
OF_MULTIPROCESSING = {
    "apply": "write pool.submit(function, ...).result()",
    "apply_async": "write pool.submit(function, ...), which returns a future",
    "map_async": "write pool.map(function, items), which begins at once",
    "starmap_async": "write pool.starmap(function, tuples), which begins at once",
    "imap": "write pool.map(function, items), which yields in order, as results come",
    "close": "write pool.shutdown(), or with Pool(...) as pool:",
    "join": "write pool.shutdown(), or with Pool(...) as pool:",
    "terminate": "write pool.shutdown(cancel_futures=True)",
}
_WORKERS = "a pool takes a number of workers, a cluster or workers: Pool(4), Pool(cluster), Pool([worker, ...])"
TUPLES = "a list of tuples, one for each call, such as [(2, 3), (2, 4)]"


def check_chunksize(chunksize: Any) -> None:
    if chunksize is not None and _check.integer("chunksize", chunksize, what="an int, or None") < 1:
        raise ValueError("chunksize must be >= 1.")


def check_items(iterable: Any, place: str) -> None:
    if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
        raise TypeError(f"{place} is a list or another iterable, not {_check.shown(iterable)}")


def check_initializer(initializer: Any, initargs: Any) -> None:
    if initializer is not None and not callable(initializer):
        raise TypeError("initializer must be a callable")
    if not isinstance(initargs, tuple | list):
        raise TypeError(f"initargs is a tuple of arguments, such as (1,), not {_check.shown(initargs)}")


def check_policy(restart: Any) -> None:
    if restart is not None and not isinstance(restart, RestartPolicy):
        raise TypeError(f"restart is a RestartPolicy, such as RestartPolicy(), not {_check.shown(restart)}")


def arguments_of(arguments: Any) -> list[Any]:
    if not hasattr(type(arguments), "__iter__"):
        raise TypeError(f"starmap takes {TUPLES}, and one of them is {_check.shown(arguments)}")
    return list(arguments)


def check_pickle(pickle: Any, workers_take: bool, whose: str) -> bool:
    """Return whether a pool takes pickles. ``workers_take`` says whether its workers may."""
    if pickle is None:
        return workers_take
    if _check.boolean("pickle", pickle) and not workers_take:
        raise UsageError(f"{whose} was made with pickle=False, so the pool takes none either: leave out pickle=True")
    return bool(pickle)


def changed(options: TaskOptions, changes: dict[str, Any], takes_pickles: bool = True) -> TaskOptions:
    known = TaskOptions.__dataclass_fields__
    for name in changes:
        if name not in known:
            cure = _check.nearest(name, known) or f"; there are {', '.join(known)}"
            raise TypeError(f"a task has no option {name!r}{cure}")
    made = replace(options, **changes)
    if made.retry_on and not takes_pickles and not any(issubclass(kind, made.retry_on) for kind in _WITHOUT_PICKLES):
        names = ", ".join(kind.__name__ for kind in made.retry_on)
        raise UsageError(
            f"retry_on={names} would never match: with pickle=False, what a function raises arrives as WorkerError. "
            "Use retry_on=WorkerError"
        )
    return made


_WITHOUT_PICKLES = (WorkerError, TaskOutOfMemory, TaskTimeout)  # what tasks raise with pickle=False


# Options that belong to tasks, not to Pool itself.
OPTION_NAMES = tuple(name for name in TaskOptions.__dataclass_fields__ if name != "resources")
WHERE_OPTIONS_GO = " Options of tasks go to pool.options(...)"


def count(asked: Any) -> int:
    if asked is None:
        return len(os.sched_getaffinity(0))
    if isinstance(asked, bool):
        raise TypeError(f"{_WORKERS}, not {_check.shown(asked)}")
    if asked < 1:
        raise ValueError(f"max_workers must be greater than 0, not {asked!r}")
    return _check.integer("max_workers", asked)


def given(workers: Any) -> list[Any]:
    """Check the argument of Pool([worker, ...]), and return it as a list."""
    if isinstance(workers, str | bytes | float) or not hasattr(type(workers), "__iter__"):
        cure = ""
        if callable(workers):
            cure = ". A function goes to submit or map: Pool().map(function, items)"
        elif isinstance(workers, NodeConfig):
            cure = ". A node belongs to a cluster: Pool(Cluster([node]))"
        elif isinstance(workers, Worker):
            cure = "; write Pool([worker])"
        elif isinstance(workers, float) and workers.is_integer():
            cure = f"; write Pool({int(workers)})"
        elif isinstance(workers, str) and workers.isdigit():
            cure = f"; write Pool({workers})"
        raise TypeError(f"{_WORKERS}, not {_check.shown(workers)}{cure}")
    return list(workers)


def check_resources(resources: Any) -> None:
    """Check amounts that hold for every node, or dicts of amounts under the names of nodes."""
    if resources is None:
        return
    if not isinstance(resources, Mapping):
        raise TypeError(f'resources is a dict of amounts, such as {{"licence": 1}}, not {_check.shown(resources)}')
    for name, amount in resources.items():
        if isinstance(amount, Mapping):
            _check.amounts(f"resources[{name!r}]", amount)
        else:
            _check.number(f"resources[{name!r}]", amount, 0)


def start_method(start: str | None, mp_context: Any) -> str:
    if start is None:
        if mp_context is not None and not hasattr(mp_context, "get_start_method"):
            context = 'multiprocessing.get_context("spawn")'
            raise TypeError(f"mp_context is a context, such as {context}, not {_check.shown(mp_context)}")
        method = mp_context.get_start_method() if mp_context is not None else "fork"
        return "fork" if method == "fork" else "spawn"
    if start not in ("fork", "spawn"):
        raise ValueError(f'start is "fork" or "spawn", not {start!r}')
    return start

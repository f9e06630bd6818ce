"""A pool: functions run on whichever worker is free, here or on a cluster.

    with Pool(4) as pool:                               # or Pool(cluster), or Pool([worker, ...])
        future = pool.submit(pow, 2, 10)
        squares = list(pool.map(square, range(1000)))
        slow = pool.options(num_gpus=1, timeout=60, retries=2).submit(train, config)

It is a ``concurrent.futures.Executor``. Two threads serve it: the core's, which gives tasks to workers and never waits
for Python; and one that gives results to futures.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, overload

from miniray import _check, _core
from miniray._future import PoolBroken, PoolFuture
from miniray._pool_arguments import (
    OF_MULTIPROCESSING,
    OPTION_NAMES,
    TUPLES,
    WHERE_OPTIONS_GO,
    TaskOptions,
    arguments_of,
    changed,
    check_chunksize,
    check_initializer,
    check_items,
    check_pickle,
    check_policy,
    check_resources,
    count,
    given,
    start_method,
)
from miniray._pool_driver import PoolDriver, live
from miniray._pool_map import Mapping as _Map
from miniray._pool_workers import ClusterWorkers, GivenWorkers, LocalWorkers
from miniray.cluster import Cluster
from miniray.errors import UsageError
from miniray.supervision import EventLog, RestartPolicy
from miniray.worker import _stop_import, ends_by_exception

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

__all__ = ["Pool", "PoolBroken", "PoolFuture", "PoolView", "PoolWorker", "TaskOptions"]


class PoolWorker(NamedTuple):
    """A worker of a pool. ``state`` is "preparing", "idle", "busy" or "ending"."""

    name: str
    node: str
    pid: int
    state: str


class _Submitter(Executor):
    """The calls that a pool and a view of it with options have in common."""

    _driver: PoolDriver
    _options: TaskOptions
    _terms: Any

    def __reduce__(self) -> Any:
        raise TypeError(
            "a pool belongs to the process that made it, so its tasks cannot use it. Have the task return what is to "
            "be done next and submit that here, or make another Pool inside the task"
        )

    # Overloads: a worker awaits what a coroutine function returns; the name of a function says nothing about types.

    @overload
    def submit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> PoolFuture[T]: ...
    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]: ...
    def submit(self, fn: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]:
        """Run ``fn(*args, **kwargs)`` on a worker that is free, and return a future of what it returns.

        A string names a function that the worker has: "module.function", or what a C++ program registered.
        """
        driver = self._driver
        future: PoolFuture[Any] = PoolFuture(driver, self._options)
        function = driver.functions.get(fn) if type(fn) is _FUNCTION else None
        if function is None:
            function = driver.function(fn)
        needs = driver.needs_of(function)
        memory_bytes = self._options.memory_bytes
        driver.begin()
        try:
            future._number = driver.core.submit(
                function.handle, args, kwargs, self._terms, memory_bytes, future, needs, driver.pack
            )
        except Exception as error:
            # An argument that cannot be sent is the task's failure, not the pool's.
            future.set_exception(driver.explain(error, fn, args, kwargs))
        return future

    @overload  # type: ignore[override] # which takes an argument fn=
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]: ...
    @overload
    def map(
        self,
        fn: Callable[[A], T],
        iterable: Iterable[A],
        /,
        *,
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]: ...
    @overload
    def map(
        self,
        fn: Callable[[A, B], T],
        iterable: Iterable[A],
        iterable2: Iterable[B],
        /,
        *,
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Any],
        iterable2: Iterable[Any],
        iterable3: Iterable[Any],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]: ...
    @overload
    def map(
        self,
        fn: str,
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[Any]: ...
    def map(
        self,
        fn: Callable[..., Any] | str,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[Any]:
        """Yield what ``map(fn, *iterables)`` yields, computed in parallel. The arguments are collected at once.

        Short calls travel in chunks: of ``chunksize``, or of as many as the measured time of a call suggests. What a
        call raises is raised when its turn comes. TimeoutError if a result is not there ``timeout`` seconds after this
        call: then the calls that are left are cancelled, also those that run.
        """
        _check.seconds("timeout", timeout)
        check_chunksize(chunksize)
        if not iterables:
            raise TypeError("map takes a function and what to call it with: pool.map(function, items)")
        for position, iterable in enumerate(iterables, 2):
            check_items(iterable, f"argument {position} of map")
        star = len(iterables) != 1
        items = [list(arguments) for arguments in zip(*iterables, strict=False)] if star else list(iterables[0])
        mapping = _Map(self, fn, items, star=star, chunksize=chunksize, ordered=True, progress=progress)
        return mapping.results(timeout)

    @overload
    def starmap(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        iterable: Iterable[Iterable[Any]],
        *,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> list[T]: ...
    @overload
    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        *,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> list[T]: ...
    @overload
    def starmap(
        self,
        fn: str,
        iterable: Iterable[Iterable[Any]],
        *,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> list[Any]: ...
    def starmap(
        self,
        fn: Callable[..., Any] | str,
        iterable: Iterable[Iterable[Any]],
        *,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> list[Any]:
        """Return ``[fn(*arguments) for arguments in iterable]``, computed in parallel."""
        check_chunksize(chunksize)
        items = [arguments_of(arguments) for arguments in _check.listed("iterable", iterable, TUPLES)]
        mapping = _Map(self, fn, items, star=True, chunksize=chunksize, ordered=True, progress=progress)
        return list(mapping.results(None))

    @overload
    def imap_unordered(
        self,
        fn: Callable[[A], Coroutine[Any, Any, T]],
        iterable: Iterable[A],
        *,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]: ...
    @overload
    def imap_unordered(
        self,
        fn: Callable[[A], T],
        iterable: Iterable[A],
        *,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[T]: ...
    @overload
    def imap_unordered(
        self, fn: str, iterable: Iterable[Any], *, chunksize: int | None = None, progress: bool = False
    ) -> Iterator[Any]: ...
    def imap_unordered(
        self,
        fn: Callable[[Any], Any] | str,
        iterable: Iterable[Any],
        *,
        chunksize: int | None = None,
        progress: bool = False,
    ) -> Iterator[Any]:
        """Yield the results of ``fn(item)`` as they come. Items are taken as they are needed, so there may be no end of
        them.

        If you take results slowly, the pool keeps those that were not taken, up to ``results_bytes_max``; then no more
        items are begun.
        """
        check_chunksize(chunksize)
        check_items(iterable, "argument 2 of imap_unordered")
        mapping = _Map(self, fn, iterable, star=False, chunksize=chunksize, ordered=False, progress=progress)
        return mapping.results(None)


_FUNCTION = type(lambda: None)


@_check.suggest_arguments(OPTION_NAMES, WHERE_OPTIONS_GO)
class Pool(_Submitter):
    """Run functions on whichever worker is free.

    ``Pool(4)`` starts four workers here (``Pool()``: one for each CPU), ``Pool(cluster)`` those of a cluster, and
    ``Pool([worker, ...])`` takes workers that you have started, of any kind, which answer calls; they are the pool's
    until it is shut down. ``initializer(*initargs)`` runs first in every worker. A worker that dies is replaced; on a
    cluster, so is a server, and a node that was gone is used again when it is back. ``restart`` limits how often.

    A node's ``num_cpus`` is the number of its workers, its ``num_gpus`` what it has; ``resources`` names more:
    ``{"licence": 2}`` for every node, ``{"node1": {"ssd": 1}}`` for one.

    A forked worker has what this process had when the pool was made. ``start="spawn"`` starts fresh interpreters
    instead, for programs that already use CUDA or threads. ``message_bytes_max`` is the largest message to or from a
    worker; a worker that announces a larger one is lost.

    With ``pickle=False``, functions are sent by name, arguments and results are plain data, and exceptions arrive as
    WorkerError: whatever a worker answers, no code of its runs here. The default is what the cluster or the workers
    were made with, and else True.
    """

    def __init__(
        self,
        workers: int | Cluster | Iterable[Any] | None = None,
        mp_context: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_workers: int | None = None,
        start: str | None = None,
        resources: Mapping[str, Any] | None = None,
        restart: RestartPolicy | None = None,
        results_bytes_max: int = _core.limits.results_bytes_max,
        message_bytes_max: int | None = None,
        pickle: bool | None = None,
    ) -> None:
        _stop_import()
        if workers is not None and max_workers is not None:
            raise TypeError("say how many workers once: workers or max_workers")
        check_initializer(initializer, initargs)
        check_policy(restart)
        _check.integer("results_bytes_max", results_bytes_max, 1)
        check_resources(resources)
        workers = max_workers if workers is None else workers
        if message_bytes_max is not None:
            _check.integer("message_bytes_max", message_bytes_max, 1)
            if not (workers is None or isinstance(workers, int) or hasattr(type(workers), "__index__")):
                raise UsageError(
                    "message_bytes_max is for a pool that starts its workers here; give it to the cluster, or to each "
                    "worker, when you make them"
                )
        if isinstance(workers, Cluster):
            takes_pickles = check_pickle(pickle, workers._takes_pickles, "the cluster")
            source: Any = ClusterWorkers(workers, resources)
        elif workers is None or isinstance(workers, int) or hasattr(type(workers), "__index__"):
            limit = _core.limits.message_bytes_max if message_bytes_max is None else message_bytes_max
            takes_pickles = check_pickle(pickle, True, "")
            source = LocalWorkers(count(workers), start_method(start, mp_context), resources, limit, takes_pickles)
        else:
            workers = given(workers)
            all_take = all(getattr(worker, "_takes_pickles", True) for worker in workers)
            takes_pickles = check_pickle(pickle, all_take, "one of the workers")
            source = GivenWorkers(workers, resources)
        self._driver = PoolDriver(source, initializer, initargs, restart, results_bytes_max, takes_pickles)
        self._options = TaskOptions()
        self._terms = self._driver.terms(self._options)
        self._finalizer = weakref.finalize(self, PoolDriver.drop, self._driver)
        self._finalizer.atexit = False

    def options(self, **options: Any) -> PoolView:
        """Return a view of this pool with other terms for its tasks. The view is an executor, too:
        ``pool.options(num_gpus=1, retries=2).submit(fn)``.

        ``num_cpus``, ``num_gpus`` (a share such as 0.5, or whole ones) and ``resources`` are set aside while the task
        runs; CUDA_VISIBLE_DEVICES names its GPUs. A task that can never fit is refused with UsageError. ``strategy``
        is "spread" over nodes or "pack"; ``node`` names one. ``timeout`` are seconds of running, after which the task's
        worker is ended (TaskTimeout). ``memory_bytes`` is what it may add to its worker (TaskOutOfMemory).
        ``retries`` is how often it is tried again if its worker dies, or raises one of ``retry_on``.
        """
        return PoolView(self._driver, changed(self._options, options, self._driver.takes_pickles), self)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks. Those that were submitted are finished first, unless ``cancel_futures``; then the workers
        end. With ``wait=False`` this returns at once, and the rest happens behind it."""
        self._driver.shut_down(wait, cancel_futures)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            cure = OF_MULTIPROCESSING.get(name)
            raise AttributeError(f"'Pool' object has no attribute {name!r}" + (f"; {cure}" if cure else ""))

    def __enter__(self) -> Pool:
        return self

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(self, *exception: Any) -> None:
        from miniray import _async

        await _async.in_thread(self.__exit__, *exception)

    def __exit__(self, kind: Any = None, *exception: Any) -> None:
        """Leaving the block finishes what was submitted. Leaving it by an exception, Ctrl-C for one, does not: what has
        not begun is cancelled, and what runs is interrupted, and soon killed."""
        if kind is None:
            self.shutdown()
        else:
            self._driver.end()

    @property
    def events(self) -> EventLog:
        """The log of what happened to workers, nodes and tasks."""
        return self._driver.events

    @property
    def workers(self) -> list[PoolWorker]:
        """The workers that the pool has now."""
        return [PoolWorker(*worker[:4]) for worker in self._driver.core.workers()]

    def status(self) -> dict[str, Any]:
        """Return how many tasks wait, run, are done and have failed, and how many workers there are and are idle. Each
        item of a map is a task; a cancelled task is neither done nor failed."""
        status: dict[str, Any] = self._driver.core.status()
        return status

    def __repr__(self) -> str:
        status = self.status()
        return f"<miniray.Pool of {status['workers']} workers: {status['running']} tasks run, {status['queued']} wait>"

    def _repr_html_(self) -> str:
        from miniray._html import table

        status = self.status()
        counts = ", ".join(f"{status[name]} {name}" for name in ("queued", "running", "done", "failed"))
        return table(f"Pool of {status['workers']} workers; tasks: {counts}", PoolWorker._fields, self.workers)


for _method in ("submit", "map", "starmap", "imap_unordered"):
    getattr(_Submitter, _method).__qualname__ = f"Pool.{_method}"  # the name that errors show


class PoolView(_Submitter):
    """A pool with other terms for its tasks. Shutting down a view does nothing."""

    def __init__(self, driver: PoolDriver, options: TaskOptions, pool: Any) -> None:
        self._pool = pool  # the pool is shut down when nothing refers to it any more
        self._driver = driver
        self._options = options
        self._terms = driver.terms(options)

    def options(self, **options: Any) -> PoolView:
        """Return a view that has these terms, too."""
        return PoolView(self._driver, changed(self._options, options, self._driver.takes_pickles), self._pool)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing. Shut down the pool itself."""


def _shut_down_all() -> None:
    """Shut down all pools when Python ends. As in the standard executors, what was submitted is finished; but not if
    the program ends by an exception."""
    pools, interrupt = list(live), None
    for driver in pools:
        driver.begin_to_end() if ends_by_exception() else driver.shut_down(False, False)
    for driver in pools:
        try:
            driver.wait_for_the_end()
        except KeyboardInterrupt as pressed:
            interrupt = pressed
            for other in pools:
                other.begin_to_end()
    if interrupt is not None:
        raise interrupt


threading._register_atexit(_shut_down_all)  # type: ignore[attr-defined] # before threads are joined
atexit.register(_shut_down_all)  # for pools that such threads have made since

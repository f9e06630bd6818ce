"""Makes a pool a backend of joblib, and so of scikit-learn and every other library that uses joblib.

    import joblib, miniray.joblib

    miniray.joblib.register()
    with joblib.parallel_config(backend="miniray", n_jobs=4):    # or pool=Pool(cluster)
        joblib.Parallel()(joblib.delayed(fit)(fold) for fold in folds)

Without a pool, each ``Parallel`` starts a pool of its own and shuts it down. Only this module of MiniRay needs joblib.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib._parallel_backends import (  # type: ignore[import-untyped]
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)
from joblib.parallel import register_parallel_backend  # type: ignore[import-untyped]

from miniray.pool import Pool

__all__ = ["MiniRayBackend", "register"]

# The settings that a Parallel's own pool is made with. joblib passes on others too, which are ignored.
_POOL_OPTIONS = ("initargs", "initializer", "mp_context", "resources", "restart", "start")


def register(name: str = "miniray", *, make_default: bool = False) -> None:
    """Register the backend, for ``parallel_config(backend="miniray")`` and ``Parallel(backend="miniray")``."""
    register_parallel_backend(name, MiniRayBackend, make_default=make_default)


class MiniRayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs batches on ``n_jobs`` workers of this machine, or on the workers of ``pool`` (a ``Pool``, or what its
    ``options()`` returned).

    With a pool, ``n_jobs`` is the number of batches that are submitted at a time; the pool decides how many run.
    Without either there is one job, as with joblib's own backends. A Parallel call inside a task uses threads, unless
    it names another backend.
    """

    supports_retrieve_callback = True
    supports_return_generator = True
    supports_timeout = True

    def __init__(self, nesting_level: int | None = None, pool: Any = None, **options: Any) -> None:
        unknown = sorted(set(options) - set(_POOL_OPTIONS))
        if unknown:
            raise TypeError(f"the backend takes pool, {', '.join(_POOL_OPTIONS)}, not {', '.join(unknown)}")
        super().__init__(nesting_level=nesting_level)
        self._given = pool
        self.default_n_jobs = 1 if pool is None else -1
        self._options = options
        self._pool: Any = None
        self._under_way: set[Future[Any]] = set()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """The number of jobs, counted as joblib does: -1 stands for all workers, -2 for all but one."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")  # joblib's own text
        if n_jobs is None:
            return 1
        if self._given is None and not (self.in_main_thread() or self.nesting_level == 0):
            if n_jobs != 1:
                warnings.warn(
                    "MiniRay-backed parallel loops cannot be nested below threads, setting n_jobs=1. Use a pool that "
                    "was started before them: parallel_config(backend='miniray', pool=pool)",
                    stacklevel=3,
                )
            return 1
        given = self._given._driver.core.status()["workers"] if self._given is not None else None
        workers = given if given is not None else len(os.sched_getaffinity(0))
        if n_jobs < 0:
            return max(workers + 1 + n_jobs, 1)
        return n_jobs if given is None else max(min(n_jobs, given), 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **settings: Any) -> int:
        """joblib calls this before each Parallel call, or once for all calls in ``with Parallel() as parallel``."""
        self._given = settings.get("pool", self._given)
        count = self.effective_n_jobs(n_jobs)
        if self._given is not None:
            self._given._driver.begin()  # raises if the pool is closed or broken
            self._pool = self._given
        elif count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        else:
            asked = {key: value for key, value in settings.items() if key in _POOL_OPTIONS}
            self._pool = Pool(count, **{**self._options, **asked})
        self.parallel = parallel
        return count

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Run a batch. If it cannot be sent, the error goes into its future, because joblib may call this from a
        callback, where an exception would be lost."""
        try:
            future: Future[Any] = self._pool.submit(_run, func)
        except Exception as error:
            future = Future()
            future.set_exception(error)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # the name before joblib 1.5

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return what a batch returned, or raise what it raised."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel all batches: those that wait are dropped, and the workers of those that run are killed."""
        if self._pool is not self._given and not ensure_ready:
            self._pool.shutdown(wait=False, cancel_futures=True)  # first, so that it replaces no killed worker
        for future in list(self._under_way):
            future.cancel()

    def terminate(self) -> None:
        """Shut the pool down, unless it was given to us."""
        pool, self._pool = self._pool, None
        if pool is not None and pool is not self._given:
            pool.shutdown()
        self.reset_batch_stats()


def _run(batch: Callable[[], Any]) -> Any:
    """Run a batch in a worker. A batch is an object of joblib's; as an argument of this function it can be pickled."""
    return batch()

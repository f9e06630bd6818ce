"""A pool as a backend of joblib, and so of scikit-learn and of whatever else uses joblib.

    import joblib, miniray.joblib

    miniray.joblib.register()
    with joblib.parallel_config(backend="miniray", n_jobs=4):    # or pool=Pool(cluster)
        joblib.Parallel()(joblib.delayed(fit)(fold) for fold in folds)

Without a pool, each ``Parallel`` makes one for itself and ends it. Nobody needs joblib who does not import this module.
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

# Of all that joblib passes on, what a pool of its own is made with.
_POOL_OPTIONS = ("initargs", "initializer", "mp_context", "resources", "restart", "start")


def register(name: str = "miniray", *, make_default: bool = False) -> None:
    """Let joblib know the backend: ``parallel_config(backend="miniray")``, ``Parallel(backend="miniray")``."""
    register_parallel_backend(name, MiniRayBackend, make_default=make_default)


class MiniRayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """``n_jobs`` workers here, or the workers of ``pool``: a ``Pool``, or what its ``options()`` returned.

    With a pool, ``n_jobs`` decides how many batches are on their way; how many run is the pool's to say. Without either
    there is one job, as with joblib's own backends. Parallel calls in a task use threads, unless they name another
    backend.
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
        """As joblib counts: -1 are all workers, -2 all but one."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
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
        given = self._given._inside.status()["workers"] if self._given is not None else None
        workers = given if given is not None else len(os.sched_getaffinity(0))
        if n_jobs < 0:
            return max(workers + 1 + n_jobs, 1)
        return n_jobs if given is None else max(min(n_jobs, given), 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **settings: Any) -> int:
        """Called before each Parallel call, or once for those within ``with Parallel() as parallel``."""
        self._given = settings.get("pool", self._given)
        count = self.effective_n_jobs(n_jobs)
        if self._given is not None:
            self._given._inside.begin()  # which says so if it is closed or broken
            self._pool = self._given
        elif count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        else:
            asked = {key: value for key, value in settings.items() if key in _POOL_OPTIONS}
            self._pool = Pool(count, **{**self._options, **asked})
        self.parallel = parallel
        return count

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Run a batch. What goes wrong with sending it is its failure: joblib may be calling from a callback."""
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

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """What a batch returned, or raises what it raised."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Nobody wants the rest: batches that wait are dropped, and the workers of those that run are ended."""
        if self._pool is not self._given and not ensure_ready:
            self._pool.shutdown(wait=False, cancel_futures=True)  # so that no worker is replaced
        for future in list(self._under_way):
            future.cancel()

    def terminate(self) -> None:
        """End the workers, unless the pool was given to us."""
        pool, self._pool = self._pool, None
        if pool is not None and pool is not self._given:
            pool.shutdown()
        self.reset_batch_stats()


def _run(batch: Callable[[], Any]) -> Any:
    """In a worker. A batch is many calls, and an object of joblib's, so that it is sent as the argument of one."""
    return batch()

"""CPython's own tests of executors, run on miniray.Pool, each as a test of this file.

They are not copied here: they come with the interpreter, or with Debian's package libpython3.11-testsuite, and are
skipped where neither has them. What does not apply to a pool is named below, with the reason.
"""

from __future__ import annotations

import concurrent.futures.process
import importlib
import importlib.util
import sys
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from missing import NOT_HERE
from waiting import until

import miniray

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.timeout(200),
]

NAME = "test.test_concurrent_futures"


def load() -> Any:
    """The module of the tests: the interpreter's, or Debian's for the same version of Python."""
    try:
        package = importlib.import_module("test")
        if importlib.util.find_spec(NAME) is None:
            package.__path__.append(f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}/test")
        module = importlib.import_module(NAME)
    except (ImportError, unittest.SkipTest) as error:
        pytest.skip(f"{NOT_HERE}CPython's own tests, installed ({error})", allow_module_level=True)
    if not hasattr(module, "ExecutorTest"):
        pytest.skip(NOT_HERE + "a Python before 3.12, whose tests are in one file", allow_module_level=True)
    return module


SUITE = load()

PRIVATE = "it looks into the private attributes of the standard library's pool"
INHERITED = "it sends a queue or semaphore of multiprocessing, which only a forked child can have, by inheritance"
OTHER_TESTS = "it makes a ProcessPoolExecutor of its own, and tests that"
NO_LIMIT = "a pool has no max_tasks_per_child"
ANSWERED = "the call fails with the error that was raised, and the pool goes on; the standard library's is broken"

DOES_NOT_APPLY = {
    "ProcessPoolExecutorTest": {
        "test_idle_process_reuse_multiple": PRIVATE,
        "test_idle_process_reuse_one": PRIVATE,
        "test_killed_child": PRIVATE,
        "test_max_tasks_early_shutdown": NO_LIMIT,
        "test_max_tasks_per_child": NO_LIMIT,
        "test_max_tasks_per_child_defaults_to_spawn_context": NO_LIMIT,
        "test_max_workers_too_large": "it is about a limit of Windows",
        "test_saturation": INHERITED,
    },
    "FailingInitializerMixin": {"test_initializer": INHERITED},
    "ProcessPoolShutdownTest": {
        "test_context_manager_shutdown": OTHER_TESTS,
        "test_del_shutdown": OTHER_TESTS,
        "test_processes_terminate": INHERITED,
        "test_shutdown_no_wait": OTHER_TESTS,
    },
    "ExecutorDeadlockTest": {
        "test_error_at_task_unpickle": ANSWERED,
        "test_error_during_result_pickle_on_worker": "what cannot be sent back is a TypeError, with that error's text",
        "test_error_during_result_unpickle_in_result_handler": ANSWERED,
        "test_exit_at_task_unpickle": ANSWERED,
        "test_exit_during_func_exec_on_worker": "sys.exit in a task is a WorkerError, so that it ends no program",
        "test_exit_during_result_pickle_on_worker": "what cannot be sent back is a TypeError, with that error's text",
        "test_exit_during_result_unpickle_in_result_handler": ANSWERED,
        "test_shutdown_deadlock_pickle": PRIVATE,
    },
}


class OnPool(SUITE.ProcessPoolForkMixin):  # type: ignore[misc]
    """Where the tests name what the standard library has, they find what MiniRay has."""

    executor_type = miniray.Pool

    def setUp(self) -> None:
        for where, name, ours in [
            (SUITE, "BrokenProcessPool", miniray.WorkerDied),  # of a worker's death
            (SUITE, "assert_python_ok", with_pool(SUITE.assert_python_ok)),
            (concurrent.futures.process, "_RemoteTraceback", miniray.RemoteTraceback),
            (miniray.RemoteTraceback, "tb", property(lambda error: error.text)),
        ]:
            patch = mock.patch.object(where, name, ours, create=where is miniray.RemoteTraceback)
            patch.start()
            self.addCleanup(patch.stop)
        super().setUp()

    def tearDown(self) -> None:
        super().tearDown()
        assert not SUITE.support.environment_altered  # no thread and no process was left


def with_pool(run: Callable[..., Any]) -> Callable[..., Any]:
    """Programs that import the executor's class from concurrent.futures find it there."""
    begin = f"""
import concurrent.futures, multiprocessing, test, miniray
concurrent.futures.Pool = miniray.Pool
test.__path__[:] = {list(sys.modules["test"].__path__)!r}
"""
    return lambda option, program: run(option, begin + program)


def on_pool(tests: Any) -> Any:
    """A class of CPython's tests, for pools."""
    left_out = DOES_NOT_APPLY.get(tests.__name__, {})
    assert all(callable(getattr(tests, name)) for name in left_out)
    return type(tests.__name__, (tests, OnPool, SUITE.BaseTestCase), dict.fromkeys(left_out))


class ShutdownTest(on_pool(SUITE.ProcessPoolShutdownTest)):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        # Some count on tasks having begun, which they do once there is a worker: those start in the background.
        assert until(lambda: self.executor.status()["idle"] == self.worker_count)


ExecutorTest = on_pool(SUITE.ProcessPoolExecutorTest)
WaitTests = on_pool(SUITE.WaitTests)
AsCompletedTests = on_pool(SUITE.AsCompletedTests)
InitializerTest = on_pool(SUITE.InitializerMixin)
FailingInitializerTest = on_pool(SUITE.FailingInitializerMixin)
DeadlockTest = on_pool(SUITE.ExecutorDeadlockTest)

"""The warning about threads names the line of the program that starts workers, not one of the package."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import miniray


def start_a_worker() -> Any:
    return miniray.Worker(lambda handle: None).close()


def start_a_pool() -> Any:
    return miniray.Pool(1).shutdown()


def run_joblib() -> Any:
    joblib = pytest.importorskip("joblib")
    import miniray.joblib

    miniray.joblib.register()
    return joblib.Parallel(n_jobs=2, backend="miniray")(joblib.delayed(abs)(number) for number in range(2))


@pytest.mark.parametrize("start", [start_a_worker, start_a_pool, run_joblib])
def test_it_names_the_callers_line(start: Callable[[], Any]) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start()
    finally:
        done.set()
        thread.join()
    warned = [one for one in caught if "Python threads" in str(one.message)]
    lines, first = inspect.getsourcelines(start)
    assert [(one.filename, one.lineno) for one in warned] == [(__file__, first + len(lines) - 1)]

"""Two executors, one yardstick: what the standard library's process pool does, MiniRay's pool does too."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import pytest

WORKERS = 2


def standard(max_workers: int | None = WORKERS, **options: Any) -> Executor:
    return ProcessPoolExecutor(max_workers, multiprocessing.get_context("fork"), **options)


def ours(max_workers: int | None = WORKERS, **options: Any) -> Executor:
    import miniray

    return miniray.Pool(max_workers, **options)


def _makes(kind: Callable[..., Executor]) -> Iterator[Callable[..., Executor]]:
    made: list[Executor] = []

    def make(*args: Any, **options: Any) -> Executor:
        made.append(kind(*args, **options))
        return made[-1]

    yield make
    for executor in made:
        executor.shutdown(wait=True, cancel_futures=True)


@pytest.fixture(params=[standard, ours], ids=["standard", "miniray"])
def make_executor(request: pytest.FixtureRequest) -> Iterator[Callable[..., Executor]]:
    """Makes executors that are shut down at the end of the test."""
    yield from _makes(request.param)


@pytest.fixture
def executor(make_executor: Callable[..., Executor]) -> Executor:
    """With two workers."""
    return make_executor()


@pytest.fixture
def make_pool() -> Iterator[Callable[..., Any]]:
    """Makes pools of MiniRay that are shut down at the end of the test."""
    yield from _makes(ours)


@pytest.fixture
def pool(make_pool: Callable[..., Any]) -> Any:
    """With two workers."""
    return make_pool()

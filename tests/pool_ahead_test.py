"""imap_unordered of an endless iterator: it runs only a little ahead of whoever takes the results."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import task_functions
from executors import WORKERS
from waiting import until

CHUNKS = 4 * WORKERS  # on their way, or waiting to be taken; one more is being taken, and one being made


class Endless:
    """Counts what is taken from it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.taken += 1
            yield number

    def settled(self) -> int:
        """How many were taken when no more are for a while."""

        def is_steady() -> bool:
            before = self.taken
            time.sleep(0.3)
            return self.taken == before

        until(is_steady)
        return self.taken


@pytest.mark.parametrize("way", ["submit", "options"])
def test_short_calls(pool: Any, way: str) -> None:
    items = Endless()
    view = pool if way == "submit" else pool.options(retries=1)
    results = view.imap_unordered(task_functions.square, items)
    for taken in range(1, 20_001):
        next(results)
        if taken in (1, 100, 20_000):
            assert items.settled() - taken <= (CHUNKS + 2) * 512
    results.close()
    stopped = items.settled()
    assert list(pool.map(task_functions.square, range(3))) == [0, 1, 4]
    assert items.taken == stopped


@pytest.mark.parametrize("chunksize", [1, 7])
def test_chunks_of_a_given_size(pool: Any, chunksize: int) -> None:
    items = Endless()
    results = pool.imap_unordered(task_functions.square, items, chunksize=chunksize)
    for taken in range(1, 201):
        next(results)
        if taken % 100 == 0:
            assert items.settled() - taken <= (CHUNKS + 2) * chunksize


def test_long_calls_one_by_one(make_pool: Callable[..., Any]) -> None:
    items = Endless()
    pool = make_pool(WORKERS)
    results = pool.imap_unordered(time.sleep, (0.02 for _ in items))
    for _ in range(10):
        next(results)
    assert items.settled() - 10 <= CHUNKS + 2


def test_it_still_goes_on_when_results_are_taken_late(pool: Any) -> None:
    items = Endless()
    results = pool.imap_unordered(task_functions.square, itertools.islice(items, 50_000))
    assert items.settled() < 50_000
    assert sorted(results) == [number**2 for number in range(50_000)]

"""The ways to map a function over items on a pool: order, chunks, deaths, and results that wait to be taken."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import task_functions
from waiting import PATIENCE_S, until

import miniray


def is_steady(path: Path, for_s: float = 1.0) -> bool:
    """No line has come for so long."""
    before = task_functions.count_of(str(path))
    time.sleep(for_s)
    return task_functions.count_of(str(path)) == before


def test_imap_unordered_yields_what_is_ready(pool: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    results = pool.imap_unordered(task_functions.wait_for, [str(gate), __file__], chunksize=1)
    assert next(results) is None  # the second
    gate.touch()
    assert next(results) is None
    assert sorted(pool.imap_unordered(task_functions.square, range(1000))) == [n * n for n in range(1000)]
    assert list(pool.imap_unordered(task_functions.square, [])) == []
    with pytest.raises(ValueError, match="is a multiple of three"):
        list(pool.imap_unordered(task_functions.fail_on_multiples_of_three, range(10)))


def test_after_a_time_out_the_workers_are_free(tmp_path: Path) -> None:
    """Nobody can take the results any more, so the items that run are ended with their workers."""
    with miniray.Pool(1) as pool:
        worker = pool.submit(os.getpid).result()
        results = pool.map(task_functions.wait_for, [str(tmp_path / "never")] * 2, timeout=0.3)
        with pytest.raises(TimeoutError, match=r"the map of wait_for is not done after 0.3 s, and what was left of it"):
            next(results)
        assert pool.submit(os.getpid).result(PATIENCE_S) != worker
        assert next(results, "the end") == "the end"


def test_starmap(pool: Any) -> None:
    assert pool.starmap(task_functions.add, [(1, 2), (3, 4)]) == [3, 7]
    assert pool.starmap(pow, ((2, n) for n in range(50)), chunksize=7) == [2**n for n in range(50)]
    assert pool.starmap(task_functions.add, []) == []
    with pytest.raises(ValueError, match="boom"):
        pool.starmap(task_functions.fail, [("boom",)])


@pytest.mark.parametrize("chunksize", [None, 1, 3, 10_000])
def test_chunks_change_no_result(pool: Any, chunksize: int | None) -> None:
    expected = [n * n for n in range(300)]
    assert list(pool.map(task_functions.square, range(300), chunksize=chunksize)) == expected
    assert sorted(pool.imap_unordered(task_functions.square, range(300), chunksize=chunksize)) == expected
    assert pool.starmap(task_functions.square, ((n,) for n in range(300)), chunksize=chunksize) == expected


def test_an_error_within_a_chunk_is_that_items_alone(pool: Any) -> None:
    results = pool.map(task_functions.fail_on_multiples_of_three, range(6), chunksize=6)
    assert [next(results), next(results), next(results)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3 is a multiple of three"):
        next(results)


def test_a_death_within_a_chunk_takes_no_other_item_along(pool: Any, tmp_path: Path) -> None:
    """All of the chunk are tried again, each by itself."""
    items = [(str(tmp_path / str(n)), 2 if n == 5 else 0, n) for n in range(10)]
    results = pool.map(task_functions.die_at_first, *zip(*items, strict=True), chunksize=10)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(miniray.WorkerDied, match="SIGKILL"):
        next(results)
    with_retries = pool.options(retries=1)
    items = [(str(tmp_path / f"again{n}"), 3 if n == 5 else 0, n) for n in range(10)]
    assert list(with_retries.map(task_functions.die_at_first, *zip(*items, strict=True), chunksize=10)) == list(
        range(10)
    )


def test_a_death_in_a_map_is_that_items_alone(pool: Any, tmp_path: Path) -> None:
    """Where the pool chose what travels together, that is its own affair."""
    items = [(str(tmp_path / str(n)), 1 if n == 5 else 0, n) for n in range(10)]
    results = pool.map(task_functions.die_at_first, *zip(*items, strict=True))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(miniray.WorkerDied, match="SIGKILL"):
        next(results)


@pytest.mark.parametrize("chunksize", [None, 1, 10])
def test_a_death_in_a_map_with_retries(pool: Any, tmp_path: Path, chunksize: int | None) -> None:
    items = [(str(tmp_path / str(n)), 1 if n == 5 else 0, n) for n in range(10)]
    view = pool.options(retries=1)
    found = list(view.map(task_functions.die_at_first, *zip(*items, strict=True), chunksize=chunksize))
    assert found == list(range(10))
    assert task_functions.count_of(items[5][0]) == 2


def test_an_endless_iterable_is_read_as_results_are_taken(pool: Any) -> None:
    taken = 0

    def numbers() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = pool.imap_unordered(task_functions.square, numbers())
    assert len([next(results) for _ in range(100)]) == 100
    results.close()
    assert taken < 100_000
    assert pool.submit(task_functions.square, 2).result(PATIENCE_S) == 4


@pytest.mark.parametrize("way", ["imap_unordered", "map"])
def test_results_that_nobody_takes_do_not_pile_up(make_pool: Any, tmp_path: Path, way: str) -> None:
    pool = make_pool(2, results_bytes_max=8 << 20)
    path, count, size = tmp_path / "lines", 300, 1 << 20
    function = functools.partial(_noted_bytes, str(path), size)
    results = getattr(pool, way)(function, range(count), chunksize=1)
    first = next(results)
    assert until(lambda: is_steady(path))
    assert task_functions.count_of(str(path)) < 60  # 8 MiB of results, and what is on its way
    rest = sorted(number for number, _ in [first, *results])
    assert rest == list(range(count))


READING, READ_ON = threading.Event(), threading.Event()


class SlowToRead:
    """Takes a while to be unpickled, by the thread that delivers results."""

    def __reduce__(self) -> Any:
        return _read_slowly, ()


def _read_slowly() -> str:
    READING.set()
    READ_ON.wait(PATIENCE_S)
    return "read"


def _slow_to_read(_: int) -> Any:
    return SlowToRead()


@pytest.mark.parametrize("way", ["imap_unordered", "map"])
def test_a_result_that_is_being_read_is_waited_for(make_pool: Any, way: str) -> None:
    """It has left its worker and not reached its caller: the results are not at their end."""
    READING.clear()
    READ_ON.clear()
    results = getattr(make_pool(1), way)(_slow_to_read, [0], chunksize=1)
    assert READING.wait(PATIENCE_S)
    reader = threading.Timer(0.2, READ_ON.set)  # while the caller below waits; were it not to wait, no matter when
    reader.start()
    try:
        assert list(results) == ["read"]
    finally:
        READ_ON.set()
        reader.join()


def _noted_bytes(path: str, size: int, number: int) -> tuple[int, bytes]:
    return task_functions.noted_bytes(path, number, size)


class AsksThePool:
    """Waits for the pool while it is pickled."""

    pool: Any = None

    def __reduce__(self) -> Any:
        return int, (AsksThePool.pool.submit(task_functions.square, 3).result(60),)


def test_items_that_ask_the_pool_while_they_are_pickled(pool: Any) -> None:
    AsksThePool.pool = pool
    assert list(pool.map(task_functions.square, [AsksThePool()] * 50, chunksize=25)) == [81] * 50
    assert list(pool.imap_unordered(task_functions.square, iter([AsksThePool()] * 50))) == [81] * 50


def test_a_chunk_may_be_larger_than_any_list(pool: Any) -> None:
    assert list(pool.map(task_functions.square, range(3), chunksize=1 << 70)) == [0, 1, 4]


class EndsItsPickler:
    def __reduce__(self) -> Any:
        raise SystemExit("pickled")


@pytest.mark.parametrize("lazily", [False, True])
def test_an_item_that_ends_whoever_pickles_it_fails_alone(lazily: bool) -> None:
    items = [*range(2000), EndsItsPickler()]  # the last ones are pickled by a thread of the pool
    with miniray.Pool(2) as pool:
        call = pool.imap_unordered if lazily else pool.map
        results = call(task_functions.square, iter(items) if lazily else items, chunksize=10)
        with pytest.raises(SystemExit, match="pickled"):
            list(results)
        assert list(pool.map(task_functions.square, [3])) == [9]


@pytest.mark.parametrize("chunksize", [1, 4, 100])
def test_items_before_an_error_of_the_iterator_have_results(chunksize: int) -> None:
    def items() -> Iterator[int]:
        yield from range(10)
        raise LookupError("no more data")

    with miniray.Pool(2) as pool:
        results = pool.imap_unordered(abs, items(), chunksize=chunksize)
        assert sorted(itertools.islice(results, 10)) == list(range(10))
        with pytest.raises(LookupError, match="no more data"):
            next(results)

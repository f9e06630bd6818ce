"""What a task may ask for: resources, time, memory, further tries."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest
import task_functions
from waiting import PATIENCE_S, is_gone, until

import miniray
from miniray import UsageError

MIB = 1 << 20


class Crowd:
    """Tasks that have begun, and wait."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gate = folder, folder / "gate"
        self.futures: list[Any] = []

    def enter(self, executor: Any, count: int) -> None:
        for _ in range(count):
            begun = str(self.folder / f"begun{len(self.futures)}")
            self.futures.append(executor.submit(task_functions.begin_and_wait_for, begun, str(self.gate)))

    def begun(self) -> int:
        return len(list(self.folder.glob("begun*[0-9]")))

    def leave(self) -> None:
        self.gate.touch()
        for future in self.futures:
            future.result(PATIENCE_S)


@pytest.fixture
def crowd(tmp_path: Path) -> Crowd:
    return Crowd(tmp_path)


def stays_at(pool: Any, crowd: Crowd, count: int) -> None:
    """This number of tasks begins, and the pool gives no other to a worker."""

    def all_are_ready() -> bool:
        status = pool.status()
        return bool(status["running"] + status["idle"] == status["workers"])

    until(lambda: crowd.begun() >= count, what=lambda: f"{count} tasks; {crowd.begun()} have begun")
    until(all_are_ready, what="all workers")
    status = pool.status()  # since the last question, the pool has looked at all tasks and workers
    assert (status["running"], status["queued"]) == (count, len(crowd.futures) - count)


# --- Resources --------------------------------------------------------------------------------------------------------
def test_a_view_is_an_executor_of_the_same_pool(pool: Any) -> None:
    view = pool.options(num_cpus=1, name="squares")
    assert isinstance(view, Executor)
    assert view.submit(task_functions.square, 3).result(PATIENCE_S) == 9
    assert list(view.map(task_functions.square, range(10))) == [n * n for n in range(10)]
    assert sorted(view.imap_unordered(task_functions.square, range(10))) == [n * n for n in range(10)]
    assert view.starmap(task_functions.add, [(1, 2)]) == [3]
    assert pool.submit(task_functions.square, 3).result(PATIENCE_S) == 9


def test_what_needs_two_cpus_leaves_room_for_half_as_many(make_pool: Any, crowd: Crowd) -> None:
    pool = make_pool(4)
    crowd.enter(pool.options(num_cpus=2), 4)
    stays_at(pool, crowd, 2)
    small = pool.submit(task_functions.square, 1)
    crowd.leave()
    assert small.result(PATIENCE_S) == 1


def test_what_is_left_is_used(make_pool: Any, crowd: Crowd) -> None:
    pool = make_pool(3)
    crowd.enter(pool.options(num_cpus=2), 1)
    crowd.enter(pool, 2)
    stays_at(pool, crowd, 2)
    crowd.leave()


def test_custom_resources(make_pool: Any, crowd: Crowd) -> None:
    pool = make_pool(4, resources={"gpu_ram": 80, "license": 1})
    crowd.enter(pool.options(resources={"gpu_ram": 40}), 3)
    stays_at(pool, crowd, 2)
    assert pool.options(resources={"license": 1}).submit(task_functions.square, 3).result(PATIENCE_S) == 9
    crowd.leave()


def test_tenths_add_up_to_one(make_pool: Any, crowd: Crowd) -> None:
    pool = make_pool(12, resources={"share": 1})
    crowd.enter(pool.options(resources={"share": 0.1}), 11)
    stays_at(pool, crowd, 10)
    crowd.leave()
    whole = pool.options(resources={"share": 1})
    assert whole.submit(task_functions.square, 3).result(PATIENCE_S) == 9  # all of it came back


def test_gpus_that_were_given(make_pool: Any, crowd: Crowd) -> None:
    pool = make_pool(4, resources={"num_gpus": 1})
    crowd.enter(pool.options(num_gpus=0.5), 3)
    stays_at(pool, crowd, 2)
    crowd.leave()


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"num_cpus": 3}, "cpu"),
        ({"num_gpus": 64}, "gpu"),
        ({"resources": {"gpu_ram": 81}}, "gpu_ram"),
        ({"resources": {"no_such": 1}}, "no_such"),
        ({"node": "no-such-node"}, "no-such-node"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(make_pool: Any, options: dict[str, Any], missing: str) -> None:
    pool = make_pool(2, resources={"gpu_ram": 80})
    view = None
    with pytest.raises(UsageError, match=missing):  # noqa: PT012 (either of the two may know)
        view = pool.options(**options)
        view.submit(task_functions.square, 1)
    assert pool.submit(task_functions.square, 3).result(PATIENCE_S) == 9


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_cpus": -1}, UsageError),
        ({"resources": {"gpu_ram": -1}}, UsageError),
        ({"num_gpus": float("nan")}, UsageError),
        ({"strategy": "scatter"}, UsageError),
        ({"timeout": -1}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"memory_bytes": 0}, UsageError),
        ({"retries": -1}, UsageError),
        ({"retry_on": (3,)}, TypeError),
        ({"no_such_option": 1}, TypeError),
    ],
    ids=str,
)
def test_wrong_options_are_refused(pool: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        pool.options(**options).submit(task_functions.square, 1)
    assert pool.submit(task_functions.square, 3).result(PATIENCE_S) == 9


def test_resources_come_back_whatever_became_of_the_task(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(2, resources={"token": 1})
    view = pool.options(resources={"token": 1})
    for number in range(3):
        with pytest.raises(miniray.WorkerDied):
            view.submit(task_functions.die_at_first, str(tmp_path / f"lines{number}"), 1).result(PATIENCE_S)
        with pytest.raises(ValueError, match="boom"):
            view.submit(task_functions.fail, "boom").result(PATIENCE_S)
        future = view.submit(task_functions.wait_for, str(tmp_path / "never"))
        future.cancel()
        with pytest.raises(TypeError):
            view.submit(task_functions.same, task_functions.Refuses()).result(PATIENCE_S)
        with pytest.raises(miniray.TaskTimeout):
            pool.options(resources={"token": 1}, timeout=0.2).submit(
                task_functions.wait_for, str(tmp_path / "never")
            ).result(PATIENCE_S)
    assert view.submit(task_functions.square, 3).result(PATIENCE_S) == 9


# --- Time -------------------------------------------------------------------------------------------------------------
def test_a_task_that_takes_too_long(pool: Any, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    future = pool.options(timeout=1).submit(task_functions.begin_and_wait_for, str(begun), str(tmp_path / "never"))
    others = [pool.submit(task_functions.square, number) for number in range(100)]
    with pytest.raises(miniray.TaskTimeout) as caught:
        future.result(PATIENCE_S)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, miniray.MiniRayError)
    assert "in wait_for" in str(caught.value)  # its stack
    assert "1" in str(caught.value)
    assert [other.result(PATIENCE_S) for other in others] == [n * n for n in range(100)]
    assert until(lambda: is_gone(int(begun.read_text())))
    assert pool.events.events(kind="task_timeout")
    assert until(lambda: len([one for one in pool.workers if os.path.exists(f"/proc/{one[2]}")]) == 2)


def test_only_the_time_of_running_counts(make_pool: Any) -> None:
    pool = make_pool(1)
    view = pool.options(timeout=2)
    pool.submit(task_functions.nap, 1.5)
    futures = [view.submit(task_functions.nap, 0.8) for _ in range(3)]
    assert [future.result(PATIENCE_S) for future in futures] == [0.8] * 3


def test_a_time_out_in_a_map_is_for_each_item(pool: Any, tmp_path: Path) -> None:
    paths = [__file__, __file__, str(tmp_path / "never"), __file__]
    results = pool.options(timeout=1).map(task_functions.wait_for, paths, range(4))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(miniray.TaskTimeout):
        next(results)


# --- Memory -----------------------------------------------------------------------------------------------------------
def test_a_task_that_takes_too_much_memory(pool: Any) -> None:
    view = pool.options(memory_bytes=200 * MIB)
    assert view.submit(task_functions.take_memory, 50 * MIB).result(PATIENCE_S) == 50 * MIB
    greedy = [view.submit(task_functions.take_memory, 800 * MIB) for _ in range(2)]
    others = [pool.submit(task_functions.square, number) for number in range(100)]
    for future in greedy:
        with pytest.raises(miniray.TaskOutOfMemory) as caught:
            future.result(PATIENCE_S)
        assert isinstance(caught.value, MemoryError)
        assert isinstance(caught.value, miniray.MiniRayError)
    assert [other.result(PATIENCE_S) for other in others] == [n * n for n in range(100)]
    assert pool.submit(task_functions.take_memory, 300 * MIB).result(PATIENCE_S) == 300 * MIB  # this one has no limit
    for _ in range(10):  # what a task gave back is not charged to the next
        assert view.submit(task_functions.take_memory, 100 * MIB).result(PATIENCE_S) == 100 * MIB


# --- Further tries ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("deaths", "retries", "succeeds"), [(1, 1, True), (2, 3, True), (1, 0, False), (3, 2, False)])
def test_tried_again_after_a_death(pool: Any, tmp_path: Path, deaths: int, retries: int, succeeds: bool) -> None:
    path = str(tmp_path / "tries")
    future = pool.options(retries=retries).submit(task_functions.die_at_first, path, deaths, "done")
    if succeeds:
        assert future.result(PATIENCE_S) == "done"
        assert task_functions.count_of(path) == deaths + 1
        assert len(pool.events.events(kind="task_retried")) == deaths
    else:
        with pytest.raises(miniray.WorkerDied, match="SIGKILL"):
            future.result(PATIENCE_S)
        assert task_functions.count_of(path) == retries + 1
    assert list(pool.map(task_functions.square, range(10))) == [n * n for n in range(10)]


def test_those_who_wait_behind_are_not_charged(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(1)
    killers = [pool.submit(task_functions.die_at_first, str(tmp_path / f"killer{n}"), 1) for n in range(3)]
    others = [pool.submit(task_functions.append_line, str(tmp_path / "lines"), str(n)) for n in range(50)]
    for future in killers:
        with pytest.raises(miniray.WorkerDied):
            future.result(PATIENCE_S)
    assert [future.result(PATIENCE_S) for future in others] == [str(n) for n in range(50)]
    assert sorted(map(int, (tmp_path / "lines").read_text().split())) == list(range(50))  # each once


def test_tried_again_after_some_exceptions(pool: Any, tmp_path: Path) -> None:
    view = pool.options(retries=2, retry_on=(OSError,))
    assert view.submit(task_functions.fail_at_first, str(tmp_path / "a"), 2).result(PATIENCE_S) == 3
    with pytest.raises(OSError, match="try 3"):
        view.submit(task_functions.fail_at_first, str(tmp_path / "b"), 5).result(PATIENCE_S)
    assert task_functions.count_of(str(tmp_path / "b")) == 3
    with pytest.raises(KeyError):
        view.submit(task_functions.fail_at_first, str(tmp_path / "c"), 5, KeyError).result(PATIENCE_S)
    assert task_functions.count_of(str(tmp_path / "c")) == 1
    assert view.submit(task_functions.fail_at_first, str(tmp_path / "d"), 1, FileNotFoundError).result(PATIENCE_S) == 2


def test_exceptions_are_not_tried_again_unasked(pool: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="try 1"):
        pool.options(retries=5).submit(task_functions.fail_at_first, str(tmp_path / "a"), 2).result(PATIENCE_S)
    assert task_functions.count_of(str(tmp_path / "a")) == 1


def test_a_task_that_is_tried_again_can_be_cancelled(pool: Any, tmp_path: Path) -> None:
    path = tmp_path / "tries"
    future = pool.options(retries=1_000_000).submit(task_functions.die_at_first, str(path), 1_000_000)
    assert until(lambda: task_functions.count_of(str(path)) >= 2)
    assert until(future.cancel)
    assert future.cancelled()
    assert pool.submit(task_functions.square, 3).result(PATIENCE_S) == 9

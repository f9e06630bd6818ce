"""The end of a pool: deaths, maps, callbacks and the interpreter's own end while it comes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gzip
import logging
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import task_functions
from script_programs import run_script
from waiting import PATIENCE_S, until

import miniray
from miniray import Pool, TaskTimeout, _pool_driver


def die_at(number: int, fatal: int) -> int:
    if number == fatal:
        os._exit(1)
    return number


# --- Deaths during a shutdown -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_that_dies_while_the_pool_shuts_down_is_replaced(workers: int, start: str) -> None:
    with Pool(workers, start=start) as pool:
        futures = [pool.submit(die_at, number, number if number in (3, 4) else -1) for number in range(8)]
    for number, future in enumerate(futures):
        if number in (3, 4):
            with pytest.raises(miniray.WorkerDied):
                future.result(0)
        else:
            assert future.result(0) == number


def test_tasks_that_time_out_while_the_pool_shuts_down() -> None:
    with Pool(2) as pool:
        futures = [pool.options(timeout=0.05).submit(time.sleep, 60) for _ in range(6)]
    for future in futures:
        with pytest.raises(TaskTimeout):
            future.result(0)


def test_the_program_ends_with_a_pool_whose_workers_die(tmp_path: Path) -> None:
    source = """
    import os
    from miniray import Pool
    def f(x):
        if x == 1: os._exit(1)
        print("ran", x, flush=True)
    if __name__ == "__main__":
        pool = Pool(1)
        for x in range(3): pool.submit(f, x)
    """
    assert run_script(tmp_path, source) == "ran 0\nran 2\n"


def test_an_initializer_that_ends_its_worker_breaks_a_pool_that_shuts_down() -> None:
    with Pool(1, initializer=os._exit, initargs=(1,)) as pool:
        future = pool.submit(task_functions.square, 2)
    with pytest.raises(miniray.PoolBroken, match="die before they are ready"):
        future.result(0)


# --- Maps -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [10, 5000])
@pytest.mark.parametrize("results_bytes_max", [1, 1 << 30])
def test_results_of_a_map_may_be_read_after_the_pool(count: int, results_bytes_max: int) -> None:
    with Pool(2, results_bytes_max=results_bytes_max) as pool:
        results = pool.map(task_functions.square, range(count), chunksize=3)
    assert list(results) == [number * number for number in range(count)]


def test_a_shutdown_that_cancels_ends_a_map(tmp_path: Path) -> None:
    pool = Pool(1)
    results = pool.map(task_functions.wait_for, [str(tmp_path / "gate")] * 100, range(100), chunksize=1)
    pool.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "gate").touch()
    with pytest.raises(concurrent.futures.CancelledError):
        list(results)
    pool.shutdown()


def test_an_item_or_result_that_cannot_be_sent_fails_alone(pool: Any) -> None:
    items: list[Any] = list(range(1000))
    items[500] = threading.Lock()
    results = pool.map(type, items, chunksize=100)
    assert [next(results) for _ in range(500)] == [int] * 500
    with pytest.raises(TypeError, match="lock"):
        next(results)
    results = pool.map(task_functions.lock_at, range(1000), [500] * 1000, chunksize=100)
    assert [next(results) for _ in range(500)] == list(range(500))
    with pytest.raises(TypeError, match="the result cannot be sent back"):
        next(results)


# --- Callbacks --------------------------------------------------------------------------------------------------------
def leave(_: Any) -> None:
    raise SystemExit("stop")


def test_a_callback_that_wants_to_exit_ends_nothing(pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        first = pool.submit(time.sleep, 0.05)
        first.add_done_callback(leave)
        first.result(PATIENCE_S)
        assert pool.submit(task_functions.square, 2).result(PATIENCE_S) == 4
        assert list(pool.map(task_functions.square, range(3))) == [0, 1, 4]
    assert "stop" in caplog.text


WAYS = {
    "map": lambda pool: list(pool.map(abs, [1])),
    "imap_unordered": lambda pool: list(pool.imap_unordered(abs, [1])),
    "wait": lambda pool: concurrent.futures.wait([pool.submit(abs, 1)]),
    "as_completed": lambda pool: list(concurrent.futures.as_completed([pool.submit(abs, 1)])),
    "miniray.as_completed": lambda pool: list(miniray.as_completed([pool.submit(abs, 1)])),
    "await": lambda pool: asyncio.run(asyncio.wait_for(pool.submit(abs, 1), None)),
}


@pytest.mark.parametrize("way", WAYS)
def test_to_wait_in_a_callback_is_an_error_however_it_is_done(pool: Any, way: str) -> None:
    heard: list[BaseException] = []
    over = threading.Event()

    def wait(_: Any) -> None:
        try:
            WAYS[way](pool)
        except BaseException as error:
            heard.append(error)
        over.set()

    pool.submit(time.sleep, 0.05).add_done_callback(wait)
    assert over.wait(PATIENCE_S)
    assert isinstance(heard[0], RuntimeError)
    assert "wait in a thread of its own" in str(heard[0])
    assert pool.submit(abs, -3).result(PATIENCE_S) == 3


def test_a_cluster_is_not_stopped_in_a_callback() -> None:
    cluster = miniray.Cluster([miniray.NodeConfig("localhost", num_workers=1, base_port=0)])
    heard: list[BaseException] = []
    over = threading.Event()

    def stop(_: Any) -> None:
        try:
            cluster.stop()
        except BaseException as error:
            heard.append(error)
        over.set()

    try:
        pool = Pool(cluster)
        pool.submit(time.sleep, 0.05).add_done_callback(stop)
        assert over.wait(PATIENCE_S)
        assert "Stop it in a thread of its own" in str(heard[0])
        assert pool.submit(abs, -3).result(PATIENCE_S) == 3
    finally:
        cluster.stop()


def test_a_task_that_is_cancelled_between_two_tries_is_not_tried_again(pool: Any, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    future = pool.options(timeout=0.05, retries=1000, retry_on=TaskTimeout).submit(
        task_functions.append_line_and_sleep, str(tries)
    )
    assert until(lambda: tries.exists() and task_functions.count_of(str(tries)) > 2)
    assert future.cancel()
    pool.submit(abs, 1).result(PATIENCE_S)
    before = task_functions.count_of(str(tries))
    for _ in range(20):
        pool.submit(time.sleep, 0.02).result(PATIENCE_S)
    assert task_functions.count_of(str(tries)) <= before + 1  # one that had begun


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_a_very_long_time(pool: Any, timeout: float) -> None:
    assert pool.submit(abs, -1).result(timeout) == 1
    assert list(pool.map(abs, [-1], timeout=timeout)) == [1]


# --- The interpreter's end --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", ["", "pool.shutdown()"])
def test_the_scripts_globals_are_finished_as_without_a_pool(tmp_path: Path, ending: str) -> None:
    source = f"""
    import gzip
    from miniray import Pool
    def square(x): return x * x
    class Loud:
        def __del__(self): print("gone")
    if __name__ == "__main__":
        loud = Loud()
        out = gzip.open("x.gz", "wt")
        pool = Pool(2)
        for x in pool.map(square, range(5)): out.write(f"{{x}} ")
        print(pool.submit(lambda: square(3)).result())
        {ending}
    """
    assert run_script(tmp_path, source) == "9\ngone\n"
    with gzip.open(tmp_path / "x.gz", "rt") as file:
        assert file.read() == "0 1 4 9 16 "


def test_a_pool_that_a_thread_makes_after_the_script_has_ended(tmp_path: Path) -> None:
    source = """
    import sys, threading
    from miniray import Pool
    def f(x): return x
    def job():
        threading.main_thread().join()
        pool = Pool(1, start="spawn")
        print(pool.submit(f, 1).result())
    if __name__ == "__main__":
        threading.Thread(target=job).start()
    """
    for _ in range(5):
        assert run_script(tmp_path, source) == "1\n"


# --- What a spawned worker is given -----------------------------------------------------------------------------------
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_script_has_its_arguments_in_workers(tmp_path: Path, start: str) -> None:
    source = """
    import sys
    from miniray import Pool
    SEED = int(sys.argv[2])
    def seed(): return SEED
    if __name__ == "__main__":
        with Pool(1, start=sys.argv[1]) as pool: print(pool.submit(seed).result())
    """
    assert run_script(tmp_path, source, start, "42") == "42\n"


def bump(rows: Any) -> Any:
    rows[0][0] += 1
    return rows


def test_one_object_in_two_places_stays_one(pool: Any) -> None:
    row = [0]
    assert pool.submit(bump, [row, row]).result() == [[1], [1]]
    assert pool.submit(bump, [row, row, (1,)]).result() == [[1], [1], (1,)]
    assert pool.submit(bump, [[0], [0]]).result() == [[1], [0]]
    first, second = pool.submit(list, [row, row]).result()
    assert first is second
    # Items of a map are apart, however many travel together.
    assert list(pool.map(bump, [[row]] * 4, chunksize=4)) == [[[1]]] * 4


# --- An iterator and the end of its pool ------------------------------------------------------------------------------
def test_leaving_a_pool_does_not_wait_for_an_iterator() -> None:
    with Pool(2) as pool:
        results = pool.imap_unordered(task_functions.square, iter(range(100_000)))
        next(results)
    with pytest.raises(concurrent.futures.CancelledError, match="the pool was shut down before all items had gone out"):
        list(results)


def test_a_pool_that_is_let_go_of_finishes_an_iterator_that_somebody_reads() -> None:
    assert sum(Pool(2).imap_unordered(task_functions.square, (number for number in range(1000)))) == 332_833_500
    until(lambda: not _pool_driver.live, what="the end of the pool")


def test_the_program_ends_with_an_iterator_that_has_no_end(tmp_path: Path) -> None:
    source = """
    import itertools
    from miniray import Pool
    def f(x):
        return x
    if __name__ == "__main__":
        pool = Pool(2)
        results = pool.imap_unordered(f, itertools.count())
        print(next(results) >= 0)
    """
    assert run_script(tmp_path, source) == "True\n"


# --- Workers that were given to a pool --------------------------------------------------------------------------------
def test_a_given_worker_with_a_restart_policy_is_revived() -> None:
    policy = miniray.RestartPolicy(max_restarts=3, backoff_s=0)
    workers = [miniray.Worker(restart=policy), miniray.Worker(restart=policy)]
    with Pool(workers) as pool:
        for _ in range(2):
            with pytest.raises(miniray.WorkerDied):
                pool.submit(os._exit, 3).result(PATIENCE_S)
        assert list(pool.map(task_functions.square, range(20))) == [number**2 for number in range(20)]
        until(lambda: len(pool.workers) == 2)
    assert sum(worker.restarts for worker in workers) == 2


def test_a_pool_does_not_wait_for_a_worker_of_yours_that_pauses_before_it_is_revived() -> None:
    worker = miniray.Worker(restart=miniray.RestartPolicy(backoff_s=1000, backoff_max_s=1000))
    with Pool([worker]) as pool:
        with pytest.raises(miniray.WorkerDied):
            pool.submit(os._exit, 3).result(PATIENCE_S)
        until(lambda: pool.events.events("worker_died"))


def digits_of(key: Any) -> str:
    """A key says its digits to nobody but the process at the other end of a descriptor."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        key.write_to(mine.fileno())
        return theirs.recv(100).decode()


def test_the_key_of_a_pools_server_is_shown_to_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    with Pool(1, start="spawn") as pool:
        source: Any = pool._driver.source
        keys = [digits_of(source._key)]
        view = pool.options(retries=3)
        first = view.submit(os.getpid).result(PATIENCE_S)
        source._server.kill()  # and so goes its worker, though it may still answer a task or two
        until(lambda: view.submit(os.getpid).result(PATIENCE_S) != first, what="another worker")
        keys.append(digits_of(source._key))
    assert keys[0] != keys[1]
    said = "".join(capfd.readouterr())
    assert not any(key in said for key in keys)
    assert not re.search("[0-9a-f]{64}", repr(source._key))


def test_a_task_whose_pools_server_is_killed_says_so(tmp_path: Path) -> None:
    """A local pool has no ssh that could have failed."""
    begun = tmp_path / "begun"
    with Pool(1) as pool:
        future = pool.submit(task_functions.append_line_and_sleep, str(begun))
        until(begun.exists, what="the task")
        server: Any = pool._driver.source
        os.kill(server._server.pid, signal.SIGKILL)
        with pytest.raises(miniray.WorkerDied) as caught:
            future.result(PATIENCE_S)
        assert (
            "is gone with the server process on this machine that had started it, which ended without notice (was it "
            "killed? dmesg shows whether memory ran out)" in str(caught.value)
        )
        assert "ssh" not in str(caught.value)
        assert pool.submit(task_functions.square, 3).result(PATIENCE_S) == 9


# --- A child of fork() ------------------------------------------------------------------------------------------------
def test_a_forked_child_that_uses_its_parent_s_pool_is_told_so_and_the_pool_goes_on(tmp_path: Path) -> None:
    source = """
    import os, signal
    from miniray import Pool, UsageError
    pool = Pool(1)
    view = pool.options(num_cpus=1)
    slow = pool.submit(__import__("time").sleep, 0.2)
    begun = pool.map(abs, range(3))
    uses = [
        lambda: pool.submit(abs, -1),
        lambda: view.submit(abs, -1),
        lambda: pool.map(abs, [1]),
        lambda: pool.starmap(pow, [(2, 3)]),
        lambda: pool.imap_unordered(abs, iter([1])),
        lambda: pool.workers,
        lambda: pool.status(),
        lambda: repr(pool),
        lambda: pool.options(num_cpus=1),
        lambda: slow.result(),
        lambda: slow.cancel(),
    ]
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        told = 0
        for number, use in enumerate(uses):
            try:
                use()
            except UsageError as error:
                told += str(error).startswith("the pool belongs to the process that made it")
            else:
                print("not refused:", number, flush=True)
        pool.shutdown()
        os._exit(0 if told == len(uses) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(list(begun), pool.submit(abs, -1).result())
    pool.shutdown()
    """
    assert run_script(tmp_path, source) == "0\n[0, 1, 2] 1\n"

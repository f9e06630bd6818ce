"""A pool of local workers: whatever it is given is done, fairly, within its limits, and it can be seen at work."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
import time
import weakref
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from waiting import PATIENCE_S, is_gone, until

import miniray
from miniray import Pool, Worker


# --- Fairness ---------------------------------------------------------------------------------------------------------
def test_small_ones_do_not_wait_for_a_long_one(pool: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    long = pool.submit(task_functions.wait_for, str(gate), "long")
    small = [pool.submit(task_functions.square, number) for number in range(500)]
    assert [future.result(PATIENCE_S) for future in small] == [number * number for number in range(500)]
    assert not long.done()
    gate.touch()
    assert long.result(PATIENCE_S) == "long"


def test_what_is_stuck_behind_a_long_one_is_moved(pool: Any, tmp_path: Path) -> None:
    """Whichever worker they were given to: when one is free, it gets them."""
    gates = [tmp_path / "one", tmp_path / "two"]
    long = [pool.submit(task_functions.wait_for, str(gate)) for gate in gates]
    small = [pool.submit(task_functions.square, number) for number in range(50)]
    until(lambda: all(future.running() for future in long))
    gates[1].touch()
    assert [future.result(PATIENCE_S) for future in small] == [number * number for number in range(50)]
    assert not long[0].done()
    gates[0].touch()


def test_a_chunk_is_not_stuck_behind_a_long_one(pool: Any, tmp_path: Path) -> None:
    """Items of a map that take very different times: those behind the long one are done meanwhile."""
    gate = tmp_path / "gate"
    paths = [str(gate)] + [__file__] * 99
    results = pool.imap_unordered(task_functions.wait_for, paths, chunksize=1)
    for _ in range(99):
        next(results)
    gate.touch()
    next(results)
    assert next(results, "no more") == "no more"


def test_a_wide_task_is_not_starved_by_small_ones(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(2)
    lock, done = threading.Lock(), threading.Event()

    def again(_: Any) -> None:
        with lock:
            if not done.is_set():
                pool.submit(task_functions.nap, 0.01).add_done_callback(again)

    for _ in range(8):
        again(None)
    wide = pool.options(num_cpus=2).submit(task_functions.square, 5)
    try:
        assert wide.result(PATIENCE_S) == 25
    finally:
        done.set()


# --- What tasks share -------------------------------------------------------------------------------------------------
def test_an_initializer_runs_in_a_worker_that_takes_the_place_of_another(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(1, initializer=task_functions.initialize, initargs=("mine",))
    first = pool.submit(task_functions.state).result(PATIENCE_S)
    with pytest.raises(miniray.WorkerDied):
        pool.submit(task_functions.die_at_first, str(tmp_path / "lines"), 1).result(PATIENCE_S)
    second = pool.submit(task_functions.state).result(PATIENCE_S)
    assert first["pid"] != second["pid"]
    assert (second["value"], second["times"]) == ("mine", 1)


def test_a_large_array_in_the_function_travels_once(make_pool: Any) -> None:
    """100 tasks with 32 MiB each in little more time than one: not by time, but by what the worker has to unpack."""
    pool = make_pool(1)
    table = np.arange(4 << 20)

    def look_up(number: int) -> tuple[int, int]:
        return id(table), int(table[number])

    found = list(pool.map(look_up, range(100), chunksize=1))
    assert [value for _, value in found] == list(range(100))
    assert len({identity for identity, _ in found}) == 1
    futures = [pool.submit(look_up, number) for number in range(20)]
    assert len({future.result(PATIENCE_S)[0] for future in futures}) == 1


def test_a_task_cannot_change_what_others_are_given(pool: Any) -> None:
    given = [1, 2, 3]
    futures = [pool.submit(list.pop, given) for _ in range(10)]
    assert [future.result(PATIENCE_S) for future in futures] == [3] * 10
    assert given == [1, 2, 3]


def test_arguments_are_those_of_the_time_of_submit(make_pool: Any, tmp_path: Path) -> None:
    """As with the standard library, arguments that are changed later may be seen changed; results never mix."""
    pool = make_pool(1)
    arrays = [np.full(100_000, number) for number in range(50)]
    futures = [pool.submit(np.sum, array) for array in arrays]
    assert [int(future.result(PATIENCE_S)) for future in futures] == [100_000 * number for number in range(50)]


# --- Seen at work -----------------------------------------------------------------------------------------------------
def test_workers_and_status(pool: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = [pool.submit(task_functions.wait_for, str(gate)) for _ in range(2)]
    queued = [pool.submit(task_functions.wait_for, str(gate)) for _ in range(3)]
    assert until(lambda: all(future.running() for future in running))
    status = pool.status()
    assert (status["queued"], status["running"], status["done"], status["failed"]) == (3, 2, 0, 0)
    workers = pool.workers
    assert len(workers) == 2
    for name, node, pid, state, *_ in workers:
        assert name
        assert node
        assert not os.path.exists(f"/proc/{pid}/nothing")
        assert os.path.exists(f"/proc/{pid}")
        assert isinstance(state, str)
    gate.touch()
    for future in (*running, *queued):
        future.result(PATIENCE_S)
    with pytest.raises(ValueError, match="boom"):
        pool.submit(task_functions.fail, "boom").result(PATIENCE_S)
    assert until(lambda: pool.status()["running"] == 0)
    status = pool.status()
    assert (status["queued"], status["done"] + status["failed"], status["failed"]) == (0, 6, 1)


def test_events_tell_who_died_and_that_another_came(pool: Any) -> None:
    pid = pool.submit(task_functions.pid).result(PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: pool.events.events(kind="worker_died"))
    [event] = pool.events.events(kind="worker_died")
    assert "SIGKILL" in event.text
    assert event.time <= time.time()
    assert until(lambda: len([one for one in pool.workers if os.path.exists(f"/proc/{one[2]}")]) == 2)
    assert list(pool.map(task_functions.square, range(20))) == [n * n for n in range(20)]
    assert len(pool.events) == len(list(pool.events)) > 1


# --- Given workers ----------------------------------------------------------------------------------------------------
def test_local_and_remote_workers_in_one_pool(server: Any, tmp_path: Path) -> None:
    workers = [Worker(), server.connect("miniray.serve_calls")]
    pids = [worker.pid for worker in workers]
    with Pool(workers) as pool:
        one, two = str(tmp_path / "one"), str(tmp_path / "two")
        both = [
            pool.submit(task_functions.begin_and_wait_for, one, two),
            pool.submit(task_functions.begin_and_wait_for, two, one),
        ]
        for future in both:
            future.result(PATIENCE_S)
        assert {int(Path(path).read_text()) for path in (one, two)} == set(pids)
        assert list(pool.map(lambda x: (x, {x}), range(100))) == [(x, {x}) for x in range(100)]
        array = np.arange(1_000_000)
        assert all(np.array_equal(back, array) for back in pool.map(task_functions.same, [array] * 6))
    assert until(lambda: all(map(is_gone, pids)))
    assert not any(worker.is_alive() for worker in workers)


def test_no_workers_or_not_workers() -> None:
    with pytest.raises(ValueError, match="worker"):
        Pool([])
    with pytest.raises(TypeError, match="int"):
        Pool([3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a pool takes a number of workers"):
        Pool("four")  # type: ignore[arg-type]


def failure(pool: Any) -> miniray.MiniRayError | None:
    """Why the pool cannot run a task now; None if it can."""
    try:
        pool.submit(task_functions.square, 2).result(PATIENCE_S)
    except (miniray.PoolBroken, miniray.WorkerDied) as error:
        return error
    return None


def test_when_no_worker_can_be_had_any_more_all_are_told(start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    with Pool([server.connect("miniray.serve_calls")]) as pool:
        assert pool.submit(task_functions.square, 2).result(PATIENCE_S) == 4
        futures = [pool.submit(task_functions.wait_for, str(tmp_path / "never")) for _ in range(500)]
        server.end(signal.SIGKILL)
        for future in futures:
            error = future.exception(PATIENCE_S)
            assert isinstance(error, (miniray.PoolBroken, miniray.WorkerDied))
        broken = until(lambda: failure(pool), what="a broken pool")
        assert isinstance(broken, miniray.PoolBroken)
        assert isinstance(broken, BrokenExecutor)


def test_a_task_for_a_node_whose_workers_are_gone_for_good_is_told(server: Any) -> None:
    """It could wait for ever; tasks that may run elsewhere go on."""
    with Pool([Worker(), server.connect("miniray.serve_calls")]) as pool:
        [there] = [worker for worker in pool.workers if worker[1] != "localhost"]
        bound = pool.options(node=there[1])
        assert bound.submit(task_functions.square, 2).result(PATIENCE_S) == 4
        os.kill(there[2], signal.SIGKILL)
        until(lambda: failure(bound), what="the loss of the node's only worker")
        with pytest.raises(miniray.PoolBroken, match=f"no worker is left on {there[1]}, and none takes the place"):
            bound.submit(task_functions.square, 2).result(PATIENCE_S)
        assert list(pool.map(task_functions.square, range(50))) == [number**2 for number in range(50)]


@pytest.mark.filterwarnings("ignore:this process has:RuntimeWarning")
def test_a_pool_made_in_a_thread_that_has_ended(tmp_path: Path) -> None:
    """Its workers are the process's, not the thread's."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(Pool(1, start="spawn")))
    thread.start()
    thread.join()
    until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), what="the thread's end")
    with made[0] as pool:
        first = pool.submit(task_functions.pid).result(PATIENCE_S)
        assert pool.submit(task_functions.pid).result(PATIENCE_S) == first
        assert not pool.events.events(kind="worker_died")


def test_a_worker_that_takes_the_place_of_another_gets_what_waits_elsewhere(pool: Any, tmp_path: Path) -> None:
    """Two tasks that need each other, submitted when one of the two workers had just died."""
    pids = {int(worker[2]) for worker in pool.workers}
    for _ in range(5):
        victim = sorted(pids)[0]
        os.kill(victim, signal.SIGKILL)
        one, two = str(tmp_path / f"{victim}one"), str(tmp_path / f"{victim}two")
        view = pool.options(retries=1)
        futures = [
            view.submit(task_functions.begin_and_wait_for, one, two),
            view.submit(task_functions.begin_and_wait_for, two, one),
        ]
        for future in futures:
            future.result(PATIENCE_S)
        pids = {int(worker[2]) for worker in pool.workers}


def die_with(sample: dict[str, Any], *, seed: int = 0) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_says_what_was_running(pool: Any) -> None:
    """And nothing of the calls by which the pool and its workers talk."""
    calls = [
        (lambda: pool.submit(die_with, {"id": 7}, seed=3).result(), "die_with(sample={'id': 7}, seed=3)"),
        (lambda: pool.submit(die_with, {Path("x")}).result(), "die_with(sample={PosixPath('x')})"),
        (lambda: pool.submit("signal.raise_signal", 9).result(), "signal.raise_signal(9)"),
        (lambda: list(pool.map(die_with, [{"id": n} for n in range(4)])), "die_with(sample={'id': 0})"),
        (
            lambda: pool.options(name="scoring").submit(die_with, {}).result(),
            'die_with(sample={}) of the task "scoring"',
        ),
        (lambda: pool.submit(lambda x: die_with({}), "y" * 1000).result(), "<lambda>('yyyy"),
    ]
    for call, text in calls:
        with pytest.raises(miniray.WorkerDied, match="SIGKILL") as caught:
            call()
        assert "It died while running " in str(caught.value)
        assert text in str(caught.value)
        assert '"call"' not in str(caught.value)
        assert "Its last messages" not in str(caught.value)
        assert len(str(caught.value)) < 1000


def kill_reader() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillsItsReader:
    """Whoever unpickles it dies."""

    def __reduce__(self) -> Any:
        return kill_reader, ()


class Sample:
    def __init__(self, number: int, parts: list[Any]) -> None:
        self.number = number
        self.parts = parts


def test_what_a_worker_died_of_reading_is_not_read_here(pool: Any) -> None:
    """The text of the death is made without running anything of the arguments."""
    with pytest.raises(miniray.WorkerDied, match="SIGKILL") as caught:
        pool.submit(die_with, Sample(3, [KillsItsReader()])).result()
    assert "It died while running die_with(sample=Sample(number=3, parts=[kill_reader()]))." in str(caught.value)
    with pytest.raises(miniray.WorkerDied, match="SIGKILL") as caught:
        list(pool.map(die_with, [KillsItsReader(), Sample(4, [])]))
    assert "It died while running die_with(sample=kill_reader())." in str(caught.value)


class Result:
    """Can be referred to weakly."""


def test_results_that_were_handed_out_are_the_callers_alone(pool: Any) -> None:
    for results in (
        pool.map(lambda n: Result(), range(20), chunksize=5),
        pool.imap_unordered(lambda n: Result(), range(20), chunksize=5),
    ):
        gc.freeze()  # all that was there before, such as torch: a collection looks at the rest alone
        for result in results:
            reference = weakref.ref(result)
            del result
            gc.collect()
            assert reference() is None
        gc.unfreeze()


def test_a_callback_that_waits_for_its_own_pool_is_told(pool: Any) -> None:
    heard: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def wait_for_another(_: Any) -> None:
        try:
            pool.submit(task_functions.square, 2).result()
        except RuntimeError as error:
            heard.put(error)

    pool.submit(time.sleep, 0.05).add_done_callback(wait_for_another)
    assert "wait in a thread of its own" in str(heard.get(timeout=60))


@pytest.mark.parametrize("given", [False, True], ids=["the cluster", "its workers"])
def test_a_cluster_that_stops_under_its_pool(given: bool, tmp_path: Path) -> None:
    for delay_s in (0, 0.002, 0.005, 0.01, 0.05):
        cluster = miniray.Cluster([miniray.NodeConfig("localhost", num_workers=2, base_port=0)])
        try:
            pool: Any = Pool(cluster.start("miniray.serve_calls") if given else cluster)
            first = pool.submit(task_functions.square, 3)
            assert first.result(PATIENCE_S) == 9
            endless = [pool.submit(task_functions.wait_for, str(tmp_path / "never"), 1) for _ in range(20)]
            time.sleep(delay_s)
        finally:
            cluster.stop()
        assert all(future.cancelled() for future in endless)
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(task_functions.square, 3)
        pool.shutdown()

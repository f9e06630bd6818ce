"""Supervised workers: one that dies is replaced, its state is sent again, and every decision is in the log."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from coordinator import coordinating
from testbed import Testbed
from waiting import PATIENCE_S

import miniray
from miniray import (
    EndOfStream,
    EventLog,
    RemoteWorker,
    RestartPolicy,
    UsageError,
    Worker,
    WorkerDied,
    WorkerError,
    WorkerRestarted,
    wait_any,
)

UNREACHABLE_S = 2


def adder(handle: Any) -> None:
    """Adds up what it is sent; a word is something to do."""
    total = 0
    while True:
        order = handle.recv()
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif order == "raise":
            raise ValueError("a bug")
        elif order == "return":
            return
        else:
            total += order
            handle.send(total)


def quick(max_restarts: int = 3, **options: Any) -> RestartPolicy:
    return RestartPolicy(max_restarts, window_s=1000, backoff_s=0, **options)


def total(worker: Any, number: int) -> int:
    worker.send(number)
    answer = worker.recv(timeout=PATIENCE_S)
    assert isinstance(answer, int)
    return answer


def send_until_noticed(worker: Any) -> None:
    while True:
        worker.send(1)


def kinds(log: EventLog) -> list[str]:
    return [event.kind for event in log]


# --- One worker -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_that_dies_is_replaced_once_it_is_noticed(start: str) -> None:
    with Worker(adder, start=start, restart=quick(), on_restart=lambda worker: total(worker, 100)) as worker:
        first = worker.pid
        assert isinstance(worker, Worker)
        assert total(worker, 1) == 1
        worker.send("die")
        with pytest.raises(WorkerRestarted) as caught:
            worker.recv()
        assert f"worker {first} (adder) was killed by SIGKILL" in str(caught.value)
        assert f"worker {worker.pid} (adder) has taken its place (restart 1 of 3 within 1000 s)" in str(caught.value)
        assert (caught.value.signal, caught.value.unreachable) == (signal.SIGKILL, False)
        assert isinstance(caught.value, WorkerDied)
        assert (worker.pid != first, worker.restarts, worker.is_alive()) == (True, 1, True)
        assert total(worker, 1) == 101
        assert kinds(worker.events) == ["worker_started", "worker_died", "worker_restarted"]
        died, restarted = worker.events.events(since=worker.events.events("worker_started")[0].time)
        assert "killed by SIGKILL" in died.details["cause"]
        assert restarted.details == {"restarts": 1, "pid": worker.pid}


def test_after_so_many_restarts_the_death_is_plain() -> None:
    with Worker(adder, restart=quick(2)) as worker:
        for _ in range(2):
            worker.kill()
            with pytest.raises(WorkerRestarted):
                worker.recv()
        worker.kill()
        for _ in range(2):
            with pytest.raises(WorkerDied) as caught:
                worker.recv()
            assert not isinstance(caught.value, WorkerRestarted)
            assert str(caught.value).endswith(
                "The policy allows no more: 2 restarts within 1000 s (max_restarts, window_s)"
            )
        assert worker.restarts == 2
        assert kinds(worker.events).count("restart_refused") == 1


def test_what_the_work_function_raises_is_told_as_it_is() -> None:
    with Worker(adder, restart=quick()) as worker:
        worker.send("raise")
        with pytest.raises(WorkerError, match="a bug"):
            worker.recv()
        assert total(worker, 5) == 5
        worker.send("return")
        with pytest.raises(EndOfStream):  # in good order: nobody to replace
            worker.recv()
        assert worker.restarts == 1


def test_a_send_may_notice_too() -> None:
    with Worker(adder, restart=quick()) as worker:
        worker.kill()
        worker.wait()
        with pytest.raises(WorkerRestarted):
            send_until_noticed(worker)
        assert total(worker, 7) == 7


def test_a_worker_that_was_closed_stays_closed() -> None:
    worker = Worker(adder, restart=quick())
    worker.close()
    for call in (worker.recv, lambda: worker.send(1)):
        with pytest.raises(EndOfStream):
            call()
    assert worker.restarts == 0


def test_wait_any_sees_the_new_process() -> None:
    with Worker(adder, restart=quick()) as worker, Worker(adder) as other:
        worker.kill()
        assert wait_any([worker, other], timeout=PATIENCE_S) == [worker]
        with pytest.raises(WorkerRestarted):
            worker.recv()
        assert wait_any([worker, other], timeout=0) == []
        worker.send(3)
        assert wait_any([worker, other], timeout=PATIENCE_S) == [worker]
        assert worker.recv() == 3


def test_awaited_calls() -> None:
    async def talk(worker: Any) -> None:
        await worker.send_async("die")
        with pytest.raises(WorkerRestarted):
            await worker.recv_async()
        await worker.send_async(4)
        assert await worker.recv_async(timeout=PATIENCE_S) == 4

    with Worker(adder, restart=quick()) as worker:
        asyncio.run(talk(worker))
        assert worker.restarts == 1


def test_a_new_process_that_dies_while_it_gets_its_state() -> None:
    deaths = iter([True, False])

    def give_state(worker: Any) -> None:
        if next(deaths):
            worker.send("die")
        assert total(worker, 10) == 10

    with Worker(adder, restart=quick(), on_restart=give_state) as worker:
        worker.kill()
        with pytest.raises(WorkerRestarted, match="restart 2 of 3"):
            worker.recv()
        assert total(worker, 1) == 11
        assert "restart_failed" in kinds(worker.events)


def test_a_new_process_whose_function_raises_while_it_gets_its_state() -> None:
    orders = iter(["raise", "raise", 10])

    def give_state(worker: Any) -> None:
        worker.send(next(orders))
        assert worker.recv() == 10

    with Worker(adder, restart=quick(), on_restart=give_state) as worker:
        worker.kill()
        with pytest.raises(WorkerRestarted, match="restart 3 of 3"):
            worker.recv()
        assert kinds(worker.events)[2:] == [*("worker_restarted", "restart_failed") * 2, "worker_restarted"]
    with Worker(adder, restart=quick(1), on_restart=lambda worker: total(worker, "raise")) as worker:  # type: ignore[arg-type]
        worker.kill()
        with pytest.raises(WorkerDied, match=r"The last time it failed: the work function .* raised ValueError: a bug"):
            worker.recv()


def test_an_error_in_on_restart_is_the_callers() -> None:
    raised = FileNotFoundError("no checkpoint"), miniray.Refused("nobody listens")
    failures = iter(raised)

    def give_state(worker: Any) -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    with Worker(adder, restart=quick(), on_restart=give_state) as worker:
        worker.kill()
        for error in raised:
            with pytest.raises(type(error)) as caught:
                worker.recv()
            assert caught.value is error
            assert caught.traceback[-1].name == "give_state"
            assert worker.wait(PATIENCE_S) == -signal.SIGKILL  # the one without its state was not kept
        with pytest.raises(WorkerRestarted):
            worker.recv()
        assert total(worker, 1) == 1


@pytest.mark.parametrize("pickle", [True, False])
def test_a_call_that_raises_in_on_restart_is_the_callers(pickle: bool) -> None:
    attempts: list[int] = []

    def give_state(worker: Any) -> None:
        attempts.append(worker.pid)
        worker.call_remote("math.sqrt", -1)

    with Worker(start="spawn", pickle=pickle, restart=quick(), on_restart=give_state) as worker:
        worker.kill()
        with pytest.raises(ValueError if pickle else WorkerError, match="math domain error"):
            worker.call_remote("math.sqrt", 4)
        assert (len(attempts), worker.wait(PATIENCE_S)) == (1, -signal.SIGKILL)
        assert "restart_failed" not in kinds(worker.events)


def test_a_call_that_does_not_wait_may_notice_too() -> None:
    def call_until_noticed(worker: Any) -> None:
        while True:
            worker.call_async("math.sqrt", 1)

    with Worker(restart=quick()) as worker:
        worker.kill()
        worker.wait()
        with pytest.raises(WorkerRestarted):
            call_until_noticed(worker)
        assert worker.call_async("math.sqrt", 4).result(PATIENCE_S) == 2


def test_calls_that_a_death_interrupts(tmp_path: Path) -> None:
    signal_to_die = str(tmp_path / "fifo")
    os.mkfifo(signal_to_die)

    def die(path: str) -> None:
        with open(path):  # until the other end is opened, too
            os.kill(os.getpid(), signal.SIGKILL)

    with Worker(restart=quick(3)) as worker:
        worker.register("die", die)
        futures = [worker.call_async("die", signal_to_die), worker.call_async("abs", -2)]
        with open(signal_to_die, "w"):
            pass
        for future in futures:
            with pytest.raises(WorkerRestarted):
                future.result(PATIENCE_S)
        assert (worker.call_remote("math.sqrt", 4.0), worker.restarts) == (2.0, 1)
        with pytest.raises(WorkerRestarted):
            worker.call_remote("os.abort")
        futures = [worker.call_async("die", signal_to_die)]  # the new process knows it, too
        with open(signal_to_die, "w"):
            pass
        with pytest.raises(WorkerRestarted):
            futures[0].result(PATIENCE_S)


@pytest.mark.parametrize("notice", ["recv", "call_remote"])
def test_another_call_finds_the_death_of_calls_under_way(notice: str, tmp_path: Path) -> None:
    signal_to_die = str(tmp_path / "fifo")
    os.mkfifo(signal_to_die)

    def die(path: str) -> None:
        with open(path):
            os.kill(os.getpid(), signal.SIGKILL)

    with Worker(restart=quick(1)) as worker:
        worker.register("die", die)
        lost = [worker.call_async("die", signal_to_die), worker.call_async("abs", -2)]
        with open(signal_to_die, "w"):
            pass
        worker.wait(PATIENCE_S)
        with pytest.raises(WorkerRestarted):
            worker.recv(timeout=PATIENCE_S) if notice == "recv" else worker.call_remote("math.sqrt", 4.0)
        answered = worker.call_async("math.sqrt", 4.0)
        with pytest.raises(WorkerRestarted, match="has taken its place"):
            lost[1].result(PATIENCE_S)
        assert isinstance(lost[0].exception(0), WorkerRestarted)
        assert answered.result(PATIENCE_S) == 2.0


def test_a_call_that_is_made_again(tmp_path: Path) -> None:
    def die_once(path: str) -> str:
        if not os.path.exists(path):
            os.mkdir(path)
            os.kill(os.getpid(), signal.SIGKILL)
        return path

    with Worker(restart=quick(1, retry_calls=True)) as worker:
        worker.register("die_once", die_once)
        assert worker.call_remote("die_once", str(tmp_path / "first")) == str(tmp_path / "first")
        assert worker.restarts == 1
        with pytest.raises(WorkerDied, match="The policy allows no more: 1 restart"):
            worker.call_remote("die_once", str(tmp_path / "second"))


def test_many_coroutines_find_one_death() -> None:
    async def talk(worker: Any) -> list[Any]:
        worker.kill()
        waiting = [worker.recv_async(), worker.recv_async(), *(worker.send_async(1) for _ in range(3))]
        return await asyncio.gather(*waiting, return_exceptions=True)

    with Worker(adder, restart=RestartPolicy(1, window_s=1000, backoff_s=0.05)) as worker:
        told = asyncio.run(talk(worker))
        assert {type(error) for error in told[:2]} <= {WorkerRestarted, int}
        assert worker.restarts == 1


def end_of(worker: Any) -> None:
    worker.kill()
    worker.wait(PATIENCE_S)


def test_who_awaits_an_answer_hears_of_a_death_that_a_call_has_found() -> None:
    async def talk(worker: Any) -> list[Any]:
        awaited = [worker.recv_async(timeout=PATIENCE_S) for _ in range(2)]
        awaited += [worker.send_async(bytes(10_000_000)), worker.wait_async(PATIENCE_S)]
        tasks = [asyncio.ensure_future(each) for each in awaited]
        await asyncio.sleep(0)  # all have begun
        end_of(worker)
        with pytest.raises(WorkerRestarted):
            worker.call_remote("abs", -1)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)

    with Worker(lambda handle: threading.Event().wait(), shared_memory=False, restart=quick()) as worker:
        told = asyncio.run(talk(worker))
        assert [type(each) for each in told] == [WorkerRestarted] * 4
        assert worker.restarts == 1


def test_a_call_hears_of_a_death_that_an_awaited_receive_has_found() -> None:
    async def talk(worker: Any) -> None:
        call = asyncio.ensure_future(call_of(worker))
        await asyncio.sleep(0)  # it has begun
        end_of(worker)
        with pytest.raises(WorkerRestarted):
            await worker.recv_async()
        with pytest.raises(WorkerRestarted):
            await asyncio.wait_for(call, PATIENCE_S)

    async def call_of(worker: Any) -> Any:
        return await worker.call_async("time.sleep", 1000)

    with Worker(restart=RestartPolicy(1, window_s=1000, backoff_s=0.01)) as worker:
        asyncio.run(talk(worker))
        assert kinds(worker.events) == ["worker_started", "worker_died", "worker_restarted"]


def test_a_worker_that_its_own_function_refers_to_is_collected() -> None:
    def make() -> weakref.ref[Worker]:
        worker = Worker(adder, restart=quick(), on_restart=lambda _: worker.send(0))
        worker.close()
        return weakref.ref(worker)

    known = make()
    gc.collect()
    assert known() is None


def test_what_cannot_be_right_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"restart=RestartPolicy\(\)"):
        Worker(adder, on_restart=print)
    wrong: Any = True
    with pytest.raises(TypeError, match=r"restart is a RestartPolicy, such as RestartPolicy\(\), not the bool True"):
        Worker(adder, restart=wrong)
    wrong = 3
    with pytest.raises(TypeError, match="on_restart is a function that takes the worker, not int"):
        Worker(adder, restart=quick(), on_restart=wrong)
    with pytest.raises(UsageError, match="max_restarts is 0 or more, not -1"):
        RestartPolicy(max_restarts=-1)
    with pytest.raises(UsageError, match="window_s is a number of seconds, more than 0, not 0"):
        RestartPolicy(window_s=0)


def test_classes_of_ones_own_and_plain_workers() -> None:
    class Named(Worker):
        def double(self, number: int) -> int:
            return 2 * total(self, number)

    with Named(adder, restart=quick()) as worker, Named(adder, restart=quick()) as other:
        assert worker.double(2) == 4
        assert type(worker) is type(other) is Named
    with Worker(adder, restart=quick()) as supervised, Worker(adder) as plain:
        assert type(plain) is type(supervised) is Worker
        assert Worker.recv is miniray._core.Worker.recv  # nothing is in between
        assert (plain.restarts, hasattr(plain, "events"), len(supervised.events)) == (0, False, 1)


def test_a_remote_worker(start_server: Callable[..., Any]) -> None:
    server = start_server("--work-fn", "work_functions.echo")
    with server.connect(restart=quick(2)) as worker:
        assert isinstance(worker, RemoteWorker)
        worker.kill()
        with pytest.raises(WorkerRestarted):
            worker.recv()
        worker.send("again")
        assert worker.recv(timeout=PATIENCE_S) == "again"
        server.end(signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"The last time it failed: .*no server listens there") as caught:
            worker.recv()
        assert not isinstance(caught.value, WorkerRestarted)


def test_many_remote_workers(start_server: Callable[..., Any]) -> None:
    """Each with a budget of its own, and where it was."""
    servers = [start_server("--work-fn", "work_functions.echo") for _ in range(2)]
    restarted: list[Any] = []
    workers = miniray.create_remote_workers(
        [("127.0.0.1", server.port) for server in servers],
        key=servers[0].key,
        restart=quick(1),
        on_restart=restarted.append,
    )
    with workers[0] as first, workers[1] as second:
        for worker in (first, second):
            pid = worker.pid
            worker.kill()
            with pytest.raises(WorkerRestarted):
                worker.recv()
            assert worker.pid != pid
            worker.send("again")
            assert worker.recv(timeout=PATIENCE_S) == "again"
        assert restarted == [first, second]
        servers[1].end(signal.SIGKILL)
        with pytest.raises(WorkerDied):
            second.recv()
        first.send("still here")
        assert first.recv(timeout=PATIENCE_S) == "still here"
    with pytest.raises(miniray.UsageError, match="of use only with a policy"):
        miniray.create_remote_workers([], on_restart=print)


# --- The log ----------------------------------------------------------------------------------------------------------
def test_a_log_for_programs(tmp_path: Path) -> None:
    log = EventLog(events_max=3)
    log.add("node_lost", "gone", node="node1")
    log.write_to(tmp_path / "events.jsonl")
    log.add("task_retried", worker="worker 1", task=7, reasons=["died"])
    threads = [threading.Thread(target=log.add, args=("other",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(log), log.forgotten, kinds(log)) == (3, 1, ["task_retried", "other", "other"])
    [task] = log.events("task_retried")
    assert (task.worker, task.details) == ("worker 1", {"task": 7, "reasons": ["died"]})
    assert log.events(since=list(log)[1].time) == list(log)[2:]
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["node_lost", "task_retried", "other", "other"]
    assert set(lines[0]) == {"time", "kind", "node", "worker", "text", "details"}
    assert lines[1]["details"] == {"task": 7, "reasons": ["died"]}
    with pytest.raises(UsageError, match="No such file or directory"):
        log.write_to(tmp_path / "no" / "such" / "folder")
    with pytest.raises(UsageError, match="the kind of an event is empty"):
        log.add("")


# --- A cluster of real hosts ------------------------------------------------------------------------------------------
@pytest.fixture
def coordinator(testbed: Testbed, tmp_path: Path) -> Iterator[Any]:
    with coordinating(testbed, tmp_path / "run") as made:
        made.do("from miniray import RestartPolicy")
        try:
            yield made
        finally:
            testbed.heal("mr-b")


def start_cluster(coordinator: Any, policy: str) -> None:
    """Workers on mr-a and mr-b, which echo, and have been sent their state again when they answer with it."""
    coordinator.do(
        f"cluster = Cluster([node('mr-a'), node('mr-b')], unreachable_s={UNREACHABLE_S}, progress=False)\n"
        "def give_state(worker): worker.send('state')\n"
        f"workers = cluster.start('work.echo', restart=RestartPolicy({policy}), on_restart=give_state)"
    )


def require_state(coordinator: Any, node: str) -> None:
    assert coordinator.do("workers[1].recv(timeout=20)").value == "state"
    coordinator.do("workers[1].send('more')")
    assert coordinator.do("workers[1].recv(timeout=20)").value == "more"
    assert coordinator.do("cluster.nodes[cluster.node_of(workers[1])].host").value == node
    assert coordinator.do("workers == cluster.workers").value is True


def test_a_worker_and_then_its_server_die(coordinator: Any) -> None:
    start_cluster(coordinator, "backoff_s=0")
    os.kill(coordinator.do("workers[1].pid").value, signal.SIGKILL)
    assert coordinator.attempt("workers[1].recv()").error == "WorkerRestarted"
    require_state(coordinator, "mr-b")
    os.kill(coordinator.do("cluster.servers[1].pid").value, signal.SIGKILL)
    assert coordinator.attempt("workers[1].recv()").error == "WorkerRestarted"
    require_state(coordinator, "mr-b")
    told = coordinator.do("[(event.kind, event.node) for event in cluster.events][2:]").value
    assert told == [
        [kind, "mr-b"]
        for kind in ("worker_died", "worker_restarted", "worker_died", "node_lost", "node_back", "worker_restarted")
    ]


def test_a_node_is_cut_off_and_comes_back(testbed: Testbed, coordinator: Any) -> None:
    """Its worker goes to the other node; once it is back, the next restart finds it."""
    start_cluster(coordinator, "backoff_s=0, other_nodes=True")
    testbed.cut("mr-b")
    moved = coordinator.attempt("workers[1].recv()")
    assert moved.error == "WorkerRestarted", moved
    require_state(coordinator, "mr-a")
    testbed.heal("mr-b")
    coordinator.do("workers[1].kill()")
    assert coordinator.attempt("workers[1].recv()").error == "WorkerRestarted"
    require_state(coordinator, "mr-b")
    told = coordinator.do("[event.kind for event in cluster.events if event.kind.startswith(('node', 're'))]").value
    assert told == ["node_lost", "relaunch_failed", "node_lost", "node_back"]


def test_a_node_is_gone_and_there_is_no_other_way(testbed: Testbed, coordinator: Any) -> None:
    start_cluster(coordinator, "max_restarts=1")
    testbed.cut("mr-b")
    failed = coordinator.attempt("workers[1].recv()")
    assert failed.error == "WorkerDied"
    assert "The policy allows no more: 1 restart within 60 s" in failed.text
    assert "mr-b: the host does not answer" in failed.text

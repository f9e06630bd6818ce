"""Worker.stack(): what a worker is doing, and that it goes on as if nothing had been asked."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stack_work
from waiting import until

import miniray
from miniray import Cluster, NodeConfig, Worker

Start = Callable[[str], Any]
KINDS = ("forked", "spawned", "remote")
STATE = r"(running|sleeping), after \d+\.\d s of computing\n"


def function_of(text: str) -> str | None:
    """The innermost Python function of the thread that is asked."""
    found = re.search(r'Current thread 0x[0-9a-f]+ \(most recent call first\):\n  File ".*", line \d+ in (\w+)\n', text)
    return found and found.group(1)


@pytest.fixture
def text_in() -> Callable[..., str]:
    """What a worker says when it is in a function; it may be on its way there, or too busy to answer."""

    def find(worker: Any, function: str, state: str = "(running|sleeping)") -> str:
        def look() -> str | None:
            text: str = worker.stack()
            return text if function_of(text) == function and re.match(state, text) else None

        text = until(look)
        assert text is not None, worker.stack()
        assert re.match(STATE, text)
        return str(text)

    return find


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest, server: Any) -> Iterator[Start]:
    """Starts a function of stack_work as a worker of each kind, and waits until it has begun."""
    made: list[Any] = []

    def begin(name: str, *messages: Any) -> Any:
        if request.param == "remote":
            worker = server.connect(f"stack_work.{name}")
        else:
            worker = Worker(getattr(stack_work, name), start="fork" if request.param == "forked" else "spawn")
        made.append(worker)
        for message in messages:
            worker.send(message)
        assert worker.recv() == "begun"
        return worker

    yield begin
    for worker in made:
        worker.kill()
        worker.close()


# --- What it says -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("work", "function", "state"),
    [
        ("receive", "receive", "sleeping"),
        ("sleep", "asleep", "sleeping"),
        ("wait_for_lock", "before_a_lock", "sleeping"),
        ("compute", "counting", "(running|sleeping)"),  # while it waits for the processor it is running, too
    ],
)
def test_what_it_is_doing(start: Start, text_in: Callable[..., str], work: str, function: str, state: str) -> None:
    worker = start(work)
    text = text_in(worker, function, state)
    assert re.search(rf"line \d+ in {work}\n", text)
    assert worker.is_alive()


def test_every_thread_is_shown(start: Start, text_in: Callable[..., str]) -> None:
    worker = start("with_threads")
    current, other = text_in(worker, "receive").split("Current thread")[::-1]
    assert "in receive\n" in current
    assert re.search(r"\nThread 0x[0-9a-f]+ .*\n.* in asleep\n.* in in_another_thread\n", other)


def test_a_workers_own_worker(start: Start, text_in: Callable[..., str]) -> None:
    worker = start("have_a_worker")

    def of_its_own() -> str:
        worker.send("what does it do?")
        return str(worker.recv())

    assert until(lambda: function_of(of_its_own()) == "counting")
    assert "in counting" not in text_in(worker, "have_a_worker")
    assert until(lambda: function_of(of_its_own()) == "counting")


def test_a_worker_in_cpp(root: Path) -> None:
    nodes = [NodeConfig("localhost", 1, base_port=0)]
    with Cluster(nodes, program=root / "build/release/examples/cluster_matmul", progress=False) as cluster:
        [worker] = cluster.start("matrix_worker")
        assert until(lambda: "\n  (anonymous namespace)::matrix_worker(" in worker.stack())
        text = worker.stack()
        assert re.match(STATE + r"C\+\+ stack:\n", text)
        assert "  miniray::Handle::rec" in text
        worker.send({"cmd": "multiply", "A": np.full((1, 1), 2.0), "B": np.full((1, 1), 3.0)})
        assert worker.recv()["result"] == 6.0


# --- The worker goes on -----------------------------------------------------------------------------------------------
def test_messages_are_not_disturbed(start: Start) -> None:
    worker = start("receive")
    for number in range(5):
        worker.send([number, b"x" * 100_000])
        assert worker.stack()
        assert worker.recv() == [number, b"x" * 100_000]


def test_a_call_of_the_system_is_not_broken(start: Start, text_in: Callable[..., str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    worker = start("read_pipe", str(tmp_path / "pipe"))
    with (tmp_path / "pipe").open("wb") as pipe:
        assert text_in(worker, "reading", "sleeping")
        pipe.write(b"x")
    assert worker.recv() == [1, 0]


def test_a_sleep_is_not_cut_short(start: Start) -> None:
    worker = start("sleep_a_while")
    worker.send(0.5)
    assert worker.stack()
    assert worker.recv() >= 0.5


def test_another_thread_may_ask(start: Start) -> None:
    """Such as one that watches over another, which waits for a result."""
    worker = start("receive")
    seen: list[str] = []
    asking = threading.Event()

    def ask() -> None:
        while not asking.is_set() or len(seen) < 3:
            seen.append(worker.stack())

    watcher = threading.Thread(target=ask)
    watcher.start()
    try:
        for number in range(200):
            worker.send(number)
            assert worker.recv() == number
    finally:
        asking.set()
        watcher.join()
    assert all(re.match(STATE, text) for text in seen)


def test_several_threads_that_ask_at_once_do_no_harm(server: Any) -> None:
    """One at a time is answered; another is refused."""

    def ask() -> None:
        for _ in range(3):
            with contextlib.suppress(miniray.UsageError):
                assert re.match(STATE, worker.stack())

    with server.connect("stack_work.receive") as worker:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert worker.is_alive()
        assert worker.recv() == "begun"


# --- One that has ended, or is not running ----------------------------------------------------------------------------
def test_one_that_has_ended_does_nothing(start: Start) -> None:
    worker = start("receive")
    worker.kill()
    worker.wait()
    assert worker.stack() == ""
    worker.close()
    assert worker.stack() == ""


def test_one_that_failed_does_nothing() -> None:
    with Worker(stack_work.fail) as worker:
        worker.wait()
        assert worker.stack() == ""
        with pytest.raises(miniray.WorkerError, match="no gradient"):  # the failure is still there
            worker.recv()


def test_one_that_is_stopped(start: Start, text_in: Callable[..., str]) -> None:
    worker = start("receive")
    worker.kill(signal.SIGSTOP)
    assert until(lambda: re.fullmatch(r"stopped, after \d+\.\d s of computing\n", worker.stack()))
    worker.kill(signal.SIGCONT)
    worker.send("still here")
    assert worker.recv() == "still here"
    assert text_in(worker, "receive")


# --- Death certificates -----------------------------------------------------------------------------------------------
def test_a_later_crash_shows_its_own_stack_alone(start: Start, text_in: Callable[..., str]) -> None:
    worker = start("crash")
    assert text_in(worker, "before_the_crash")
    worker.send("now")
    with pytest.raises(miniray.WorkerDied) as died:
        worker.recv()
    assert died.value.signal == signal.SIGSEGV
    assert died.value.stack.startswith("Fatal Python error: Segmentation fault\n")
    assert function_of(died.value.stack) == "crash"
    assert "before_the_crash" not in died.value.stack


def test_who_is_killed_later_has_no_stack(start: Start) -> None:
    worker = start("receive")
    assert worker.stack()
    worker.kill()
    with pytest.raises(miniray.WorkerDied) as died:
        worker.recv()
    assert died.value.stack == ""


def test_an_answer_that_came_too_late_is_in_no_certificate(start: Start) -> None:
    worker = start("receive")
    worker.kill(signal.SIGSTOP)
    assert until(lambda: worker.stack().startswith("stopped"))
    worker.kill(signal.SIGCONT)
    worker.send("still here")
    assert worker.recv() == "still here"
    worker.kill()
    with pytest.raises(miniray.WorkerDied) as died:
        worker.recv()
    assert died.value.stack == ""


# --- From the very beginning ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_that_has_not_begun_may_be_asked(method: str) -> None:
    for _ in range(10 if method == "fork" else 2):
        with Worker(stack_work.receive, start=method) as worker:
            worker.stack()
            assert worker.recv() == "begun"


def test_a_remote_one_that_has_not_begun_may_be_asked(server: Any) -> None:
    for _ in range(5):
        with server.connect("stack_work.receive") as worker:
            worker.stack()
            assert worker.recv() == "begun"


def test_any_signal_is_named_in_a_certificate() -> None:
    """Python has names for few of the real-time signals."""
    for number in (signal.SIGRTMIN + 5, signal.SIGRTMAX):
        with Worker(stack_work.receive) as worker:
            worker.recv()
            worker.kill(number)
            with pytest.raises(miniray.WorkerDied, match="was killed by "):
                worker.recv()

"""Tasks that do what no task should: each ends with its own clear error, the pool goes on, and nothing is left running.

Some end their worker, some only spoil it; the next task must not notice.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from waiting import PATIENCE_S, is_gone, until

import miniray

MIB = 1 << 20


def goes_on(pool: Any) -> None:
    """Both workers are there, and do what they are told."""
    assert list(pool.map(task_functions.square, range(50))) == [n * n for n in range(50)]
    futures = [pool.submit(task_functions.add, n, 1) for n in range(50)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(1, 51))


def run_among_others(pool: Any, nasty: Callable[..., Any], *args: Any) -> BaseException | None:
    """What became of it; the tasks around it come to no harm."""
    before = [pool.submit(task_functions.square, n) for n in range(20)]
    future = pool.submit(nasty, *args)
    after = [pool.submit(task_functions.square, n) for n in range(20)]
    error = future.exception(PATIENCE_S)
    for futures in (before, after):
        assert [one.result(PATIENCE_S) for one in futures] == [n * n for n in range(20)]
    goes_on(pool)
    return error


# --- Ends -------------------------------------------------------------------------------------------------------------
def segfault() -> None:
    ctypes.string_at(0)


def overflow_the_stack() -> None:
    """In C, where Python cannot stop it."""
    callback = ctypes.CFUNCTYPE(None)(lambda: callback())
    sys.setrecursionlimit(10**9)
    callback()


ENDS: dict[str, tuple[Callable[[], Any], str]] = {
    "_exit": (lambda: os._exit(9), "exited with code 9"),
    "_exit with 0": (lambda: os._exit(0), "exited with code 0"),
    "abort": (os.abort, "SIGABRT"),
    "segfault": (segfault, "SIGSEGV"),
    "kill itself": (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    "terminate itself": (lambda: os.kill(os.getpid(), signal.SIGTERM), "SIGTERM"),
    "kill its group": (lambda: os.killpg(0, signal.SIGKILL), "SIGKILL"),
    "stack": (overflow_the_stack, "SIGSEGV"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_task_that_ends_its_process(pool: Any, name: str) -> None:
    nasty, cause = ENDS[name]
    error = run_among_others(pool, nasty)
    assert isinstance(error, miniray.WorkerDied)
    assert cause in str(error)
    assert pool.events.events(kind="worker_died")


@pytest.mark.parametrize("code", [0, 3, "a message"])
def test_a_task_that_asks_to_exit(pool: Any, code: Any) -> None:
    error = run_among_others(pool, sys.exit, code)
    assert isinstance(error, miniray.WorkerError)
    assert "raised SystemExit: the call asked the process to exit" in str(error)


def test_a_task_that_stops_its_process(pool: Any) -> None:
    future = pool.options(timeout=1).submit(_stop)
    with pytest.raises(miniray.TaskTimeout):
        future.result(PATIENCE_S)
    goes_on(pool)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_task_that_never_returns_and_cannot_be_asked(pool: Any, tmp_path: Path) -> None:
    def stubborn(path: str) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        task_functions.append_line(path, str(os.getpid()))
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

    path = tmp_path / "pid"
    timed = pool.options(timeout=1).submit(stubborn, str(path))
    with pytest.raises(miniray.TaskTimeout, match="stubborn"):
        timed.result(PATIENCE_S)
    cancelled = pool.submit(stubborn, str(path))
    assert until(lambda: task_functions.count_of(str(path)) == 2)
    assert cancelled.cancel()
    assert until(lambda: all(map(is_gone, map(int, path.read_text().split()))))
    goes_on(pool)


# --- Memory -----------------------------------------------------------------------------------------------------------
def test_a_task_that_uses_all_memory_that_python_can_have(make_pool: Any) -> None:
    """A MemoryError is an exception as any other, even if there is hardly room to tell of it."""
    pool = make_pool(2, initializer=_limit_what_may_be_added, initargs=(64 * MIB,))

    def greedy() -> None:
        hog = []
        while True:
            hog.append(bytes(256))

    for _ in range(4):
        assert isinstance(pool.submit(greedy).exception(PATIENCE_S), MemoryError)
    goes_on(pool)


def _limit_what_may_be_added(size: int) -> None:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + size, now + size))


def test_a_task_that_the_kernel_kills_for_want_of_memory(pool: Any, memory_group: Path) -> None:
    def greedy(group: str) -> int:
        Path(group).write_text(str(os.getpid()))
        return task_functions.take_memory(512 * MIB)

    error = run_among_others(pool, greedy, str(memory_group / "cgroup.procs"))
    assert isinstance(error, (miniray.WorkerDied, miniray.TaskOutOfMemory))
    assert "memory" in str(error)
    assert getattr(error, "out_of_memory", True)


# --- What cannot be sent or read --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nasty", "args", "kinds", "text"),
    [
        (task_functions.refuses, (), TypeError, "pickle"),
        (task_functions.generator, (), TypeError, "generator"),
        (threading.Lock, (), TypeError, "lock"),
        (task_functions.fails_there, (), Exception, "cannot be unpickled in another process"),
        (task_functions.same, (task_functions.FailsThere(),), Exception, "cannot be unpickled in another process"),
        (task_functions.raise_holding, ("kept text",), task_functions.HoldsSomething, "kept text"),
        (task_functions.raise_wrong_arguments, ("kept text",), task_functions.WrongArguments, "kept text"),
        (task_functions.raise_huge_text, (20 * MIB,), ValueError, "xxx"),
    ],
    ids=["result", "generator", "lock", "result there", "argument there", "exception", "exception there", "huge text"],
)
def test_what_cannot_come_over_is_told(pool: Any, nasty: Any, args: Any, kinds: Any, text: str) -> None:
    error = run_among_others(pool, nasty, *args)
    assert isinstance(error, kinds)
    assert text in str(error)


def test_a_function_that_is_nowhere_but_here_and_cannot_be_sent(
    pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name it is not found there, and by value it does not go: the user hears why not."""
    (tmp_path / "holds_a_lock.py").write_text(
        "import threading\nLOCK = threading.Lock()\ndef guarded(x):\n    with LOCK:\n        return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))  # after the workers were started
    holds_a_lock = importlib.import_module("holds_a_lock")
    try:
        error = run_among_others(pool, holds_a_lock.guarded, 1)
        assert isinstance(error, TypeError)
        assert "cannot send guarded to another process: cannot pickle '_thread.lock' object" in str(error)
        with pytest.raises(TypeError, match="cannot send guarded to another process"):
            list(pool.map(holds_a_lock.guarded, range(10)))
    finally:
        del sys.modules["holds_a_lock"]


def test_a_function_that_is_asked_for_by_value_after_many_others(
    pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool does not remember all the lambdas that it was given, but it does what a worker may still ask for."""
    (tmp_path / "only_here.py").write_text("def triple(x):\n    return 3 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))  # after the workers were started
    only_here = importlib.import_module("only_here")
    gate = tmp_path / "gate"
    try:
        busy = [pool.submit(task_functions.wait_for, str(gate)) for _ in range(2)]
        late = pool.submit(only_here.triple, 5)
        others = [pool.submit(lambda n=number: n) for number in range(1100)]
        gate.touch()
        assert late.result(PATIENCE_S) == 15
        assert [other.result(PATIENCE_S) for other in others] == list(range(1100))
        for future in busy:
            future.result(PATIENCE_S)
    finally:
        gate.touch()
        del sys.modules["only_here"]


def test_an_exception_without_a_text(pool: Any) -> None:
    error = run_among_others(pool, task_functions.raise_no_text)
    assert type(error).__name__ == "NoText"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, SystemExit, StopIteration, BaseException])
def test_exceptions_that_are_no_errors(pool: Any, kind: type[BaseException]) -> None:
    def nasty() -> None:
        raise kind("odd")

    error = run_among_others(pool, nasty)
    # Raised in the caller, these two would end more than the call.
    assert type(error) is (miniray.WorkerError if kind in (GeneratorExit, SystemExit) else kind)
    assert "odd" in str(error)


def test_an_interrupt_from_outside_is_the_tasks_own(pool: Any) -> None:
    """As if somebody had sent a SIGINT to the worker alone."""
    error = run_among_others(pool, signal.raise_signal, signal.SIGINT)
    assert type(error) is KeyboardInterrupt


def test_python_runs_out_of_stack(pool: Any) -> None:
    def deeper(n: int) -> int:
        return 1 + deeper(n + 1)

    assert isinstance(run_among_others(pool, deeper, 0), RecursionError)


def test_a_structure_too_deep_to_pickle(pool: Any) -> None:
    def deep() -> list[Any]:
        made: list[Any] = []
        for _ in range(100_000):
            made = [made]
        return made

    assert isinstance(run_among_others(pool, deep), (RecursionError, TypeError, ValueError))


def test_a_huge_result(pool: Any) -> None:
    futures = [pool.submit(np.ones, (32 * MIB,)) for _ in range(3)]  # 256 MiB each
    assert [int(future.result(PATIENCE_S)[-1]) for future in futures] == [1, 1, 1]
    del futures
    assert pool.submit(bytes, 256 * MIB).result(PATIENCE_S) == bytes(256 * MIB)
    goes_on(pool)


# --- What spoils a worker ---------------------------------------------------------------------------------------------
def close_descriptors() -> None:
    os.closerange(3, 1000)


def test_a_task_that_closes_all_descriptors(pool: Any) -> None:
    """Its worker can say nothing any more, and is taken for dead."""
    error = run_among_others(pool, close_descriptors)
    assert isinstance(error, miniray.WorkerDied)


def test_a_task_that_closes_the_standard_ones(pool: Any) -> None:
    def nasty() -> str:
        for number in range(3):
            os.close(number)
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
        return "closed"

    assert run_among_others(pool, nasty) is None


def test_children_that_a_task_leaves_end_with_the_pool(make_pool: Any, tmp_path: Path) -> None:
    def leave_children() -> list[int]:
        child = subprocess.Popen(["sleep", "1000"])
        shell = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        assert shell.stdout is not None
        forked = os.fork()
        if forked == 0:
            time.sleep(1000)
            os._exit(0)
        return [child.pid, shell.pid, int(shell.stdout.readline()), forked]

    pool = make_pool(2)
    pids = pool.submit(leave_children).result(PATIENCE_S)
    goes_on(pool)
    pool.shutdown()
    assert until(lambda: all(map(is_gone, pids)))


def test_a_fork_that_returns_twice(pool: Any) -> None:
    """The child comes back from the task too. It is no worker: it ends, and its result counts for nothing."""

    def nasty() -> str:
        return "child" if os.fork() == 0 else "parent"

    for _ in range(5):
        future = pool.submit(nasty)
        assert future.result(PATIENCE_S) == "parent"
    goes_on(pool)


def test_the_state_that_a_task_leaves_behind(pool: Any, tmp_path: Path) -> None:
    def spoil() -> None:
        os.chdir(tmp_path)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        os.umask(0o777)
        os.environ.clear()
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

    for future in [pool.submit(spoil) for _ in range(4)]:
        future.result(PATIENCE_S)
    goes_on(pool)
    timed = pool.options(timeout=1).submit(task_functions.wait_for, str(tmp_path / "never"))
    with pytest.raises(miniray.TaskTimeout):
        timed.result(PATIENCE_S)
    goes_on(pool)


def test_a_thread_that_does_not_end_does_not_keep_the_pool_from_ending(make_pool: Any) -> None:
    def nasty() -> int:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return os.getpid()

    pool = make_pool(1)
    pid = pool.submit(nasty).result(PATIENCE_S)
    goes_on(pool)
    pool.shutdown()
    assert until(lambda: is_gone(pid))


def test_a_task_that_changes_its_arguments(pool: Any) -> None:
    array = np.zeros(1_000_000)

    def nasty(given: Any) -> float:
        given += 1
        return float(given.sum())

    futures = [pool.submit(nasty, array) for _ in range(6)]
    assert [future.result(PATIENCE_S) for future in futures] == [1_000_000.0] * 6
    assert not array.any()


def test_all_at_once_and_in_any_order(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(3)
    deadly = [nasty for name, (nasty, _) in ENDS.items() if name != "stack"]
    futures = []
    for number in range(120):
        futures.append((number, pool.submit(task_functions.square, number)))
        if number % 5 == 0:
            futures.append((None, pool.submit(deadly[number // 5 % len(deadly)])))
    for number, future in futures:
        if number is None:
            assert isinstance(future.exception(PATIENCE_S), miniray.WorkerDied)
        else:
            assert future.result(PATIENCE_S) == number * number
    goes_on(pool)

"""Calls handled roughly: interrupted, from two threads, never waited for, on workers of every make."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from waiting import PATIENCE_S, is_blocked, until

import miniray
from miniray import Worker

TESTS = Path(__file__).parent


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("options", [{"codec": "json"}, {"shared_memory": False}, {"start": "spawn"}], ids=str)
def test_workers_of_every_make(options: dict[str, Any]) -> None:
    with Worker(miniray.serve_calls, **options) as worker:
        worker.register("scale", lambda x: 3 * x)
        assert worker.call_remote("scale", 5) == 15
        for value in ((1, (2,)), {1, 2}, b"bytes", float("inf"), {1: "one"}, task_functions.Point(1, 2.0), "\ud800"):
            assert worker.call_remote("task_functions.same", value) == value
        array = np.arange(500_000)
        assert np.array_equal(worker.call_remote("task_functions.same", array), array)
        with pytest.raises(ValueError, match="boom"):
            worker.call_remote("task_functions.fail", "boom")


def test_a_spawned_workers_default_is_to_serve_calls(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from miniray import Worker
        class Point:
            def __init__(self, x):
                self.x = x
        class Own(Exception):
            pass
        def moved(point):
            if point.x < 0:
                raise Own("negative")
            return Point(point.x + 1)
        if __name__ == "__main__":
            for start in ("fork", "spawn"):
                with Worker(start=start) as worker:
                    worker.register(moved)
                    back = worker.call_remote("moved", Point(1))
                    print(type(back) is Point, back.x)
                    try:
                        worker.call_remote("moved", Point(-1))
                    except Own as error:
                        print("own", error)
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "True 2\nown negative\n" * 2, done.stderr


def test_a_call_that_is_interrupted_leaves_the_channel_in_step(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, threading, time
        sys.path.insert(0, sys.argv[2])
        from miniray import Worker
        gate = sys.argv[1] + "/gate"
        worker = Worker()
        worker.call_remote("os.getpid")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            worker.call_remote("task_functions.wait_for", gate, "late")
        except KeyboardInterrupt:
            print("interrupted")
        open(gate, "w").close()
        print(worker.call_remote("task_functions.square", 5))
        future = worker.call_async("task_functions.square", 6)
        print(future.result(30))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n25\n36\n"), done.stderr


def test_two_threads_in_one_worker_are_refused(tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    with Worker() as worker:
        answers: list[Any] = []
        call = ("task_functions.begin_and_wait_for", str(begun), str(gate), "first")
        thread = threading.Thread(target=lambda: answers.append(worker.call_remote(*call)))
        thread.start()
        until(lambda: begun.exists() and thread.native_id is not None and is_blocked(thread.native_id))
        with pytest.raises(RuntimeError, match="thread"):
            worker.call_remote("task_functions.square", 2)
        gate.touch()
        thread.join()
        assert answers == ["first"]
        assert worker.call_remote("task_functions.square", 2) == 4


def test_calls_that_nobody_waits_for_are_done_and_leave_nothing(tmp_path: Path) -> None:
    """Many of them, with results: neither side grows."""
    with Worker() as worker:
        payload = b"x" * 2000

        def many(count: int) -> None:
            for _ in range(count):
                worker.call_async("task_functions.same", payload)
            worker.call_remote("task_functions.square", 2)

        many(5000)
        before = resident_bytes(os.getpid()), resident_bytes(worker.pid)
        for _ in range(4):
            many(5000)
        after = resident_bytes(os.getpid()), resident_bytes(worker.pid)
        assert after[0] - before[0] < 16 << 20
        assert after[1] - before[1] < 16 << 20


def test_arguments_and_results_are_given_back(tmp_path: Path) -> None:
    """Large ones, time after time."""
    with Worker() as worker:
        for round_number in range(30):
            back = worker.call_remote("task_functions.same", np.full(2 << 20, round_number))
            assert back[-1] == round_number
            if round_number == 10:
                before = resident_bytes(os.getpid()), resident_bytes(worker.pid)
        after = resident_bytes(os.getpid()), resident_bytes(worker.pid)
        assert after[0] - before[0] < 64 << 20
        assert after[1] - before[1] < 64 << 20


def test_a_result_stays_what_it_was() -> None:
    """Though its room could be used for the next."""
    with Worker() as worker:
        kept = [worker.call_remote("task_functions.same", np.full(300_000, number)) for number in range(20)]
        for number, array in enumerate(kept):
            assert (array == number).all()
            array += 1  # and it may be written to


def test_a_message_to_a_worker_that_only_serves_calls_says_so() -> None:
    with Worker() as worker:
        worker.send("a plain message")
        with pytest.raises(miniray.WorkerError, match="calls"):
            worker.recv(timeout=PATIENCE_S)


def test_calls_end_when_the_work_function_handles_messages_alone(tmp_path: Path) -> None:
    """A worker that is killed by hand in between; the certificate tells of the call."""
    begun, never = tmp_path / "begun", tmp_path / "never"
    with Worker() as worker:
        future = worker.call_async("task_functions.begin_and_wait_for", str(begun), str(never))
        until(begun.exists)
        worker.kill(signal.SIGTERM)
        error = future.exception(PATIENCE_S)
        assert isinstance(error, miniray.WorkerDied)
        assert "SIGTERM" in str(error)
        assert "task_functions.begin_and_wait_for" in error.last_messages


def test_a_trace_shows_calls_as_people_read_them(tmp_path: Path) -> None:
    program = """
        from miniray import Worker
        with Worker() as worker:
            worker.register("square", lambda x: x * x)
            worker.call_remote("square", 12345)
    """
    trace = tmp_path / "trace"
    environment = {**os.environ, "MINIRAY_TRACE": str(trace)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(command, env=environment, timeout=PATIENCE_S, check=True)
    text = trace.read_text()
    assert "square" in text
    assert "12345" in text
    assert str(12345**2) in text


def test_the_stack_of_a_worker_in_a_call(tmp_path: Path) -> None:
    """What it is doing can be asked, without disturbing it."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    with Worker() as worker:
        future = worker.call_async("task_functions.begin_and_wait_for", str(begun), str(gate), "done")
        assert until(begun.exists)
        assert "wait_for" in str(worker.stack())
        gate.touch()
        assert future.result(PATIENCE_S) == "done"


def test_a_name_that_is_no_name() -> None:
    with Worker() as worker:
        for wrong in (3, None, ["square"]):
            with pytest.raises(TypeError, match="takes the name of a function"):
                worker.call_remote(wrong)
        for wrong in ("", ".", "..", "a..b", "os.", ".getpid"):
            with pytest.raises(LookupError, match="is registered here"):
                worker.call_remote(wrong)
        with pytest.raises(TypeError, match="not callable"):
            worker.call_remote("os.path")
        assert worker.call_remote("os.getpid") == worker.pid

"""Rough handling: what a careless or unlucky program does ends with an answer, or with an error that says why."""

from __future__ import annotations

import multiprocessing.util
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import miniray
from miniray import Channel, Worker


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def script(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_fork_copies_received_arrays() -> None:
    def source(handle: Any) -> None:
        handle.send(np.zeros(100_000))
        handle.recv()

    with Worker(source) as worker:
        array = worker.recv()

        def write(handle: Any) -> None:
            array[:] = 7
            handle.send("written")

        with Worker(write) as other:
            other.recv()
        assert array[0] == 0


def test_out_of_descriptors_says_so_and_invents_nothing() -> None:
    done = script(
        """
        import os, resource
        import miniray
        def work(handle):
            handle.recv()
            handle.send(b"x" * 100_000)
            handle.send("after")
            handle.recv()
        worker = miniray.Worker(work)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        worker.send(1)
        for _ in range(3):
            try:
                print("got", worker.recv(timeout=5))
            except OSError as error:
                print(type(error).__name__, error)
            except EOFError as error:
                print("EOF")
            if held:
                [os.close(number) for number in held]
                held = []
        """
    )
    lines = done.stdout.splitlines()
    assert "ulimit -n" in lines[0], done.stderr
    assert not any(line.startswith("got") for line in lines)


def test_a_trace_that_cannot_be_opened_leaves_no_process() -> None:
    done = script(
        """
        import os
        from miniray import Worker
        main = os.getpid()
        for _ in range(20):
            try:
                Worker(lambda handle: None)
            except OSError as error:
                assert os.getpid() == main
        print(open(f"/proc/self/task/{main}/children").read().split())
        """,
        MINIRAY_TRACE="/nowhere/trace",
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_child_interrupted_at_its_end_does_not_run_the_parents_script() -> None:
    done = script(
        """
        import os, signal
        from miniray import MiniRayError, Worker
        from waiting import is_blocked, until
        def work(handle):
            raise ValueError("x" * 10_000_000)
        try:
            worker = Worker(work)
            until(lambda: is_blocked(worker.pid), what="a worker that cannot send all of its error")
            worker.kill(signal.SIGINT)
            try:
                worker.recv()
            except MiniRayError:
                pass
            worker.wait()
        except BaseException as error:
            print("caught", repr(error)[:50])
        print("continues")
        """,
        PYTHONPATH=str(Path(__file__).parent),
    )
    assert done.stdout == "continues\n"


def test_deaths_are_not_silenced_by_other_signals() -> None:
    done = script(
        """
        import os, signal
        from miniray import Worker
        def work(handle):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            handle.send("ready")
            handle.recv()
            os.abort()
        worker = Worker(work)
        worker.recv()
        worker.kill(signal.SIGUSR1)
        worker.send("now")
        worker.wait()
        worker.close()
        quiet = Worker(lambda handle: os._exit(0))
        quiet.wait()
        quiet.close()
        """
    )
    assert "SIGABRT" in done.stderr
    assert "exited with code 0 before its work function returned" in done.stderr


def test_threads_of_a_worker_finish_first(tmp_path: Path) -> None:
    def work(handle: Any) -> None:
        threading.Thread(target=lambda: (time.sleep(0.3), (tmp_path / "written").touch())).start()

    with Worker(work) as worker:
        assert worker.wait(timeout=30) == 0
    assert (tmp_path / "written").exists()


left_open: list[Any] = []  # as a module's own would be


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor, miniray.Pool])
def test_executors_that_a_worker_leaves_open_end_with_it(kind: Any) -> None:
    """They have threads that wait for more, and end when a program ends; so they do when a worker does."""

    def work(handle: Any) -> None:
        left_open.append(kind(1))
        handle.send(left_open[-1].submit(pow, 2, 10).result())

    with Worker(work) as worker:
        assert worker.recv(timeout=30) == 1024
        assert worker.wait(timeout=30) == 0


def test_multiprocessing_tidies_up_in_a_worker(tmp_path: Path) -> None:
    """Its managers, pools and semaphores count on it; those of the coordinator are not the worker's to end."""

    def work(handle: Any) -> None:
        multiprocessing.util.Finalize(None, (tmp_path / "of the worker").touch, exitpriority=0)

    ours = multiprocessing.util.Finalize(None, (tmp_path / "of the coordinator").touch, exitpriority=0)
    try:
        with Worker(work) as worker:
            assert worker.wait(timeout=30) == 0
        assert [path.name for path in tmp_path.iterdir()] == ["of the worker"]
    finally:
        ours.cancel()


def test_unprintable_exceptions_arrive() -> None:
    class Strange(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def work(handle: Any) -> None:
        raise Strange

    with Worker(work) as worker, pytest.raises(miniray.WorkerError, match=r"Strange: \(it has no text: RuntimeError\)"):
        worker.recv()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (np.datetime64("2024-01-01", "ns"), "cannot send a numpy.datetime64 at msg"),
        (np.timedelta64(1, "ns"), "cannot send a numpy.timedelta64 at msg"),
    ],
    ids=["datetime64", "timedelta64"],
)
def test_times_are_not_taken_for_integers(message: Any, text: str) -> None:
    with Worker(echo) as worker, pytest.raises(TypeError, match=text):
        worker.send(message)


def test_bad_descriptors_and_time_outs_are_mistakes_not_crashes() -> None:
    with pytest.raises(ValueError, match="give a connected socket"):
        Channel(-1)
    with Worker(echo) as worker:
        for call in (worker.recv, worker.wait):
            with pytest.raises(ValueError, match="NaN"):
                call(timeout=float("nan"))
        with pytest.raises(TimeoutError):
            worker.recv(timeout=-1)


def test_spawn_says_what_it_cannot_import(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("VALUE = 41\n")
    (package / "program.py").write_text(
        textwrap.dedent("""
        import functools, threading
        from miniray import Worker
        from .part import VALUE
        def leaf(handle):
            handle.send(VALUE + 1)
        def nested(handle):
            with Worker(leaf, start="spawn") as worker:
                handle.send(worker.recv(timeout=30))
        class Thing:
            def method(self, handle):
                handle.send(VALUE + 2)
        if __name__ == "__main__":
            for work in (leaf, nested):
                with Worker(work, start="spawn") as worker:
                    print(worker.recv(timeout=30))
            for work in (Thing().method, functools.partial(leaf), lambda handle: handle.send(VALUE)):
                with Worker(work, start="spawn") as worker:
                    print(worker.recv(timeout=30))
            def holds(lock):
                return lambda handle: lock
            try:
                Worker(holds(threading.Lock()), start="spawn")
            except TypeError as error:
                print(error)
        """)
    )
    command = [sys.executable, "-m", "package.program"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    refused = "cannot send holds.<locals>.<lambda> to another process: cannot pickle '_thread.lock' object"
    assert done.stdout.splitlines() == ["42", "42", "43", "42", "41", refused], done.stderr
    unguarded = tmp_path / "unguarded.py"
    unguarded.write_text(
        "from miniray import Worker\ndef work(handle):\n    handle.send(1)\n"
        "worker = Worker(work, start='spawn')\nprint(worker.recv(timeout=30))\n"
    )
    done = subprocess.run([sys.executable, unguarded], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "1\n", done.stderr  # the worker imports the script up to where it starts workers
    unguarded.write_text(
        "from miniray import Worker\nclass Later:\n    def __call__(self, handle): pass\n"
        "def work(handle):\n    handle.send(1)\nfirst = work\n"
        "Worker(first, start='spawn').recv(timeout=30)\ndef work(handle):\n    handle.send(2)\n"
        "print(Worker(work, start='spawn').recv(timeout=30))\n"
    )
    done = subprocess.run([sys.executable, unguarded], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "2\n", done.stderr  # the second definition, which an import would not reach, goes by value
    unguarded.write_text(
        "import sys; sys.modules['cloudpickle'] = None  # not installed\n"
        "from miniray import Worker\ndef first(handle):\n    handle.send(1)\n"
        "Worker(first, start='spawn').recv(timeout=30)\ndef work(handle):\n    handle.send(2)\n"
        "print(Worker(work, start='spawn').recv(timeout=30))\n"
    )
    done = subprocess.run([sys.executable, unguarded], capture_output=True, text=True, timeout=60, check=False)
    assert "cannot find work in <module '__miniray_main__'" in done.stderr
    assert "imported only up to line 5, where it starts workers" in done.stderr
    assert 'put the code that starts workers under if __name__ == "__main__":' in done.stderr


def test_a_worker_that_has_run_out_of_memory_says_so() -> None:
    hog: list[bytes] = []

    def work(handle: Any) -> None:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (32 << 20), now + (32 << 20)))
        while True:
            hog.append(bytes(256))

    for _ in range(3):
        with Worker(work) as worker, pytest.raises(miniray.WorkerError) as raised:
            worker.recv(timeout=30)
        assert raised.value.type == "MemoryError"


def test_an_error_that_makes_no_sense_is_still_an_error() -> None:
    def work(handle: Any) -> None:
        os.write(handle.fileno(), b"MR\x01\x00" + bytes(4) + (1).to_bytes(8, "little") + b"\xc0")
        time.sleep(60)

    with Worker(work) as worker:
        with pytest.raises(miniray.WorkerError, match="its description cannot be decoded: expected a map"):
            worker.recv(timeout=30)
        worker.kill()


def test_all_that_raised_are_reported_though_one_was_read(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from miniray import Cluster, NodeConfig, WorkerError, wait_any\n"
        "def work(handle):\n    raise RuntimeError('boom ' + str(handle.recv()))\n"
        "if __name__ == '__main__':\n"
        "    with Cluster([NodeConfig('localhost', 2, base_port=0)]) as cluster:\n"
        "        for number, worker in enumerate(cluster.start(work)):\n            worker.send(number)\n"
        "        for worker in cluster.workers:\n            wait_any([worker])\n"
        "        try:\n            cluster.gather()\n"
        "        except WorkerError as error:\n            print(error.message)\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout in ("boom 0\n", "boom 1\n"), done.stderr
    other = "boom 1" if "boom 0" in done.stdout else "boom 0"
    assert "miniray: this error was not received:" in done.stderr
    assert f"RuntimeError: {other}" in done.stderr

"""Local workers and the program that has them: how they start in it, what is printed, and that all end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import is_gone, until

import miniray
from miniray import Worker


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def run_script(script: str, *, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )


def test_ctrl_c_in_recv_raises_at_once_and_the_channel_stays_in_step() -> None:
    done = run_script(
        """
        import os, signal, threading
        from miniray import Worker
        def echo(handle):
            while True:
                handle.send(handle.recv())
        worker = Worker(echo)
        for wait in ({}, {"timeout": 30}):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                worker.recv(**wait)
            except KeyboardInterrupt:
                print("interrupted")
            worker.send("still in step")
            print(worker.recv())
        """
    )
    assert done.stdout.split("\n")[:4] == ["interrupted", "still in step"] * 2
    assert done.returncode == 0


def test_a_terminals_ctrl_c_does_not_reach_the_workers() -> None:
    with Worker(echo) as worker:
        assert os.getpgid(worker.pid) == worker.pid != os.getpgrp()


def test_everything_ends_with_the_coordinator_even_by_sigkill() -> None:
    script = """
        import os, subprocess, time
        from miniray import Worker
        def stubborn(handle):
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "1000"])
            handle.send([os.getpid(), child.pid])
            while True:
                pass
        workers = [Worker(stubborn) for _ in range(3)]
        print(*[pid for worker in workers for pid in worker.recv()], flush=True)
        time.sleep(1000)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 6
        process.kill()
    assert until(lambda: all(map(is_gone, pids)))


def test_a_program_may_just_end() -> None:
    done = run_script(
        """
        from miniray import Worker
        def echo(handle):
            while True:
                handle.send(handle.recv())
        workers = [Worker(echo) for _ in range(3)]
        workers[0].send(1)
        print(workers[0].recv())
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_failure_that_nobody_received_is_printed() -> None:
    done = run_script(
        """
        from miniray import Worker
        def work(handle):
            raise ValueError("unheard")
        worker = Worker(work)
        worker.wait()
        worker.close()
        """
    )
    assert "this error was not received" in done.stderr
    assert "ValueError: unheard" in done.stderr


def test_output_is_printed_once_and_straight_to_the_terminal() -> None:
    done = run_script(
        """
        from miniray import Worker
        print("before the fork")          # waits in a buffer: standard output is a pipe here
        def work(handle):
            print("from the worker")
        with Worker(work) as worker:
            worker.wait()
        print("after")
        """
    )
    assert done.stdout == "before the fork\nfrom the worker\nafter\n"


def test_spawn_starts_a_fresh_interpreter(tmp_path: Path) -> None:
    module = tmp_path / "module_to_spawn.py"
    module.write_text("def work(handle):\n    handle.send(handle.recv() + 1)\n    raise OSError('spawned')\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import miniray, module_to_spawn
        def work(handle):
            handle.send(__name__)
        if __name__ == "__main__":
            with miniray.Worker(work, start="spawn") as worker:
                print(worker.recv())
            with miniray.Worker(module_to_spawn.work, start="spawn", codec="json") as worker:
                worker.send(1)
                print(worker.recv())
                try:
                    worker.recv()
                except miniray.WorkerError as error:
                    print(error.type, error.message)
            with miniray.Worker(lambda handle: handle.send("by value"), start="spawn") as worker:
                print(worker.recv())
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["__miniray_main__", "2", "OSError spawned", "by value"], done.stderr


def test_bad_arguments_say_what_is_allowed() -> None:
    with pytest.raises(TypeError, match="a function that takes a handle, not str"):
        Worker("module.fn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='start is "fork" or "spawn", not'):
        Worker(echo, start="thread")
    with pytest.raises(ValueError, match='unknown codec "pickle"; choose "msgpack" or "json"'):
        Worker(echo, codec="pickle")


def test_python_threads_are_warned_about() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with pytest.warns(RuntimeWarning, match='2 Python threads.*start="spawn"'):
            worker = Worker(echo)
        worker.close()
    finally:
        release.set()
        thread.join()


def test_numpy_and_torch_survive_the_fork() -> None:
    pytest.importorskip("torch")
    done = run_script(
        """
        import warnings
        warnings.simplefilter("always")
        import numpy as np, torch
        from miniray import Worker
        torch.set_num_threads(4)
        def work(handle):
            a, t = np.ones((600, 600)), torch.ones(600, 600)
            handle.send([float((a @ a).sum()), float((t @ t).sum()), float(torch.relu(torch.ones(2_000_000)).sum())])
        def use():
            a, t = np.ones((600, 600)), torch.ones(600, 600)
            (a @ a).sum(), (t @ t).sum(), torch.relu(torch.ones(2_000_000)).sum()
        use()
        for _ in range(3):
            with Worker(work) as worker:
                print(worker.recv(timeout=40))
            use()
        """,
        timeout=110,
    )
    assert done.stdout.splitlines() == ["[216000000.0, 216000000.0, 2000000.0]"] * 3, done.stderr
    assert "GNU OpenMP" in done.stderr
    assert 'start="spawn"' in done.stderr


def test_a_live_cuda_context_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """With a stand-in for the driver: there is no GPU on every machine that runs the tests."""
    source = tmp_path / "driver.c"
    source.write_text(
        "int cuDeviceGetCount(int* n) { *n = 1; return 0; }\n"
        "int cuDevicePrimaryCtxGetState(int d, unsigned* f, int* active) { *f = 0; *active = 1; return 0; }\n"
    )
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    done = run_script(
        f"""
        import ctypes
        ctypes.CDLL({str(library)!r})
        import miniray
        try:
            miniray.Worker(print)
        except miniray.UsageError as error:
            print(error)
        """
    )
    assert "live CUDA context" in done.stdout, done.stderr
    assert 'start="spawn"' in done.stdout


def test_a_child_cannot_use_its_parents_workers() -> None:
    first = Worker(echo)

    def work(handle: Any) -> None:
        try:
            first.send(1)
        except RuntimeError as error:
            handle.send(str(error))

    with Worker(work) as second:
        assert "belongs to the process that made it" in second.recv()
    first.send(2)
    assert first.recv() == 2
    first.close()


def test_a_workers_child_does_not_keep_the_channel_open() -> None:
    def work(handle: Any) -> None:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(3)

    with Worker(work) as worker, pytest.raises(miniray.WorkerDied, match="code 3"):
        worker.recv(timeout=30)

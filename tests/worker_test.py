"""Local workers, and every way in which one ends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import miniray
from miniray import Worker, wait_any


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


def gone(pid: int) -> bool:
    """Ended; perhaps not yet reaped by whoever inherited it."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_a_closure_works_and_the_context_manager_ends_it() -> None:
    factor = 3

    def work(handle: Any) -> None:
        while True:
            handle.send(handle.recv() * factor)

    with Worker(work) as worker:
        worker.send(14)
        assert worker.recv() == 42
        assert worker.is_alive()
        assert "work" in worker.name
        assert str(worker.pid) in repr(worker)
    assert not worker.is_alive()
    with pytest.raises(EOFError, match="was closed here"):
        worker.send(1)


def test_a_return_is_an_end_of_stream_that_says_so() -> None:
    with Worker(lambda handle: handle.send("done")) as worker:
        assert worker.recv() == "done"
        with pytest.raises(miniray.EndOfStream, match="has returned; there are no more messages"):
            worker.recv()
        assert worker.wait() == 0
        with pytest.raises(miniray.EndOfStream):
            worker.send(1)


def test_an_exception_arrives_with_its_traceback() -> None:
    def work(handle: Any) -> None:
        handle.recv()
        raise KeyError("no such layer")

    with Worker(work) as worker:
        worker.send(None)
        with pytest.raises(miniray.WorkerError) as caught:
            worker.recv()
        assert caught.value.type == "KeyError"
        assert "no such layer" in caught.value.message
        assert 'raise KeyError("no such layer")' in caught.value.traceback
        assert "_work.py" not in caught.value.traceback
        assert str(worker.pid) in str(caught.value)
        assert worker.wait() == 1


def test_sys_exit_is_an_exit() -> None:
    with Worker(lambda handle: sys.exit(7)) as worker:
        with pytest.raises(miniray.WorkerDied, match="exited with code 7") as caught:
            worker.recv()
        assert caught.value.exit_code == 7
        assert caught.value.signal is None
    with Worker(lambda handle: sys.exit()) as worker, pytest.raises(miniray.EndOfStream):
        worker.recv()


def test_a_death_certificate_has_the_python_stack_and_the_last_messages() -> None:
    def crash_in_this_function() -> None:
        ctypes.string_at(0)

    def work(handle: Any) -> None:
        handle.send({"status": "ready"})
        handle.recv()
        crash_in_this_function()

    with Worker(work) as worker:
        worker.recv()
        worker.send({"cmd": "crash", "array": np.zeros(3)})
        with pytest.raises(miniray.WorkerDied) as caught:
            worker.recv()
    died = caught.value
    assert isinstance(died, ConnectionError)
    assert isinstance(died, EOFError)
    assert died.signal == signal.SIGSEGV
    assert "killed by SIGSEGV" in str(died)
    assert "crash_in_this_function" in died.stack
    assert "C++ stack at SIGSEGV" in died.stack
    assert '-> {"cmd": "crash", "array": "<array float64 3>"}' in died.last_messages
    assert '<- {"status": "ready"}' in died.last_messages
    assert died.peak_bytes > 1_000_000
    assert not died.out_of_memory


def test_a_worker_that_is_killed_is_reported_at_once() -> None:
    with Worker(echo) as worker:
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(miniray.WorkerDied, match="killed by SIGTERM"):
            worker.recv()
        assert worker.wait() == -signal.SIGTERM


def memory_cgroup() -> Path | None:
    """A fresh control group that this test may limit, if the machine has them."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(base) / f"miniray-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(64 * 2**20))
            return group
        except OSError:
            if group.exists():
                group.rmdir()
    return None


def test_the_out_of_memory_killer_is_named() -> None:
    group = memory_cgroup()
    if group is None:
        pytest.skip("needs a writable memory control group")

    def greedy(handle: Any) -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        handle.send("going")
        held = [bytearray(2**20) for _ in range(500)]
        handle.send(len(held))

    try:
        with Worker(greedy) as worker:
            assert worker.recv() == "going"
            with pytest.raises(miniray.WorkerDied, match="for want of memory") as caught:
                worker.recv()
            assert caught.value.out_of_memory
            assert caught.value.signal == signal.SIGKILL
    finally:
        group.rmdir()


def test_killed_by_hand_is_not_out_of_memory() -> None:
    with Worker(echo) as worker:
        worker.kill()
        with pytest.raises(miniray.WorkerDied, match="SIGKILL") as caught:
            worker.recv()
        assert not caught.value.out_of_memory


def test_killed_at_random_moments_while_messages_fly() -> None:
    source = random.Random(3)
    message = {"text": "x" * 3000, "array": np.zeros(20_000)}
    for _ in range(500):
        worker = Worker(echo)
        timer = threading.Timer(source.random() * 0.004, os.kill, (worker.pid, signal.SIGKILL))
        timer.start()
        with pytest.raises(miniray.WorkerDied):  # noqa: PT012 (which call it is depends on the moment)
            while True:
                worker.send(message)
                if source.random() < 0.5:
                    worker.recv(timeout=30)
        timer.join()
        worker.close()


def test_wait_any_reports_messages_deaths_and_nothing() -> None:
    workers = [Worker(echo) for _ in range(6)]
    assert wait_any(workers, timeout=0.01) == []
    workers[4].send(1)
    workers[1].send(2)
    found: list[Worker] = []
    while len(found) < 2:
        found = wait_any(workers, timeout=30)
    assert found == [workers[1], workers[4]]
    assert [worker.recv() for worker in found] == [2, 1]
    workers[2].kill()
    assert wait_any(workers, timeout=30) == [workers[2]]
    with pytest.raises(miniray.WorkerDied):
        workers[2].recv()
    pending = workers[:2] + workers[3:]
    for number, worker in enumerate(pending):
        worker.send(number)
    answers = []
    while pending:
        for worker in wait_any(pending, timeout=30):
            answers.append(worker.recv())
            pending.remove(worker)
    assert sorted(answers) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="nothing to wait for"):
        wait_any([])
    for worker in workers:
        worker.close()


def test_wait_times_out_and_reads_what_is_still_sent() -> None:
    with Worker(echo) as worker, pytest.raises(TimeoutError, match="still runs"):
        worker.wait(timeout=0.01)

    def talkative(handle: Any) -> None:
        for number in range(100):
            handle.send([number, b"x" * 50_000])

    with Worker(talkative) as worker:
        assert worker.wait(timeout=30) == 0
        assert [worker.recv()[0] for _ in range(100)] == list(range(100))


def test_asyncio() -> None:
    async def converse() -> None:
        workers = [Worker(echo) for _ in range(4)]
        large = np.arange(300_000.0)

        async def talk(worker: Worker) -> None:
            for number in range(20):
                await worker.send_async({"number": number, "array": large, "text": "x" * 300_000})
            for number in range(20):
                answer = await worker.recv_async(timeout=30)
                assert answer["number"] == number

        await asyncio.gather(*map(talk, workers))
        with pytest.raises(TimeoutError):
            await workers[0].recv_async(timeout=0.01)
        both = asyncio.gather(workers[0].recv_async(), workers[0].recv_async())
        await asyncio.sleep(0)
        workers[0].send("first")
        workers[0].send("second")
        assert await both == ["first", "second"]
        waiting = asyncio.create_task(workers[1].recv_async())
        await asyncio.sleep(0.01)
        waiting.cancel()
        workers[1].send("not lost")
        assert await workers[1].recv_async() == "not lost"
        workers[2].kill()
        with pytest.raises(miniray.WorkerDied):
            await workers[2].recv_async()
        assert await workers[2].wait_async(timeout=30) == -signal.SIGKILL
        for worker in workers:
            worker.close()

    asyncio.run(converse())


def test_two_threads_in_one_worker_are_refused() -> None:
    with Worker(lambda handle: handle.send(time.sleep(0.5))) as worker:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(worker.recv()))
        thread.start()
        time.sleep(0.1)
        with pytest.raises(RuntimeError, match="in use by another thread"):
            worker.recv(timeout=0)
        with pytest.raises(RuntimeError, match="give each thread its own"):
            worker.send("from the second thread")
        thread.join()
        assert answers == [None]


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
    assert all(map(gone, pids))


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
    assert "nobody received this" in done.stderr
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


def spawned_work(handle: Any) -> None:
    handle.send({"pid": os.getpid(), "threads": "miniray._spawned" in sys.modules})
    handle.send(handle.recv())


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
            try:
                miniray.Worker(lambda handle: None, start="spawn")
            except TypeError as error:
                print("lambda" in str(error), "start=\\"fork\\"" in str(error))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["__miniray_main__", "2", "OSError spawned", "True True"], done.stderr


def test_bad_arguments_say_what_is_allowed() -> None:
    with pytest.raises(TypeError, match="a function that takes a handle, not str"):
        Worker("module.fn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='start is "fork" or "spawn", not'):
        Worker(echo, start="thread")
    with pytest.raises(ValueError, match='there is no codec "pickle"; choose "msgpack" or "json"'):
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

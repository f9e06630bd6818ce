"""Whole programs with a process pool: how they end, whatever is under way, and that nothing is left of them.

Each runs with the standard library's ProcessPoolExecutor too, where that makes the same promise.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import PATIENCE_S, is_gone, until

TESTS = Path(__file__).parent

BEGIN = {
    "standard": "import multiprocessing, os, signal, sys, time\n"
    "from concurrent.futures import ProcessPoolExecutor\n"
    "import task_functions\n"
    "def Pool(*args, **options):\n"
    "    return ProcessPoolExecutor(*args, mp_context=multiprocessing.get_context('fork'), **options)\n",
    "miniray": "import os, signal, sys, time\nfrom miniray import Pool\nimport task_functions\n"
    "from waiting import until\n",
}
both = pytest.mark.parametrize("kind", ["standard", "miniray"])


@contextmanager
def program(kind: str, text: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A script with that kind of Pool; afterwards it has ended, whatever happens."""
    path = folder / "program.py"
    path.write_text(BEGIN[kind] + textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    with subprocess.Popen(
        [sys.executable, str(path), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ends(kind: str, text: str, folder: Path) -> tuple[int, str, str]:
    with program(kind, text, folder) as process:
        output, errors = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output, errors


def numbers(line: str) -> list[int]:
    return [int(word) for word in line.split()]


@both
def test_pending_work_is_finished_before_a_normal_exit(kind: str, tmp_path: Path) -> None:
    text = """
        if __name__ == "__main__":
            pool = Pool(2)
            for number in range(30):
                pool.submit(task_functions.append_line, "lines", str(number))
            print("the script ends")
    """
    assert ends(kind, text, tmp_path) == (0, "the script ends\n", "")
    assert sorted(numbers((tmp_path / "lines").read_text())) == list(range(30))


@both
def test_after_shutdown_without_waiting_too(kind: str, tmp_path: Path) -> None:
    text = """
        if __name__ == "__main__":
            pool = Pool(2)
            for number in range(30):
                pool.submit(task_functions.append_line, "lines", str(number))
            pool.shutdown(wait=False)
            del pool
            print("the script ends")
    """
    assert ends(kind, text, tmp_path) == (0, "the script ends\n", "")
    assert sorted(numbers((tmp_path / "lines").read_text())) == list(range(30))


@both
def test_an_exception_in_the_script_is_shown_and_it_ends(kind: str, tmp_path: Path) -> None:
    text = """
        if __name__ == "__main__":
            with Pool(2) as pool:
                print(pool.submit(task_functions.square, 3).result(), flush=True)
                raise ValueError("the script's own")
    """
    code, output, errors = ends(kind, text, tmp_path)
    assert (code, output) == (1, "9\n")
    assert errors.rstrip().endswith("ValueError: the script's own")


def test_unguarded_script_with_its_own_functions(tmp_path: Path) -> None:
    """Workers are forked, so what the script has defined is there."""
    text = """
        def cube(x):
            return x ** 3
        class Point:
            def __init__(self, x):
                self.x = x
        def moved(point):
            return Point(point.x + 1)
        pool = Pool(2)
        print(list(pool.map(cube, range(5))))
        back = pool.submit(moved, Point(1)).result()
        print(type(back) is Point, back.x)
        def late(x):
            return cube(x) + 1     # defined after the workers were started
        print(list(pool.map(late, range(5))))
    """
    assert ends("miniray", text, tmp_path) == (0, "[0, 1, 8, 27, 64]\nTrue 2\n[1, 2, 9, 28, 65]\n", "")


@both
def test_ctrl_c_ends_everything(kind: str, tmp_path: Path) -> None:
    """As a terminal sends it: to the whole process group of the program."""
    text = """
        if __name__ == "__main__":
            pool = Pool(2)
            futures = [
                pool.submit(task_functions.begin_and_wait_for, f"begun{number}", "never") for number in range(2)
            ]
            try:
                futures[0].result()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                for future in futures:
                    future.cancel()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    """
    with program(kind, text, tmp_path) as process:
        assert until(lambda: len(list(tmp_path.glob("begun?"))) == 2)
        pids = [int(path.read_text()) for path in tmp_path.glob("begun?")]
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert output == "interrupted\n"
        assert process.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in errors
        assert until(lambda: all(map(is_gone, pids)))


@pytest.mark.parametrize("where", ["in a with block", "in map", "in shutdown", "at exit"])
def test_ctrl_c_wherever_it_comes_ends_a_pool_with_endless_tasks(where: str, tmp_path: Path) -> None:
    wait = {
        "in a with block": "with pool:\n    submit()\n    time.sleep(1000)",
        "in map": "list(pool.map(task_functions.begin_and_wait_for, ['begun0', 'begun1'], ['never'] * 2))",
        "in shutdown": "submit()\npool.shutdown()",
        "at exit": "submit()",
    }[where]
    text = f"""
def submit():
    for number in range(2):
        pool.submit(task_functions.begin_and_wait_for, f"begun{{number}}", "never")
pool = Pool(2)
{wait}
"""
    with program("miniray", text, tmp_path) as process:
        assert until(lambda: len(list(tmp_path.glob("begun?"))) == 2)
        pids = [int(path.read_text()) for path in tmp_path.glob("begun?")]
        os.killpg(process.pid, signal.SIGINT)  # once
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert "KeyboardInterrupt" in errors
        assert until(lambda: all(map(is_gone, pids)))


def test_kill_9_leaves_nothing(tmp_path: Path) -> None:
    """The standard library's workers live on here. Tasks with children of their own, and stubborn ones."""
    text = """
        import subprocess
        def stubborn(number):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "1000"])
            with open(f"part{number}", "w") as file:
                file.write(f"{os.getpid()} {child.pid}")
            os.rename(f"part{number}", f"begun{number}")
            while True:
                pass
        pool = Pool(2)
        futures = [pool.submit(stubborn, number) for number in range(2)]
        queued = [pool.submit(task_functions.square, number) for number in range(100)]
        time.sleep(1000)
    """
    with program("miniray", text, tmp_path) as process:
        assert until(lambda: len(list(tmp_path.glob("begun?"))) == 2)
        pids = [pid for path in tmp_path.glob("begun?") for pid in numbers(path.read_text())]
        assert len(pids) == 4
        process.kill()
        process.wait()
        assert until(lambda: all(map(is_gone, pids)))


def test_sys_exit_with_endless_tasks_after_a_cancel(tmp_path: Path) -> None:
    text = """
        pool = Pool(2)
        futures = [pool.submit(task_functions.wait_for, "never") for number in range(5)]
        until(futures[0].running)
        print([future.cancel() for future in futures])
        sys.exit(3)
    """
    assert ends("miniray", text, tmp_path) == (3, "[True, True, True, True, True]\n", "")


@both
def test_what_tasks_print_comes_out(kind: str, tmp_path: Path) -> None:
    text = """
        if __name__ == "__main__":
            with Pool(2) as pool:
                pool.submit(print, "from a task").result()
                pool.submit(print, "without waiting")
    """
    code, output, errors = ends(kind, text, tmp_path)
    assert (code, errors) == (0, "")
    assert sorted(output.splitlines()) == ["from a task", "without waiting"]


@both
def test_tasks_that_print_a_lot(kind: str, tmp_path: Path) -> None:
    """In whole lines, if each is one write."""
    text = """
        def noisy(number):
            for _ in range(2000):
                os.write(1, f"{number} {500 * 'x'}\\n".encode())
            return number
        if __name__ == "__main__":
            with Pool(2) as pool:
                assert list(pool.map(noisy, range(6))) == list(range(6))
    """
    code, output, errors = ends(kind, text, tmp_path)
    assert (code, errors) == (0, "")
    counts = {number: output.count(f"{number} {500 * 'x'}\n") for number in range(6)}
    assert counts == dict.fromkeys(range(6), 2000)


@both
def test_a_pool_inside_a_task(kind: str, tmp_path: Path) -> None:
    text = """
        def outer(number):
            with Pool(2) as inner:
                return sum(inner.map(task_functions.square, range(number)))
        if __name__ == "__main__":
            with Pool(2) as pool:
                print(list(pool.map(outer, [3, 4, 5])))
    """
    assert ends(kind, text, tmp_path) == (0, "[5, 14, 30]\n", "")


@both
def test_a_fork_inside_a_task(kind: str, tmp_path: Path) -> None:
    """The child that leaves with os._exit, and the one that is waited for, do not disturb the pool."""
    text = """
        def forks(number):
            child = os.fork()
            if child == 0:
                os._exit(number)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if __name__ == "__main__":
            with Pool(2) as pool:
                print(list(pool.map(forks, range(10))))
                print(pool.submit(task_functions.square, 3).result())
    """
    assert ends(kind, text, tmp_path) == (0, f"{list(range(10))}\n9\n", "")


@both
def test_a_fork_of_the_program_does_not_take_the_pool_along(kind: str, tmp_path: Path) -> None:
    text = """
        if __name__ == "__main__":
            pool = Pool(2)
            print(pool.submit(task_functions.square, 2).result(), flush=True)
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            print(list(pool.map(task_functions.square, range(5))))
            pool.shutdown()
    """
    assert ends(kind, text, tmp_path) == (0, "4\n[0, 1, 4, 9, 16]\n", "")


def test_many_pools_one_after_the_other(tmp_path: Path) -> None:
    text = """
        for _ in range(30):
            with Pool(2) as pool:
                assert list(pool.map(task_functions.square, range(4))) == [0, 1, 4, 9]
        print(len(os.listdir("/proc/self/fd")) < 30, open(f"/proc/self/task/{os.getpid()}/children").read().split())
        import threading
        print(threading.active_count())
    """
    assert ends("miniray", text, tmp_path) == (0, "True []\n1\n", "")

"""Ctrl-C at a terminal, wherever the program waits: it ends at once, as Python programs do, and nothing is left."""

from __future__ import annotations

import random
import signal
import textwrap
import time
from pathlib import Path

import pytest
from terminal import CTRL_C, Ended, Terminal

ENDS_WITHIN_S = 4.5  # a second or two are meant; a worker that ends normally may take 5 s to do so

BEGIN = """
import asyncio, atexit, concurrent.futures, faulthandler, os, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1)  # for whoever asks why it hangs
import miniray
from miniray import Cluster, NodeConfig, Pool, Worker, as_completed, wait_any

def begun(name=""):
    with open(f"part{name}{os.getpid()}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"part{name}{os.getpid()}", f"begun{name}{os.getpid()}")

def sleep(_=None):
    begun()
    time.sleep(1000)

def spin(_=None):
    begun()
    while True:
        pass

def stubborn(_=None):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sleep()

def blocked(_=None):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sleep()

def in_c(_=None):
    begun()
    sum(range(10**13))

def with_a_thread(_=None):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    sleep()

def with_a_child(_=None):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"])
    begun()
    child.wait()

def tidy(_=None):
    begun()
    try:
        time.sleep(1000)
    finally:
        open("tidied", "w").close()

def wait_for_begun(count=1):
    while sum(name.startswith("begun") for name in os.listdir()) < count:
        time.sleep(0.01)

def nodes():
    return [NodeConfig("localhost", num_workers=1, base_port=0), NodeConfig("localhost", num_workers=1, base_port=0)]

def rank(handle):
    handle.recv()
    handle.send({"status": "ready"})
    sleep()

def main():
BODY

if __name__ == "__main__":
    main()
"""

# What the program waits in, and how many processes have begun by then. Each works for ever, unless it is ended.
PLACES: dict[str, tuple[str, int]] = {
    "future.result": ("with Pool(2) as pool: [pool.submit(sleep) for _ in range(20)][0].result()", 2),
    "future.result without with": ("pool = Pool(2); [pool.submit(sleep) for _ in range(20)][0].result()", 2),
    "map": ("with Pool(2) as pool: list(pool.map(sleep, range(20)))", 2),
    "map without with": ("pool = Pool(2); list(pool.map(sleep, range(20)))", 2),
    "imap_unordered": ("with Pool(2) as pool: list(pool.imap_unordered(sleep, iter(range(20))))", 2),
    "starmap": ("with Pool(2) as pool: pool.starmap(sleep, [[1]] * 20)", 2),
    "spawned pool": ("with Pool(2, start='spawn') as pool: list(pool.map(sleep, range(20)))", 2),
    "shutdown": ("pool = Pool(2); [pool.submit(sleep) for _ in range(20)]; pool.shutdown()", 2),
    "leaving with": (
        """
        with Pool(2) as pool:
            for _ in range(20):
                pool.submit(sleep)
        """,
        2,
    ),
    "time.sleep": (
        """
        with Pool(2) as pool:
            for _ in range(20):
                pool.submit(sleep)
            time.sleep(1000)
        """,
        2,
    ),
    "concurrent.futures.wait": (
        "with Pool(2) as pool: concurrent.futures.wait([pool.submit(sleep) for _ in range(20)])",
        2,
    ),
    "concurrent.futures.as_completed": (
        "with Pool(2) as pool: list(concurrent.futures.as_completed([pool.submit(sleep) for _ in range(20)]))",
        2,
    ),
    "await a pool's future": (
        """
        async def work():
            async with Pool(2) as pool:
                await asyncio.gather(*(asyncio.wrap_future(pool.submit(sleep)) for _ in range(20)))
        asyncio.run(work())
        """,
        2,
    ),
    "given workers": ("with Pool([Worker(), Worker()]) as pool: list(pool.map(sleep, range(20)))", 2),
    "recv": ("worker = Worker(sleep); worker.recv()", 1),
    "recv within with": ("with Worker(sleep) as worker: worker.recv()", 1),
    "recv of several": ("workers = [Worker(sleep) for _ in range(4)]; workers[0].recv()", 4),
    "recv of a spawned one": ("with Worker(sleep, start='spawn') as worker: worker.recv()", 1),
    "close": ("worker = Worker(sleep); time.sleep(0.1); worker.close(1000)", 1),
    "wait": ("worker = Worker(sleep); worker.wait()", 1),
    "wait_any": ("workers = [Worker(sleep) for _ in range(2)]; wait_any(workers)", 2),
    "call_remote": ("worker = Worker(); worker.register('sleep', sleep); worker.call_remote('sleep')", 1),
    "CallFuture.result": (
        "worker = Worker(); worker.register('sleep', sleep); worker.call_async('sleep').result()",
        1,
    ),
    "as_completed": (
        """
        workers = [Worker() for _ in range(2)]
        for worker in workers:
            worker.register("sleep", sleep)
        list(as_completed([worker.call_async("sleep") for worker in workers]))
        """,
        2,
    ),
    "await recv_async": (
        """
        async def work():
            async with Worker(sleep) as worker:
                await worker.recv_async()
        asyncio.run(work())
        """,
        1,
    ),
    "await a call": (
        """
        async def work():
            worker = Worker()
            worker.register("sleep", sleep)
            await worker.call_async("sleep")
        asyncio.run(work())
        """,
        1,
    ),
    "gather": (
        """
        with Cluster(nodes()) as cluster:
            cluster.start(sleep)
            cluster.gather()
        """,
        2,
    ),
    "gather without with": ("cluster = Cluster(nodes()); cluster.start(sleep); cluster.gather()", 2),
    "cluster.stop": ("cluster = Cluster(nodes()); cluster.start(sleep); cluster.stop()", 2),
    "a pool on a cluster": (
        "with Cluster(nodes()) as cluster, Pool(cluster) as pool: list(pool.map(sleep, range(20)))",
        2,
    ),
    "a pool on a cluster without with": ("pool = Pool(Cluster(nodes())); list(pool.map(sleep, range(20)))", 2),
    "a training group's gather": (
        """
        cluster = Cluster(nodes())
        cluster.start(rank)
        group = cluster.training_group(progress=False)
        group.gather()
        """,
        2,
    ),
}


def program(body: str) -> str:
    return BEGIN.replace("BODY", textwrap.indent(textwrap.dedent(body).strip(), "    "))


def ends_as_python_does(ended: Ended) -> None:
    """By KeyboardInterrupt, with its traceback and nothing else, and nothing is left."""
    assert ended.left == []
    assert ended.status == -signal.SIGINT, ended.errors
    assert ended.errors.startswith("Traceback (most recent call last):"), ended.errors
    assert ended.errors.rstrip().endswith("KeyboardInterrupt"), ended.errors
    assert "terminate called" not in ended.errors
    assert "miniray:" not in ended.errors, ended.errors
    assert "Exception ignored" not in ended.errors, ended.errors
    assert ended.seconds < ENDS_WITHIN_S


@pytest.mark.parametrize("place", PLACES)
def test_one_ctrl_c(place: str, tmp_path: Path) -> None:
    body, processes = PLACES[place]
    with Terminal(tmp_path, program(body)) as terminal:
        terminal.wait_for("begun", processes)
        terminal.press(CTRL_C)
        ends_as_python_does(terminal.end())


# (Python itself swallows an interrupt that comes while a thread or a weak reference goes, so pools do not come and go.)
BUSY = """
begun()
with Pool(2) as pool:
    while True:
        futures = [pool.submit(pow, 2, number) for number in range(20)]
        list(pool.map(abs, range(-200, 0)))
        pool.starmap(pow, [[2, 3]] * 20)
        futures[-1].result()
        with Worker() as worker:
            worker.call_remote("os.getpid")
"""


@pytest.mark.parametrize("moment", range(12))
def test_ctrl_c_at_any_moment(moment: int, tmp_path: Path) -> None:
    """Whatever it interrupts, the program ends."""
    with Terminal(tmp_path, program(BUSY)) as terminal:
        terminal.wait_for("begun")
        time.sleep(random.Random(moment).uniform(0, 0.3))
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert (ended.status, ended.left) == (-signal.SIGINT, []), ended.errors
    assert "KeyboardInterrupt" in ended.errors
    assert "terminate called" not in ended.errors


CAUGHT = {
    "a worker": ("worker = Worker(stubborn); worker.recv()", 1),
    "workers": ("workers = [Worker(stubborn) for _ in range(3)]; workers[0].recv()", 3),
    "workers, asleep": ("workers = [Worker(stubborn) for _ in range(3)]; time.sleep(1000)", 3),
    "a pool": ("pool = Pool(2); [pool.submit(stubborn) for _ in range(20)][0].result()", 2),
    "a cluster": ("cluster = Cluster(nodes()); cluster.start(stubborn); cluster.gather()", 2),
}


@pytest.mark.parametrize("end", ["print('bye')", "sys.exit(130)"])
@pytest.mark.parametrize("place", CAUGHT)
def test_a_program_that_catches_it_and_ends(place: str, end: str, tmp_path: Path) -> None:
    """What is dropped or left because of Ctrl-C is not waited for."""
    body, processes = CAUGHT[place]
    text = f"def work():\n    {body}\ntry:\n    work()\nexcept KeyboardInterrupt:\n    {end}"
    with Terminal(tmp_path, program(text)) as terminal:
        terminal.wait_for("begun", processes)
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert (ended.status, ended.errors, ended.left) == (130 if "exit" in end else 0, "", [])
    assert ended.seconds < ENDS_WITHIN_S


# Tasks that do not heed an interrupt, or cannot.
@pytest.mark.parametrize("task", ["spin", "stubborn", "blocked", "in_c", "with_a_thread", "with_a_child"])
@pytest.mark.parametrize(
    "place",
    [
        "with Pool(2) as pool: list(pool.map(TASK, range(20)))",
        "workers = [Worker(TASK) for _ in range(2)]; workers[0].recv()",
        "with Cluster(nodes()) as cluster: cluster.start(TASK); cluster.gather()",
    ],
    ids=["pool", "workers", "cluster"],
)
def test_a_worker_that_ignores_it_is_killed(place: str, task: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, program(place.replace("TASK", task))) as terminal:
        terminal.wait_for("begun", 2)
        terminal.press(CTRL_C)
        ends_as_python_does(terminal.end())


@pytest.mark.parametrize("place", PLACES)
def test_a_second_ctrl_c_ends_it_at_once(place: str, tmp_path: Path) -> None:
    """Whatever the program was doing about the first. Nothing is left, and nothing aborts."""
    body, processes = PLACES[place]
    with Terminal(tmp_path, program(body.replace("sleep)", "stubborn)").replace("sleep,", "stubborn,"))) as terminal:
        terminal.wait_for("begun", processes)
        terminal.press(CTRL_C)
        terminal.wait(0.2)
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert ended.left == []
    assert "terminate called" not in ended.errors
    assert "KeyboardInterrupt" in ended.errors
    assert ended.status == -signal.SIGINT, ended.errors
    assert ended.seconds < ENDS_WITHIN_S


def test_ctrl_c_while_a_process_forks_is_not_lost(tmp_path: Path) -> None:
    """Python swallows what is raised in the hooks around a fork."""
    body = """
    os.register_at_fork(HOOK=lambda: os.kill(os.getpid(), signal.SIGINT))
    with Worker(sleep) as worker:
        worker.recv()
    """
    for hook in ("before", "after_in_parent"):
        with Terminal(tmp_path, program(body.replace("HOOK", hook))) as terminal:
            ends_as_python_does(terminal.end())


@pytest.mark.parametrize(
    "wait",
    [
        "pool.submit(sleep).result()",
        "pool.submit(sleep).result(timeout=1000)",
        "list(pool.map(sleep, range(1)))",
        "pool.submit(sleep); pool.shutdown()",
    ],
)
def test_ctrl_c_that_wakes_another_thread(wait: str, tmp_path: Path) -> None:
    """As one does that comes when the program is just about to wait: nothing ends that wait."""
    body = f"""
    def interrupt():
        wait_for_begun()
        time.sleep(0.2)  # until the program waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        time.sleep(1000)
    pool = Pool(1)
    threading.Thread(target=interrupt, daemon=True).start()
    {wait}
    """
    with Terminal(tmp_path, program(body)) as terminal:
        ends_as_python_does(terminal.end())


def test_at_exit_what_was_submitted_is_finished_unless_ctrl_c_comes(tmp_path: Path) -> None:
    """Python itself reports the interrupt, as one of its own exit."""
    body = "pool = Pool(2); [pool.submit(sleep) for _ in range(20)]"
    with Terminal(tmp_path, program(body)) as terminal:
        terminal.wait_for("begun", 2)
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert ended.left == []
    assert "KeyboardInterrupt" in ended.errors
    assert "terminate called" not in ended.errors
    assert ended.seconds < ENDS_WITHIN_S


def test_at_exit_workers_that_have_not_ended_do_not_wait_either(tmp_path: Path) -> None:
    body = """
    global worker
    worker = Worker(stubborn)
    wait_for_begun()
    atexit.register(lambda: open("ending", "w").close())
    """
    with Terminal(tmp_path, program(body)) as terminal:
        terminal.wait_for("ending")
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert ended.left == []
    assert "KeyboardInterrupt" in ended.errors
    assert "terminate called" not in ended.errors
    assert ended.seconds < ENDS_WITHIN_S


@pytest.mark.parametrize("error", ["ValueError('the program')", "KeyboardInterrupt()"])
@pytest.mark.parametrize(
    "body",
    [
        """
        with Pool(2) as pool:
            for _ in range(20):
                pool.submit(sleep)
            wait_for_begun(2)
            raise ERROR
        """,
        """
        pool = Pool(2)
        for _ in range(20):
            pool.submit(sleep)
        wait_for_begun(2)
        raise ERROR
        """,
        """
        with Worker(sleep), Worker(sleep):
            wait_for_begun(2)
            raise ERROR
        """,
        """
        workers = [Worker(sleep), Worker(sleep)]
        wait_for_begun(2)
        raise ERROR
        """,
        """
        with Cluster(nodes()) as cluster:
            cluster.start(sleep)
            wait_for_begun(2)
            raise ERROR
        """,
        """
        cluster = Cluster(nodes())
        cluster.start(sleep)
        wait_for_begun(2)
        raise ERROR
        """,
    ],
    ids=["with Pool", "Pool", "with Worker", "Worker", "with Cluster", "Cluster"],
)
def test_a_program_that_ends_by_an_exception_waits_for_nobody(body: str, error: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, program(body.replace("ERROR", error))) as terminal:
        ended = terminal.end()
    assert ended.left == []
    status, last_line = (1, "ValueError: the program") if "Value" in error else (-signal.SIGINT, "KeyboardInterrupt")
    assert ended.status == status
    assert ended.errors.rstrip().splitlines()[-1] == last_line
    assert ended.errors.count("Traceback") == 1, ended.errors


@pytest.mark.parametrize(
    "body",
    [
        "with Pool(2) as pool: pool.submit(tidy).result()",
        "with Pool(2) as pool: list(pool.map(tidy, range(1)))",
        "with Worker(tidy) as worker: worker.recv()",
        "pool = Pool(Cluster(nodes())); list(pool.map(tidy, range(1)))",
    ],
)
def test_a_task_is_interrupted_before_it_is_killed(body: str, tmp_path: Path) -> None:
    """So that it can clean up after itself."""
    with Terminal(tmp_path, program(body)) as terminal:
        terminal.wait_for("begun")
        terminal.press(CTRL_C)
        ends_as_python_does(terminal.end())
    assert (tmp_path / "tidied").exists()


def test_a_program_that_only_takes_a_note_of_it(tmp_path: Path) -> None:
    """Its workers may finish, as at any end that is not an exception."""
    body = """
    def saves(handle):
        begun()
        try:
            handle.recv()
        except miniray.EndOfStream:
            time.sleep(1)
            open("saved", "w").close()
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    worker = Worker(saves)
    while not pressed:
        time.sleep(0.01)
    """
    with Terminal(tmp_path, program(body)) as terminal:
        terminal.wait_for("begun")
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert (ended.status, ended.errors, ended.left) == (0, "", [])
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_program_that_ignores_sigint(start: str, tmp_path: Path) -> None:
    """It was started in the background by a shell without job control, say. Its workers end all the same."""
    body = f"""
    with Pool(2, start={start!r}) as pool:
        for _ in range(20):
            pool.submit(sleep)
        wait_for_begun(2)
        raise ValueError("the program")
    """
    text = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + program(body)
    with Terminal(tmp_path, text) as terminal:
        terminal.wait_for("begun", 2)
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert (ended.status, ended.left) == (1, [])


SESSION = """
pool = Pool(2)

def interrupted(do):
    before = len(begun_files())
    threading.Thread(target=interrupt_after, args=(before + 2,), daemon=True).start()
    try:
        do()
    except KeyboardInterrupt:
        return True

def begun_files():
    return [name for name in os.listdir() if name.startswith("begun")]

def interrupt_after(count):
    while len(begun_files()) < count:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

print(interrupted(lambda: list(pool.map(sleep, range(20)))))
print(pool.submit(pow, 2, 3).result())
print(interrupted(lambda: list(pool.imap_unordered(sleep, iter(range(20))))))
print(pool.submit(pow, 2, 4).result())
print(interrupted(lambda: pool.starmap(sleep, [[1]] * 20)))
print(list(pool.map(abs, range(-3, 0))))

def take_none():
    results = pool.map(sleep, range(20))
    time.sleep(1000)
    list(results)

print(interrupted(take_none))
print(pool.submit(pow, 2, 5).result())
status = pool.status()
print(status["failed"], status["queued"], status["done"])
"""


def test_after_an_interrupted_map_the_pool_is_usable_at_once(tmp_path: Path) -> None:
    """As in a notebook. What never began, and what was ended because of it, has not failed."""
    with Terminal(tmp_path, program("pass") + SESSION) as terminal:
        ended = terminal.end()
    assert ended.errors == ""
    assert ended.output.splitlines() == ["True", "8", "True", "16", "True", "[3, 2, 1]", "True", "32", "0 0 6"]
    assert (ended.status, ended.left) == (0, [])

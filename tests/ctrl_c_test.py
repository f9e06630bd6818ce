"""Ctrl-C at a terminal, wherever the program waits: it ends at once, as Python programs do, and nothing is left."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from interruptible import PLACES, ends_as_python_does, program
from terminal import CTRL_C, Terminal


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
    assert ended.status == -signal.SIGINT, ended.errors
    assert "KeyboardInterrupt" in ended.errors
    assert "terminate called" not in ended.errors


# What a signal's handler raises while a map sends its items: it reaches the program, and the pool goes on.
DURING_A_MAP = """
from miniray._pool_map import Mapping
class Raised(Exception): pass
def raise_it(*_): raise Raised
signal.signal(signal.SIGALRM, raise_it)
class Signals:
    def __reduce__(self):
        signal.raise_signal(signal.NUMBER)
        return int, ()
submit = Mapping._submit
def submit_and_signal(*arguments):
    submit(*arguments)
    signal.raise_signal(signal.NUMBER)
with Pool(1) as pool:
    ITEMS
    try:
        print(list(pool.map(abs, items)))
    except (KeyboardInterrupt, Raised) as error:
        Mapping._submit = submit
        print(type(error).__name__, list(pool.map(abs, [-2])))
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGALRM"])
@pytest.mark.parametrize(
    "items",
    ["items = [-1]; Mapping._submit = submit_and_signal", "items = [Signals()]", "items = [1, 2, Signals()]"],
    ids=["right after a chunk was submitted", "while an item is pickled", "while items are pickled"],
)
def test_a_signal_in_the_middle_of_a_map(items: str, number: str, tmp_path: Path) -> None:
    body = DURING_A_MAP.replace("ITEMS", items).replace("NUMBER", number)
    with Terminal(tmp_path, program(body)) as terminal:
        ended = terminal.end()
    raised = "KeyboardInterrupt" if number == "SIGINT" else "Raised"
    assert (ended.status, ended.output, ended.errors) == (0, f"{raised} [2]\n", "")


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
    assert (ended.status, ended.errors) == (130 if "exit" in end else 0, "")


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
    assert "terminate called" not in ended.errors
    assert "KeyboardInterrupt" in ended.errors
    assert ended.status == -signal.SIGINT, ended.errors


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
    main = threading.get_ident()
    def interrupt():
        wait_for_begun()
        until(lambda: sys._current_frames()[main].f_code.co_name == "_acquire", what="a wait of the main thread")
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
    assert "KeyboardInterrupt" in ended.errors
    assert "terminate called" not in ended.errors


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
    assert "KeyboardInterrupt" in ended.errors
    assert "terminate called" not in ended.errors


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
    until(lambda: pressed, what="Ctrl-C")
    """
    with Terminal(tmp_path, program(body)) as terminal:
        terminal.wait_for("begun")
        terminal.press(CTRL_C)
        ended = terminal.end()
    assert (ended.status, ended.errors) == (0, "")
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
    assert ended.status == 1, ended.errors


SESSION = """
pool = Pool(2)

def interrupted(do):
    before = len(begun_files())
    threading.Thread(target=interrupt_after, args=(before + 2,), daemon=True).start()
    try:
        do()
    except KeyboardInterrupt:
        return True

def interrupt_after(count):
    wait_for_begun(count)
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
    assert ended.status == 0, ended.errors


@pytest.mark.parametrize(
    "other", ["faulthandler.register(signal.SIGINT, chain=True)", "c_signal(signal.SIGINT, ctypes.c_void_p(1))"]
)
def test_ctrl_c_that_other_code_handles_below_python(other: str, tmp_path: Path) -> None:
    """Its handler stays where it is, and the program lives: it passes the signal on, or nobody hears of it."""
    body = f"""
    import ctypes
    c_signal = ctypes.CDLL(None).signal
    with Worker(), Worker():
        {other}
        with Worker():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
                print("ignored")
            except KeyboardInterrupt:
                print("interrupted")
    """
    with Terminal(tmp_path, program(body)) as terminal:
        ended = terminal.end()
    assert (ended.status, ended.output.split()) == (0, ["interrupted" if "chain" in other else "ignored"]), ended.errors


def test_a_map_that_is_begun_after_ctrl_c_and_let_go_of_is_done(tmp_path: Path) -> None:
    body = """
    pool = Pool(2)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1000)
    except KeyboardInterrupt:
        pass
    pool.map(begun, range(100, 150))
    pool.shutdown()
    """
    with Terminal(tmp_path, program(body)) as terminal:
        ended = terminal.end()
    assert ended.status == 0, ended.errors
    names = {name for name in range(100, 150) if list(tmp_path.glob(f"begun{name}*"))}
    assert names == set(range(100, 150))

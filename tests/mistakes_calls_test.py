"""Mistakes with calls, objects, pools, clusters and keys: the text says what is wrong and what to do."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

import miniray
from miniray import Cluster, NodeConfig, Pool, RestartPolicy, Worker, wait_any


class Counter:
    """Has a method and something that is none."""

    def __init__(self) -> None:
        self.total = 3

    def add(self, number: int) -> int:
        self.total += number
        return self.total


def square(x: int) -> int:
    return x * x


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def told(mistake: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 (each text is compared)
        mistake()
    return f"{type(raised.value).__name__}: {raised.value}"


@pytest.fixture
def worker() -> Iterator[Any]:
    with Worker(echo) as made:
        yield made


def test_a_function_is_called_by_its_name(worker: Any) -> None:
    for call in ("call_remote", "call_async"):
        method = getattr(worker, call)
        assert told(lambda method=method: method(square, 3)) == (
            f"TypeError: {call} takes the name of a function, not the function square itself. Call "
            f"worker.register(square), and then {call}('square', ...); or give it to a pool: pool.submit(square, ...)"
        )
        assert told(lambda method=method: method(3)) == (
            f"TypeError: {call} takes the name of a function, a str, not the int 3"
        )
        assert told(lambda method=method: method()) == (
            f"TypeError: {call} takes the name of a function, and its arguments: {call}('module.function', 1, 2)"
        )
    worker.register(square)
    assert worker.call_remote("square", 3) == 9


def test_a_name_that_is_not_known(worker: Any) -> None:
    worker.register("square", square)
    assert told(lambda: worker.call_remote("sqare", 3)) == (
        'LookupError: no function "sqare" is registered here (registered: square); did you mean square? '
        "Register it first: worker.register(sqare)"
    )
    assert told(lambda: worker.call_remote("clock.tick")) == (
        'LookupError: no function "clock.tick" is registered here (registered: square), there is no object "clock", '
        'and no module "clock" can be imported'
    )
    assert told(lambda: worker.call_remote("math.sqrtt", 3)) == (
        'LookupError: no function "math.sqrtt" is registered here (registered: square). Looked for in a module: '
        "cannot import math.sqrtt: module 'math' has no attribute 'sqrtt'; did you mean isqrt or sqrt?"
    )
    # A C++ program calls its lambdas by such names, of which clang's have a dot.
    for function in ("main()::<lambda(double)>", "lambda at main.cpp:3:15"):
        assert told(lambda function=function: worker.call_remote(f"{function} [c++ 0123456789abcdef]", 3)) == (
            f"LookupError: {function} is a function of a C++ program that was called without a name, and this is a "
            'Python worker. Call a function of Python by its name, "module.function", or use workers that run the same '
            "C++ program"
        )
    with Pool(1) as pool:
        text = told(lambda: pool.submit("square", 3).result())
        assert text.partition("\n")[0] == (
            "LookupError: a function is named \"module.function\", not 'square'; one of the script itself is "
            '"__main__.square"'
        )


def test_register_create_and_forget_say_what_they_take(worker: Any) -> None:
    register = 'TypeError: register takes a name and a function: register("square", square)'
    for mistake, text in {
        lambda: worker.register(3): f"{register}, or a function that has a name, not the int 3",
        lambda: worker.register(lambda: 3): f"{register}, or a function that has a name, not a lambda alone",
        lambda: worker.register(3, square): f"{register}; the name is a str, not the int 3",
        lambda: worker.register("f", 3): f"{register}, not the int 3",
        lambda: worker.create(
            "c", 3
        ): "TypeError: create takes a name and a class: create('c', Class, ...), not the int 3",
        lambda: worker.create(3, Counter): (
            'TypeError: name is a str, what the object is called there, as in create("counter", Counter), not the int 3'
        ),
        lambda: worker.create("a.b", Counter): (
            "UsageError: the name of an object has no dot, since one comes before its methods, not 'a.b'"
        ),
        lambda: worker.forget(
            3
        ): "TypeError: name is a str, what a function or an object is called there, not the int 3",
    }.items():
        assert told(mistake) == text


def test_objects_that_live_elsewhere(worker: Any) -> None:
    counter = worker.create("counter", Counter)
    assert repr(counter.total) == "<miniray.RemoteObject method counter.total; call it: counter.total()>"
    assert told(lambda: counter.total()) == (
        'AttributeError: "counter" is a Counter whose total is the int 3, not a method; only methods can be called '
        "from another process. Give Counter a method that returns it"
    )
    assert told(lambda: counter.ad(1)) == (
        "AttributeError: \"counter\" is a Counter without a method ad; it has ['add']; did you mean add?"
    )
    assert told(lambda: setattr(counter, "total", 5)) == (
        f"AttributeError: total cannot be set from here: counter lives in {worker.name}. Give it a method that sets it"
    )
    assert counter.add(1) == 4
    worker.forget("counter")
    assert told(lambda: counter.add(1)) == (
        'LookupError: "counter" was forgotten here, by worker.forget("counter"). Register or create it again'
    )
    assert worker.create("counter", Counter).add(1) == 4
    worker.register(square)
    worker.forget("square")
    assert told(lambda: worker.call_remote("square", 1)) == (
        'LookupError: "square" was forgotten here, by worker.forget("square"). Register or create it again'
    )


def test_a_task_that_takes_too_much_memory_says_how_much_it_may() -> None:
    with Pool(1) as pool:
        text = told(lambda: pool.options(memory_bytes=10_000_000).submit(bytearray, 10**9).result())
    assert text == (
        "TaskOutOfMemory: the task needed more than the 10000000 bytes that it may take beside what its worker had "
        "(memory_bytes=10000000). Give it less at a time, or raise memory_bytes"
    )


def test_what_was_closed_says_so(worker: Any) -> None:
    name = worker.name
    worker.close()
    for mistake in (worker.recv, lambda: worker.send(1), lambda: worker.call_remote("math.sqrt", 1)):
        assert told(mistake) == f"EndOfStream: {name} was closed by this process; start another one"
    assert told(lambda: Pool([worker])) == f"UsageError: {name} was closed; a pool needs workers that run"
    pool = Pool(1)
    pool.shutdown()
    assert told(lambda: pool.submit(square, 3)) == "RuntimeError: cannot schedule new futures after shutdown"


def test_another_thread_is_refused(worker: Any) -> None:
    ended = threading.Event()

    def wait() -> None:
        while not ended.is_set():
            with contextlib.suppress(miniray.UsageError, TimeoutError, miniray.WorkerDied):
                worker.recv(timeout=0.1)

    waiting = threading.Thread(target=wait)
    waiting.start()

    def refusal() -> str:
        """Empty as long as the other thread does not wait."""
        try:
            worker.recv(timeout=0)
        except TimeoutError:
            return ""
        except miniray.UsageError as error:
            return f"{type(error).__name__}: {error}"
        raise AssertionError("a message that nobody sent")

    try:
        assert until(refusal) == (
            f"UsageError: the channel to {worker.name} is in use by another thread (or by the code that a signal "
            "interrupted). Give each thread a worker of its own, or hold a lock around the calls"
        )
    finally:
        ended.set()
        waiting.join()


@pytest.mark.parametrize("use", [lambda worker: worker.send(1), lambda worker: wait_any([worker], 0)])
def test_a_forked_child_has_no_say_over_its_parents_worker(worker: Any, use: Any) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            use(worker)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert text == (
        f"UsageError: the channel to {worker.name} belongs to the process that made it, and this process is a child of "
        "that one. Start a worker in this process, or use its handle if it is a worker itself"
    )


def test_a_wait_that_was_refused_leaves_nothing_to_the_next(worker: Any) -> None:
    child = os.fork()
    if child == 0:
        try:
            (quiet, _peer), (ready, sender) = miniray.Channel.pair(), miniray.Channel.pair()
            sender.send(1)
            assert wait_any([quiet], 0) == []
            with pytest.raises(miniray.UsageError):
                wait_any([ready, worker], 0)
            assert wait_any([quiet], 0) == []
            assert wait_any([ready], 0) == [ready]
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("options", [{}, {"restart": RestartPolicy()}], ids=["plain", "supervised"])
def test_a_pools_worker_is_the_pools(options: dict[str, Any]) -> None:
    """It used to end the whole program."""
    made: Any = Worker(**options)
    name = made.name
    with Pool([made]) as pool:
        text = f"UsageError: {name} belongs to a pool until the pool is shut down. Give the pool tasks: pool.submit"
        for mistake in (made.recv, lambda: made.send(1), lambda: made.call_remote("math.sqrt", 1), made.close):
            assert told(mistake) == text
        assert (
            told(lambda: Pool([made]))
            == f"UsageError: {name} is already in a pool; a worker can be in one pool at a time"
        )
        assert pool.submit(square, 3).result() == 9
        assert made.is_alive()
    made.close()
    assert told(lambda: made.send(1)) == f"EndOfStream: {name} was closed by this process; start another one"


def test_a_cluster_that_was_not_started_says_so() -> None:
    cluster = Cluster([NodeConfig("localhost", num_workers=1, base_port=0)], progress=False)
    down = "RuntimeError: the cluster's servers are not up. Call launch_servers() or start()"
    fixed = (
        "UsageError: the nodes of a cluster cannot be changed. Make another cluster: "
        'Cluster(nodes=[*cluster.nodes, NodeConfig("node3")])'
    )
    nodes: Any = cluster.nodes
    for mistake, text in {
        lambda: cluster.gather(): "RuntimeError: the cluster has no workers. Call start()",
        lambda: cluster.gather(5): "TypeError: gather takes its time-out by name: gather(timeout=5)",  # type: ignore[arg-type]
        lambda: cluster.broadcast(1): down,
        lambda: cluster.training_group(): down,
        lambda: cluster.relaunch(0): down,
        lambda: nodes.append(NodeConfig("other")): fixed,
        lambda: setattr(cluster, "nodes", []): fixed,
        lambda: cluster.start("work"): (
            "ValueError: a function is named \"module.function\", not 'work'; one of the script itself is "
            '"__main__.work"'
        ),
        lambda: cluster.start("m.f", nodes="localhost"): (  # type: ignore[arg-type]
            "TypeError: nodes is a list of hosts or positions, such as [\"node1\"] or [0], not the str 'localhost'"
        ),
        lambda: cluster.start("m.f", num_workers="2"): (  # type: ignore[arg-type]
            "TypeError: num_workers is an int, or None, not the str '2'; write num_workers=2"
        ),
    }.items():
        assert told(mistake) == text
    assert cluster.nodes == (NodeConfig("localhost", num_workers=1, base_port=0),)


def test_a_bad_key_says_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = (
        " must be 64 hexadecimal digits, and it has 3 characters. Make one with: "
        "python3 -c 'import secrets; print(secrets.token_hex(32))'"
    )
    for start in (
        lambda **key: miniray.RemoteWorker("localhost", 1, **key),
        lambda **key: miniray.WorkerServer("127.0.0.1", 0, **key),
    ):
        assert told(lambda start=start: start(key="abc")) == f"UsageError: the key in the argument key{rest}"
        monkeypatch.setenv("MINIRAY_KEY", "abc")
        assert told(start) == f"UsageError: the key in MINIRAY_KEY{rest}"
        monkeypatch.delenv("MINIRAY_KEY")
        monkeypatch.setenv("HOME", str(tmp_path))
        file = tmp_path / ".miniray" / "key"
        file.parent.mkdir(exist_ok=True)
        file.write_text("abc\n")
        file.chmod(0o600)
        assert told(start) == f"UsageError: the key in {file}{rest}"


def test_the_command_that_makes_a_key_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIRAY_KEY", raising=False)
    monkeypatch.delenv("HOME")
    text = told(lambda: miniray.RemoteWorker("localhost", 1))
    assert text.startswith("UsageError: there is no key: neither MINIRAY_KEY nor HOME (for ~/.miniray/key) is set. ")
    command = text.partition("export MINIRAY_KEY=$(")[2].removesuffix(")")
    key = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
    assert told(lambda: miniray.RemoteWorker("localhost", 1, key=key)).startswith("Refused: cannot connect to")
    assert told(lambda: miniray.WorkerServer("127.0.0.1", 0, echo, key="x" * 64)).startswith(
        "UsageError: the key in the argument key must be 64 hexadecimal digits, and it has other characters. Make"
    )


def test_a_misspelt_module_says_which_may_have_been_meant(worker: Any) -> None:
    assert told(lambda: worker.call_remote("nmpy.sqrt", 4)).endswith(
        'no module "nmpy" can be imported; did you mean numpy?'
    )
    with Pool(1) as pool:
        assert told(lambda: pool.submit("nmpy.sqrt", 4).result()).splitlines()[2] == (
            "Check the spelling (did you mean numpy?), install nmpy on this machine, or put its file beside the "
            "coordinator's script."
        )
        assert "\nCheck the spelling, install no_module_like_it on" in told(
            lambda: pool.submit("no_module_like_it.sqrt", 4).result()
        )


class Guarded:
    def __init__(self) -> None:
        self.locks = [threading.Lock()]


LOCK = (
    "to another process: cannot pickle '_thread.lock' object. Only the threads of one process can share a lock; "
    "create it inside the function"
)


def test_an_argument_that_cannot_be_pickled_is_named(worker: Any) -> None:
    lock = threading.Lock()
    worker.register(square)
    with Pool(1) as pool:
        for mistake, text in {
            lambda: pool.submit(square, 1, lock).result(): f"cannot send argument 2 of square, a lock, {LOCK}",
            lambda: pool.submit(square, x={"a": [lock]}).result(): (
                f"cannot send argument 'x' of square (at ['a'][0], a lock) {LOCK}"
            ),
            lambda: pool.submit(square, Guarded()).result(): (
                f"cannot send argument 1 of square (at .locks[0], a lock) {LOCK}"
            ),
            lambda: list(pool.map(square, [1, 2, lock], chunksize=2)): f"cannot send item 2 for square, a lock, {LOCK}",
            lambda: worker.call_remote("square", lock): f"cannot send argument 1 of the call, a lock, {LOCK}",
            lambda: pool.submit(square, (n for n in range(3))).result(): (
                "cannot send argument 1 of square, a generator, to another process: cannot pickle 'generator' object. "
                "Pass list(it)"
            ),
            lambda: pool.submit(square, worker).result(): (
                "cannot send argument 1 of square, a Worker, to another process: cannot pickle 'Worker' object. "
                "Only the process that started a worker can use it; pass the data that it needs"
            ),
            lambda: pool.submit(square, pool.submit(square, 1)).result(): (
                "cannot send argument 1 of square, a PoolFuture, to another process: cannot pickle "
                "'_Key' object. Pass its result()"
            ),
        }.items():
            assert told(mistake) == f"TypeError: {text}"
        assert pool.submit(square, 3).result() == 9


def test_a_pool_in_its_own_task_says_what_to_do_instead() -> None:
    cure = (
        "a pool belongs to the process that made it, so its tasks cannot use it. Have the task return what is to be "
        "done next and submit that here, or make another Pool inside the task"
    )
    with Pool(1) as pool:
        for thing in (pool, pool.options(retries=1)):
            kind = type(thing).__name__
            assert told(lambda thing=thing: pool.submit(square, thing).result()) == (
                f"TypeError: cannot send argument 1 of square, a {kind}, to another process: {cure}"
            )
        assert told(lambda: pool.submit(lambda: pool.submit(square, 3).result()).result()).endswith(f"process: {cure}")


def test_another_key_than_the_servers_says_where_ours_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    server = miniray.WorkerServer("127.0.0.1", 0, echo, key=secrets.token_hex(32))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        monkeypatch.setenv("MINIRAY_KEY", secrets.token_hex(32))
        text = told(lambda: miniray.RemoteWorker("127.0.0.1", server.port))
    finally:
        server.stop()
        serving.join()
    assert text == (
        f"Refused: cannot talk to the server at 127.0.0.1:{server.port}: it has another key. Give both sides the same "
        "one: copy ~/.miniray/key, or set MINIRAY_KEY on both (this side's is the one in MINIRAY_KEY)"
    )

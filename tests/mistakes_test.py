"""Wrong arguments are refused before anything is started, with what was passed and what is expected; never with a
signature of the core."""

from __future__ import annotations

import ast
import asyncio
import inspect
import multiprocessing
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import miniray
from miniray import (
    Channel,
    Cluster,
    EventLog,
    NodeConfig,
    Pool,
    RestartPolicy,
    Worker,
    wait_any,
)
from miniray.pool import TaskOptions


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def square(x: int) -> int:
    return x * x


def told(mistake: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
        mistake()
    return f"{type(raised.value).__name__}: {raised.value}"


POOL = "TypeError: a pool takes a number of workers, a cluster or workers: Pool(4), Pool(cluster), Pool([worker, ...])"
names: dict[str, Any] = {**vars(miniray), "TaskOptions": TaskOptions, "square": square, "echo": echo, "np": np}
for name in (
    "Cluster",
    "NodeConfig",
    "Pool",
    "RestartPolicy",
    "EventLog",
    "WorkerServer",
    "NCCLConfig",
    "get_gpu_numa_node",
):
    names[name] = getattr(miniray, name)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        # Nodes and clusters.
        ("NodeConfig('a', num_workers='4')", "TypeError: num_workers is an int, not the str '4'; write num_workers=4"),
        (
            "NodeConfig('a', num_workers=2.0)",
            "TypeError: num_workers is an int, not the float 2.0; write num_workers=2",
        ),
        ("NodeConfig('a', num_workers=True)", "TypeError: num_workers is an int, not the bool True"),
        (
            "NodeConfig('a', base_port='10000')",
            "TypeError: base_port is an int, not the str '10000'; write base_port=10000",
        ),
        ("NodeConfig('a', gpus_per_worker='all')", "TypeError: gpus_per_worker is a number, not the str 'all'"),
        ("NodeConfig(3)", 'TypeError: host is a str, such as "node1" or "user@10.0.0.2", not the int 3'),
        ("NodeConfig('a', env={'DEBUG': 1})", "TypeError: env['DEBUG'] is a str, not the int 1; write \"1\""),
        (
            "NodeConfig('a', env='DEBUG=1')",
            'TypeError: env is a dict of environment variables, such as {"NCCL_DEBUG": "INFO"}, '
            "not the str 'DEBUG=1'",
        ),
        ("NodeConfig('a', workdir=3)", "TypeError: workdir is a path, a str or a pathlib.Path, not the int 3"),
        (
            "Cluster(NodeConfig('a'))",
            "TypeError: nodes is a list of NodeConfig objects, not one of them: Cluster(nodes=[NodeConfig(...)])",
        ),
        (
            "Cluster('node1')",
            'TypeError: nodes is a list of NodeConfig objects, not a str: Cluster(nodes=[NodeConfig("node1")])',
        ),
        (
            "Cluster(['node1'])",
            "TypeError: nodes are NodeConfig objects, not the str 'node1'; write NodeConfig(\"node1\")",
        ),
        ("Cluster(4)", "TypeError: nodes is a list of NodeConfig objects, not the int 4"),
        ("Cluster([NodeConfig('a')], codec=None)", 'TypeError: codec is a str, "msgpack" or "json", not None'),
        (
            "Cluster([NodeConfig('a')], codec='pickle')",
            'UsageError: unknown codec "pickle"; choose "msgpack" or "json"',
        ),
        (
            "Cluster([NodeConfig('a')], start_timeout_s='5')",
            "TypeError: start_timeout_s is a number of seconds, not the str '5'; write start_timeout_s=5",
        ),
        ("Cluster([NodeConfig('a')], tunnel='yes')", "TypeError: tunnel is True or False, not the str 'yes'"),
        ("NodeConfig(hots='a')", "TypeError: NodeConfig() has no argument 'hots'; did you mean host?"),
        (
            "Cluster([NodeConfig('a')], progres=False)",
            "TypeError: Cluster() has no argument 'progres'; did you mean progress?",
        ),
        (
            "RestartPolicy(max_restart=3)",
            "TypeError: RestartPolicy() has no argument 'max_restart'; did you mean max_restarts?",
        ),
        ("NCCLConfig(rnk=3)", "TypeError: NCCLConfig() has no argument 'rnk'; did you mean rank?"),
        (
            "Pool(2, retrys=1)",
            "TypeError: Pool() has no argument 'retrys'; did you mean retries or retry_on? Options of tasks go to "
            "pool.options(...)",
        ),
        ("Pool(max_worker=2)", "TypeError: Pool() has no argument 'max_worker'; did you mean max_workers?"),
        ("Pool(2, colour=1)", "TypeError: Pool() has no argument 'colour'"),
        # Workers and servers.
        ("Worker(echo, restrat=None)", "TypeError: Worker() has no argument 'restrat'; did you mean restart?"),
        ("RemoteWorker('a', 1, keey='')", "TypeError: RemoteWorker() has no argument 'keey'; did you mean key?"),
        ("WorkerServer(workfn='')", "TypeError: WorkerServer() has no argument 'workfn'; did you mean work_fn?"),
        (
            "Worker(3)",
            "TypeError: Worker takes a function that takes a handle, not int: pass the function itself, "
            "without calling it",
        ),
        ("Worker('echo')", "TypeError: Worker takes a function that takes a handle, not str"),
        ("Worker(echo, spin_us='x')", "TypeError: spin_us is an int, or None, not the str 'x'"),
        ("Worker(echo, spin_us=-1)", "UsageError: spin_us is 0 or more, not -1"),
        ("Worker(echo, codec=3)", 'TypeError: codec is a str, "msgpack" or "json", not the int 3'),
        ("Worker(echo, start='thread')", 'ValueError: start is "fork" or "spawn", not \'thread\''),
        ("Worker(echo, name=3)", "TypeError: name is a str, or None, not the int 3"),
        ("Worker(echo, shared_memory='no')", "TypeError: shared_memory is True or False, not the str 'no'"),
        ("Worker(echo, inbox_bytes_max=-1)", "UsageError: inbox_bytes_max is 1 or more, not -1"),
        (
            "Worker(echo, restart=True)",
            "TypeError: restart is a RestartPolicy, such as RestartPolicy(), not the bool True",
        ),
        ("RemoteWorker('a', '10000')", "TypeError: port is an int, not the str '10000'; write port=10000"),
        ("RemoteWorker('a', 99999)", "UsageError: port is from 0 to 65535, not 99999"),
        (
            "RemoteWorker('a:10000', 1)",
            'UsageError: host is "a:10000"; give the name of the machine and the port apart: "a", 10000',
        ),
        ("RemoteWorker('a', 1, key=5)", "TypeError: key is a str of 64 hexadecimal digits, or None, not the int 5"),
        ("RemoteWorker('a', 1, env={'A': 1})", "TypeError: env['A'] is a str, not the int 1; write \"1\""),
        (
            "RemoteWorker('a', 1, connect_timeout_s='5')",
            "TypeError: connect_timeout_s is a number of seconds, not the str '5'; write connect_timeout_s=5",
        ),
        (
            "create_remote_workers('a:1')",
            "TypeError: addresses is a list of pairs, such as (\"node1\", 10000), not the str 'a:1'",
        ),
        (
            "create_remote_workers(['a:1'])",
            "TypeError: an address is a pair, such as (\"node1\", 10000), not the str 'a:1'",
        ),
        (
            "WorkerServer(port=0, num_workers='4')",
            "TypeError: num_workers is an int (None: no limit), not the str '4'; write num_workers=4",
        ),
        ("WorkerServer(port='10000')", "TypeError: port is an int, not the str '10000'; write port=10000"),
        (
            "WorkerServer(port=0, work_fn=3)",
            "TypeError: work_fn is a function that takes a handle, or its name, not the int 3",
        ),
        ("RestartPolicy(max_restarts='3')", "TypeError: max_restarts is an int, not the str '3'; write max_restarts=3"),
        ("RestartPolicy(max_restarts=-1)", "UsageError: max_restarts is 0 or more, not -1"),
        ("RestartPolicy(window_s='x')", "TypeError: window_s is a number of seconds, not the str 'x'"),
        ("EventLog('3')", "TypeError: events_max is an int, not the str '3'; write events_max=3"),
        ("Channel('x')", "TypeError: socket is an int, not the str 'x'"),
        ("Channel()", "TypeError: Channel() needs socket"),
        ("wait_any(3)", "TypeError: wait_any takes a list of workers, handles and channels, not the int 3"),
        (
            "wait_any([3])",
            "TypeError: wait_any takes a list of workers, handles and channels, and one of them is the int 3",
        ),
        ("get_gpu_numa_node('0')", "TypeError: gpu_id is an int, not the str '0'; write gpu_id=0"),
        # Pools and tasks.
        ("Pool(2.0)", f"{POOL}, not the float 2.0; write Pool(2)"),
        ("Pool('4')", f"{POOL}, not the str '4'; write Pool(4)"),
        (
            "Pool(square)",
            f"{POOL}, not the function square. A function goes to submit or map: Pool().map(function, items)",
        ),
        ("Pool(NodeConfig('a'))", f"{POOL}, not a NodeConfig. A node belongs to a cluster: Pool(Cluster([node]))"),
        ("Pool(True)", f"{POOL}, not the bool True"),
        ("Pool(0)", "ValueError: max_workers must be greater than 0, not 0"),
        ("Pool([3])", "TypeError: a pool takes workers, not the int 3"),
        ("Pool([])", "ValueError: a pool needs at least one worker"),
        (
            "Pool(1, initializer=print, initargs=3)",
            "TypeError: initargs is a tuple of arguments, such as (1,), not the int 3",
        ),
        ("Pool(1, restart=3)", "TypeError: restart is a RestartPolicy, such as RestartPolicy(), not the int 3"),
        (
            "Pool(1, resources=['ssd'])",
            "TypeError: resources is a dict of amounts, such as {\"licence\": 1}, not the list ['ssd']",
        ),
        ("Pool(1, resources={'ssd': 'x'})", "TypeError: resources['ssd'] is a number, not the str 'x'"),
        (
            "Pool(1, mp_context='spawn')",
            "TypeError: mp_context is a context, such as multiprocessing.get_context(\"spawn\"), not the str 'spawn'",
        ),
        ("TaskOptions(retries='2')", "TypeError: retries is an int, not the str '2'; write retries=2"),
        ("TaskOptions(retries=True)", "TypeError: retries is an int, not the bool True"),
        ("TaskOptions(retries=-1)", "UsageError: retries is 0 or more, not -1"),
        (
            "TaskOptions(retry_on='ValueError')",
            "TypeError: retry_on is an exception class or several, such as ValueError, not the str 'ValueError'",
        ),
        (
            "TaskOptions(retry_on=[ValueError, 'OSError'])",
            "TypeError: retry_on is an exception class or several, such as ValueError, not the str 'OSError'",
        ),
        (
            "TaskOptions(timeout='5')",
            "TypeError: timeout is a number of seconds, or None, not the str '5'; write timeout=5",
        ),
        ("TaskOptions(timeout=0)", "ValueError: timeout is a number of seconds above 0, or None, not 0"),
        (
            "TaskOptions(memory_bytes='1G')",
            "TypeError: memory_bytes is an int, such as 2**30 for 1 GiB, or None, not the str '1G'",
        ),
        ("TaskOptions(num_cpus=-1)", "UsageError: num_cpus is 0 or more, not -1"),
        ("TaskOptions(num_cpus=float('nan'))", "UsageError: num_cpus is a number, not NaN"),
        ("TaskOptions(num_gpus='1')", "TypeError: num_gpus is a number, not the str '1'; write num_gpus=1"),
        (
            "TaskOptions(resources=['ssd'])",
            "TypeError: resources is a dict of amounts, such as {\"licence\": 1}, not the list ['ssd']",
        ),
        ("TaskOptions(strategy='fill')", 'UsageError: strategy is "spread" or "pack", not \'fill\''),
        ("TaskOptions(node=3)", "TypeError: node is a str, the name of a node, or None, not the int 3"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_it_should_be(call: str, text: str) -> None:
    assert told(lambda: eval(call, names)) == text


def test_what_counts_as_a_number_is_one() -> None:
    options = TaskOptions(
        retries=np.int64(2), num_cpus=np.float32(0.5), memory_bytes=np.int64(2**20), timeout=np.float64(3)
    )
    assert (options.retries, type(options.retries), options.num_cpus) == (2, int, 0.5)
    assert NodeConfig("localhost", num_workers=np.int32(3)).num_workers == 3
    with Pool(np.int64(1), mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.options(retries=np.int8(1)).submit(square, 3).result() == 9


@pytest.mark.parametrize("options", [{}, {"restart": RestartPolicy()}], ids=["plain", "supervised"])
def test_recv_takes_its_limits_by_name(options: dict[str, Any]) -> None:
    with Worker(echo, **options) as made:
        worker: Any = made
        for mistake, text in {
            lambda: worker.recv(5): "recv takes its limits by name: recv(timeout=5)",
            lambda: worker.recv(0.01): "recv takes its limits by name: recv(timeout=0.01)",
            lambda: worker.recv(1, 2): "recv takes max_size and timeout by name",
            lambda: worker.recv(timeout="5"): "timeout is a number of seconds, or None, not the str '5'",
            lambda: worker.recv(timout=5): "recv() has no argument 'timout'; did you mean timeout?",
            lambda: worker.recv(max_size=-1): "max_size is out of range: -1",
            lambda: asyncio.run(worker.recv_async(5)): "recv_async takes its limits by name: recv_async(timeout=5)",
            lambda: worker.close("x"): "grace_s is a number of seconds, not the str 'x'",
            lambda: worker.kill("TERM"): "signal is an int, not the str 'TERM'",
            lambda: worker.wait("5"): "timeout is a number of seconds, or None, not the str '5'",
            lambda: wait_any([worker], "5"): "timeout is a number of seconds, or None, not the str '5'",
        }.items():
            assert told(mistake) == f"TypeError: {text}"
        worker.send("still good")
        assert worker.recv(max_size=100, timeout=30) == "still good"


def test_send_takes_one_message() -> None:
    with Worker(echo) as made:
        worker: Any = made
        assert told(lambda: worker.send()) == "TypeError: send() needs message"
        assert told(lambda: worker.send(1, 2)) == "TypeError: send() takes 1 argument, and was given 2"


def test_the_calls_of_a_pool_say_what_they_take() -> None:
    with Pool(1) as made:
        pool: Any = made
        tuples = "a list of tuples, one for each call, such as [(2, 3), (2, 4)]"
        for mistake, text in {
            lambda: pool.options(num_cpu=1): "TypeError: a task has no option 'num_cpu'; did you mean num_cpus?",
            lambda: pool.options(retry=1): "TypeError: a task has no option 'retry'; did you mean retries or retry_on?",
            lambda: pool.options(colour=1): (
                "TypeError: a task has no option 'colour'; there are num_cpus, num_gpus, resources, strategy, node, "
                "timeout, memory_bytes, retries, retry_on, name"
            ),
            lambda: pool.options(node="x"): 'UsageError: there is no node "x" in the pool; it has localhost',
            lambda: pool.submit(3): "TypeError: submit takes a function and its arguments, not the int 3",
            lambda: pool.map(square): (
                "TypeError: map takes a function and what to call it with: pool.map(function, items)"
            ),
            lambda: pool.map(square, 3): "TypeError: argument 2 of map is a list or another iterable, not the int 3",
            lambda: pool.map(square, [3], timeout="3"): (
                "TypeError: timeout is a number of seconds, or None, not the str '3'; write timeout=3"
            ),
            lambda: pool.map(square, [3], chunksize="3"): (
                "TypeError: chunksize is an int, or None, not the str '3'; write chunksize=3"
            ),
            lambda: pool.starmap(pow, 3): f"TypeError: iterable is {tuples}, not the int 3",
            lambda: pool.starmap(pow, [3]): f"TypeError: starmap takes {tuples}, and one of them is the int 3",
            lambda: pool.starmap(pow, [(1, 2)], chunksize=0): "ValueError: chunksize must be >= 1.",
            lambda: pool.imap_unordered(square, [1], chunksize=0): "ValueError: chunksize must be >= 1.",
            lambda: pool.imap_unordered(square, 3): (
                "TypeError: argument 2 of imap_unordered is a list or another iterable, not the int 3"
            ),
            lambda: pool.submit(square, 3).result("5"): (
                "TypeError: timeout is a number of seconds, or None, not the str '5'; write timeout=5"
            ),
            lambda: list(miniray.as_completed(3)): "TypeError: futures is a list of futures, not the int 3",
        }.items():
            assert told(mistake) == text


class Anything:
    """Of no type that anything takes."""

    def __repr__(self) -> str:
        return "Anything()"


WRONG = [Anything(), "x", -1.5, [Anything()], {"x": Anything()}]
# What ends the object, and what takes anything.
NOT_TRIED = {"close", "kill", "shutdown", "stop", "send", "send_large", "send_async", "cancel", "set_exception"}


def parameters_of(function: Any) -> tuple[int, list[str]]:
    """How many can be given by position, and the names of those that can be given by name."""
    if hasattr(function, "__nb_signature__"):
        [(signature, *_), *_] = function.__nb_signature__
        given: Any = ast.parse(re.sub(r"\\\d+", "None", signature) + ": ...").body[0]
        words = [each.arg for each in [*given.args.args, *given.args.kwonlyargs] if each.arg != "self"]
        return len(given.args.args) + (given.args.vararg is not None), words
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 2, []
    by_position = [
        each for each in parameters if each.kind is not each.KEYWORD_ONLY and each.kind is not each.VAR_KEYWORD
    ]
    return len(by_position), [
        each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]


def mistakes_in(function: Any) -> Iterator[Callable[[], Any]]:
    """Calls with wrong arguments: one more for each place, and one for each name."""
    most, words = parameters_of(function)
    for wrong in WRONG:
        for count in range(1, most + 2):
            yield partial(function, *[wrong] * count)
        for word in [*words, "no_such_word"]:
            yield partial(function, **{word: wrong})


def check_words(text: str, mistake: object) -> None:
    for part in ("incompatible function arguments", "nanobind", "_core.", "std::", "no constructor defined"):
        assert part not in text, f"{mistake}: {text}"


def check_words_of(function: Any) -> int:
    refused = 0
    for mistake in mistakes_in(function):
        try:
            result = mistake()
        except Exception as error:
            refused += 1
            check_words(f"{type(error).__name__}: {error}", mistake)
        else:
            if inspect.iscoroutine(result):
                result.close()
            for end in ("shutdown", "stop", "close"):
                if hasattr(result, end):
                    getattr(result, end)()
                    break
    return refused


def test_no_public_function_or_class_answers_with_a_signature_of_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # "x" may be a file
    refused = 0
    for name in miniray.__all__:
        found = getattr(miniray, name)
        if callable(found) and not (isinstance(found, type) and issubclass(found, BaseException)):
            refused += check_words_of(found)
    assert refused > 500


def test_no_method_answers_with_a_signature_of_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = 0
    with Worker(echo) as worker, Worker(echo, restart=RestartPolicy()) as supervised, Pool(1) as pool:
        here, there = socket.socketpair()
        there.close()
        cluster, channel = Cluster([NodeConfig("localhost")]), Channel(here.detach())
        future = worker.call_async("math.sqrt", 4)
        remote = worker.create("counter", "collections.Counter")
        things = (worker, supervised, pool, pool.options(), cluster, channel, EventLog(), future, remote)
        for thing in (*things, pool.submit(square, 3)):
            for name in dir(type(thing)):
                if not name.startswith("_") and name not in NOT_TRIED and callable(getattr(type(thing), name)):
                    refused += check_words_of(getattr(thing, name))
        assert future.result() == 2
        channel.close()
    assert refused > 500


def test_methods_that_are_multiprocessings(pool: Any) -> None:
    for name, cure in (("apply_async", "submit"), ("imap", "pool.map"), ("close", "shutdown"), ("terminate", "cancel")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; write .*{cure}"):
            getattr(pool, name)
    with pytest.raises(AttributeError, match=r"'Pool' object has no attribute 'nothing'$"):
        _ = pool.nothing
    with pytest.raises(TypeError, match=r"^Pool\.map\(\) got an unexpected keyword argument 'chunk'"):
        pool.map(abs, [1], chunk=3)

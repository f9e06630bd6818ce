"""pickle=False: whatever a worker answers, no code of its runs in the coordinator."""

from __future__ import annotations

import enum
import math
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import task_functions
from hostile_worker import ANSWERS, hostile
from script_programs import run_script
from waiting import until

import miniray
from miniray import Cluster, NodeConfig, Pool, RestartPolicy, Worker, WorkerServer, _calls

TESTS = Path(__file__).parent


def square(x: Any) -> Any:
    return x * x


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """It exists after the code of a hostile worker has run."""
    return str(tmp_path / "code has run here")


# --- Attacks ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_call_whose_answer_is_a_pickle_runs_no_code(answer: str, folder: str) -> None:
    with Worker(hostile(answer, folder), shared_memory=False, pickle=False) as worker:
        for ask in (
            lambda: worker.call_remote("work_functions.echo", 1),
            lambda: worker.call_async("work_functions.echo", 1).result(),
            lambda: worker.register("square", square),
            lambda: worker.create("counter", "task_functions.Counter"),
            lambda: worker.forget("square"),
        ):
            with pytest.raises(miniray.MiniRayError):
                ask()
            assert not os.path.exists(folder)


def test_by_default_results_are_pickles(folder: str) -> None:
    with Worker(hostile("value", folder), shared_memory=False) as worker:
        worker.call_remote("work_functions.echo", 1)
    assert os.path.exists(folder)


@pytest.mark.parametrize("ask", ["define", "create", "forget"])
def test_what_has_no_result_is_not_answered_with_a_pickle_by_default_either(ask: str, folder: str) -> None:
    with Worker(hostile("value", folder), shared_memory=False) as worker:
        tell = {
            "define": lambda: worker.register("square", square),
            "create": lambda: worker.create("counter", "task_functions.Counter"),
            "forget": lambda: worker.forget("square"),
        }
        with pytest.raises(miniray.ProtocolError, match="was told something, and answered with a result"):
            tell[ask]()
        assert not os.path.exists(folder)


def test_a_member_that_answers_the_initializer_with_a_pickle_is_lost_alone(folder: str) -> None:
    bad, good = Worker(hostile("value", folder), shared_memory=False, name="bad"), Worker(name="good serve_calls")
    with Pool([bad, good], initializer=square, initargs=(1,)) as pool:
        assert list(pool.map(square, range(10), chunksize=1)) == [n * n for n in range(10)]
        lost = until(lambda: [event for event in pool.events if event.kind == "worker_stillborn"])
        assert [event.worker for event in lost] == [bad.name]
    assert not os.path.exists(folder)


def taken_over_python(folder: Path, answer: str, code_folder: str) -> str:
    """An interpreter whose miniray.serve_calls was replaced, as it may be on a node that somebody has taken over."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if '--stdio' in sys.orig_argv:\n"
        f"    sys.path.append({str(TESTS)!r})\n"
        "    import hostile_worker, miniray, miniray.calls\n"
        f"    miniray.calls.serve_calls = hostile_worker.hostile({answer!r}, {code_folder!r})\n"
        "    miniray.serve_calls = miniray.calls.serve_calls\n"
    )
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("answer", ["value", "error", "unknown"])
def test_a_node_that_answers_the_pool_s_own_questions_with_pickles_is_lost_alone(
    answer: str, folder: str, tmp_path: Path
) -> None:
    nodes = [
        NodeConfig("localhost", 1, base_port=0, python_bin=taken_over_python(tmp_path, answer, folder)),
        NodeConfig("localhost", 1, base_port=0),
    ]
    with Cluster(nodes, progress=False) as cluster, Pool(cluster) as pool:
        assert pool.submit("math.sqrt", 16).result(60) == 4
        [event] = [event for event in pool.events if event.kind == "worker_refused"]
        assert "answered MiniRay's own question with" in event.text
    assert not os.path.exists(folder)


def test_a_question_of_miniray_s_own_that_is_not_answered_is_an_error() -> None:
    def work(handle: Any) -> None:
        threading.Event().wait()

    with Worker(work) as worker:
        with pytest.raises(miniray.ProtocolError, match=r"has not answered MiniRay's own question within 0\.01 s"):
            _calls.own_question(worker, "miniray._pool_workers._gpu_names", 0.01)
        worker.kill()


def test_a_worker_that_is_dead_when_the_pool_asks_is_replaced() -> None:
    with Cluster([NodeConfig("localhost", 2, base_port=0)], progress=False) as cluster:
        start = cluster.start

        def start_and_kill(work_fn: str) -> Any:
            started = start(work_fn)
            started[0].kill()
            return started

        cluster.start = start_and_kill  # type: ignore[method-assign]
        with Pool(cluster) as pool:
            assert list(pool.map(math.sqrt, [4, 9])) == [2, 3]
            until(lambda: [event.kind for event in pool.events].count("worker_started") == 3)


def test_a_task_that_a_worker_answers_with_a_pickle_costs_that_worker_alone(folder: str) -> None:
    bad, good = Worker(hostile("value", folder), shared_memory=False, name="bad"), Worker(name="good serve_calls")
    with Pool([bad, good], pickle=False) as pool:
        futures = [pool.options(retries=1).submit(square, n) for n in range(10)]
        assert [future.result(60) for future in futures] == [n * n for n in range(10)]
        lost = until(lambda: [event for event in pool.events if event.kind == "worker_died"])
        assert [event.worker for event in lost] == [bad.name]
        assert "sent a pickle to a pool that takes none" in lost[0].text
    assert not os.path.exists(folder)


@pytest.mark.parametrize("answer", ["error", "results of a map", "error of an item"])
def test_what_tasks_raise_and_the_results_of_a_map_are_not_loaded_either(answer: str, folder: str) -> None:
    bad = Worker(hostile(answer, folder), shared_memory=False)
    with Pool([bad], pickle=False) as pool, pytest.raises(miniray.MiniRayError):
        list(pool.map(square, [1], chunksize=1))
    assert not os.path.exists(folder)


# --- What can be sent without pickles ---------------------------------------------------------------------------------
@pytest.fixture(params=["fork", "spawn", "server"])
def plain(request: pytest.FixtureRequest, server: Any) -> Iterator[Any]:
    """Workers of every kind, without pickles."""
    if request.param == "server":
        made = server.connect("miniray.serve_calls", pickle=False)
    else:
        made = Worker(start=request.param, pickle=False)
    with made as worker:
        yield worker


def test_functions_by_name_and_plain_data_need_no_pickle(plain: Any) -> None:
    plain.register("square", task_functions.square)
    assert plain.call_remote("square", 7) == 49
    assert plain.call_remote("task_functions.add", [1], y=[None]) == [1, None]
    assert plain.call_async("task_functions.same", {"a": [1.5, b"b", "c", True]}).result() == {
        "a": [1.5, b"b", "c", True]
    }
    counter = plain.create("counter", task_functions.Counter, 3)
    assert counter.increment(4) == 7
    plain.forget("counter")


def test_one_object_in_two_places_arrives_as_two(plain: Any) -> None:
    item = [1]
    first, second = plain.call_remote("task_functions.same", [item, item])
    assert first == second == item
    assert first is not second
    array = numpy.arange(3)
    assert plain.call_remote("task_functions.add", array, array).tolist() == [0, 2, 4]


class Colour(enum.IntEnum):
    RED = 1


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels - 1):
        made = [made]
    return made


CYCLE: dict[str, Any] = {}
CYCLE["itself"] = CYCLE


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ((1, 2), "a tuple can only be sent as a pickle, which pickle=False forbids: send a list, or use pickle=True"),
        ({"a": [1, {2}]}, "a set at ['a'][1] can only be sent"),
        ({"a": {(1, 2): 3}}, "a tuple as a key of ['a'] can only be sent"),
        ({(1, 2): 3}, "a tuple as a key can only be sent"),
        (square, "the function square can only be sent as a pickle, which pickle=False forbids: pass its name"),
        (2**64, "an int can only be sent as a pickle, which pickle=False forbids: send it as a str"),
        (
            {"name": "caf\udce9"},
            r"a str that is not valid Unicode ('caf\udce9') at ['name'] can only be sent as a pickle, which "
            "pickle=False forbids: send bytes; of a file name, os.fsencode(it), or use pickle=True",
        ),
        (
            nested(500),
            "a list nested deeper than 256 levels can only be sent as a pickle, which pickle=False forbids: does it "
            "contain itself? Make it flatter, or use pickle=True",
        ),
        (CYCLE, "a dict nested deeper than 256 levels can only be sent as a pickle"),
        (Colour.RED, "a Colour can only be sent as a pickle, which pickle=False forbids: send it.value"),
        (numpy.array(["x"]), "an array of <U1 can only be sent as a pickle, which pickle=False forbids: convert it to"),
        (numpy.float32(1), "a float32 can only be sent as a pickle, which pickle=False forbids: send it.item()"),
    ],
)
def test_an_argument_that_needs_a_pickle_is_an_error_that_names_it(argument: Any, what: str) -> None:
    with Worker(pickle=False) as worker:
        with pytest.raises(TypeError) as caught:
            worker.call_remote("task_functions.same", 1, argument)
        assert type(caught.value) is TypeError
        assert f"cannot send argument 2 of the call: {what}" in str(caught.value)
        with pytest.raises(TypeError, match="cannot send argument 'x' of the call"):
            worker.call_async("task_functions.same", x=argument)
        assert worker.call_remote("task_functions.same", 1) == 1


def test_a_result_that_needs_a_pickle_is_an_error_at_the_worker(plain: Any) -> None:
    with pytest.raises(miniray.WorkerError, match="the result cannot be sent back: a tuple can only be sent") as caught:
        plain.call_remote("task_functions.give", 1)
    assert caught.value.type == "TypeError"
    assert plain.call_remote("task_functions.same", 1) == 1


def test_what_a_call_raises_arrives_as_text(plain: Any) -> None:
    with pytest.raises(miniray.WorkerError) as caught:
        plain.call_remote("task_functions.fail", "no such file")
    error = caught.value
    assert (error.type, error.message) == ("ValueError", "no such file")
    assert "in fail\n    raise ValueError(text)" in error.traceback
    assert error.__cause__ is None


def test_a_function_without_a_name_cannot_be_sent(plain: Any) -> None:
    with pytest.raises(TypeError, match="pickle=False sends functions and classes by name only"):
        plain.register("f", lambda: 1)
    assert plain.call_remote("task_functions.same", 1) == 1


def test_a_work_function_without_a_name_cannot_be_sent(server: Any) -> None:
    name = r"cannot send the function \S*<lambda> to another process: pickle=False sends functions and classes by name"
    with pytest.raises(TypeError, match=name):
        server.connect(lambda handle: None, pickle=False)
    with pytest.raises(TypeError, match=name):
        miniray.create_remote_workers([("127.0.0.1", server.port)], lambda handle: None, key=server.key, pickle=False)
    with pytest.raises(TypeError, match=name):
        Worker(lambda handle: None, start="spawn", pickle=False)
    with Worker(lambda handle: handle.send(1), pickle=False) as worker:  # a fork needs no name
        assert worker.recv() == 1


def test_messages_are_as_they_were(plain: Any, server: Any) -> None:
    with server.connect("work_functions.echo", pickle=False) as worker:
        worker.send((1, [2]))
        assert worker.recv(timeout=60) == [1, [2]]


def test_a_process_that_replaces_another_takes_no_pickles_either(server: Any) -> None:
    for made in (
        Worker(pickle=False, restart=RestartPolicy()),
        server.connect("miniray.serve_calls", pickle=False, restart=RestartPolicy()),
    ):
        with made as worker:
            worker.register("square", task_functions.square)
            with pytest.raises(miniray.WorkerRestarted):
                worker.call_remote("os._exit", 1)
            assert worker.call_remote("square", 2) == 4
            with pytest.raises(miniray.WorkerError, match="the result cannot be sent back"):
                worker.call_remote("task_functions.give", 1)


# --- Pools ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_pool_needs_no_pickle(start: str) -> None:
    with Pool(2, start=start, pickle=False) as pool:
        assert list(pool.map(task_functions.square, range(100))) == [n * n for n in range(100)]
        assert pool.starmap(task_functions.add, [(1, 2), (3, 4)]) == [3, 7]
        assert sorted(pool.imap_unordered(task_functions.square, range(5))) == [0, 1, 4, 9, 16]
        assert pool.submit(task_functions.add, 1, y=2).result() == 3
        with pytest.raises(TypeError, match="cannot send item 1 for same: a set can only be sent as a pickle"):
            list(pool.map(task_functions.same, [1, {2}]))
        with pytest.raises(TypeError, match="cannot send argument 1 of same: a set can only be sent as a pickle"):
            pool.submit(task_functions.same, {2}).result()
        with pytest.raises(TypeError, match="pickle=False sends functions and classes by name only"):
            pool.submit(lambda: 1)
        with pytest.raises(miniray.TaskOutOfMemory):
            pool.options(memory_bytes=1 << 20).submit(task_functions.take_memory, 1 << 28).result()


def test_results_of_a_map_that_need_a_pickle_fail_alone() -> None:
    with Pool(1, pickle=False) as pool:
        results = pool.map(task_functions.in_a_set_if_odd, range(4), chunksize=4)
        assert next(results) == 0
        with pytest.raises(miniray.WorkerError, match="the result cannot be sent back: a set can only be sent"):
            next(results)


def test_an_initializer_may_return_anything() -> None:
    with Pool(1, initializer=task_functions.Counter, initargs=(3,), pickle=False) as pool:
        assert pool.submit(task_functions.square, 3).result() == 9
    with pytest.raises(TypeError, match="cannot send argument 1 of Counter: a tuple can only be sent as a pickle"):
        Pool(1, initializer=task_functions.Counter, initargs=((1, 2),), pickle=False)


def test_retry_on_what_cannot_arrive_is_refused() -> None:
    with Pool(1, pickle=False) as pool:
        with pytest.raises(miniray.UsageError, match=r"retry_on=KeyError would never match.*Use retry_on=WorkerError"):
            pool.options(retry_on=KeyError)
        pool.options(retry_on=(KeyError, miniray.WorkerError)).options(retry_on=Exception)


def test_a_pool_is_as_its_workers_unless_it_says_otherwise() -> None:
    with Pool([Worker(pickle=False), Worker()]) as pool, pytest.raises(TypeError, match="only be sent as a pickle"):
        pool.submit(task_functions.same, {1}).result()
    with Pool([Worker()], pickle=False) as pool, pytest.raises(miniray.WorkerError, match="cannot be sent back"):
        pool.submit(task_functions.give).result()
    made = pytest.raises(miniray.UsageError, match="one of the workers was made with pickle=False")
    with Worker(pickle=False) as worker, made:
        Pool([worker], pickle=True)


def test_the_reply_to_an_earlier_call_is_not_the_pool_s() -> None:
    worker = Worker()
    worker.call_async("task_functions.give", 1)  # its reply is a pickle, and comes when the worker is in the pool
    with Pool([worker], pickle=False) as pool:
        assert pool.submit(task_functions.square, 3).result() == 9
        assert [event for event in pool.events if event.kind == "worker_died"] == []


def test_a_cluster_without_pickles() -> None:
    nodes = [NodeConfig("localhost", 2, base_port=0)]
    with Cluster(nodes, progress=False, pickle=False) as cluster:
        [worker, _] = cluster.start("miniray.serve_calls")
        assert worker.call_remote("math.sqrt", 16) == 4
        with pytest.raises(miniray.WorkerError, match="the result cannot be sent back: a tuple"):
            worker.call_remote("math.frexp", 16)
        with pytest.raises(TypeError, match="pickle=False sends functions and classes by name only"):
            cluster.start(lambda handle: None)
        with pytest.raises(miniray.UsageError, match="the cluster was made with pickle=False"):
            Pool(cluster, pickle=True)
        with Pool(cluster) as pool:
            assert list(pool.map(math.sqrt, [1, 4, 9])) == [1, 2, 3]
            with pytest.raises(TypeError, match="can only be sent as a pickle"):
                pool.submit(math.sqrt, {1}).result()
            killed = pool.submit(os.kill, 0, 9)  # the process group of its worker
            with pytest.raises(miniray.WorkerDied):
                killed.result()
            with pytest.raises(miniray.WorkerError, match="the result cannot be sent back: a tuple"):
                [pool.submit(math.frexp, 16).result() for _ in range(4)]  # in the worker that replaces it, too


def test_globals_of_the_script_that_are_plain_follow(tmp_path: Path) -> None:
    said = run_script(
        tmp_path,
        """
        from pathlib import Path
        from miniray import Pool
        RATE, FOLDER, NAMES = 2, Path("a"), ("b", "c")
        class Model: pass
        model = Model()
        def scaled(x): return [x * RATE, str(FOLDER), len(NAMES), type(model).__name__]
        with Pool(2, pickle=False) as pool:
            print(pool.submit(scaled, 3).result())
            RATE = 5
            print(list(pool.map(scaled, [1, 2])))
            model = Model()
            try: pool.submit(scaled, 1)
            except TypeError as error: print(error)
        """,
    )
    first, second, third = said.splitlines()
    assert first == "[6, 'a', 2, 'Model']"
    assert second == "[[5, 'a', 2, 'Model'], [10, 'a', 2, 'Model']]"
    assert third.startswith("cannot send the global 'model' to another process: a Model can only be sent as a pickle")


def test_a_function_that_was_defined_again_is_an_error(tmp_path: Path) -> None:
    said = run_script(
        tmp_path,
        """
        from miniray import Pool
        def f(): return 1
        with Pool(1, pickle=False) as pool:
            print(pool.submit(f).result())
            def f(): return 2
            try: pool.submit(f).result()
            except Exception as error: print(error)
        """,
    )
    assert said.startswith("1\n")
    assert "cannot send f to another process: pickle=False sends functions and classes by name only" in said


# --- Servers whose owner refuses pickles ------------------------------------------------------------------------------
@pytest.fixture
def refusing(start_server: Any) -> Any:
    return start_server("--no-pickle")


def test_a_server_without_pickles_refuses_those_of_its_callers(refusing: Any) -> None:
    refused = "the caller has sent a pickle, and this worker takes none: it or its server was started with pickle=False"
    with refusing.connect("miniray.serve_calls") as worker:
        assert worker.call_remote("task_functions.add", [1], [2]) == [1, 2]
        worker.register("square", task_functions.square)
        assert worker.call_remote("square", 3) == 9
        for ask in (
            lambda: worker.call_remote("task_functions.add", (1,), (2,)),
            lambda: worker.register("f", lambda: 1),
            lambda: worker.create("counter", "task_functions.Counter", (1,)),
        ):
            with pytest.raises(miniray.WorkerError) as caught:
                ask()
            assert refused in caught.value.message
        with pytest.raises(miniray.WorkerError, match="the result cannot be sent back: a tuple"):
            worker.call_remote("task_functions.give")
        assert worker.call_remote("square", 3) == 9
    with refusing.connect(lambda handle: handle.send(1)) as worker, pytest.raises(miniray.WorkerError, match=refused):
        worker.recv(timeout=60)
    with Pool([refusing.connect("miniray.serve_calls")]) as pool:
        assert list(pool.map(task_functions.square, range(3))) == [0, 1, 4]
        for task in (pool.submit(lambda: 1), pool.submit(task_functions.square, (1,))):
            with pytest.raises(miniray.WorkerError, match=refused):
                task.result()
        with pytest.raises(miniray.WorkerError, match=refused):
            list(pool.map(task_functions.square, [(1,)]))
        assert pool.submit(task_functions.square, 2).result() == 4


def test_only_the_workers_of_that_server_refuse_pickles() -> None:
    def serve(handle: Any) -> None:
        key = "0123456789abcdef" * 4
        server = WorkerServer("127.0.0.1", 0, miniray.serve_calls, key=key, pickle=False)
        served = threading.Thread(target=server.serve_forever)
        served.start()
        try:
            with miniray.RemoteWorker("127.0.0.1", server.port, key=key) as remote:
                try:
                    remote.call_remote("task_functions.same", (1,))
                except miniray.WorkerError as error:
                    handle.send(error.message)
                # A worker of that worker decides for itself: it trusts the one that has made it.
                handle.send(remote.call_remote("hostile_worker.tuple_from_a_worker"))
        finally:
            server.stop()
            served.join()

    with Worker(serve) as worker:
        assert "the caller has sent a pickle" in worker.recv(timeout=60)
        assert worker.recv(timeout=60) == [1]

"""Remote workers from Python: the conversation with them, and every way in which one ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import json_client
import numpy as np
import pytest
from waiting import is_gone, until

import miniray
from miniray import Worker, create_remote_workers, wait_any

TESTS = Path(__file__).parent


def work_in_this_module(handle: Any) -> None:
    """Never called here: only its name is sent."""


def test_a_conversation_and_what_is_said_of_the_worker(server: Any) -> None:
    with server.connect() as worker:
        worker.send({"cmd": "echo"})
        assert worker.recv(timeout=30) == {"cmd": "echo"}
        assert worker.is_alive()
        assert worker.pid not in (os.getpid(), server.process.pid)
        assert repr(worker) == f"<miniray.worker {worker.pid} at {server.where}>"
    assert not worker.is_alive()
    with pytest.raises(EOFError, match="was closed by this process"):
        worker.send(1)


def test_several_functions_from_one_server_and_two_coordinators(server: Any) -> None:
    def coordinator(handle: Any) -> None:
        with server.connect("work_functions.double") as worker:
            handle.send("ready")
            worker.send(handle.recv())
            handle.send(worker.recv(timeout=30))

    with Worker(coordinator) as other, server.connect("work_functions.double") as mine, server.connect() as echo:
        assert "(work_functions.double)" in mine.name
        assert other.recv(timeout=30) == "ready"
        for conversation in (other, mine, echo):
            conversation.send(21)
        assert [conversation.recv(timeout=30) for conversation in (other, mine, echo)] == [42, 42, 21]


def test_many_at_once(server: Any) -> None:
    workers = create_remote_workers([("127.0.0.1", server.port)] * 20, "work_functions.double", key=server.key)
    for number, worker in enumerate(workers):
        worker.send(number)
    assert [worker.recv(timeout=30) for worker in workers] == [2 * number for number in range(20)]
    assert len({worker.pid for worker in workers}) == 20
    for worker in workers:
        worker.close()
    with pytest.raises(miniray.Refused, match="no server listens"):
        create_remote_workers([("127.0.0.1", server.port), ("127.0.0.1", 1)], key=server.key)


def test_a_function_stands_for_its_name(server: Any) -> None:
    with pytest.raises(miniray.Refused, match="work_in_this_module"):
        server.connect(work_in_this_module)
    with server.connect(lambda handle: handle.send("by value")) as worker:  # nobody could import it
        assert worker.recv(timeout=30) == "by value"
    with pytest.raises(ValueError, match=r'is named "module\.function", not'):
        server.connect("echo")


def test_an_exception_arrives_with_its_traceback(server: Any) -> None:
    with server.connect("work_functions.fail") as worker:
        worker.send("no such layer")
        for _ in range(2):
            with pytest.raises(miniray.WorkerError) as caught:
                worker.recv(timeout=30)
        assert caught.value.type == "KeyError"
        assert "raise KeyError(handle.recv())" in caught.value.traceback
        assert worker.name in str(caught.value)
        assert worker.wait(timeout=30) == 1
        with pytest.raises(miniray.WorkerError):
            worker.send("to nobody")


def test_exit_codes_and_signals_come_back(server: Any) -> None:
    for code in (3, 0):
        with server.connect("work_functions.exit_with") as worker:
            worker.send(code)
            assert worker.wait(timeout=30) == code
            with pytest.raises(EOFError):
                worker.recv(timeout=30)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        with server.connect("work_functions.kill_itself") as worker:
            worker.send(int(number))
            with pytest.raises(miniray.WorkerDied, match=f"killed by {number.name}") as caught:
                worker.recv(timeout=30)
            assert caught.value.signal == number
            assert not caught.value.unreachable
            assert worker.wait(timeout=30) == -number


def test_kill_and_a_close_that_does_not_wait(server: Any) -> None:
    worker = server.connect("work_functions.stubborn")
    pids = worker.recv(timeout=30)
    worker.kill(signal.SIGTERM)
    with pytest.raises(TimeoutError, match="still runs"):
        worker.wait(timeout=0.1)
    worker.close(0.05)
    assert not worker.is_alive()
    assert until(lambda: all(map(is_gone, pids)))
    with server.connect() as worker:
        worker.kill()
        assert worker.wait(timeout=30) == -signal.SIGKILL


def test_messages_larger_than_the_sockets_both_ways(server: Any) -> None:
    array = np.arange(4_000_000.0)
    with server.connect() as worker:
        for _ in range(3):
            worker.send({"array": array, "bytes": b"x" * 10_000_000})
        for _ in range(3):
            answer = worker.recv(timeout=60)
            assert np.array_equal(answer["array"], array)
            assert answer["bytes"] == b"x" * 10_000_000


def test_what_was_sent_before_a_return_is_received_even_after_wait(server: Any) -> None:
    with server.connect("work_functions.say_much") as worker:
        worker.send(100)
        assert worker.wait(timeout=60) == 0
        for number in range(100):
            assert worker.recv(timeout=30) == [number, b"x" * 100_000]
        with pytest.raises(miniray.EndOfStream, match="has returned"):
            worker.recv(timeout=30)
        with pytest.raises(miniray.EndOfStream, match="has returned"):
            worker.send("to nobody")


def test_an_error_arrives_although_many_megabytes_were_not_read(server: Any) -> None:
    """The server reads on for a worker that has ended: a closed socket would throw away what it said last."""

    def converse(worker: Any) -> None:
        worker.send("enough")
        for _ in range(10):
            worker.send(b"x" * 5_000_000)
        worker.recv(timeout=30)

    for _ in range(5):
        with server.connect("work_functions.fail") as worker:
            with pytest.raises(miniray.WorkerError, match="enough"):
                converse(worker)
            with pytest.raises(miniray.WorkerError, match="enough"):
                worker.recv(timeout=30)


def test_asyncio(server: Any) -> None:
    async def converse() -> None:
        workers = create_remote_workers([("127.0.0.1", server.port)] * 5, key=server.key)
        both = asyncio.gather(*[worker.recv_async(timeout=30) for worker in workers])
        for number, worker in enumerate(workers):
            await worker.send_async([number, b"x" * 3_000_000])
        assert [answer[0] for answer in await both] == list(range(5))
        with pytest.raises(TimeoutError, match="nothing arrived"):
            await workers[0].recv_async(timeout=0.01)
        waiting = asyncio.create_task(workers[0].wait_async(timeout=30))
        workers[0].kill()
        assert await waiting == -signal.SIGKILL
        with pytest.raises(miniray.WorkerDied):
            await workers[0].recv_async(timeout=30)
        for worker in workers:
            worker.close()
        much = server.connect("work_functions.say_much")
        await much.send_async(50)
        assert await much.wait_async(timeout=60) == 0
        for number in range(50):
            assert (await much.recv_async(timeout=30))[0] == number
        much.close()

    asyncio.run(converse())


def test_wait_any_takes_local_and_remote_workers(server: Any) -> None:
    def echo(handle: Any) -> None:
        while True:
            handle.send(handle.recv())

    with Worker(echo) as local, server.connect() as remote:
        assert wait_any([local, remote], timeout=0.01) == []
        remote.send(1)
        assert wait_any([local, remote], timeout=30) == [remote]
        assert remote.recv(timeout=30) == 1
        local.send(2)
        assert wait_any([local, remote], timeout=30) == [local]
        assert local.recv(timeout=30) == 2


def test_a_workers_process_is_a_clean_one(server: Any) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        client = json_client.JsonClient(connection)
        client.prove(bytes.fromhex(server.key))
        client.ask(codec="json", work_fn="work_functions.describe", environment={"MINIRAY_A": "1", "HOME": "/é"})
        description = client.recv()
        client.stream.close()
    assert description["environment"]["MINIRAY_A"] == "1"
    assert description["environment"]["HOME"] == "/é"
    assert description["signals"][0]
    assert description["descriptors"] < 15
    with server.connect("work_functions.describe") as worker:
        assert "MINIRAY_A" not in worker.recv(timeout=30)["environment"]


def test_what_a_worker_prints_goes_where_the_server_does(start_server: Any) -> None:
    server = start_server()
    with server.connect("work_functions.print_lines") as worker:
        assert worker.recv(timeout=30) == "printed"
        assert "a line of a worker\n" in server.output  # though it has not ended
        assert "and one for the errors\n" in server.log
        worker.kill()
        worker.wait(timeout=30)
    assert server.output.count("a line of a worker") == 1


COORDINATOR = """
    import sys, time
    from miniray import RemoteWorker
    names = ["work_functions." + name for name in ("stubborn", "with_children", "stubborn")]
    workers = [RemoteWorker("127.0.0.1", int(sys.argv[1]), name) for name in names]
    print(*[pid for worker in workers for pid in worker.recv(timeout=30)], flush=True)
    {then}
"""


@pytest.mark.parametrize(
    ("then", "whom"),
    [
        ("time.sleep(1000)", "coordinator"),
        ("workers[1].send(b'x' * 100_000_000); time.sleep(1000)", "coordinator"),
        ("workers[0].send(b'x' * 100_000_000)", "coordinator"),
        ("time.sleep(1000)", "server"),
    ],
    ids=["coordinator waits", "answer unread", "coordinator sends", "server"],
)
def test_nothing_outlives_its_coordinator_or_its_server(start_server: Any, then: str, whom: str) -> None:
    server = start_server()
    command = [sys.executable, "-c", textwrap.dedent(COORDINATOR).format(then=then), str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=server.environment) as coordinator:
        assert coordinator.stdout is not None
        pids = [int(word) for word in coordinator.stdout.readline().split()]
        assert len(pids) == 7
        try:
            assert not any(map(is_gone, pids))
            (coordinator if whom == "coordinator" else server.process).kill()
            assert until(lambda: all(map(is_gone, pids)))
        finally:
            coordinator.kill()
    if whom == "coordinator":
        assert server.serves()
        assert server.end() == 0


def test_a_server_that_was_killed_is_named_in_the_certificate(start_server: Any) -> None:
    server = start_server()
    with server.connect("work_functions.stubborn") as worker:
        worker.recv(timeout=30)
        server.process.kill()
        with pytest.raises(miniray.WorkerDied, match="is gone with its worker server at") as caught:
            worker.recv(timeout=30)
        assert server.where in str(caught.value)
        assert caught.value.unreachable
        assert (caught.value.exit_code, caught.value.signal) == (None, None)
        with pytest.raises(miniray.WorkerDied):
            worker.wait(timeout=30)
        assert not worker.is_alive()


def test_a_program_may_just_end(server: Any) -> None:
    script = f"""
        from miniray import RemoteWorker
        worker = RemoteWorker("127.0.0.1", {server.port}, "work_functions.echo")
        worker.send("1")
        print(worker.recv(timeout=30), worker.pid)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=server.environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 ")

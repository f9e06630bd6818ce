"""Whom a worker server lets in, and what it says to all others."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import json_client
import pytest
from waiting import until
from worker_server_test import COMMANDS

import miniray
from miniray import RemoteWorker, Worker, WorkerServer

HELLO = b"MiniRay?" + struct.pack("<II", 3, 0) + bytes(32)
OTHER_KEY = "0123456789abcdef" * 4


ADDRESSES = (f"127.1.{number // 250}.{number % 250 + 1}" for number in itertools.count())


def refusals(log: str) -> list[str]:
    """The reasons of the refusals that the log shows one by one."""
    return [line.split(": ", 1)[1] for line in log.splitlines() if re.search(r" refused 127[0-9.]+:\d+: ", line)]


def refused_in_all(log: str) -> int:
    """How many refusals the log of a server that has ended tells of. A summary counts the lines before it again."""
    summaries = re.findall(r" refused ([\d,]+) connections? from ", log)
    assert len(summaries) <= 1
    return int(summaries[0].replace(",", "")) if summaries else len(refusals(log))


def connection_from(address: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(address, 0))


@pytest.fixture
def stranger(server: Any) -> Iterator[Callable[[], socket.socket]]:
    """Plain connections to the server, each from an address of its own, so that the log shows each refusal."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connection_from(next(ADDRESSES), server.port))


def ending(connection: socket.socket) -> bytes:
    """All that the server still says; a reset is an end too."""
    said = b""
    try:
        while more := connection.recv(4096):
            said += more
    except ConnectionResetError:
        pass
    return said


# --- Who is let in ----------------------------------------------------------------------------------------------------
def test_the_user_s_key_file_needs_no_configuration(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MINIRAY_KEY", raising=False)
    server = start_server("--work-fn", "work_functions.echo", key=None)
    file = tmp_path / ".miniray" / "key"
    assert file.stat().st_mode & 0o777 == 0o600
    with RemoteWorker("127.0.0.1", server.port) as worker:
        worker.send(1)
        assert worker.recv(timeout=30) == 1
    file.chmod(0o644)
    with pytest.raises(miniray.UsageError, match="others may read the key file"):
        RemoteWorker("127.0.0.1", server.port)
    monkeypatch.setenv("MINIRAY_KEY", OTHER_KEY)
    with pytest.raises(miniray.Refused, match="it has another key"):
        RemoteWorker("127.0.0.1", server.port)


def test_another_key_is_refused_with_the_reason_on_both_sides(server: Any) -> None:
    before = len(refusals(server.log))
    with pytest.raises(ConnectionRefusedError, match=r"it has another key\. Give both sides the same one") as caught:
        server.connect(key=OTHER_KEY)
    assert server.where in str(caught.value)
    assert until(lambda: len(refusals(server.log)) == before + 2)
    # It notices at the first of its two connections, and the second may not have said anything yet.
    assert "it closed the connection before it proved that it has the key; probably it has another one" in server.log
    assert server.serves()


@pytest.mark.parametrize(
    ("said", "answer", "reason"),
    [
        (b"MR\0\1\0\0\0\0\2\0\0\0\0\0\0\0{}", b"", "it does not speak MiniRay's protocol"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"", "it does not speak MiniRay's protocol"),
        (os.urandom(100_000), b"", "it does not speak MiniRay's protocol"),
        (
            b"MiniRay?" + struct.pack("<I", 7) + bytes(32),
            re.escape(b"MiniRay!" + struct.pack("<II", 3, 1)),
            "it speaks version 7 of MiniRay's protocol, and this side speaks version 3: install the same MiniRay",
        ),
        (HELLO + bytes(32), b"MiniRay!.+", "it has another key"),
        # It is closed before all was read, and so with a reset, which may drop the answer.
        (HELLO + bytes(32) + b"\2\0\0\0{}" * 1000, b"(MiniRay!.+)?", "it has another key"),
    ],
    ids=["frames at once", "http", "garbage", "another version", "wrong proof", "wrong proof and more"],
)
def test_a_stranger_is_refused_and_the_server_goes_on(
    server: Any, stranger: Any, said: bytes, answer: bytes, reason: str
) -> None:
    before = len(refusals(server.log))
    connection = stranger()
    try:
        connection.sendall(said)
    except ConnectionError:
        pass  # it was refused before it had said all
    assert re.fullmatch(answer, ending(connection), re.DOTALL)
    assert until(lambda: len(refusals(server.log)) > before)
    assert reason in refusals(server.log)[before]
    assert server.serves()


def test_who_leaves_in_between_is_forgotten(server: Any, stranger: Any) -> None:
    for said, reason in (
        (b"", "it closed the connection and sent nothing"),
        (HELLO[:20], "it closed the connection before it proved that it has the key"),
    ):
        before = len(refusals(server.log))
        connection = stranger()
        connection.sendall(said)
        connection.close()
        assert until(lambda before=before: len(refusals(server.log)) > before)
        assert reason in refusals(server.log)[before]
    assert server.serves()


def test_a_client_notices_that_the_server_is_none() -> None:
    def listen(handle: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            handle.send(listener.getsockname()[1])
            said = handle.recv()
            with ExitStack() as stack:
                for _ in range(2):
                    stack.enter_context(listener.accept()[0]).sendall(said)
                handle.recv()

    for said, text in (
        (b"220 mail.example.com ESMTP\r\n", "the program that listens there is not a MiniRay worker server"),
        (b"MiniRay!" + struct.pack("<II", 9, 1), "it speaks version 9"),
        (b"MiniRay!" + struct.pack("<III", 3, 0, 0) + bytes(64), "it has another key"),
        (b"MiniRay!" + struct.pack("<II", 3, 3), "Try again later"),
    ):
        with Worker(listen) as worker:
            port = worker.recv(timeout=30)
            worker.send(said)
            with pytest.raises(miniray.Refused, match=text):
                RemoteWorker("127.0.0.1", port, key=OTHER_KEY)


def test_who_does_not_come_to_the_point_is_refused_after_a_while(server: Any, stranger: Any) -> None:
    """All of the slow ones together: the limit is limits.hello_timeout_ms."""
    before = len(server.log)
    key = bytes.fromhex(server.key)
    silent, half = stranger(), stranger()
    half.sendall(HELLO[:20])
    stranger().sendall(HELLO)
    clients = [json_client.JsonClient(stranger()) for _ in range(3)]
    for client in clients:
        client.prove(key)
    clients[1].stream.write(b"\x64\0\0\0half of a request")
    clients[1].stream.flush()
    with pytest.raises(ConnectionRefusedError, match="the worker's other connection did not come within 10 s"):
        clients[2].ask(token="alone")
    reasons = [
        "it sent nothing within 10 s",
        "it did not prove that it has the key within 10 s",
        "it sent no request within 10 s",
        "the worker's other connection did not come within 10 s",
    ]
    assert until(lambda: all(reason in server.log[before:] for reason in reasons)), server.log
    assert server.log[before:].count(reasons[1]) == 2
    assert server.log[before:].count(reasons[2]) == 2
    assert ending(silent) == ending(half) == b""
    for client in clients:
        client.stream.close()
    assert server.serves()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_wrong_hellos_at_once(start_server: Any) -> None:
    server = start_server()
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30)) for _ in range(1000)
        ]
        for connection in crowd:
            connection.sendall(HELLO)
        for connection in crowd:
            connection.sendall(bytes(32))
        assert server.serves()
        for connection in crowd:
            assert ending(connection).startswith(b"MiniRay!")
    assert server.serves()
    assert until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) < 50)
    assert server.end() == 0
    assert refused_in_all(server.log) == 1000
    assert len(refusals(server.log)) == 10  # limits.refusals_logged_max; the summary has the others


@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_silent_connections_are_in_nobodys_way(start_server: Any) -> None:
    server = start_server()
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        assert server.serves()  # it waits for none of them, or it would take hours
    assert server.serves()


def test_no_descriptors_left_is_survived(start_server: Any) -> None:
    server = start_server()
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (30, 30))
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        assert until(lambda: "ulimit -n" in server.log)
    assert server.serves()
    assert server.end() == 0
    assert refused_in_all(server.log) == 100


# --- The log ----------------------------------------------------------------------------------------------------------
def fill_up(pipe: int) -> None:
    try:
        while True:
            os.write(pipe, bytes(65536))
    except BlockingIOError:
        pass


class FullPipe:
    """A pipe that has no room left, and that nobody reads."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        fill_up(self.writing)
        os.set_blocking(self.writing, True)
        os.set_blocking(self.reading, False)

    def read(self) -> bytes:
        """All that is in it now."""
        said = b""
        try:
            while more := os.read(self.reading, 65536):
                said += more
        except BlockingIOError:
            pass
        return said

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def full_pipe() -> Iterator[FullPipe]:
    pipe = FullPipe()
    yield pipe
    pipe.close()


def port_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    found = re.match(r"listening on [0-9.]+:(\d+), ", line)
    assert found is not None, line
    return int(found.group(1))


@pytest.mark.parametrize("command", COMMANDS, ids=["python", "cpp"])
def test_a_server_whose_log_nobody_reads_goes_on(command: list[Any], full_pipe: FullPipe) -> None:
    environment = {**os.environ, "MINIRAY_KEY": OTHER_KEY}
    options: dict[str, Any] = {"cwd": Path(__file__).parent, "env": environment, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, "--port", "0"], stderr=full_pipe.writing, **options) as process:
        port = port_of(process)
        for number in range(5):
            with connection_from(f"127.0.0.{number + 2}", port) as one:
                one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100))
                assert ending(one) == b""  # the server has refused it, and has not stood still
        assert not fcntl.fcntl(full_pipe.writing, fcntl.F_GETFL) & os.O_NONBLOCK  # others write there too
        full_pipe.read()
        with connection_from("127.0.0.9", port) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100))
            assert ending(one) == b""
        log = full_pipe.read().decode()
        notice = "5 lines of the log were dropped, because nobody read them"
        assert re.search(notice + r"\n.* refused 127\.0\.0\.9:", log), log
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_refusals_of_one_address_are_summarised(start_server: Any) -> None:
    server = start_server()
    for number in range(15):
        with connection_from("127.0.0.7", server.port) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(number + 16))
            assert ending(one) == b""
    with connection_from("127.0.0.8", server.port) as one:
        one.sendall(HELLO[:20])
    assert until(lambda: " refused 127.0.0.8:" in server.log)  # another address is still shown
    assert len(refusals(server.log)) == 11
    assert server.end() == 0
    summary = r" refused 15 connections from 127\.0\.0\.7 in the last \d+ s; the last: it does not speak"
    assert len(re.findall(summary, server.log)) == 1


# --- Requests ---------------------------------------------------------------------------------------------------------
def with_length(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        (struct.pack("<I", 0), "its request has 0 bytes"),
        (struct.pack("<I", 2**32 - 1), "its request has 4294967295 bytes, and the limit is 1048576"),
        (struct.pack("<I", 2**20 + 1) + b" " * 100_000, "its request has 1048577 bytes, and the limit is 1048576"),
        (with_length(b"not json"), "its request cannot be read"),
        (with_length(b"{"), "its request cannot be read"),
        (with_length(b"\xff\xfe"), "its request cannot be read"),
        (with_length(b"[1, 2]"), "its request cannot be read"),
        (with_length(b'"worker"'), "its request cannot be read"),
        (with_length(b"[" * 2**20), "its request cannot be read"),
        (with_length(b'{"kind": "queen"}'), 'unknown kind of request "queen"'),
        (with_length(b'{"kind": 3}'), "its request cannot be read"),
        (with_length(b'{"kind": "group", "token": "0 1 life"}'), "no rank of a group"),
        (with_length(b'{"work_fn": ["x"]}'), "its request cannot be read"),
        (with_length(b'{"codec": "pickle"}'), 'unknown codec "pickle"'),
        (with_length(b'{"shared_memory": "yes"}'), "its request cannot be read"),
        (with_length(b'{"unreachable_ms": 1}'), "unreachable_ms is out of range: 1"),
        (with_length(b'{"unreachable_ms": 1e3}'), "its request cannot be read"),
        (with_length(b'{"environment": {"A": 1}}'), "its request cannot be read"),
        (with_length(b'{"environment": ["A"]}'), "its request cannot be read"),
        (with_length(b'{"label": {"$bytes": null}}'), "its request cannot be read"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_request_that_makes_no_sense_is_refused(
    server: Any, stranger: Any, request_bytes: bytes, reason: str
) -> None:
    before = len(refusals(server.log))
    client = json_client.JsonClient(stranger())
    client.prove(bytes.fromhex(server.key))
    try:
        client.stream.write(request_bytes)
        client.stream.flush()
    except ConnectionError:
        pass  # refused at its length
    assert until(lambda: len(refusals(server.log)) > before)
    assert reason in refusals(server.log)[before]
    try:
        client.stream.close()
    except ConnectionError:
        pass
    assert server.serves()


def test_a_refusal_has_the_traceback_of_what_does_not_import(start_server: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def work(handle):\n    pass\n\nraise RuntimeError('no layers')\n")
    server = start_server(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    for _ in range(2):
        with pytest.raises(miniray.Refused) as caught:
            server.connect("broken.work")
        assert 'broken.py", line 4' in str(caught.value)
        assert "RuntimeError: no layers" in str(caught.value)
        assert server.where in str(caught.value)
    with pytest.raises(miniray.Refused, match="say which one to run"):
        server.connect()
    assert server.serves()
    (tmp_path / "broken.py").write_text("def work(handle):\n    handle.send('mended')\n")
    with server.connect("broken.work") as worker:
        assert worker.recv(timeout=30) == "mended"


def test_the_first_failure_of_a_workers_two_connections_is_the_cause() -> None:
    """The other connection is not waited for, and what becomes of it is not what the error says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_one() -> None:
            with listener.accept()[0] as silent, listener.accept()[0] as other:
                other.sendall(b"HTTP/1.1 400 Bad")
                while silent.recv(1 << 16):  # until the client gives up
                    pass

        thread = threading.Thread(target=answer_one)
        thread.start()
        with pytest.raises(miniray.Refused, match="is not a MiniRay worker server"):
            miniray.RemoteWorker("127.0.0.1", listener.getsockname()[1], key=OTHER_KEY)
        thread.join()


def test_workers_are_limited_to_what_was_said(start_server: Any) -> None:
    server = start_server("--work-fn", "work_functions.echo", "--workers", "2")
    with server.connect() as first, server.connect():
        with pytest.raises(miniray.Refused, match="all of its 2 workers are taken"):
            server.connect()
        first.close()
        assert server.serves()
    with pytest.raises(miniray.Refused, match="all of its 2 workers"):
        miniray.create_remote_workers([("127.0.0.1", server.port)] * 3, key=server.key)


def test_the_key_is_seen_nowhere(start_server: Any) -> None:
    server = start_server("--work-fn", "work_functions.fail")
    texts: list[str] = []
    attempts: list[tuple[type[Exception], Callable[[], Any]]] = [
        (miniray.Refused, lambda: server.connect(key=OTHER_KEY)),
        (miniray.UsageError, lambda: server.connect(key=server.key + "0")),
        (miniray.UsageError, lambda: server.connect(key=server.key[:-1])),
        (miniray.Refused, lambda: server.connect("no_such_module.work")),
        (miniray.UsageError, lambda: WorkerServer("127.0.0.1", 0, print, key=server.key[:-1])),
    ]
    for kind, attempt in attempts:
        with pytest.raises(kind) as caught:
            attempt()
        texts += [str(caught.value), repr(caught.value)]
    with server.connect() as worker:
        texts += [repr(worker), str(worker), worker.name]
        texts += [Path(f"/proc/{pid}/cmdline").read_text() for pid in (server.process.pid, worker.pid)]
        worker.send("layer")
        with pytest.raises(miniray.WorkerError) as failed:
            worker.recv(timeout=30)
        texts += [str(failed.value)]
    assert server.end() == 0
    for text in [*texts, server.log, server.output]:
        assert server.key[:16] not in text.lower()
        assert OTHER_KEY[:16] not in text.lower()
    assert "no_such_module" in server.log

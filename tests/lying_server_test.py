"""A server with the key that lies loses its own workers, at once and with an error that says what it sent. A
coordinator with the key that floods a server keeps no other coordinator waiting."""

from __future__ import annotations

import json
import secrets
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import pytest
from hostile import MESSAGE, frame
from json_client import JsonClient
from lying_server import lying_server

import miniray
from miniray import RemoteWorker

PATIENCE_S = 60
CERTIFICATE = {
    "exit_code": 0,
    "signal": 9,
    "out_of_memory": False,
    "stack": "",
    "peak_bytes": 0,
    "lost": "",
    "last_output": "",
}


def connect(server: Any) -> RemoteWorker:
    return RemoteWorker("127.0.0.1", server.port, "its.work", key=server.key.hex(), unreachable_s=1)


@pytest.mark.parametrize(
    "answer",
    [
        [1],
        7,
        {},
        {"pid": "one"},
        {"pid": -1},
        {"pid": 0},
        {"pid": 1 << 31},
        {"refused": 5},
        b"{",
        b'{"refused": "\xff"}',
        {"pid": "\x1b[2J"},
    ],
    ids=repr,
)
def test_an_answer_that_makes_no_sense_is_an_error_that_shows_it(answer: Any) -> None:
    with lying_server(answer) as server, pytest.raises(miniray.MiniRayError) as raised:
        connect(server)
    assert f"the answer from 127.0.0.1:{server.port} makes no sense" in str(raised.value)
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    "news",
    [{}, 7, {**CERTIFICATE, "exit_code": "none"}, {**CERTIFICATE, "lost": None}, {"doing": 7}],
    ids=repr,
)
def test_news_that_make_no_sense_lose_the_worker(news: Any) -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(frame(MESSAGE, news))
        connection.recv(1)

    with lying_server(control=talk) as server:
        worker = connect(server)
        with pytest.raises(miniray.WorkerDied, match="its server sent something that makes no sense"):
            worker.recv(timeout=PATIENCE_S)
        worker.close()


def flooding(data: bytes) -> Any:
    def talk(connection: socket.socket) -> None:
        while True:
            connection.sendall(data)

    return talk


@pytest.mark.parametrize(
    "data",
    [
        frame(MESSAGE, {"doing": "x"}) * 4000,
        frame(MESSAGE, CERTIFICATE | {"doing": "x" * 100_000}) * 10,
        frame(MESSAGE, b"x", body_bytes=1 << 30) + bytes(1 << 20),
    ],
    ids=["small messages", "large messages", "a message of a GiB"],
)
def test_a_server_that_sends_news_without_end_loses_the_worker(data: bytes) -> None:
    with lying_server(control=flooding(data)) as server:
        worker = connect(server)
        with pytest.raises(miniray.WorkerDied, match=r"without end|the limit is"):
            worker.recv(timeout=PATIENCE_S)
        worker.close()


def test_the_stack_from_a_server_has_no_control_characters() -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(frame(MESSAGE, {"doing": "line 1\n\x1b[2Jline 2"}))
        connection.recv(1)

    with lying_server(control=talk) as server:
        worker = connect(server)
        assert worker.stack() == "line 1\n\\x1b[2Jline 2"
        worker.kill()
        worker.close()


def asking(server: Any, **request: Any) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
    client = JsonClient(connection)
    client.prove(bytes.fromhex(server.key))
    text = json.dumps(request).encode()
    connection.sendall(struct.pack("<I", len(text)) + text)
    client.stream.close()
    return connection


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("link", {"numbers": [], "workers": [], "buffers": []}),
        ("control", {"signal": 0}),
        ("control", {"doing": True}),
    ],
    ids=["a link", "signals", "questions"],
)
def test_a_coordinator_that_floods_a_server_keeps_nobody_waiting(start_server: Any, kind: str, message: Any) -> None:
    server = start_server("--work-fn", "work_functions.echo")
    token = secrets.token_hex(8)
    others = [asking(server, kind="worker", token=token)] if kind == "control" else []
    flooder = asking(server, kind=kind, token=token)
    begun, over = threading.Event(), threading.Event()

    def flood() -> None:
        data = frame(MESSAGE, message) * 4000
        with suppress(OSError):
            while not over.is_set():
                flooder.sendall(data)
                begun.set()
        begun.set()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        assert server.serves()
    finally:
        over.set()
        flooder.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        for each in [flooder, *others]:
            each.close()

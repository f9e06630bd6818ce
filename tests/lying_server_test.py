"""A server with the key that lies loses its own workers, at once and with an error that says what it sent. A
coordinator with the key that floods a server keeps no other coordinator waiting."""

from __future__ import annotations

import json
import random
import secrets
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import adversary
import pytest
from hostile import MESSAGE, frame
from json_client import JsonClient
from lying_server import lying_server
from waiting import until

import miniray
from miniray import Pool, RemoteWorker, Worker

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
    key = server.key.hex()
    return RemoteWorker("127.0.0.1", server.port, "its.work", key=key, unreachable_s=1, encrypt=server.sealed)


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


@pytest.mark.parametrize("sealed", [False, True], ids=["not sealed", "sealed"])
@pytest.mark.parametrize(
    "news",
    [{}, 7, {**CERTIFICATE, "exit_code": "none"}, {**CERTIFICATE, "lost": None}, {"doing": 7}],
    ids=repr,
)
def test_news_that_make_no_sense_lose_the_worker(news: Any, sealed: bool) -> None:
    def talk(connection: Any) -> None:
        connection.sendall(frame(MESSAGE, news))
        connection.recv(1)

    with lying_server(control=talk, sealed=sealed) as server:
        worker = connect(server)
        with pytest.raises(miniray.WorkerDied, match="its server sent something that makes no sense"):
            worker.recv(timeout=PATIENCE_S)
        worker.close()


def flooding(data: bytes) -> Any:
    def talk(connection: Any) -> None:
        while True:
            connection.sendall(data)

    return talk


@pytest.mark.parametrize("sealed", [False, True], ids=["not sealed", "sealed"])
@pytest.mark.parametrize(
    "data",
    [
        frame(MESSAGE, {"doing": "x"}) * 4000,
        frame(MESSAGE, CERTIFICATE | {"doing": "x" * 100_000}) * 10,
        frame(MESSAGE, b"x", body_bytes=1 << 30) + bytes(1 << 20),
    ],
    ids=["small messages", "large messages", "a message of a GiB"],
)
def test_a_server_that_sends_news_without_end_loses_the_worker(data: bytes, sealed: bool) -> None:
    with lying_server(control=flooding(data), sealed=sealed) as server:
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
        with suppress(OSError):  # the server may have dropped the flooder, as it should
            flooder.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        for each in [flooder, *others]:
            each.close()


def oddly(chance: random.Random, right: Any, body: Any = None) -> bytes:
    """The frame of a message that is right, or of another form, or mutated, or cut short."""
    form = chance.randrange(5)
    data = bytearray(right)
    if form == 1:
        entries = [(chance.choice([0, 8, 1 << 40]), chance.choice([0, 1, 1 << 61, 1 << 63]))] * chance.randint(0, 2)
        data = bytearray(frame(chance.randrange(12), chance.choice([*adversary.BODIES, body]), entries=entries))
    elif form == 2:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif form == 3:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


def supplies(chance: random.Random, pid: int) -> bytes:
    numbers = [chance.choice([0, 1, 2, -1, 1 << 63, "one"]) for _ in range(chance.randint(0, 3))]
    sizes = [chance.choice([0, 1, 100_000]) for _ in range(chance.choice([len(numbers), len(numbers), 1]))]
    body = {
        "numbers": numbers,
        "workers": [chance.choice([pid, 1, -1, "me"]) for _ in range(chance.randint(0, 2))],
        "buffers": [{"$array": ["array", "uint8", size]} for size in sizes],
    }
    return frame(MESSAGE, body, entries=[(size, 0) for size in sizes], buffers=bytes(sum(sizes)))


def test_whatever_comes_over_links_the_server_serves_on(start_server: Any) -> None:
    server = start_server()
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    with server.connect("work_functions.echo") as worker:
        worker.send(1)
        assert worker.recv(timeout=PATIENCE_S) == 1
        before = len(list(descriptors.iterdir()))
        for seed in adversary.seeds(60):
            chance = random.Random(seed)
            with asking(server, kind="link") as link, suppress(OSError):
                for _ in range(chance.randint(1, 8)):
                    link.sendall(oddly(chance, supplies(chance, worker.pid)))
            assert server.serves(), seed
        worker.send(2)
        assert worker.recv(timeout=PATIENCE_S) == 2
    until(lambda: len(list(descriptors.iterdir())) <= before)


@pytest.mark.parametrize("sealed", [False, True], ids=["not sealed", "sealed"])
def test_whatever_a_server_says_its_workers_are_lost_at_worst(sealed: bool) -> None:
    for seed in adversary.seeds(60):
        chance = random.Random(seed)
        news = [
            oddly(chance, frame(MESSAGE, chance.choice([CERTIFICATE, {"doing": "x"}])))
            for _ in range(chance.randint(0, 3))
        ]
        said = [oddly(chance, frame(MESSAGE, 1)) for _ in range(chance.randint(0, 3))]

        def saying(pieces: list[bytes]) -> Any:
            return lambda connection: [connection.sendall(piece) for piece in pieces]

        with lying_server(data=saying(said), control=saying(news), sealed=sealed) as server:
            worker = connect(server)
            for _ in range(5):
                try:
                    worker.recv(timeout=PATIENCE_S)
                except TimeoutError:
                    raise AssertionError(f"nothing tells of the end; seed {seed}") from None
                except (miniray.MiniRayError, OSError, EOFError):
                    break
            worker.kill()
            worker.close()


def test_a_pool_goes_on_beside_a_member_whose_server_floods() -> None:
    """The pool's one thread reads the news of all servers."""
    with (
        lying_server(control=flooding(frame(MESSAGE, {"doing": "x"}) * 4000)) as server,
        Pool([connect(server), Worker(start="spawn")]) as pool,
    ):
        futures = [pool.options(retries=3).submit(abs, -number) for number in range(6)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(6))

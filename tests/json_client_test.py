"""Somebody who has only docs/wire_format.md can talk to a worker."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import json_client
import numpy as np
import pytest
from waiting import is_gone, until

from miniray import Channel, Worker

CLIENT = Path(__file__).with_name("json_client.py")


def test_it_is_short() -> None:
    assert len(CLIENT.read_text().splitlines()) < 100


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ({"cmd": "echo", "x": [1, 2.5, None, True, "é"]}, {"cmd": "echo", "x": [1, 2.5, None, True, "é"]}),
        (b"\x00\xff", b"\x00\xff"),
        ([0.5] * 100, [0.5] * 100),
        ({"ask": "array"}, ("float64", [2, 2], [1.0, 2.0, 3.0, 4.0])),
        ({"ask": "map"}, {1: "one", "$x": 2}),
        ({"ask": "inf"}, math.inf),
    ],
)
def test_a_conversation(sent: Any, answer: Any) -> None:
    answers = {"array": np.array([[1.0, 2], [3, 4]]), "map": {1: "one", "$x": 2}, "inf": math.inf}
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work(handle: Any) -> None:
            with Channel(socket.create_connection(listener.getsockname()).detach(), codec="json") as channel:
                message = channel.recv()
                channel.send(answers[message["ask"]] if isinstance(message, dict) and "ask" in message else message)

        with Worker(work) as worker:
            connection, _ = listener.accept()
            with connection:
                client = json_client.JsonClient(connection)
                client.send(sent)
                assert client.recv() == answer
                client.stream.close()
            assert worker.wait(timeout=30) == 0


@contextmanager
def connected(server: Any, module: ModuleType) -> Iterator[Any]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        client = module.JsonClient(connection)
        try:
            yield client
        finally:
            client.stream.close()


def test_a_conversation_with_a_worker_server(server: Any) -> None:
    with connected(server, json_client) as client:
        client.prove(bytes.fromhex(server.key))
        answer = client.ask(codec="json")
        assert answer["host"] == socket.gethostname()
        for message in ({"cmd": "echo", "x": [1, 2.5, None, True, "é"]}, b"\x00\xff" * 10_000, [0.5] * 100):
            client.send(message)
            assert client.recv() == message
        assert not is_gone(answer["pid"])
    assert until(lambda: is_gone(answer["pid"]))
    with connected(server, json_client) as client:
        client.prove(bytes.fromhex(server.key))
        client.ask(codec="json", work_fn="work_functions.double", an_unknown_field=[1])
        client.send(21)
        assert client.recv() == 42


def test_an_end_and_an_error_are_frames_too(server: Any) -> None:
    for function, message, kind in (("say_much", 0, 2), ("fail", "no such layer", 1)):
        with connected(server, json_client) as client:
            client.prove(bytes.fromhex(server.key))
            client.ask(codec="json", work_fn=f"work_functions.{function}")
            client.send(message)
            with pytest.raises(EOFError, match=f"kind {kind}, codec 0"):
                client.recv()


def test_refusals_reach_a_plain_client(server: Any) -> None:
    with connected(server, json_client) as client, pytest.raises(ConnectionRefusedError, match="another key"):
        client.prove(bytes(32))
    with connected(server, json_client) as client, pytest.raises(ConnectionRefusedError, match="version 3, refusal 1"):
        client.prove(bytes.fromhex(server.key), version=1)
    with connected(server, json_client) as client:
        client.prove(bytes.fromhex(server.key))
        with pytest.raises(ConnectionRefusedError, match="cannot import no_such_module"):
            client.ask(work_fn="no_such_module.work")


def test_a_control_connection_tells_of_the_end(server: Any) -> None:
    """Signals go there, and the certificate comes from there, in MessagePack: here they are only looked at."""
    key = bytes.fromhex(server.key)
    with connected(server, json_client) as control, connected(server, json_client) as data:
        control.prove(key)
        data.prove(key)
        text = b'{"kind": "control", "token": "a token"}'
        control.stream.write(len(text).to_bytes(4, "little") + text)
        control.stream.flush()
        assert data.ask(token="a token", codec="json")["pid"] > 0
        assert control._read(int.from_bytes(control._read(4), "little")) == b"{}"
        control.stream.write(json_client.HEAD.pack(b"MR", 0, 0, 0, 9) + b"\x81\xa6signal\x0f")  # {"signal": 15}
        control.stream.flush()
        magic, kind, codec, buffers, size = json_client.HEAD.unpack(control._read(16))
        assert (magic, kind, codec, buffers) == (b"MR", 0, 0, 0)
        assert b"\xa6signal\x0f" in control._read(size)
        assert data.stream.read() == b""

"""Somebody who has only docs/wire_format.md can talk to a worker."""

from __future__ import annotations

import importlib.util
import math
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from miniray import Channel, Worker

CLIENT = Path(__file__).with_name("json_client.py")
specification = importlib.util.spec_from_file_location("json_client", CLIENT)
assert specification is not None
assert specification.loader is not None
json_client = importlib.util.module_from_spec(specification)
specification.loader.exec_module(json_client)


def test_it_is_short() -> None:
    assert len(CLIENT.read_text().splitlines()) < 60


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

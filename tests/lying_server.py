"""A worker server with the key that speaks the wire format by itself, and says what no server says."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from json_client import VERSION

PATIENCE_S = 60
Talk = Callable[[socket.socket], Any]


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def accept_request(connection: socket.socket, key: bytes) -> dict[str, Any]:
    hello = read(connection, 48)
    said = b"MiniRay!" + struct.pack("<III", VERSION, 0, 0) + os.urandom(32)  # not sealed
    proof = hmac.digest(key, b"MiniRay server" + hello + said, hashlib.sha256)
    connection.sendall(said + proof)
    assert read(connection, 32) == hmac.digest(key, b"MiniRay client" + hello + said + proof, hashlib.sha256)
    (size,) = struct.unpack("<I", read(connection, 4))
    request: dict[str, Any] = json.loads(read(connection, size))
    return request


def wait_for_end(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


class LyingServer:
    """`answer` is what it answers to a request for a worker; `data` and `control` are what it then does with the
    worker's two connections."""

    def __init__(self, answer: Any, data: Talk, control: Talk) -> None:
        self.key = os.urandom(32)
        self._answers = {"worker": answer, "control": {}}
        self._talks = {"worker": data, "control": control}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, EOFError):
            kind = accept_request(connection, self.key)["kind"]
            answer = self._answers[kind]
            text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            connection.sendall(struct.pack("<I", len(text)) + text)
            self._talks[kind](connection)
            connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for connection in self._connections:
            connection.close()


@contextmanager
def lying_server(answer: Any = None, data: Talk = wait_for_end, control: Talk = wait_for_end) -> Iterator[LyingServer]:
    server = LyingServer({"pid": 1, "host": "liar"} if answer is None else answer, data, control)
    try:
        yield server
    finally:
        server.end()

"""A worker server with the key that speaks the wire format by itself, sealed or not, and says what no server says."""

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
from sealed_client import SealedSocket

PATIENCE_S = 60
Talk = Callable[[Any], Any]  # with a connection that may be sealed


def read(connection: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def let_in(connection: socket.socket, key: bytes) -> None:
    """The handshake of a connection that is not sealed."""
    hello = read(connection, 48)
    said = b"MiniRay!" + struct.pack("<III", VERSION, 0, 0) + os.urandom(32)
    proof = hmac.digest(key, b"MiniRay server" + hello + said, hashlib.sha256)
    connection.sendall(said + proof)
    assert read(connection, 32) == hmac.digest(key, b"MiniRay client" + hello + said + proof, hashlib.sha256)


def wait_for_end(connection: Any) -> None:
    while connection.recv(1 << 16):
        pass


class LyingServer:
    """`answer` is what it answers to a request for a worker; `data` and `control` are what it then does with the
    worker's two connections."""

    def __init__(self, answer: Any, data: Talk, control: Talk, sealed: bool) -> None:
        self.sealed = sealed
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
            line: Any = connection
            if self.sealed:
                line = SealedSocket(connection, self.key)
            else:
                let_in(connection, self.key)
            try:
                (size,) = struct.unpack("<I", read(line, 4))
                kind = json.loads(read(line, size))["kind"]
                answer = self._answers[kind]
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                line.sendall(struct.pack("<I", len(text)) + text)
                self._talks[kind](line)
            finally:
                connection.shutdown(socket.SHUT_RDWR)
                line.close()

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
def lying_server(
    answer: Any = None, data: Talk = wait_for_end, control: Talk = wait_for_end, sealed: bool = False
) -> Iterator[LyingServer]:
    server = LyingServer({"pid": 1, "host": "liar"} if answer is None else answer, data, control, sealed)
    try:
        yield server
    finally:
        server.end()

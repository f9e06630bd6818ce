"""A client for MiniRay's wire format in JSON bodies, from docs/wire_format.md and the standard library alone."""

from __future__ import annotations

import array
import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any

HEAD = struct.Struct("<2sBBIQ")  # magic, kind, codec, number of buffers, body bytes
ENTRY = struct.Struct("<QQ")  # bytes, place (0: in the stream)
CODES = {"float64": "d", "int64": "q", "float32": "f", "int32": "i", "uint8": "B"}
VERSION = 3


class JsonClient:
    def __init__(self, connection: socket.socket) -> None:
        self.stream = connection.makefile("rwb")

    def prove(self, key: bytes, version: int = VERSION) -> None:
        """The handshake with a worker server, for a connection that is not sealed."""
        hello = b"MiniRay?" + struct.pack("<II", version, 0) + os.urandom(32)
        self.stream.write(hello)
        self.stream.flush()
        head = self._read(16)
        magic, theirs, refusal = struct.unpack("<8sII", head)
        if magic != b"MiniRay!" or theirs != version or refusal != 0:
            raise ConnectionRefusedError(f"{magic!r}, version {theirs}, refusal {refusal}")
        said, proof = hello + head + self._read(4 + 32), self._read(32)
        if not hmac.compare_digest(proof, hmac.digest(key, b"MiniRay server" + said, hashlib.sha256)):
            raise ConnectionRefusedError("the server has another key")
        self.stream.write(hmac.digest(key, b"MiniRay client" + said + proof, hashlib.sha256))
        self.stream.flush()

    def ask(self, **request: Any) -> Any:
        """For a worker: ask(work_fn="module.function", codec="json")."""
        text = json.dumps(request).encode()
        self.stream.write(struct.pack("<I", len(text)) + text)
        self.stream.flush()
        answer = json.loads(self._read(*struct.unpack("<I", self._read(4))))
        if "refused" in answer:
            raise ConnectionRefusedError(answer["refused"])
        return answer

    def send(self, message: Any) -> None:
        buffers: list[bytes] = []

        def escape(value: Any) -> Any:
            buffers.append(bytes(value))
            return {"$bytes": None}

        body = json.dumps(message, default=escape, ensure_ascii=False).encode()
        self.stream.write(HEAD.pack(b"MR", 0, 1, len(buffers), len(body)))
        for buffer in buffers:
            self.stream.write(ENTRY.pack(len(buffer), 0))
        self.stream.write(body + b"".join(buffers))
        self.stream.flush()

    def recv(self) -> Any:
        magic, kind, codec, count, size = HEAD.unpack(self._read(HEAD.size))
        if (magic, kind, codec) != (b"MR", 0, 1):
            raise EOFError(f"not a JSON message: {magic!r}, kind {kind}, codec {codec}")
        entries = [ENTRY.unpack(self._read(ENTRY.size)) for _ in range(count)]
        body = self._read(size)
        buffers = iter([self._read(length) for length, _ in entries])

        def unescape(value: dict[str, Any]) -> Any:
            if "$bytes" in value:
                return next(buffers)
            if "$float" in value:
                return struct.unpack(">d", bytes.fromhex(value["$float"]))[0]
            if "$map" in value:
                return dict(value["$map"])
            if "$array" in value:
                form, dtype, *shape = value["$array"]
                numbers = array.array(CODES[dtype], next(buffers)).tolist()
                return numbers if form == "list" else (dtype, shape, numbers)
            return value

        return json.loads(body, object_hook=unescape)

    def _read(self, size: int) -> bytes:
        data = self.stream.read(size)
        if len(data) < size:
            raise EOFError("the other side closed the connection")
        return data

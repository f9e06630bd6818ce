"""A client for MiniRay's wire format in JSON bodies, from docs/wire_format.md and the standard library alone."""

from __future__ import annotations

import array
import json
import socket
import struct
from typing import Any

HEAD = struct.Struct("<2sBBIQ")  # magic, kind, codec, number of buffers, body bytes
ENTRY = struct.Struct("<QQ")  # bytes, place (0: in the stream)
CODES = {"float64": "d", "int64": "q", "float32": "f", "int32": "i", "uint8": "B"}


class JsonClient:
    def __init__(self, connection: socket.socket) -> None:
        self.stream = connection.makefile("rwb")

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
        magic, kind, codec, count, size = HEAD.unpack(self.stream.read(HEAD.size))
        if (magic, kind, codec) != (b"MR", 0, 1):
            raise EOFError(f"not a JSON message: {magic!r}, kind {kind}, codec {codec}")
        entries = [ENTRY.unpack(self.stream.read(ENTRY.size)) for _ in range(count)]
        body = self.stream.read(size)
        buffers = iter([self.stream.read(length) for length, _ in entries])

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

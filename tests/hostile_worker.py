"""A worker that somebody has taken over: it answers every call with a pickle that runs code where it is loaded."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

from json_client import ENTRY, HEAD

CALL_HEAD = struct.Struct("<qqB7x")  # number, time, verb
CALL, REPLY = 5, 6
VALUE, VALUES, PICKLE, ERROR, UNKNOWN = range(5)


class Code:
    """Makes a folder where its pickle is loaded."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


_BYTES = {"$bytes": None}  # the pickle travels beside the body
_PACKED = {"pickle": _BYTES, "buffers": []}
_ERROR = {"type": "ValueError", "message": "7 is odd", "traceback": "ValueError: 7 is odd", "pickle": _BYTES}
ANSWERS: dict[str, tuple[int, Any]] = {
    "value": (PICKLE, _PACKED),
    "error": (ERROR, _ERROR),
    "unknown": (UNKNOWN, {**_ERROR, "missing": [], "failed": True}),
    "results of a map": (VALUES, [_PACKED, []]),
    "error of an item": (VALUES, [[None], [[0, _ERROR]]]),
}


def hostile(answer: str, folder: str) -> Callable[[Any], None]:
    """A work function. It needs a worker with shared_memory=False: it speaks over the socket, and not with miniray."""

    def work(handle: Any) -> None:
        connection = socket.socket(fileno=os.dup(handle.fileno()))
        connection.setblocking(True)
        with connection, connection.makefile("rwb") as stream:
            verb, body = ANSWERS[answer]
            text, code = json.dumps(body).encode(), pickle.dumps(Code(folder))
            while head := stream.read(HEAD.size):
                _, kind, _, buffers, size = HEAD.unpack(head)
                number = CALL_HEAD.unpack(stream.read(CALL_HEAD.size))[0] if kind == CALL else 0
                entries = [ENTRY.unpack(stream.read(ENTRY.size))[0] for _ in range(buffers)]
                stream.read(size + sum(entries))
                if number != 0:
                    stream.write(HEAD.pack(b"MR", REPLY, 1, 1, len(text)) + CALL_HEAD.pack(number, 1, verb))
                    stream.write(ENTRY.pack(len(code), 0) + text + code)
                    stream.flush()

    return work


def serve_from_environment(handle: Any) -> None:
    """The same for servers: the environment says what to answer with."""
    hostile(os.environ["HOSTILE_ANSWER"], os.environ["HOSTILE_FOLDER"])(handle)


def tuple_from_a_worker() -> list[int]:
    """A call of a worker that this process starts, which gives a tuple."""
    import miniray

    with miniray.Worker() as worker:
        return list(worker.call_remote("task_functions.same", (1,)))

"""A worker that speaks the wire format by itself, from docs/wire_format.md and the standard library alone, and lies.

It is started as any worker is, so it has the key and the channel; only its frames are what no worker should send.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from json_client import ENTRY, HEAD

from miniray import _core

CALL_HEAD = struct.Struct("<qqB7x")  # number, time, verb
MESSAGE, ERROR, END, SHARE, UNSHARE, CALL, REPLY, DROP, KEEP, FORGET, RING, BELL = range(12)
VALUE, VALUES, PICKLE, RAISED, UNKNOWN, DROPPED = range(6)  # verbs of a reply
MSGPACK, JSON = range(2)
KEPT, MEMORY, DESCRIPTOR = 1 << 62, 1 << 61, 1 << 60  # places of a buffer
GIB = 1 << 30


class Received(NamedTuple):
    kind: int
    number: int
    verb: int
    body: bytes


def frame(
    kind: int,
    body: Any = b"",
    *,
    number: int = 0,
    time_ns: int = 0,
    verb: int = 0,
    codec: int | None = None,
    entries: Sequence[tuple[int, int]] = (),
    buffers: bytes = b"",
    body_bytes: int | None = None,
) -> bytes:
    """One frame. A body that is no bytes is written as JSON. `body_bytes` may say something else than is true."""
    if codec is None:
        codec = MSGPACK if isinstance(body, bytes) else JSON
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = HEAD.pack(b"MR", kind, codec, len(entries), len(body) if body_bytes is None else body_bytes)
    call_head = CALL_HEAD.pack(number, time_ns, verb) if CALL <= kind <= FORGET else b""
    return head + call_head + b"".join(ENTRY.pack(*entry) for entry in entries) + body + buffers


class Peer:
    """The worker's end of its channel."""

    def __init__(self, handle: _core.Handle) -> None:
        self.socket = socket.socket(fileno=os.dup(handle.fileno()))
        self.write_lock = threading.Lock()

    def write(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        if not descriptors:
            return self.socket.sendall(data)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sent = self.socket.sendmsg([data], rights)
        self.socket.sendall(data[sent:])

    def read(self) -> Received:
        _, kind, _, count, size = HEAD.unpack(self._read(HEAD.size))
        number, _, verb = CALL_HEAD.unpack(self._read(CALL_HEAD.size)) if CALL <= kind <= FORGET else (0, 0, 0)
        entries = [ENTRY.unpack(self._read(ENTRY.size)) for _ in range(count)]
        body = self._read(size)
        for length, place in entries:
            if place == 0:
                self._read(length)
        return Received(kind, number, verb, body)

    def calls(self) -> Iterator[Received]:
        """The calls that want an answer, until the coordinator closes."""
        while True:
            try:
                received = self.read()
            except (EOFError, OSError):
                return
            if received.kind == CALL and received.number != 0:
                yield received

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


Attack = Callable[[Peer, Received], Any]


def working(attack: Attack) -> Callable[[_core.Handle], None]:
    """The work function of a worker that does this with every call it gets."""

    def work(handle: _core.Handle) -> None:
        peer = Peer(handle)
        try:
            for call in peer.calls():
                attack(peer, call)
        except OSError:  # the coordinator has had enough
            pass
        os._exit(0)

    return work


def memory(size: int, seals: int = 0) -> int:
    import fcntl

    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _reply(verb: int, body: Any, **more: Any) -> Attack:
    return lambda peer, call: peer.write(frame(REPLY, body, number=call.number, verb=verb, **more))


def _array(form: str, dtype: str, *shape: int) -> dict[str, Any]:
    return {"$array": [form, dtype, *shape]}


def _with_descriptors(count: int, data: Callable[[Received], bytes], size: int = 0, seals: int = 0) -> Attack:
    def attack(peer: Peer, call: Received) -> None:
        descriptors = [memory(size, seals) for _ in range(count)]
        try:
            peer.write(data(call), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    return attack


def _shared(number: int = 1) -> bytes:
    return frame(SHARE, struct.pack("<I", number))


def _shrunk(peer: Peer, call: Received) -> None:
    """Memory that could shrink under its reader."""
    descriptor = memory(1 << 20)
    peer.write(_shared(), [descriptor])
    shape = _array("array", "uint8", 1 << 19)
    peer.write(frame(REPLY, shape, number=call.number, entries=[(1 << 19, 1)]))
    os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _descriptor_flood(peer: Peer, _: Received) -> None:
    """Descriptors that no frame speaks of."""
    mine = [memory(1)] * 16
    while True:
        peer.write(frame(BELL), mine)


def _flood(kind: int, **head: Any) -> Attack:
    def attack(peer: Peer, call: Received) -> None:
        data = b"".join(frame(kind, b"\xc0", number=call.number + 1 + i, **head) for i in range(2000))
        while True:
            peer.write(data)

    return attack


def _many_kept(peer: Peer, _: Received) -> None:
    number = 0
    while True:
        number += 1
        peer.write(frame(KEEP, number=number, entries=[(1, 0)], buffers=b"x"))


SHRINK_SEAL = 2  # fcntl.F_SEAL_SHRINK
DEEP = b"\x91" * 100_000 + b"\xc0"

# What a worker may do with a call. After each of them, its own calls have failed at worst.
ATTACKS: dict[str, Attack] = {
    "announces a buffer of 60 GiB": lambda peer, call: (
        peer.write(frame(REPLY, b"\xc7\x00\x02", number=call.number, entries=[(60 * GIB, 0)])),
        peer.socket.shutdown(socket.SHUT_WR),
    ),
    "announces a body of a GiB": lambda peer, call: (
        peer.write(frame(REPLY, b"x", number=call.number, body_bytes=GIB)),
        peer.socket.shutdown(socket.SHUT_WR),
    ),
    "announces a body of 2^63 bytes": _reply(VALUE, b"\xc0", body_bytes=1 << 63),
    "text that is not UTF-8": _reply(VALUE, b"\xa2\xff\xfe"),
    "text that is not UTF-8, in JSON": _reply(VALUE, b'"\xff\xfe"', codec=JSON),
    "a body that ends too early": _reply(VALUE, b"\x93\xc0"),
    "a body of two values": _reply(VALUE, b"\xc0\xc0"),
    "no body": _reply(VALUE, b""),
    "an impossible shape": _reply(VALUE, _array("array", "float64", 1 << 62, 1 << 62, 0), entries=[(0, 0)]),
    "an impossible shape of a tensor": _reply(
        VALUE, _array("tensor", "float64", 1 << 62, 1 << 62, 0), entries=[(0, 0)]
    ),
    "64 dimensions": _reply(VALUE, _array("array", "uint8", *[1] * 64), entries=[(1, 0)], buffers=b"x"),
    "an array larger than its buffer": _reply(
        VALUE, _array("array", "float64", 9), entries=[(8, 0)], buffers=b"12345678"
    ),
    "a buffer without a reference": _reply(VALUE, None, entries=[(1, 0)], buffers=b"x"),
    "a reference without a buffer": _reply(VALUE, {"$bytes": None}),
    "deep nesting": _reply(VALUE, DEEP),
    "deep nesting in JSON": _reply(VALUE, b"[" * 100_000, codec=JSON),
    "a list of 2^32 - 1 values": _reply(VALUE, b"\xdd\xff\xff\xff\xff"),
    "a map of 2^32 - 1 values": _reply(VALUE, b"\xdf\xff\xff\xff\xff"),
    "no values": _reply(VALUES, [[], []]),
    "too many values": _reply(VALUES, [[0] * 100_000, []]),
    "values that are no list": _reply(VALUES, [7, []]),
    "values that are null": _reply(VALUES, None),
    "values of one part": _reply(VALUES, [[1]]),
    "a failure of an item that there is not": _reply(
        VALUES, [[0], [[1 << 40, {"type": "E", "message": "m", "traceback": "t"}]]]
    ),
    "a failure of item -1": _reply(VALUES, [[0], [[-1, {"type": "E", "message": "m", "traceback": "t"}]]]),
    "a failure twice": _reply(VALUES, [[0], [[0, {"type": "E", "message": "m", "traceback": "t"}]] * 3]),
    "a failure that is no map": _reply(VALUES, [[0], [[0, 7]]]),
    "an index that is text": _reply(VALUES, [[0], [["0", {"type": "E", "message": "m", "traceback": "t"}]]]),
    "an error that is no map": _reply(RAISED, [1, 2]),
    "an error without its parts": _reply(RAISED, {}),
    "an error of other types": _reply(RAISED, {"type": 1, "message": [2], "traceback": {}}),
    "an unknown function, as null": _reply(UNKNOWN, None),
    "an unknown function, and nothing of note": _reply(UNKNOWN, {}),
    "missing definitions that there are not": _reply(
        UNKNOWN, {"type": "E", "message": "m", "traceback": "t", "missing": [1 << 62, -1, 0], "failed": True}
    ),
    "missing definitions that are text": _reply(
        UNKNOWN, {"type": "E", "message": "m", "traceback": "t", "missing": ["a"]}
    ),
    "a pickle that is none": _reply(PICKLE, {"pickle": 7}),
    "a pickle that is cut short": _reply(
        PICKLE, {"pickle": {"$bytes": None}, "buffers": []}, entries=[(2, 0)], buffers=b"\x80\x04"
    ),
    "dropped, without a reason": _reply(DROPPED, None),
    "a verb that there is not": _reply(77, None),
    "a negative time": _reply(VALUE, None, time_ns=-(1 << 63)),
    "an endless time": _reply(VALUE, None, time_ns=(1 << 63) - 1),
    "a number that was never called": lambda peer, call: peer.write(frame(REPLY, None, number=call.number + 1_000_000)),
    "a negative number": lambda peer, call: peer.write(frame(REPLY, None, number=-5)),
    "the number 0": lambda peer, call: peer.write(frame(REPLY, None, number=0)),
    "the same reply three times": lambda peer, call: peer.write(frame(REPLY, None, number=call.number) * 3),
    "a call of its own": lambda peer, call: peer.write(frame(CALL, ["f", [], None], number=call.number)),
    "a definition of its own": lambda peer, call: peer.write(frame(CALL, [1, {}], number=call.number, verb=2)),
    "a call to drop": lambda peer, call: peer.write(frame(DROP, number=call.number)),
    "a buffer to keep": lambda peer, call: peer.write(frame(KEEP, number=1, entries=[(1, 0)], buffers=b"x")),
    "a buffer to forget": lambda peer, call: peer.write(frame(FORGET, number=1)),
    "a kept buffer that it never sent": _reply(VALUE, {"$bytes": None}, entries=[(8, KEPT | 3)]),
    "a supplied buffer": _reply(VALUE, {"$bytes": None}, entries=[(8, (1 << 63) | 3)]),
    "a slot that it never shared": _reply(VALUE, {"$bytes": None}, entries=[(8, 3)]),
    "a descriptor that does not come": _reply(VALUE, _array("descriptor", "uint8", 0), entries=[(0, DESCRIPTOR)]),
    "an array in memory that does not come": _reply(VALUE, _array("array", "uint8", 8), entries=[(8, MEMORY)]),
    "memory that is not sealed": _with_descriptors(1, lambda call: _shared(), 1 << 20),
    "memory that shrinks": _shrunk,
    "memory without room": _with_descriptors(1, lambda call: _shared(), 4096, SHRINK_SEAL),
    "memory without end": _with_descriptors(1, lambda call: _shared(), 1 << 40, SHRINK_SEAL),
    "an array behind the end of its memory": _with_descriptors(
        1,
        lambda call: frame(REPLY, _array("array", "uint8", 8), number=call.number, entries=[(8, MEMORY | 8192)]),
        8192,
        SHRINK_SEAL,
    ),
    "a channel that is no socket": _with_descriptors(
        1, lambda call: frame(REPLY, _array("descriptor", "uint8", 0), number=call.number, entries=[(0, DESCRIPTOR)])
    ),
    "a ring of the wrong size": _with_descriptors(1, lambda call: frame(RING), 12345, SHRINK_SEAL),
    "a ring without memory": lambda peer, call: peer.write(frame(RING)),
    "a share of two bytes": lambda peer, call: peer.write(frame(SHARE, b"ab")),
    "memory to drop that it never shared": lambda peer, call: peer.write(frame(UNSHARE, struct.pack("<I", 9))),
    "a frame of a kind that there is not": lambda peer, call: peer.write(frame(99)),
    "no frame at all": lambda peer, call: peer.write(b"HTTP/1.1 200 OK\r\n\r\n" * 10),
    "half a frame, and the end": lambda peer, call: (
        peer.write(frame(REPLY, b"\xc0", number=call.number)[:29]),
        peer.socket.shutdown(socket.SHUT_WR),
    ),
    "an error of the work function that is none": lambda peer, call: peer.write(frame(ERROR, b"\xa2\xff\xfe")),
    "an end, and then a reply": lambda peer, call: peer.write(frame(END) + frame(REPLY, None, number=call.number)),
    "descriptors without end": _descriptor_flood,
    "replies without end": _flood(REPLY),
    "calls without end": _flood(CALL),
    "drops without end": _flood(DROP),
    "buffers to keep without end": _many_kept,
}

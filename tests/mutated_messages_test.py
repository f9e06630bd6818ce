"""A peer that changes what it sends, from a seed: any bytes become Python objects, or a ProtocolError.

`make sanitize-python` runs these tests with MINIRAY_MUTATIONS inputs for each seed, in a module built with ASan.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
import tracemalloc
from typing import Any

import hostile
import pytest
from json_client import ENTRY, HEAD
from waiting import PATIENCE_S

from miniray import Channel, ProtocolError

MUTATIONS = int(os.environ.get("MINIRAY_MUTATIONS", "300"))
SEEDS = range(4)
PIECES = [
    b"\xdd\xff\xff\xff\xff",  # MessagePack: a list of 2**32 - 1 items
    b"\xdc\x00\x05",
    b"\xdf\x00\x00\x00\x03",
    b"\x81",
    b"\xc1",
    b"\xc6\x00\x00\x00\x04",
    b"\xd9\xff",
    b"\xc7\x0a\x01\x00\x0c" + struct.pack("<Q", 3),  # an array
    b"\xc7\x12\x01\x00\x0b" + struct.pack("<QQ", 2, 1 << 62),
    b"\xc7\x00\x02",  # bytes that are beside the body
    b'{"$array": ["array", "float64", 3]}',
    b'{"$array": ["list", "int64", 3]}',
    b'{"$array": ["tensor", "bfloat16", 0]}',
    b'{"$bytes": null}',
    b'"\\ud800"',
    b"1e999",
    b"-0",
    b"NaN",
]


def values() -> list[Any]:
    import numpy as np

    return [
        None,
        [True, False, -1, 2**63, 2**64 - 1, 0.5, float("nan"), "text", "\U0001f600", b"bytes"],
        {"a": {"b": [{}, [], [[[]]]]}, 1: "one", b"key": None, False: 2.5},
        {"array": np.arange(6.0).reshape(2, 3), "empty": np.empty((0, 4), np.int8), "scalar": np.float32(1)},
        {"numbers": list(range(200)), "reals": [0.5] * 200, "bytes": b"x" * 5000},
    ]


class Lines:
    """A channel, and the socket of its peer."""

    def __init__(self, codec: str) -> None:
        here, self.peer = socket.socketpair()
        self.peer.settimeout(PATIENCE_S)
        self.channel = Channel(here.detach(), codec, shared_memory=False)

    def read_frame(self) -> bytes:
        head = self.peer.recv(HEAD.size, socket.MSG_WAITALL)
        _, _, _, count, size = HEAD.unpack(head)
        entries = self.peer.recv(count * ENTRY.size, socket.MSG_WAITALL) if count else b""
        size += sum(length for length, _ in ENTRY.iter_unpack(entries))
        return head + entries + (self.peer.recv(size, socket.MSG_WAITALL) if size else b"")

    def close(self) -> None:
        self.channel.close()
        self.peer.close()


def frames(codec: str) -> list[bytes]:
    lines = Lines(codec)
    made = []
    for value in values():
        lines.channel.send(value)
        made.append(lines.read_frame())
    lines.close()
    return made


def mutated(chance: random.Random, whole: bytes) -> bytes:
    """The frame with another body, or with another table of buffers; its sizes are right, so that it is decoded."""
    _, _, codec, count, size = HEAD.unpack(whole[: HEAD.size])
    entries = [ENTRY.unpack_from(whole, HEAD.size + i * ENTRY.size) for i in range(count)]
    at = HEAD.size + count * ENTRY.size
    body, buffers = bytearray(whole[at : at + size]), whole[at + size :]
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(body) + 1)
        match chance.randrange(7):
            case 0 if body:
                body[place % len(body)] = chance.randrange(256)
            case 1 if body:
                body[place % len(body)] ^= 1 << chance.randrange(8)
            case 2:
                del body[place : place + chance.randrange(1, 9)]
            case 3:
                body[place:place] = chance.choice(PIECES)
            case 4:
                body[place:place] = body[: chance.randrange(40)]
            case 5 if entries:
                sizes = [length for length, _ in entries]
                sizes[chance.randrange(count)] = chance.choice([0, 1, 8, 4096])
                entries = [(length, 0) for length in sizes]
            case 6 if chance.random() < 0.1:
                codec = 1 - codec
            case _:
                body += chance.choice(PIECES)
    buffers = buffers.ljust(sum(length for length, _ in entries), b"\x01")[: sum(length for length, _ in entries)]
    return hostile.frame(hostile.MESSAGE, bytes(body), codec=codec, entries=entries, buffers=buffers)


def same_again(value: Any) -> None:
    """What was received can be sent, in both codecs, and arrives as something that is sent as the same bytes."""
    for codec in ("msgpack", "json"):
        lines = Lines(codec)
        try:
            lines.channel.send(value)
        except (TypeError, OverflowError, ValueError):  # a reader accepts slightly more than a writer
            lines.close()
            continue
        sent = lines.read_frame()
        lines.peer.sendall(sent)
        lines.channel.send(lines.channel.recv(timeout=PATIENCE_S))
        assert lines.read_frame() == sent
        lines.close()


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_body_becomes_objects_or_an_error(codec: str, seed: int) -> None:
    chance = random.Random(seed)
    originals = frames(codec)
    decoded = refused = 0
    lines = Lines(codec)
    for _ in range(MUTATIONS):
        lines.peer.sendall(mutated(chance, chance.choice(originals)))
        try:
            value = lines.channel.recv(timeout=PATIENCE_S)
        except ProtocolError:
            refused += 1
            lines.close()
            lines = Lines(codec)
        else:
            decoded += 1
            same_again(value)
    lines.close()
    gc.collect()
    assert decoded > MUTATIONS / 100, f"only {decoded} of {MUTATIONS} messages were decoded, so this test tries little"
    assert refused > MUTATIONS / 50, f"only {refused} of {MUTATIONS} messages were refused, so this test tries little"


def test_lists_in_lists_reserve_no_more_memory_than_the_body_has_items() -> None:
    """Each of these lists claims as many items as the body has bytes, and none of them is complete."""
    depth, size = 250, 50_000
    body = b"".join(b"\xdd" + size.to_bytes(4, "big") for _ in range(depth)) + b"\xc0" * (size - 1)
    lines = Lines("msgpack")
    lines.peer.sendall(hostile.frame(hostile.MESSAGE, body))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="ends too early"):
            lines.channel.recv(timeout=PATIENCE_S)
        assert tracemalloc.get_traced_memory()[1] < 32 * len(body)
    finally:
        tracemalloc.stop()
        lines.close()

"""A peer with the key that does anything, from a seed: what it sends is right, wrong, mutated, late, twice, out of
order, too much or cut short. The same seed does the same again."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
from contextlib import suppress
from typing import Any

import hostile
from hostile import ATTACKS, CALL, MESSAGE, RAISED, REPLY, UNKNOWN, VALUE, VALUES, Attack, Peer, Received, frame

ENDLESS = [name for name in ATTACKS if "without end" in name]
BODIES: list[Any] = [
    None,
    7,
    [],
    {},
    [[1], []],
    [[], [[0, {"type": "E", "message": "m", "traceback": "t"}]]],
    {"type": "E", "message": "m", "traceback": "t", "missing": [1, 2, 3]},
    {"pickle": "x", "buffers": []},
    {"$array": ["array", "float64", 3]},
    {"$bytes": None},
    b"\xc1",
    b"\x93\xc0",
    b"\xd9\xff",
]


class Adversary:
    """What one hostile worker does with its calls."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.waiting: list[Received] = []
        self.moves = [
            self.right,
            self.right,
            self.wrong,
            self.mutated,
            self.late,
            self.twice,
            self.cut,
            self.listed,
            self.noise,
        ]

    def __call__(self, peer: Peer, call: Received) -> None:
        self.random.choice(self.moves)(peer, call)

    def right(self, peer: Peer, call: Received) -> None:
        is_map = call.verb == 1
        peer.write(frame(REPLY, [[1], []] if is_map else 1, number=call.number, verb=VALUES if is_map else VALUE))

    def wrong(self, peer: Peer, call: Received) -> None:
        verb = self.random.choice([VALUE, VALUES, 2, RAISED, UNKNOWN, 5, 6, 255])
        number = self.random.choice([call.number] * 5 + [call.number - 1, call.number + 1, 0, -1, 1 << 62])
        time_ns = self.random.choice([0, 1000, -1, (1 << 63) - 1])
        body = self.random.choice(BODIES)
        entries = [(self.random.choice([0, 8, 24]), 0)] if self.random.random() < 0.4 else []
        buffers = bytes(sum(size for size, _ in entries))
        peer.write(frame(REPLY, body, number=number, verb=verb, time_ns=time_ns, entries=entries, buffers=buffers))

    def mutated(self, peer: Peer, call: Received) -> None:
        data = bytearray(frame(REPLY, self.random.choice(BODIES), number=call.number))
        for _ in range(self.random.randint(1, 4)):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        peer.write(bytes(data))

    def late(self, peer: Peer, call: Received) -> None:
        """Answers some calls later, in another order."""
        self.waiting.append(call)
        if len(self.waiting) > self.random.randint(0, 3):
            self.random.shuffle(self.waiting)
            for each in self.waiting:
                self.right(peer, each)
            self.waiting.clear()

    def twice(self, peer: Peer, call: Received) -> None:
        for _ in range(self.random.randint(2, 5)):
            self.right(peer, call)

    def cut(self, peer: Peer, call: Received) -> None:
        """Stops in the middle of a frame."""
        data = frame(REPLY, list(range(100)), number=call.number)
        peer.write(data[: self.random.randrange(1, len(data))])
        peer.socket.shutdown(socket.SHUT_WR)

    def listed(self, peer: Peer, call: Received) -> None:
        """One of the attacks that have a name."""
        name = self.random.choice(sorted(ATTACKS))
        if name in ENDLESS and self.random.random() < 0.8:  # they take long
            name = "no body"
        ATTACKS[name](peer, call)

    def noise(self, peer: Peer, call: Received) -> None:
        """Frames of any kind before the reply."""
        for _ in range(self.random.randint(1, 20)):
            kind = self.random.choice([MESSAGE, CALL, *range(12)])
            peer.write(frame(kind, self.random.choice(BODIES), number=self.random.randint(-2, 100)))
        self.right(peer, call)


def ask_oddly(handle: Any) -> None:
    """The work function of a worker whose first message is a seed: it says anything to its own server, over the sockets
    that it has inherited. Without a seed, it says what it gets."""
    seed = handle.recv()
    if seed is None:
        handle.send("ready")
        while True:
            handle.send(handle.recv())
    chance = random.Random(seed)
    mine = [int(entry) for entry in os.listdir("/proc/self/fd") if int(entry) not in (0, 1, 2, handle.fileno())]
    lines = [each for each in map(as_local_socket, mine) if each is not None]
    assert lines
    handle.send("ready")
    for _ in range(chance.randint(1, 300)):
        number = chance.choice([0, 1, 2, chance.randrange(1, 60), 1 << 63, (1 << 64) - 1])
        right = struct.pack("<QQ", number, chance.choice([0, 0, 0, 1, 1 << 62]))
        data = chance.choice([right, right, right, right * 2, right[:7], b"", chance.randbytes(100)])
        with suppress(OSError):  # nobody reads there, or the server has had enough
            chance.choice(lines).send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    if chance.random() < 0.3:
        for line in lines:
            with suppress(OSError):
                line.shutdown(chance.choice([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]))
    signal.pause()


def as_local_socket(descriptor: int) -> socket.socket | None:
    try:
        found = socket.socket(fileno=os.dup(descriptor))
    except OSError:  # it is no socket
        return None
    return found if found.family == socket.AF_UNIX else None


def work(seed: int) -> Any:
    attack: Attack = Adversary(seed)
    return hostile.working(attack)


def seeds(count: int) -> range:
    """The seeds of a test: as many as MINIRAY_ADVERSARY_SEEDS says, from MINIRAY_ADVERSARY_FIRST on."""
    first = int(os.environ.get("MINIRAY_ADVERSARY_FIRST", "0"))
    return range(first, first + int(os.environ.get("MINIRAY_ADVERSARY_SEEDS", str(count))))

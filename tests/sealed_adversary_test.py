"""A peer with the key that speaks sealed and does anything, from a seed: at each step of the handshake, with the
records of the request, and behind it. A server serves its other clients, and a client gets an error at worst. A peer
that stalls is waited for until the deadline, and no longer."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import adversary
import pytest
import sealed_client
from hostile import MESSAGE, frame
from lying_server import lying_server, wait_for_end
from sealed_client import LAST, Direction
from waiting import until

import miniray
from miniray import Pool, RemoteWorker, TaskTimeout, Worker

PATIENCE_S = 60


def with_length(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def mutated(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def records(chance: random.Random, sending: Direction, text: bytes) -> bytes:
    """A text as records, which are right, or wrong in one way."""
    right = [sending.seal(text[at : at + 100], len(text[at : at + 100])) for at in range(0, len(text), 100)]
    forms: list[Callable[[], list[bytes]]] = [
        lambda: right,
        lambda: [sending.seal(text[at : at + 1], 1) for at in range(len(text))],
        lambda: [mutated(chance, b"".join(right))],
        lambda: [*right, *right],
        lambda: right[1:],
        lambda: right[::-1],
        lambda: [text],
        lambda: [b"".join(right)[: chance.randrange(len(b"".join(right)) + 1)]],
        lambda: [*right, sending.seal(b"", LAST), *right],
        lambda: [sending.seal(b"", LAST)],
        lambda: [sending.seal(text, chance.choice([0, 1, 65537, 1 << 30, LAST | 1, 0xFFFFFFFF]))],
        lambda: [sending.seal(b"", 0), *right],
        lambda: [chance.randbytes(chance.randint(1, 2000))],
    ]
    return b"".join(chance.choice(forms)())


def request(chance: random.Random, token: str) -> bytes:
    right: dict[str, Any] = {"codec": "json", "work_fn": "work_functions.echo"}
    if chance.random() < 0.5:
        right["token"] = token
        right["kind"] = chance.choice(["worker", "control", "link", "group", "none"])
    if chance.random() < 0.3:
        right[chance.choice(["kind", "token", "cpus", "environment", "inbox_bytes_max", "spin_us", "label"])] = (
            chance.choice([None, -1, 1 << 63, "x" * 70_000, [], {}, [1.5]])
        )
    text = json.dumps(right).encode()
    odd: list[bytes] = [with_length(mutated(chance, text)), struct.pack("<I", 0), struct.pack("<I", 1 << 30) + text]
    return chance.choice([with_length(text)] * 5 + odd)


def frames(chance: random.Random) -> bytes:
    made = [
        frame(chance.choice([MESSAGE, *range(12)]), chance.choice(adversary.BODIES))
        for _ in range(chance.randint(0, 3))
    ]
    return b"".join(mutated(chance, one) if chance.random() < 0.3 else one for one in made)


class StrangeClient(sealed_client.SealedClient):
    """Is right at all steps of the handshake but one."""

    def __init__(self, connection: socket.socket, chance: random.Random) -> None:
        super().__init__(connection, wish=chance.choice([0, 1, 2, 2, 2, 2, 3, 1 << 31]))
        self.chance = chance
        self.strange_at = chance.choice(["hello", "proof", None, None, None])

    def say(self, step: str, data: bytes) -> None:
        if step == self.strange_at:
            cut = data[: self.chance.randrange(len(data))]
            data = self.chance.choice([mutated(self.chance, data), cut, data + data, bytes(len(data))])
            self.stream.write(data)
            self.stream.flush()
            raise ConnectionAbortedError  # what follows is not the peer's turn any more
        super().say(step, data)


def attack(port: int, key: bytes, chance: random.Random) -> None:
    token = chance.randbytes(8).hex()
    with suppress(OSError, EOFError, AssertionError), socket.create_connection(("127.0.0.1", port), PATIENCE_S) as line:
        client = StrangeClient(line, chance)
        try:
            client.prove(key)
            stream: Any = client.stream
            text = request(chance, token) + frames(chance)
            stream.raw.write(records(chance, stream.sending, text))
            stream.raw.flush()
            if chance.random() < 0.3:
                line.shutdown(socket.SHUT_WR)
                line.settimeout(0.05)  # then it leaves
                while line.recv(1 << 16):
                    pass
        finally:
            for each in (getattr(client.stream, "raw", client.stream), client.stream):
                with suppress(OSError, ValueError):  # what it had to write, nobody reads
                    each.close()


@pytest.fixture(scope="module")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from conftest import Server

    made = Server(tmp_path_factory.mktemp("server"), "--work-fn", "work_functions.echo", "--encrypt")
    yield made
    assert made.end() == 0, made.log


def groups(count: int, step: int) -> list[range]:
    every = adversary.seeds(count)
    return [every[at : at + step] for at in range(0, len(every), step)]


@pytest.mark.parametrize("seeds", groups(200, 100), ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_whatever_a_client_says_the_server_serves_on(sealing: Any, seeds: range) -> None:
    descriptors = Path(f"/proc/{sealing.process.pid}/fd")
    with sealing.connect() as worker:
        worker.send(1)
        assert worker.recv(timeout=PATIENCE_S) == 1
        before = len(list(descriptors.iterdir()))
        for seed in seeds:
            attack(sealing.port, bytes.fromhex(sealing.key), random.Random(seed))
        assert sealing.serves(), seeds
        worker.send(2)
        assert worker.recv(timeout=PATIENCE_S) == 2
        until(lambda: len(list(descriptors.iterdir())) <= before, what=lambda: f"the server's end of {seeds}")


def connect(server: Any, **options: Any) -> RemoteWorker:
    told = {"key": server.key.hex(), "unreachable_s": 1, "encrypt": server.sealed, **options}
    return RemoteWorker("127.0.0.1", server.port, "its.work", **told)


def saying(chance: random.Random) -> Any:
    def talk(line: Any) -> None:
        line.raw.write(records(chance, line.stream.sending, frames(chance) + b"x"))
        line.raw.flush()

    return talk


@pytest.mark.parametrize("seeds", groups(40, 20), ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_whatever_records_a_server_sends_its_worker_is_lost_at_worst(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        data, control = chance.choice([(saying(chance), saying(chance)), (wait_for_end, saying(chance))])
        with lying_server(data=data, control=control, sealed=True) as server:
            worker = connect(server)
            for _ in range(5):
                try:
                    worker.recv(timeout=PATIENCE_S)
                except TimeoutError:
                    raise AssertionError(f"nothing tells of the end; seed {seed}") from None
                except (miniray.MiniRayError, OSError, EOFError):
                    break
            worker.kill()
            worker.close()


# --- Peers that stall -------------------------------------------------------------------------------------------------
# The deadlines are the victim's own, and a stall has no end of its own.


def stalled_in_the_handshake(data: bytes) -> Any:
    def serve(handle: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            handle.send(listener.getsockname()[1])
            lines = [listener.accept()[0] for _ in range(2)]
            for line in lines:
                line.sendall(data)
            with suppress(EOFError):
                handle.recv()

    return serve


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize("said", [b"", b"MiniRay!", b"MiniRay!" + struct.pack("<III", 3, 0, 1) + bytes(20)])
def test_a_server_that_stalls_in_the_handshake_is_left_at_the_deadline(said: bytes, encrypt: bool) -> None:
    if said.endswith(bytes(20)) and not encrypt:
        said = said.replace(struct.pack("<III", 3, 0, 1), struct.pack("<III", 3, 0, 0))
    with Worker(stalled_in_the_handshake(said)) as server:
        port = server.recv(timeout=PATIENCE_S)
        with pytest.raises(TimeoutError):
            RemoteWorker("127.0.0.1", port, key="ab" * 32, encrypt=encrypt, connect_timeout_s=0.5)


def half_a_message(line: Any) -> None:
    line.sendall(frame(MESSAGE, "x" * 1000)[:500])
    wait_for_end(line)


@pytest.mark.parametrize(("stall", "sealed"), [(wait_for_end, False), (half_a_message, True)])
def test_a_wait_for_a_server_that_stalls_ends_at_its_deadline(stall: Any, sealed: bool) -> None:
    with lying_server(data=stall, sealed=sealed) as server:
        worker = connect(server)
        with pytest.raises(TimeoutError):
            worker.recv(timeout=0.2)
        with pytest.raises(TimeoutError):
            worker.call_async("f").result(timeout=0.2)
        worker.kill()
        worker.close()


def stalling(size: int) -> Any:
    """A worker that answers its first call with the beginning of a reply, and then nothing."""
    rest = [size]

    def stalled(peer: Any, call: Any) -> None:
        if rest:
            peer.write(frame(adversary.REPLY, list(range(100)), number=call.number)[: rest.pop()])

    return adversary.hostile.working(stalled)


@pytest.mark.parametrize("size", [0, 15, 200])
def test_a_worker_that_stalls_costs_a_task_its_time_and_no_more(size: int) -> None:
    with Pool([Worker(stalling(size), shared_memory=False), Worker()]) as pool:
        limited = pool.options(timeout=2)  # the honest worker needs a millisecond

        def a_task_of_the_stalling_worker_ends() -> bool:
            outcome = limited.submit(abs, -1).exception(PATIENCE_S)
            assert outcome is None or isinstance(outcome, TaskTimeout)
            return outcome is not None

        until(a_task_of_the_stalling_worker_ends)
        assert pool.options(retries=3).submit(abs, -2).result(PATIENCE_S) == 2

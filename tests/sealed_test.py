"""Sealed connections: attackers on the path, and a second implementation of the wire format."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sealed_client
from hosts import Hosts
from waiting import until

import miniray
from miniray import RemoteWorker

ROOT = Path(__file__).parent.parent
SECRET = b"nobody else may read this"
PATIENCE_S = 60
CONTROL_ANSWER = bytes(4 + 4 + len("{}") + 16)  # what the server says on a worker's second connection, sealed


@pytest.fixture
def sealing_server(start_server: Callable[..., Any]) -> Any:
    return start_server("--work-fn", "work_functions.echo", "--encrypt")


def connected(server: Any, wish: int = 2) -> sealed_client.SealedClient:
    connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
    client = sealed_client.SealedClient(connection, wish)
    client.connection = connection  # type: ignore[attr-defined]
    return client


def close(client: Any) -> None:
    client.stream.close()
    getattr(client.stream, "raw", client.stream).close()
    client.connection.close()


NARROW = {"aes", "pclmulqdq", "sse4_2"}
FLAGS = {
    "common": set(),
    "narrow": NARROW,
    "wide": {*NARROW, "avx512f", "avx512bw", "avx512vl", "avx512dq", "vaes", "vpclmulqdq"},
}
HERE = set(Path("/proc/cpuinfo").read_text().split())
KINDS = [kind for kind, flags in FLAGS.items() if flags <= HERE]  # of cipher that this CPU can use


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wish", [1, 2])
def test_a_second_implementation_agrees(start_server: Callable[..., Any], wish: int, kind: str) -> None:
    sealing_server = start_server("--work-fn", "work_functions.echo", "--encrypt", MINIRAY_TEST_CIPHER=kind)
    client = connected(sealing_server, wish)
    client.prove(bytes.fromhex(sealing_server.key))
    assert client.ask(codec="json", work_fn="work_functions.echo")["pid"] > 0
    for message in (1, {"text": "x" * 200_000}, {"data": os.urandom(300_000)}, [1.5, None, "é"]):
        client.send(message)
        assert client.recv() == message
    close(client)
    client = connected(sealing_server, wish)
    client.prove(bytes.fromhex(sealing_server.key))
    client.ask(codec="json", work_fn="work_functions.say_much")
    client.send(0)
    assert client.stream.read(16)[2] == 2  # a frame that says that the work function has returned
    assert client.stream.read(1) == b""
    assert client.stream.ended  # type: ignore[attr-defined]
    close(client)


def test_the_second_implementation_makes_the_records_that_the_cpp_test_expects() -> None:
    """A key is replaced after two records there, and not after a million as on the wire."""
    direction = sealed_client.Direction(bytes(range(32)), records_per_key=2)
    records = [direction.seal(text, len(text)) for text in (b"one", b"two", b"three", b"four", b"five")]
    records.append(direction.seal(b"", sealed_client.LAST))
    expected = re.findall(r'"([0-9a-f]+)",\s+// record', (ROOT / "src/channel/seal_test.cpp").read_text())
    assert [record.hex() for record in records] == expected


def test_a_stream_goes_on_with_the_next_key(sealing_server: Any) -> None:
    client = connected(sealing_server)
    client.prove(bytes.fromhex(sealing_server.key))
    client.ask(codec="json", work_fn="work_functions.echo")
    stream: Any = client.stream
    first_key = stream.sending.key
    message = "x" * (sealed_client.RECORDS_PER_KEY + 100)
    text = json.dumps(message).encode()
    said = struct.pack("<2sBBIQ", b"MR", 0, 1, 0, len(text)) + text
    for at in range(len(said)):  # a record for each byte
        stream.raw.write(stream.sending.seal(said[at : at + 1], 1))
    stream.raw.flush()
    assert stream.sending.key != first_key
    assert client.recv() == message
    close(client)


def test_a_record_that_is_not_the_next_one_ends_the_worker(sealing_server: Any) -> None:
    for attack in ("changed", "repeated", "left out"):
        client = connected(sealing_server)
        client.prove(bytes.fromhex(sealing_server.key))
        client.ask(codec="json", work_fn="work_functions.echo")
        stream: Any = client.stream
        record = bytearray(stream.sending.seal(b"MR\0\1\0", 5))
        if attack == "changed":
            record[-1] ^= 1
        elif attack == "repeated":
            record *= 2
        else:
            record = bytearray(stream.sending.seal(b"MR\0\1\0", 5))
        stream.raw.write(record)
        stream.raw.flush()
        frames = rest_of(client)
        assert all(kind != 0 for kind in frames)  # the worker has received nothing that it could send back
        close(client)
    assert sealing_server.connect("work_functions.echo", encrypt=True).close() is None


def test_a_worker_finds_the_keys_of_no_other_connection(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """A worker's process has a copy of its server's memory, and could speak for the others with their keys."""
    server = start_server("--work-fn", "memory_work.dump", "--encrypt")
    others = []
    for request in ({"token": "one"}, {"token": "one", "kind": "control"}, {"token": "two"}, {"kind": "link"}):
        others.append(connected(server))
        others[-1].prove(bytes.fromhex(server.key))
        text = json.dumps(request).encode()
        others[-1].stream.write(struct.pack("<I", len(text)) + text)
        others[-1].stream.flush()
    assert all(other.stream.read(2) for other in others if other is not others[2])  # half a worker gets no answer yet
    with server.connect(encrypt=True) as worker:
        worker.send(str(tmp_path / "memory"))
        worker.recv(timeout=PATIENCE_S)
    keys = [direction.key for other in others for direction in (other.stream.sending, other.stream.receiving)]
    content = (tmp_path / "memory").read_bytes()
    assert len(content) > 1 << 20
    assert [number for number, key in enumerate(keys) if key in content] == []
    for other in others:
        close(other)


def ending(connection: socket.socket) -> bytes:
    """What the server says before it closes the connection."""
    said = b""
    try:
        while part := connection.recv(1 << 16):
            said += part
    except ConnectionError:
        pass
    return said


def rest_of(client: Any) -> list[int]:
    """The kinds of the frames that still come."""
    kinds = []
    try:
        while head := client.stream.read(16):
            kinds.append(head[2])
            client.stream.read(struct.unpack("<Q", head[8:])[0])
    except (sealed_client.Cut, ConnectionError):
        pass
    return kinds


class Proxy:
    """An attacker between a client and a server, who passes everything on, notes it, and may change it."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.seen = bytearray()
        self.change: Callable[[bytes, bool], bytes] | None = None  # what was said, and whether the client said it
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.to))
            self._sockets += [client, server]
            for one, other in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pass_on, args=(one, other, one is client)))
                self._threads[-1].start()

    def _pass_on(self, one: socket.socket, other: socket.socket, from_client: bool) -> None:
        try:
            while said := one.recv(1 << 16):
                self.seen += said
                other.sendall(self.change(said, from_client) if self.change else said)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (one, other):
                end.close()

    def cut(self) -> None:
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for one in self._sockets:
            one.close()


@pytest.fixture
def proxy_to(start_server: Callable[..., Any]) -> Iterator[Callable[..., tuple[Proxy, Any]]]:
    made: list[Proxy] = []

    def start(*arguments: str) -> tuple[Proxy, Any]:
        server = start_server("--work-fn", "work_functions.echo", *arguments)
        made.append(Proxy(server.port))
        return made[-1], server

    yield start
    for one in made:
        one.end()


@pytest.mark.parametrize("encrypt", [False, True])
def test_who_listens_on_the_path_reads_nothing(proxy_to: Callable[..., Any], encrypt: bool) -> None:
    proxy, server = proxy_to("--encrypt" if encrypt else "--no-encrypt")
    with RemoteWorker("127.0.0.1", proxy.port, "work_functions.echo", key=server.key, encrypt=encrypt) as worker:
        for message in ({"secret": SECRET}, {"array": np.frombuffer(SECRET * 100_000, dtype=np.uint8)}):
            worker.send(message)
            worker.recv(timeout=PATIENCE_S)
    assert (SECRET in proxy.seen) == (not encrypt)
    assert (b"work_functions" in proxy.seen) == (not encrypt)  # the request, too


def echo_twice(worker: Any, received: list[Any]) -> None:
    for _ in range(2):
        worker.send("the truth")
        received.append(worker.recv(timeout=PATIENCE_S))


def records_in(said: bytes) -> int:
    """How many whole records there are."""
    count = 0
    while len(said) >= 4 and len(said) >= (size := 4 + struct.unpack_from("<I", said)[0] + 16):
        count, said = count + 1, said[size:]
    return count


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_message_that_comes_with_the_server_s_answer_shows_at_fileno(
    proxy_to: Callable[..., Any], encrypt: bool
) -> None:
    """Its bytes stay in the socket, for those who wait there."""
    proxy, server = proxy_to("--encrypt" if encrypt else "--no-encrypt")
    held = bytearray()
    released = threading.Event()

    def hold(said: bytes, from_client: bool) -> bytes:
        if from_client or released.is_set() or said.startswith(b"MiniRay!") or len(said) <= len(CONTROL_ANSWER):
            return said
        held.extend(said)
        if records_in(held) < 2 if encrypt else b"the first message" not in held:
            return b""
        released.set()
        return bytes(held)

    proxy.change = hold
    with RemoteWorker("127.0.0.1", proxy.port, "work_functions.greet", key=server.key, encrypt=encrypt) as worker:
        assert select.select([worker], [], [], PATIENCE_S)[0] == [worker]
        assert worker.recv(timeout=PATIENCE_S) == "the first message"


@pytest.mark.parametrize("from_client", [True, False], ids=["to the worker", "to the coordinator"])
@pytest.mark.parametrize("what", ["changed", "injected", "repeated", "reflected", "swapped", "ended"])
def test_what_an_attacker_puts_into_the_stream_is_never_received(
    proxy_to: Callable[..., Any], what: str, from_client: bool
) -> None:
    proxy, server = proxy_to("--encrypt")
    noted = {True: b"", False: b""}  # by whether the client said it

    def note(said: bytes, client_said: bool) -> bytes:
        noted[client_said] = said
        return said

    def connect() -> Any:
        worker = RemoteWorker("127.0.0.1", proxy.port, "work_functions.echo", key=server.key, encrypt=True)
        proxy.change = note
        worker.send(1)
        assert worker.recv(timeout=PATIENCE_S) == 1
        proxy.change = None
        return worker

    with connect():
        of_another_connection = noted[from_client]
    with connect() as worker:
        instead = {
            "injected": struct.pack("<2sBBIQ", b"MR", 0, 1, 0, 1) + b"7",
            "reflected": noted[not from_client],
            "swapped": of_another_connection,
            "ended": struct.pack("<I", sealed_client.LAST) + bytes(16),
        }

        def change(said: bytes, client_said: bool) -> bytes:
            if client_said != from_client:
                return said
            if what == "changed":
                return said[:-1] + bytes([said[-1] ^ 1])
            if what == "repeated":
                return said + said
            return instead[what] + said

        proxy.change = change
        received: list[Any] = []
        with pytest.raises((EOFError, ConnectionError)) as raised:
            echo_twice(worker, received)
        assert re.search("on its way|impossible size", str(raised.value))  # the cause, also if the worker found it
        # Only what was repeated is true the first time. The worker may receive it and still end before it answers.
        assert received in ([[], ["the truth"]] if what == "repeated" else [[]])
        proxy.change = None
    assert server.connect("work_functions.echo", encrypt=True).close() is None


def test_a_recorded_connection_cannot_be_repeated(proxy_to: Callable[..., Any]) -> None:
    proxy, server = proxy_to("--encrypt")
    said: list[bytes] = []
    proxy.change = lambda text, client_said: (said.append(text) if client_said else None, text)[1]
    with RemoteWorker("127.0.0.1", proxy.port, "work_functions.echo", key=server.key, encrypt=True) as worker:
        worker.send(1)
        worker.recv(timeout=PATIENCE_S)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as again:
        again.sendall(b"".join(said))
        assert ending(again).startswith(b"MiniRay!")
    assert until(lambda: "it has another key" in server.log)


def test_a_cut_is_told_from_an_end(proxy_to: Callable[..., Any]) -> None:
    proxy, server = proxy_to("--encrypt")
    with RemoteWorker("127.0.0.1", proxy.port, "work_functions.echo", key=server.key, encrypt=True) as worker:
        worker.send(1)
        assert worker.recv(timeout=PATIENCE_S) == 1
        proxy.cut()
        with pytest.raises(miniray.WorkerDied, match=r"gone|unreachable|was cut on the way"):
            worker.recv(timeout=PATIENCE_S)


@pytest.mark.parametrize("server_encrypts", [False, True])
def test_two_sides_that_differ_both_say_so(start_server: Callable[..., Any], server_encrypts: bool) -> None:
    server = start_server("--work-fn", "work_functions.echo", "--encrypt" if server_encrypts else "--no-encrypt")
    ours = "it encrypts its connections, and this side was told not to"
    theirs = "it was told not to encrypt"
    with pytest.raises(miniray.Refused, match=ours if server_encrypts else theirs):
        server.connect(encrypt=not server_encrypts)
    assert until(lambda: (theirs if server_encrypts else ours) in server.log)
    with server.connect(encrypt=None) as worker:  # within one machine, the server decides
        worker.send(1)
        assert worker.recv(timeout=PATIENCE_S) == 1


LISTENER = """
import socket, struct, sys
SO_RCVBUFFORCE, SOL_PACKET, ADD_MEMBERSHIP, PROMISCUOUS = 33, 263, 1, 1
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    wire.bind(("br0", 0))
    # also what one host sends to another
    every = struct.pack("iHH8s", socket.if_nametoindex("br0"), PROMISCUOUS, 0, bytes(8))
    wire.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, every)
    wire.settimeout(120)
    print("listening", flush=True)
    words = [word.encode() for word in sys.argv[1:]]
    heard = set()
    while words[-1] not in heard:
        packet = wire.recv(1 << 16)
        heard |= {word for word in words if word in packet}
    print(" ".join(word.decode() for word in words if word in heard), flush=True)
"""
WORDS = ["mr-message", "mr-broadcast", "mr-argument", "mr-result", "mr-group", "mr-last-word"]
SCRIPT = """
import socket
import numpy as np
from miniray import Cluster, Group, NodeConfig, Pool, create_group

def large(word):
    return np.frombuffer(word.encode() * 100_000, np.uint8)

def echo(handle):
    while True:
        handle.send(handle.recv())

def rank(handle):
    group = Group(handle)
    group.broadcast(large("mr-group").copy() if group.rank == 0 else np.zeros(len(large("mr-group")), np.uint8))
    handle.send("done")

def result_for(array):
    assert bytes(array[:11]) == b"mr-argument"
    return large("mr-result")

if __name__ == "__main__":
    nodes = [NodeConfig(name, 1, base_port=0) for name in ("mr-a", "mr-b")]
    with Cluster(nodes, progress=False, encrypt={encrypt}) as cluster:
        workers = cluster.start(echo)
        for worker in workers:
            worker.send("mr-message")
            assert worker.recv() == "mr-message"
        cluster.broadcast(large("mr-broadcast"))
        for worker in workers:
            assert len(worker.recv()) == len(large("mr-broadcast"))
        ranks = cluster.start(rank)
        create_group(ranks)
        assert [each.recv() for each in ranks] == ["done", "done"]
        with Pool(cluster) as pool:
            for size in pool.map(len, [large("mr-argument")] * 4):
                assert size == len(large("mr-argument"))
            pool.submit(result_for, large("mr-argument")).result()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        last.sendto(b"mr-last-word", ("10.77.0.11", 9))
"""


@pytest.mark.parametrize("encrypt", [None, False])
def test_a_cluster_seals_what_leaves_the_machine(hosts: Hosts, encrypt: bool | None) -> None:
    """Somebody listens on the bridge between the machines, and hears everything if nothing is sealed."""
    with hosts.testbed.popen(sys.executable, "-c", LISTENER, *WORDS, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        hosts.run(SCRIPT.format(encrypt=encrypt))
        heard = listener.stdout.readline().split()
    assert heard == (WORDS[-1:] if encrypt is None else WORDS)

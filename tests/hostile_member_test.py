"""A worker that has the key and lies: at worst it is lost itself, with an error that says what it sent. Every future is
settled, and the other workers go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import hostile
import pytest
from hostile import ATTACKS, RAISED, REPLY, UNKNOWN, VALUE, Peer, frame, working
from waiting import until

import miniray
from miniray import InboxFull, MessageTooLarge, Pool, ProtocolError, Worker, WorkerDied, wait_any

SETTLED_S = 60.0
# What a call of a liar may raise, because nobody knows which of its lies comes first: MiniRay's errors, the error of a
# function that is not there, and what pickle says of a pickle that is cut short. A TimeoutError is none of them.
OF_A_LIAR = (miniray.MiniRayError, LookupError, EOFError)


def square(x: int) -> int:
    return x * x


@pytest.fixture
def liar() -> Iterator[Callable[..., Worker]]:
    """Workers that answer each call with this."""
    made: list[Worker] = []

    def make(attack: hostile.Attack, **options: Any) -> Worker:
        # It reads no ring, in which its calls would come from the ninth on.
        made.append(Worker(working(attack), shared_memory=False, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.kill()
        worker.close()
    made.clear()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_pool_survives_a_member_that_sends(name: str, liar: Callable[..., Worker]) -> None:
    with Pool([liar(ATTACKS[name], inbox_bytes_max=1 << 24), Worker()]) as pool:
        futures = [pool.submit(square, number) for number in range(6)]
        outcomes = [future.exception(SETTLED_S) for future in futures]
        for error in outcomes:
            assert error is None or isinstance(error, OF_A_LIAR)
        with suppress(*OF_A_LIAR):  # of an item that the liar had
            assert len(list(pool.map(square, range(20), timeout=SETTLED_S))) == 20

        def the_other_answers() -> bool:
            """The liar may be quick, and get a task of its own each time."""
            pair = [pool.submit(square, 7) for _ in range(2)]
            return any(one.exception(SETTLED_S) is None and one.result() == 49 for one in pair)

        until(the_other_answers)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("text that is not UTF-8", ProtocolError, "worker .* sent a reply that cannot be read: .* not UTF-8"),
        ("a body that ends too early", ProtocolError, "ends too early at byte 2"),
        ("an impossible shape", ProtocolError, "an impossible shape"),
        ("an error that is no map", ProtocolError, r"no type, message and traceback: the list"),
        ("too many values", WorkerDied, "which is no map, with the values of a map"),
        ("a number that was never called", WorkerDied, "answered the call [0-9]+, which it was not given"),
        ("a call of its own", WorkerDied, "made a call, and a pool answers none"),
        ("a buffer to keep", WorkerDied, "sent a frame of kind 8, which only a worker gets"),
        ("dropped, without a reason", WorkerDied, 'with "dropped", and nobody dropped it'),
        ("missing definitions that there are not", WorkerDied, "lacks the definition .*, which it was never told of"),
        ("memory that shrinks", WorkerDied, "offered shared memory that cannot be used"),
        ("descriptors without end", WorkerDied, "descriptors that belong to no frame"),
        ("an unknown function, as null", WorkerDied, "begins with: null"),
    ],
)
def test_the_error_says_what_the_member_sent(
    name: str, kind: type[Exception], says: str, liar: Callable[..., Worker]
) -> None:
    with Pool([liar(ATTACKS[name])]) as pool:
        future = pool.submit(square, 3)
        with pytest.raises(kind, match=says):
            future.result(SETTLED_S)


@pytest.mark.parametrize("verb", [RAISED, UNKNOWN])
@pytest.mark.parametrize("kind", ["T\x1b[2J", "miniray.errors.TaskOutOfMemory"])
def test_errors_show_the_control_characters_of_a_worker_s_words(
    kind: str, verb: int, liar: Callable[..., Worker]
) -> None:
    described = {"type": kind, "message": "M\x1b[2J\x9b", "traceback": "TB\x1b]0;x\x07"}

    def attack(peer: Peer, call: hostile.Received) -> None:
        peer.write(frame(REPLY, described, number=call.number, verb=verb))

    with pytest.raises((LookupError, miniray.WorkerError, miniray.TaskOutOfMemory), match=r"M\\x1b\[2J\\x9b") as raised:
        liar(attack).call_remote("f")
    assert "\x1b" not in str(raised.value)
    if verb == RAISED:
        with (
            Pool([liar(attack)]) as pool,
            pytest.raises((miniray.WorkerError, miniray.TaskOutOfMemory), match=r"M\\x1b\[2J\\x9b") as raised,
        ):
            pool.submit(square, 3).result(SETTLED_S)
        assert "\x1b" not in str(raised.value)


def clear_the_screen() -> None:
    raise ValueError("\x1b[2J")


def test_an_exception_keeps_its_text_and_its_traceback_shows_control_characters() -> None:
    with Pool(1) as pool, pytest.raises(ValueError, match="2J") as raised:
        pool.submit(clear_the_screen).result(SETTLED_S)
    assert str(raised.value) == "\x1b[2J"
    cause = raised.value.__cause__
    assert isinstance(cause, miniray.RemoteTraceback)
    assert "\x1b[2J" in cause.text
    assert "\x1b" not in str(cause)
    assert r"ValueError: \x1b[2J" in str(cause)
    with Pool(1, pickle=False) as pool, pytest.raises(miniray.WorkerError, match=r"ValueError: \\x1b\[2J") as failed:
        pool.submit(clear_the_screen).result(SETTLED_S)
    assert "\x1b" not in str(failed.value)
    assert failed.value.message == "\x1b[2J"


def test_the_error_of_an_initializer_shows_control_characters() -> None:
    with Pool(1, initializer=clear_the_screen) as pool, pytest.raises(Exception, match=r"\\x1b\[2J") as raised:
        pool.submit(square, 3).result(SETTLED_S)
    assert "\x1b" not in str(raised.value)


def test_a_map_with_values_of_the_wrong_length_says_so(liar: Callable[..., Worker]) -> None:
    for name in (
        "no values",
        "too many values",
        "values that are no list",
        "values that are null",
        "values of one part",
    ):
        with (
            Pool([liar(ATTACKS[name])]) as pool,
            pytest.raises(ProtocolError, match=r"answered a map of 1 items with|in place of a pickle"),
        ):
            list(pool.map(square, [1], timeout=SETTLED_S))


def test_a_reply_that_cannot_be_read_is_counted_as_failed(liar: Callable[..., Worker]) -> None:
    with Pool([liar(ATTACKS["no body"])]) as pool:
        futures = [pool.submit(square, number) for number in range(3)]
        assert all(isinstance(future.exception(SETTLED_S), ProtocolError) for future in futures)
        assert (pool.status()["done"], pool.status()["failed"]) == (0, 3)


@pytest.mark.parametrize("name", ATTACKS)
def test_calls_of_a_worker_that_sends(name: str, liar: Callable[..., Worker]) -> None:
    worker = liar(ATTACKS[name], inbox_bytes_max=1 << 24)
    futures = []
    for number in range(3):
        with suppress(miniray.MiniRayError):  # the call itself may find what the worker has sent
            futures.append(worker.call_async("f", number))
    for future in futures:
        with suppress(TimeoutError, *OF_A_LIAR):
            future.result(timeout=0.2)
    worker.kill()
    for future in futures:  # none of them waits for ever
        with suppress(*OF_A_LIAR):
            future.result(timeout=SETTLED_S)
        assert future.done()


# Floods, and limits.


def flood(data: bytes) -> Callable[[Any], None]:
    def work(handle: Any) -> None:
        peer = Peer(handle)
        try:
            while True:
                peer.write(data)
        except OSError:
            os._exit(0)

    return work


REPLIES = frame(REPLY, b"\xc4\xff" + bytes(255), number=1, verb=VALUE) * 200
EMPTY_REPLIES = frame(REPLY, b"", number=1) * 2000
MESSAGES = frame(hostile.MESSAGE, b"\xc0") * 2000


@pytest.mark.parametrize("data", [REPLIES, EMPTY_REPLIES])
def test_a_flood_of_replies_fills_the_inbox_of_one_who_waits_for_a_message(data: bytes) -> None:
    with Worker(flood(data), inbox_bytes_max=1 << 20) as worker:
        with pytest.raises(InboxFull, match="calls and replies, which nobody has received, fill the inbox"):
            worker.recv()
        with pytest.raises(InboxFull):
            worker.recv(timeout=5)
        [ready] = wait_any([worker])
        assert ready is worker
        worker.kill()


def test_a_flood_of_messages_fills_the_inbox_of_one_who_waits_for_a_reply() -> None:
    with Worker(flood(MESSAGES), inbox_bytes_max=1 << 20) as worker:
        future = worker.call_async("f")
        with pytest.raises(InboxFull, match=r"Call recv\(\) first, or raise inbox_bytes_max"):
            future.result()
        assert worker.recv() is None  # they can be received as ever
        worker.kill()


def test_a_time_out_is_kept_during_a_flood() -> None:
    drops = frame(hostile.BELL) * 4000  # frames that are no message, and so fill nothing
    with Worker(flood(drops)) as worker:
        with pytest.raises(TimeoutError):
            worker.recv(timeout=0.5)
        worker.kill()


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def test_message_bytes_max_limits_both_directions() -> None:
    with Worker(echo, message_bytes_max=1_000_000) as worker:
        worker.send(b"x" * 900_000)
        assert len(worker.recv()) == 900_000
        with pytest.raises(MessageTooLarge, match="the limits are 1000000"):
            worker.send(b"x" * 1_100_000)
        assert worker.send("still there") is None
        assert worker.recv() == "still there"

    def large(handle: Any) -> None:
        Peer(handle).write(frame(hostile.MESSAGE, b"\xc0", entries=[(2_000_000, 0)]))
        handle.recv()

    with Worker(large, message_bytes_max=1_000_000) as worker:
        with pytest.raises(MessageTooLarge, match=r"worker .* announced a message of more than 1000000 bytes"):
            worker.recv()
        worker.kill()


def test_message_bytes_max_of_a_spawned_worker() -> None:
    import work_functions

    with Worker(work_functions.echo, start="spawn", message_bytes_max=1000, inbox_bytes_max=5000) as worker:
        worker.send("a")
        assert worker.recv() == "a"
        with pytest.raises(MessageTooLarge):
            worker.send("x" * 2000)


def test_message_bytes_max_of_a_server_and_of_a_remote_worker(start_server: Any) -> None:
    server = start_server("--work-fn", "work_functions.echo", "--message-bytes-max", "5000")
    with server.connect() as worker:  # the server's limit is its workers'
        worker.send("x" * 4000)
        assert len(worker.recv()) == 4000
        worker.send("x" * 6000)
        with pytest.raises(WorkerDied):  # its channel is gone, so only its standard error can say why
            worker.recv()
    until(lambda: "; the limit is 5000" in server.log)
    with server.connect(message_bytes_max=1000) as worker, pytest.raises(MessageTooLarge, match="limits are 1000"):
        worker.send("x" * 2000)


def test_message_bytes_max_of_a_pool() -> None:
    with Pool(1, message_bytes_max=100_000) as pool:
        assert len(pool.submit(bytes, 50_000).result(SETTLED_S)) == 50_000
        with pytest.raises(miniray.MiniRayError, match="limits are 100000"):
            pool.submit(bytes, 200_000).result(SETTLED_S)  # the worker refuses to send it
        with pytest.raises(miniray.MiniRayError, match="limits are 100000"):
            pool.submit(len, b"x" * 200_000).result(SETTLED_S)
        assert pool.submit(square, 3).result(SETTLED_S) == 9
    with Worker() as worker, pytest.raises(miniray.UsageError, match="give it to the cluster, or to each worker"):
        Pool([worker], message_bytes_max=5)


def test_announcing_memory_takes_none(liar: Callable[..., Worker]) -> None:
    """Bodies and buffers take memory as their bytes come."""

    def announce(peer: Peer, call: hostile.Received) -> None:
        peer.write(frame(hostile.MESSAGE, b"\xc7\x00\x02", entries=[(1 << 30, 0)], buffers=b"x" * 100_000))

    worker = liar(announce)
    before = _address_space_kib()
    worker.call_async("f")
    with pytest.raises(TimeoutError):
        worker.recv(timeout=0.2)
    assert _address_space_kib() - before < 256 << 10


def _address_space_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmSize"))

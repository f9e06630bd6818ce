"""Channels inside messages: workers that talk to each other."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest
from waiting import PATIENCE_S

from miniray import Channel, EndOfStream, Pool, UsageError, Worker


def relay(handle: Any) -> None:
    peer = handle.recv()["peer"]
    while True:
        peer.send(handle.recv())
        handle.send(peer.recv())


def test_two_workers_talk_without_the_coordinator() -> None:
    with Worker(relay) as one, Worker(relay) as two:
        left, right = Channel.pair()
        one.send({"peer": left})
        two.send({"peer": right})
        for number in range(20):
            one.send(number)
            two.send([number])
            assert one.recv(timeout=PATIENCE_S) == [number]
            assert two.recv(timeout=PATIENCE_S) == number


def test_an_end_that_was_sent_is_closed_here() -> None:
    here, there = Channel.pair()
    left, right = Channel.pair(codec="json")
    here.send({"nested": [left]})
    with pytest.raises(EndOfStream, match="this end of the channel was sent to another process"):
        left.send(1)
    with pytest.raises(UsageError, match="sent before"):
        here.send(left)
    received = there.recv()["nested"][0]
    received.send(2)
    assert right.recv(timeout=PATIENCE_S) == 2


def test_a_message_that_was_not_sent_gives_the_end_back() -> None:
    here, there = Channel.pair()
    left, right = Channel.pair()
    with pytest.raises(TypeError, match="cannot send"):
        here.send([left, object()])
    with pytest.raises(UsageError, match="sent before"):
        here.send([left, left])
    there.close()
    with pytest.raises(EndOfStream):
        here.send(left)
    left.send(1)
    assert right.recv(timeout=PATIENCE_S) == 1


def test_a_used_end_is_refused() -> None:
    here, _there = Channel.pair()
    left, _right = Channel.pair()
    left.send(1)
    with pytest.raises(UsageError, match="it was used here"):
        here.send(left)


def test_an_end_that_nobody_takes_is_closed() -> None:
    here, there = Channel.pair()
    left, right = Channel.pair()
    here.send({"peer": left})
    message = there.recv()
    del message
    with pytest.raises(EndOfStream):
        right.recv(timeout=PATIENCE_S)


def test_the_peer_of_a_worker_that_died_gets_the_end_of_the_stream() -> None:
    left, right = Channel.pair()
    with Worker(relay) as worker:
        worker.send({"peer": left})
        worker.send("taken")
        assert right.recv(timeout=PATIENCE_S) == "taken"
        worker.kill(signal.SIGKILL)
        with pytest.raises(EndOfStream, match="closed the channel"):
            right.recv(timeout=PATIENCE_S)


def test_a_pool_refuses_a_channel() -> None:
    left, _right = Channel.pair()
    with Pool(1) as pool, pytest.raises(TypeError, match="Channel"):
        pool.submit(print, left).result(timeout=PATIENCE_S)


def test_a_peer_behind_tcp_is_refused() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    left, right = Channel.pair()
    with Channel(one.detach()) as far, Channel(other.detach()):
        with pytest.raises(UsageError, match="reached through TCP"):
            far.send(left)
        left.send(1)
        assert right.recv(timeout=PATIENCE_S) == 1

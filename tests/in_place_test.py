"""Arrays of miniray.empty(): sent without a copy, read-only afterwards, and private to each receiver."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import miniray
from miniray import Channel, Worker

MANY = 1_000_000


def in_place(array: Any) -> bool:
    """Whether the array's memory is memory that miniray.empty() has made, here or in the sender."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= address < end:
            return "memfd:miniray-array" in line
    return False


def counted() -> Any:
    array = miniray.empty(MANY, "float32")
    array[:] = np.arange(MANY)
    return array


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def doubles(handle: Any) -> None:
    while True:
        array = handle.recv()["a"]
        array *= 2  # its own copy
        answer = miniray.empty(array.shape, array.dtype)
        answer[:] = array
        handle.send({"a": answer})


def test_an_array_arrives_without_a_copy_and_is_read_only_afterwards() -> None:
    here, there = Channel.pair()
    array = counted()
    part = array[10:]
    here.send({"a": part})
    received = there.recv()["a"]
    assert in_place(received)
    assert received.flags.writeable
    np.testing.assert_array_equal(received, np.arange(10, MANY))
    for frozen in (array, part):
        with pytest.raises(ValueError, match="read-only"):
            frozen[0] = 1
    received[:] = -1
    assert array[MANY - 1] == MANY - 1
    assert not array[5:].flags.writeable


def test_memory_is_used_again() -> None:
    here, there = Channel.pair()
    array = counted()
    address = array.__array_interface__["data"][0]
    here.send(array)
    received = there.recv()
    del array
    other = miniray.empty(MANY, "float32")
    other[:] = -1
    assert other.__array_interface__["data"][0] != address
    assert received[7] == 7
    del received
    assert address in (miniray.empty(MANY, "float32").__array_interface__["data"][0] for _ in range(2))


def test_a_received_array_is_sent_on_without_a_copy_unless_it_was_changed() -> None:
    with Worker(echo) as worker:
        worker.send(counted())
        back = worker.recv()
        assert in_place(back)
        np.testing.assert_array_equal(back, np.arange(MANY))
        worker.send(back)
        again = worker.recv()
        assert in_place(again)
        assert back.flags.writeable
        back[3] = -3
        worker.send(back)
        changed = worker.recv()
        assert changed[3] == -3
        assert again[3] == 3


def test_workers_answer_in_place() -> None:
    with Worker(doubles) as worker:
        for factor in (1, 2, 3):
            array = miniray.empty((1000, 1000), np.float64)
            array[:] = factor
            worker.send({"a": array})
            answer = worker.recv()["a"]
            assert in_place(answer)
            assert (answer == 2 * factor).all()
            assert (array == factor).all()


def test_an_array_from_before_the_fork_is_a_copy_in_the_worker() -> None:
    array = counted()

    def work(handle: Any) -> None:
        array[5] = -5
        handle.send(array)

    with Worker(work) as worker:
        assert worker.recv()[5] == -5
        assert array[5] == 5
        array[5] = 6


def test_through_tcp_the_array_stays_writable() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    with Channel(one.detach()) as here, Channel(other.detach()) as there:
        array = miniray.empty(100_000, "int16")
        array[:] = 3
        here.send(array)
        assert (there.recv() == 3).all()
        array[0] = 1


def test_a_tensor_that_shares_the_memory_is_copied() -> None:
    torch = pytest.importorskip("torch")
    here, there = Channel.pair()
    tensor = torch.from_numpy(counted())
    here.send(tensor)
    received = there.recv()
    tensor[0] = -1
    assert received[0] == 0


def test_a_send_that_fails_leaves_the_array_writable() -> None:
    here, there = Channel.pair()
    array = counted()
    with pytest.raises(TypeError, match="cannot send"):
        here.send([array, object()])
    array[0] = 1
    there.close()
    with pytest.raises(miniray.EndOfStream):
        here.send(array)
    array[0] = 1


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3), "uint8"), (7, np.int32), ((), "complex64"), ((0, 4), bool), ((np.int64(2), 3), "<f4"), (4, "int")],
)
def test_shapes_and_dtypes(shape: Any, dtype: Any) -> None:
    array = miniray.empty(shape, dtype)
    assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
    assert array.dtype == np.dtype(dtype)
    assert array.flags.writeable


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="integers that are not negative"):
        miniray.empty((2, -1))
    with pytest.raises(TypeError, match="no arrays of str"):
        miniray.empty(3, "str_")


def test_an_array_that_the_machine_has_no_room_for_is_refused() -> None:
    """Before any memory is taken: otherwise the kernel would kill other processes."""
    with pytest.raises(
        OSError, match=r"cannot make an array of 35184372088832 bytes, because this machine has only"
    ) as e:
        miniray.empty(1 << 45, "uint8")
    assert e.value.errno == errno.ENOMEM

"""One suite for every kind of channel, from Python: what is sent comes back, bit for bit."""

from __future__ import annotations

import math
import random
import socket
import struct
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from missing import NOT_HERE

import miniray
from miniray import Channel, Worker

try:
    import torch
except ImportError:  # make test installs it; a wheel's own tests may be without
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="needs torch")

KINDS = [
    pytest.param((transport, codec), id=f"{transport}-{codec}")
    for transport in ("shared_memory", "stream", "tcp", "remote")
    for codec in ("msgpack", "json")
]


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


@pytest.fixture(params=KINDS)
def peer(request: pytest.FixtureRequest, server: Any) -> Iterator[Any]:
    """A conversation with somebody who sends everything back."""
    transport, codec = request.param
    if transport == "remote":
        with server.connect("array_work.echo", codec=codec) as worker:
            yield worker
        return
    if transport != "tcp":
        with Worker(echo, codec=codec, shared_memory=transport == "shared_memory") as worker:
            yield worker
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo_over_tcp(handle: Any) -> None:
            echo(Channel(socket.create_connection(listener.getsockname()).detach(), codec=codec))

        with Worker(echo_over_tcp) as worker:
            connection, _ = listener.accept()
            with Channel(connection.detach(), codec=codec) as channel:
                yield channel
            with pytest.raises(miniray.WorkerError, match="EndOfStream"):
                worker.recv()


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def identical(a: Any, b: Any) -> bool:
    """The same type and value, down to the bits of NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return bits(a) == bits(b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(identical, a.values(), b.values()))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if torch is not None and isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    return bool(a == b)


def round_trip(peer: Any, message: Any) -> Any:
    peer.send(message)
    return peer.recv()


PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 - 1,
    0.0,
    -0.0,
    1.0,
    0.1,
    1e308,
    5e-324,
    math.inf,
    -math.inf,
    math.nan,
    struct.unpack("<d", bytes.fromhex("010000addef8ff7f"))[0],  # a NaN with a payload
    "",
    "text",
    "nul\0inside",
    '"\\\n\t\x01 é 漢 😀',
    b"",
    b"\x00\xff",
    b"x" * 100_000,
    [],
    {},
    [1, "two", 3.0, None, [True, [False]]],
    {"a": {"b": {"c": [1, 2, {"d": None}]}}},
    {1: "int", 1.5: "float", None: "none", b"b": "bytes", "s": "str", False: "bool"},
    {"$array": 1},
    {"$map": {"$float": "x"}, "plain": 1},
    [0.5] * 1000,
    list(range(-500, 500)),
    [*range(500), 2**64 - 1],
    [*range(500), True],
    [0.5] * 500 + [1],
]


@pytest.mark.parametrize("message", PLAIN, ids=lambda message: repr(message)[:40])
def test_plain_values_come_back_as_they_were(peer: Any, message: Any) -> None:
    assert identical(round_trip(peer, message), message)


def test_relatives_of_plain_types_arrive_as_plain_ones(peer: Any) -> None:
    class Colour(IntEnum):
        RED = 3

    point = namedtuple("point", "x y")(1, 2)
    sent = [
        (1, 2),
        point,
        OrderedDict(a=1),
        bytearray(b"x"),
        memoryview(b"yz")[::1],
        Colour.RED,
        memoryview(b"abcd")[::2],
    ]
    assert identical(round_trip(peer, sent), [[1, 2], [1, 2], {"a": 1}, b"x", b"yz", 3, b"ac"])


def test_numpy_scalars_arrive_as_numbers(peer: Any) -> None:
    sent = [
        np.float64(0.1),
        np.float32(0.5),
        np.float16(2),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.str_("s"),
    ]
    assert identical(round_trip(peer, sent), [0.1, 0.5, 2.0, -3, 2**64 - 1, True, "s"])
    assert identical(round_trip(peer, np.complex64(1 + 2j)), np.array(1 + 2j, np.complex64))


DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4), (0,), (3, 0, 2), (200, 200)], ids=str)
def test_numpy_arrays_of_every_dtype(peer: Any, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 2, size=shape).astype(dtype)
    assert identical(round_trip(peer, array), array)


def test_arrays_in_any_memory_order(peer: Any) -> None:
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for view in (array.T, array[::2, ::-1], np.asfortranarray(array), array[:, 1], array.astype(">f4")):
        assert identical(round_trip(peer, view), np.ascontiguousarray(view, dtype=np.float32))
    frozen = array.copy()
    frozen.flags.writeable = False
    assert identical(round_trip(peer, frozen), array)


@needs_torch
@pytest.mark.parametrize("dtype", [*DTYPES[:6], "float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_tensors_arrive_as_tensors(peer: Any, dtype: str) -> None:
    for shape in ((), (3,), (0, 2), (64, 1000)):
        tensor = torch.ones(shape).to(getattr(torch, dtype))
        assert identical(round_trip(peer, tensor), tensor)


@needs_torch
def test_tensors_of_any_layout(peer: Any) -> None:
    tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for view in (
        tensor.T,
        tensor[::2],
        tensor.clone().requires_grad_(),
        torch.view_as_complex(torch.rand(3, 2)).conj(),
    ):
        assert identical(round_trip(peer, view), view.detach().resolve_conj().contiguous())


def test_received_arrays_are_the_receivers_own(peer: Any) -> None:
    first = round_trip(peer, np.zeros(100_000))
    kept = first[10:20]
    first += 1
    del first
    second = round_trip(peer, np.full(100_000, 7.0))
    assert (kept == 1).all()
    assert (second == 7).all()


REFUSED = [
    (
        {"batch": [1, 2, 3, {1}]},
        TypeError,
        'cannot send a set at msg["batch"][3]: send a list; calls and pools can send it as it is',
    ),
    (
        object(),
        TypeError,
        "cannot send an object at msg: messages hold dict, list, str, int, float, bool, None, bytes and arrays; "
        "calls and pools can send it as it is",
    ),
    (
        [[1, 2j]],
        TypeError,
        "cannot send a complex at msg[0][1]: send [it.real, it.imag], or a numpy array; "
        "calls and pools can send it as it is",
    ),
    ({"n": 2**64}, OverflowError, 'cannot send an int that does not fit 64 bits at msg["n"]: send it as a str'),
    ({"n": -(2**63) - 1}, OverflowError, 'cannot send an int that does not fit 64 bits at msg["n"]: send it as a str'),
    ([*range(100), 2**64], OverflowError, "cannot send an int that does not fit 64 bits at msg[100]: send it as a str"),
    (
        {"x": "\ud800"},
        TypeError,
        "cannot send a str that is not valid Unicode ('\\ud800') at msg[\"x\"]: send bytes; of a file name, "
        "os.fsencode(it)",
    ),
    (
        {(1, 2): 3},
        TypeError,
        "cannot send a tuple as a key at msg[(1, 2)]: keys are str, int, float, bool, bytes or None",
    ),
    ({"a": np.array(["x"])}, TypeError, 'cannot send an array of <U1 at msg["a"]: convert it to a numeric dtype'),
    ({"a": np.array([None])}, TypeError, 'cannot send an array of object at msg["a"]: convert it to a numeric dtype'),
    (np.longdouble(1), TypeError, "cannot send a numpy.longdouble at msg: convert it to a number or a str"),
    (np.ma.array([1], mask=[True]), TypeError, "cannot send a masked array at msg: send its data and its mask"),
]
if torch is not None:
    REFUSED += [
        (
            torch.ones(2).to_sparse(),
            TypeError,
            "cannot send a tensor of layout torch.sparse_coo at msg: send tensor.to_dense()",
        ),
        (torch.ones(2, device="meta"), TypeError, "cannot send a tensor on meta at msg: send tensor.cpu()"),
    ]


@pytest.mark.parametrize(("message", "error", "text"), REFUSED, ids=[case[2][:50] for case in REFUSED])
def test_what_cannot_be_sent_is_named_and_the_channel_is_still_good(
    peer: Any, message: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        peer.send(message)
    assert str(caught.value) == text
    assert round_trip(peer, "still good") == "still good"


def test_depth_is_limited_not_the_stack(peer: Any) -> None:
    deep: Any = []
    for _ in range(miniray.limits.depth_max - 1):
        deep = [deep]
    assert round_trip(peer, deep) == deep
    with pytest.raises(TypeError, match="nested deeper than 256 levels"):
        peer.send([deep])
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(TypeError, match="does it contain itself"):
        peer.send(cycle)


def random_message(source: random.Random, depth: int = 3) -> Any:
    leaves = [
        lambda: None,
        lambda: source.random() < 0.5,
        lambda: source.randint(-(2**63), 2**64 - 1),
        lambda: source.randint(-200, 200),
        lambda: struct.unpack("<d", source.randbytes(8))[0],
        lambda: "".join(source.choice('ab$"\\\n\0é漢😀') for _ in range(source.randint(0, 12))),
        lambda: source.randbytes(source.choice([0, 3, 40, 5000])),
        lambda: np.frombuffer(source.randbytes(64), source.choice(["i1", "u2", "i4", "f8"])).copy(),
        lambda: [source.random() for _ in range(source.randint(0, 80))],
        lambda: [source.randint(-(2**63), 2**63 - 1) for _ in range(source.randint(0, 80))],
    ]
    if depth == 0 or source.random() < 0.3:
        return source.choice(leaves)()
    if source.random() < 0.5:
        return [random_message(source, depth - 1) for _ in range(source.randint(0, 5))]
    keys = [leaves[5](), source.randint(0, 99), None, source.random(), source.randbytes(3)]
    return {source.choice(keys): random_message(source, depth - 1) for _ in range(source.randint(0, 5))}


def test_random_messages(peer: Any, request: pytest.FixtureRequest) -> None:
    """Others for each peer: 10,000 in each codec."""
    source = random.Random(request.node.name)
    for number in range(2_500):
        message = random_message(source)
        if not identical(round_trip(peer, message), message):
            pytest.fail(f"message {number} came back changed: {message!r}")


def test_both_sides_may_send_more_than_the_sockets_hold(peer: Any) -> None:
    message = {"array": np.arange(100_000.0), "bytes": b"x" * 1_000_000, "text": "y" * 500_000}
    for _ in range(30):
        peer.send(message)
    for _ in range(30):
        assert identical(peer.recv(), message)


def test_a_time_out_loses_nothing(peer: Any) -> None:
    with pytest.raises(TimeoutError, match="nothing arrived"):
        peer.recv(timeout=0.01)
    assert round_trip(peer, 1) == 1
    with pytest.raises(TimeoutError):
        peer.recv(timeout=0)


def test_a_message_above_max_size_stays(peer: Any) -> None:
    peer.send(b"x" * 100_000)
    with pytest.raises(miniray.MessageTooLarge, match=r"bytes, and max_size is 1000\. The message is kept"):
        peer.recv(max_size=1000)
    assert peer.recv() == b"x" * 100_000


def test_send_large_and_recv_large(peer: Any) -> None:
    peer.send_large(b"z" * 10_000_000)
    assert peer.recv_large() == b"z" * 10_000_000


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


@pytest.mark.skipif(available_bytes() < 16 * 2**30, reason=NOT_HERE + "16 GiB of free memory")
def test_an_array_of_more_than_4_gib() -> None:
    def checksum(handle: Any) -> None:
        array = handle.recv()
        handle.send([array.nbytes, int(array[0]), int(array[-1])])

    with Worker(checksum) as worker:
        array = np.zeros(2**32 + 8, np.uint8)
        array[0], array[-1] = 3, 4
        worker.send(array)
        assert worker.recv() == [2**32 + 8, 3, 4]

"""Whatever a worker does that has the key: every future is settled, an honest worker beside it goes on answering, and
nothing is left. MINIRAY_ADVERSARY_SEEDS sets how many seeds each test tries; a failure names its seed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import wait
from contextlib import suppress

import adversary
import numpy as np
import pytest

from miniray import Channel, Cluster, MiniRayError, NodeConfig, Pool, Worker

SETTLED_S = 60.0
STEP = 10  # seeds in one test
# What a call of a liar may raise: MiniRay's errors, and the error of a function that is not there.
OF_A_LIAR = (MiniRayError, LookupError)


def square(x: int) -> int:
    return x * x


def groups(count: int) -> list[range]:
    all_of_them = adversary.seeds(count)
    return [all_of_them[at : at + STEP] for at in range(0, len(all_of_them), STEP)]


def in_a_pool(seed: int) -> None:
    liar = Worker(adversary.work(seed), inbox_bytes_max=1 << 22, shared_memory=seed % 2 == 0)
    with Pool([liar, Worker()]) as pool:
        futures = [pool.submit(square, number) for number in range(8)]
        results = pool.map(square, range(30), chunksize=1 + seed % 4)
        wait(futures, timeout=0.2)
        with suppress(ProcessLookupError):
            os.kill(liar.pid, signal.SIGKILL)  # a call of the liar may take for ever, as any call may
        for future in futures:
            error = future.exception(SETTLED_S)
            assert error is None or isinstance(error, OF_A_LIAR), (seed, error)
        with suppress(*OF_A_LIAR):  # of an item that the liar had
            list(results)
        assert pool.options(retries=5).submit(square, 9).result(SETTLED_S) == 81, seed


def in_calls(seed: int) -> None:
    with Worker() as honest:
        honest.register(square)
        liar = Worker(adversary.work(seed), inbox_bytes_max=1 << 22, shared_memory=seed % 2 == 0)
        futures = []
        for number in range(6):
            with suppress(*OF_A_LIAR):  # the call itself may find what the liar has sent
                futures.append(liar.call_async("f", number))
        for future in futures:
            with suppress(TimeoutError, *OF_A_LIAR):
                future.result(timeout=0.05)
            assert honest.call_remote("square", seed) == seed * seed
        with suppress(TimeoutError, *OF_A_LIAR):
            liar.recv(timeout=0.05)
        liar.kill()
        for future in futures:
            try:
                future.result(timeout=SETTLED_S)
            except TimeoutError:
                raise AssertionError(f"a future is not settled; seed {seed}") from None
            except OF_A_LIAR:
                pass
        liar.close()


def in_messages(seed: int) -> None:
    """Frames of any kind, mutated, to one who only receives."""
    random = adversary.random.Random(seed)
    theirs, ours = adversary.socket.socketpair()
    victim = Channel(ours.detach(), inbox_bytes_max=1 << 20, message_bytes_max=1 << 20)
    theirs.setblocking(False)
    try:
        for _ in range(20):
            data = bytearray(
                adversary.frame(
                    random.randrange(12),
                    random.choice(adversary.BODIES),
                    number=random.randint(-2, 9),
                    entries=[(random.choice([0, 8, 1 << 40]), random.choice([0, 0, 1, 1 << 60, 1 << 61, 1 << 62]))]
                    * random.randint(0, 2),
                )
            )
            if random.random() < 0.3:
                data[random.randrange(len(data))] = random.randrange(256)
            try:
                theirs.sendall(data)
            except OSError:
                break
            try:
                victim.recv(timeout=0)
            except (MiniRayError, TimeoutError, EOFError, OSError):
                pass
    finally:
        victim.close()
        theirs.close()


@pytest.mark.parametrize("seeds", groups(150), ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_a_pool(seeds: range) -> None:
    for seed in seeds:
        in_a_pool(seed)


@pytest.mark.parametrize("seeds", groups(150), ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_calls(seeds: range) -> None:
    for seed in seeds:
        in_calls(seed)


@pytest.mark.parametrize("seeds", groups(500), ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_messages(seeds: range) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for seed in seeds:
        in_messages(seed)
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("seeds", groups(20), ids=lambda seeds: f"{seeds.start}-{seeds.stop}")
def test_what_a_worker_says_to_its_server_costs_the_others_nothing(seeds: range) -> None:
    """A worker asks its server for large buffers, and can ask for anything."""
    large = np.arange(100_000)
    with Cluster([NodeConfig("localhost", 2, base_port=0)], progress=False) as cluster:
        for seed in seeds:
            liar, honest = cluster.start("adversary.ask_oddly")
            liar.send(seed)
            honest.send(None)
            for worker in (liar, honest):
                assert worker.recv(timeout=SETTLED_S) == "ready"
            for number in range(3):
                cluster.broadcast([seed, number, large], workers=[liar, honest])
                assert honest.recv(timeout=SETTLED_S)[:2] == [seed, number]
            for worker in (liar, honest):
                worker.kill()
                worker.close()

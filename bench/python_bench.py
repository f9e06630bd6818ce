"""Times the Python API and its yardsticks. ``python_bench.py ROW COUNT`` prints nanoseconds per operation."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import miniray
from miniray import RemoteWorker, Worker, WorkerServer

SMALL = {"cmd": "echo", "payload": "x" * 32}
LARGE_BYTES = 8 << 20


def per_operation(count: int, operation: Callable[[], Any]) -> float:
    for _ in range(max(3, count // 10)):
        operation()
    start = time.perf_counter_ns()
    for _ in range(count):
        operation()
    return (time.perf_counter_ns() - start) / count


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def round_trips(peer: Any, message: Any, count: int) -> float:
    def once() -> None:
        peer.send(message)
        peer.recv()

    return per_operation(count, once)


def local(message: Any, count: int, **options: Any) -> float:
    with Worker(echo, **options) as worker:
        return round_trips(worker, message, count)


def serve(handle: Any) -> None:
    server = WorkerServer("127.0.0.1", 0, echo)
    handle.send(server.port)
    server.serve_forever()


def tcp(message: Any, count: int) -> float:
    with Worker(serve) as server:
        with RemoteWorker("127.0.0.1", server.recv()) as worker:
            took = round_trips(worker, message, count)
        server.kill()
    return took


def large_array() -> Any:
    import numpy

    return numpy.random.default_rng(1).random(LARGE_BYTES // 8)


def million_floats() -> list[float]:
    values: list[float] = large_array()[:1_000_000].tolist()
    return values


def json_lines(count: int) -> float:
    """How the first version of MiniRay sent messages: one line of JSON in each direction."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        with there.makefile("r") as reader, there.makefile("w") as writer:
            for line in reader:
                writer.write(json.dumps(json.loads(line)) + "\n")
                writer.flush()
        os._exit(0)
    there.close()
    message = million_floats()
    with here.makefile("r") as reader, here.makefile("w") as writer:

        def once() -> None:
            writer.write(json.dumps(message) + "\n")
            writer.flush()
            json.loads(reader.readline())

        start = time.perf_counter_ns()
        for _ in range(count):
            once()
        took = (time.perf_counter_ns() - start) / count
    here.close()
    os.waitpid(child, 0)
    return took


def start_worker(count: int) -> float:
    def once() -> None:
        worker = Worker(lambda handle: handle.send(handle.recv()))
        worker.send(1)
        worker.recv()
        worker.wait()

    return per_operation(count, once)


def start_bare(count: int) -> float:
    def once() -> None:
        here, there = socket.socketpair()
        child = os.fork()
        if child == 0:
            there.send(there.recv(1))
            os._exit(0)
        here.send(b"x")
        here.recv(1)
        os.waitpid(child, 0)
        here.close()
        there.close()

    return per_operation(count, once)


def wait_any_of(workers: int) -> Callable[[int], float]:
    def run(count: int) -> float:
        everyone = [Worker(echo, shared_memory=False) for _ in range(workers)]
        number = 0

        def once() -> None:
            nonlocal number
            number += 1
            chosen = everyone[number % 4 * (workers // 4)]  # always the same four, so their memory is in the cache
            chosen.send(number)
            (ready,) = miniray.wait_any(everyone)
            ready.recv()

        took = per_operation(count, once)
        for worker in everyone:
            worker.kill()
        for worker in everyone:
            worker.close()
        return took

    return run


ROWS: dict[str, Callable[[int], float]] = {
    "small": lambda count: local(SMALL, count),
    "small_sleeping": lambda count: local(SMALL, count, spin_us=0),
    "tcp": lambda count: tcp(SMALL, count),
    "large": lambda count: local(large_array(), count),
    "large_tcp": lambda count: tcp(large_array(), count),
    "floats": lambda count: local(million_floats(), count),
    "json_lines": json_lines,
    "start": start_worker,
    "start_bare": start_bare,
    "wait_any_4": wait_any_of(4),
    "wait_any_4000": wait_any_of(4000),
    "wait_any_40": wait_any_of(40),
}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ROWS:
        sys.exit(f"usage: python_bench.py ROW COUNT, where ROW is one of: {', '.join(ROWS)}")
    print(f"{ROWS[sys.argv[1]](int(sys.argv[2])):.1f}")

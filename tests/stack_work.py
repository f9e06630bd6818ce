"""What the workers of tests/stack_test.py do: each says that it has begun, and then does one thing for long."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import Any

import miniray

LONG_S = 1000.0


def receive(handle: Any) -> None:
    handle.send("begun")
    while True:
        handle.send(handle.recv())


def asleep() -> None:
    time.sleep(LONG_S)


def sleep(handle: Any) -> None:
    handle.send("begun")
    asleep()


def before_a_lock(lock: threading.Lock) -> None:
    lock.acquire()


def wait_for_lock(handle: Any) -> None:
    lock = threading.Lock()
    lock.acquire()
    handle.send("begun")
    before_a_lock(lock)


def counting(handle: Any) -> None:
    count = 0
    while True:
        count += 1


def compute(handle: Any) -> None:
    handle.send("begun")
    counting(handle)


def in_another_thread() -> None:
    asleep()


def with_threads(handle: Any) -> None:
    threading.Thread(target=in_another_thread, daemon=True).start()
    receive(handle)


def reading(descriptor: int) -> list[int]:
    """Python's own calls begin anew when a signal breaks them; this one does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    return [libc.read(descriptor, ctypes.create_string_buffer(1), 1), ctypes.get_errno()]


def read_pipe(handle: Any) -> None:
    path = handle.recv()
    handle.send("begun")
    handle.send(reading(os.open(path, os.O_RDONLY)))


def sleep_a_while(handle: Any) -> None:
    """Says how long it slept."""
    handle.send("begun")
    begun_s = time.monotonic()
    time.sleep(handle.recv())
    handle.send(time.monotonic() - begun_s)


def have_a_worker(handle: Any) -> None:
    """Tells what its own worker is doing, as often as it is asked."""
    with miniray.Worker(compute) as own:
        own.recv()
        handle.send("begun")
        while True:
            handle.recv()
            handle.send(own.stack())


def crash(handle: Any) -> None:
    handle.send("begun")
    before_the_crash(handle)
    os.kill(os.getpid(), signal.SIGSEGV)


def before_the_crash(handle: Any) -> None:
    handle.recv()


def fail(handle: Any) -> None:
    raise ValueError("no gradient")

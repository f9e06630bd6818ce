"""What the servers of the tests run; the server imports it by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def double(handle: Any) -> None:
    while True:
        handle.send(2 * handle.recv())


def fail(handle: Any) -> None:
    raise KeyError(handle.recv())


def exit_with(handle: Any) -> None:
    sys.exit(handle.recv())


def kill_itself(handle: Any) -> None:
    os.kill(os.getpid(), handle.recv())


def greet(handle: Any) -> None:
    handle.send("the first message")
    handle.recv()


def say_much(handle: Any) -> None:
    """Ends at once after it has sent more than the sockets hold."""
    for number in range(handle.recv()):
        handle.send([number, b"x" * 100_000])


def print_lines(handle: Any) -> None:
    print("a line of a worker")
    print("and one for the errors", file=sys.stderr)
    handle.send("printed")
    handle.recv()


def describe(handle: Any) -> None:
    """The process, as far as the tests ask."""
    handle.send(
        {
            "pid": os.getpid(),
            "environment": dict(os.environ),
            "signals": [signal.getsignal(number) is signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGPIPE)],
            "descriptors": len(os.listdir("/proc/self/fd")),
        }
    )


def stubborn(handle: Any) -> None:
    """Ignores every polite request, never looks at its channel, and has a child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"])
    handle.send([os.getpid(), child.pid])
    while True:
        pass


def with_children(handle: Any) -> None:
    """Waits for messages, and has children and grandchildren."""
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    handle.send([os.getpid(), child.pid, int(child.stdout.readline())])
    echo(handle)


not_a_function = 3

"""What a worker of a notebook prints: it goes through a pipe of the worker's own to the kernel, which shows it.

The kernel's own streams are of no use in a worker: they send every piece of a line by itself, out of order, and to the
cell in which the worker was started. This is the worker's side; _notebook.py has the kernel's.
"""

from __future__ import annotations

import io
import os
import socket
import sys
from typing import Any

_relay: int | None = None  # in the kernel and in its workers: where a new process sends the pipes that it prints to
_joined_by = 0  # the process whose pipes are in place


def announce(relay: int) -> None:
    """In the kernel: from now on, workers join this relay."""
    global _relay, _joined_by
    _relay, _joined_by = relay, os.getpid()


def relay() -> int | None:
    """A descriptor for a program that this process starts, which shall `join`."""
    return _relay


def join(relay: int) -> None:
    """In a process that was started: standard output and errors become pipes that the kernel reads."""
    global _relay, _joined_by
    _relay, _joined_by = relay, os.getpid()
    with socket.socket(fileno=os.dup(relay)) as control:
        for number, name in ((1, "stdout"), (2, "stderr")):
            their_end, my_end = os.pipe()
            try:
                socket.send_fds(control, [name.encode()], [their_end])
            except OSError:
                return  # the kernel is gone, and so is this process in a moment
            finally:
                os.close(their_end)
            os.dup2(my_end, number)
            os.close(my_end)
            _print_to(number, name)


def join_after_fork() -> None:
    """In a forked worker, before its work. Every process has pipes of its own, so that lines stay whole."""
    if _relay is not None and _joined_by != os.getpid():
        notebook = sys.modules.get("miniray._notebook")
        if notebook is not None:
            notebook.close_after_fork()
        join(_relay)


def _print_to(number: int, name: str) -> None:
    """Whole lines at once. What holds the old stream, as a handler of logging does, prints to the new one too."""
    old: Any = getattr(sys, name)
    new = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True)
    if type(old).__module__.partition(".")[0] == "ipykernel":
        for method in ("write", "writelines", "flush", "fileno"):
            setattr(old, method, getattr(new, method))
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)

"""Sends the output of a notebook's worker to the kernel, which shows it. Each worker has pipes of its own for that.

A worker cannot use the kernel's own streams: they send every piece of a line by itself, out of order, and to the cell
in which the worker was started. This file is the worker's side; _notebook.py is the kernel's.
"""

from __future__ import annotations

import io
import os
import socket
import sys
from typing import Any

_relay: int | None = None  # in the kernel and its workers: the socket to which a new process sends its pipes
_joined_by = 0  # the process that has set up its pipes


def announce(relay: int) -> None:
    """Called in the kernel: from now on, workers join this relay."""
    global _relay, _joined_by
    _relay, _joined_by = relay, os.getpid()


def relay() -> int | None:
    """Return the descriptor that a program which this process starts passes to `join`; None outside a notebook."""
    return _relay


def join(relay: int) -> None:
    """Called in a new process: replace standard output and standard error by pipes that the kernel reads."""
    global _relay, _joined_by
    _relay, _joined_by = relay, os.getpid()
    with socket.socket(fileno=os.dup(relay)) as control:
        for number, name in ((1, "stdout"), (2, "stderr")):
            their_end, my_end = os.pipe()
            try:
                socket.send_fds(control, [name.encode()], [their_end])
            except OSError:
                return  # the kernel is gone, and this process will end with it
            finally:
                os.close(their_end)
            os.dup2(my_end, number)
            os.close(my_end)
            _print_to(number, name)


def join_after_fork() -> None:
    """Called in a forked worker before its work. Every process has pipes of its own, so that lines do not mix."""
    if _relay is not None and _joined_by != os.getpid():
        notebook = sys.modules.get("miniray._notebook")
        if notebook is not None:
            notebook.close_after_fork()
        join(_relay)


def _print_to(number: int, name: str) -> None:
    """Replace a stream of sys by one that writes whole lines to a descriptor. Objects that hold the old stream, such as
    a handler of logging, then write to the new one too."""
    old: Any = getattr(sys, name)
    new = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True)
    if type(old).__module__.partition(".")[0] == "ipykernel":
        for method in ("write", "writelines", "flush", "fileno"):
            setattr(old, method, getattr(new, method))
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)

"""What workers print, shown in the notebook's cell that runs. This is the kernel's side; _output.py has the workers'.

Each process sends the reading ends of its pipes over one socket. A thread reads them, and hands whole lines to the
kernel's own streams. At the end of every cell, what has been printed by then is shown first.
"""

from __future__ import annotations

import _thread
import codecs
import math
import os
import selectors
import socket
import sys
import threading
import time
from typing import Any

from miniray import _core, _output

_READ_BYTES = _core.limits.notebook_read_bytes
_UNFINISHED_S = _core.limits.notebook_unfinished_ms / 1000

# The packages that kernels are made of.
_KERNEL = frozenset(
    {"IPython", "ipykernel", "jupyter_client", "tornado", "zmq", "debugpy", "pydevd", "_pydevd_bundle", "_pydev_bundle"}
)

_relay: Relay | None = None


def kernel_shell() -> Any:
    """IPython's shell if this process is a notebook's kernel; None if not, and in a kernel's forked workers."""
    if _relay is None and _output.relay() is not None:
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if hasattr(shell, "kernel") else None


def show_output_of_workers() -> Relay:
    """Before a worker is started in a kernel. Once is enough."""
    global _relay
    if _relay is None:
        _relay = Relay()
    return _relay


def write_errors(text: str) -> None:
    """To the standard error of the cell that runs, from any thread of the kernel."""
    os.write(show_output_of_workers().errors, text.encode())


def is_kernels(thread: threading.Thread) -> bool:
    """Whether the thread is part of the kernel. No worker needs the locks that such a one may hold."""
    target = getattr(thread, "_target", None)
    owner = getattr(target, "__module__", None) if target is not None else type(thread).__module__
    return (owner or "").partition(".")[0] in _KERNEL


def close_after_fork() -> None:
    """In a worker: the pipes of the others are not for it to read."""
    global _relay
    if _relay is not None:
        _relay.close()
        _relay = None


class Relay:
    def __init__(self) -> None:
        self._mine, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs.set_inheritable(True)  # for workers that are programs of their own
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._mine, selectors.EVENT_READ)
        self._pipes: dict[int, _Pipe] = {}
        self._lock = threading.Lock()  # for the pipes, and what is known of them
        self._unfinished: dict[str, _Pipe] = {}  # by stream: whose line stands there without its end
        own, self.errors = os.pipe()  # what the kernel's own threads have to say
        self._add(own, "stderr").patience_s = 0
        kernel_shell().events.register("post_run_cell", self._at_end_of_cell)
        _output.announce(self._theirs.fileno())
        # Not a threading.Thread: some kernels show what such a thread prints in the cell that started it.
        _thread.start_new_thread(self._run, ())

    def close(self) -> None:
        for descriptor in (*self._pipes, self.errors):
            os.close(descriptor)
        self._selector.close()
        self._mine.close()

    def _run(self) -> None:
        threading.current_thread().name = "miniray-output"
        while True:
            with self._lock:
                unfinished = any(pipe.line for pipe in self._pipes.values())
            self._selector.select(_UNFINISHED_S if unfinished else None)
            with self._lock:
                self._read()
                self._show_unfinished(time.monotonic())

    def _at_end_of_cell(self, _: Any = None) -> None:
        """All that was printed before the cell's last answer is in the pipes, or was shown already."""
        with self._lock:
            self._read()
            self._show_unfinished(math.inf)
            self._unfinished.clear()  # the next cell begins with a line of its own

    def _read(self) -> None:
        """All that is there now: one read takes as much as a pipe can hold."""
        while self._selector.get_key(self._mine) in [key for key, _ in self._selector.select(0)]:
            name, descriptors, _, _ = socket.recv_fds(self._mine, 16, 1)
            for descriptor in descriptors:
                self._add(descriptor, name.decode())
        for key, _ in self._selector.select(0):
            pipe = self._pipes.get(key.fd)
            if pipe is None:
                continue
            self._show(pipe, pipe.read())
            if pipe.ended:
                self._selector.unregister(key.fd)
                del self._pipes[key.fd]  # first: a worker that is forked now must not close what has this number next
                os.close(key.fd)

    def _add(self, descriptor: int, stream: str) -> _Pipe:
        pipe = self._pipes[descriptor] = _Pipe(descriptor, stream)
        self._selector.register(descriptor, selectors.EVENT_READ)
        return pipe

    def _show_unfinished(self, now: float) -> None:
        """Lines that have lacked their end for a while by now."""
        for pipe in self._pipes.values():
            if pipe.line and now >= pipe.begun + pipe.patience_s:
                self._show(pipe, pipe.take_line())

    def _show(self, pipe: _Pipe, text: str) -> None:
        if not text:
            return
        before = self._unfinished.pop(pipe.stream, None)
        if before is not None and before is not pipe:
            text = "\n" + text  # a line of somebody else stands there
        if not text.endswith("\n"):
            self._unfinished[pipe.stream] = pipe
        try:
            getattr(sys, pipe.stream).write(text)
        except (AttributeError, OSError, ValueError):
            pass  # replaced or closed: nobody looks


class _Pipe:
    """One process's standard output or errors."""

    def __init__(self, descriptor: int, stream: str) -> None:
        self.descriptor = descriptor
        self.stream = stream
        self.patience_s = _UNFINISHED_S
        self.line = ""  # the beginning of a line whose end has not come yet
        self.begun = 0.0  # when that was read
        self.ended = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def read(self) -> str:
        """The lines that are whole now; at the end, all that is left."""
        part = os.read(self.descriptor, _READ_BYTES)
        self.ended = not part
        text = self.line + self._decoder.decode(part, final=self.ended)
        end = len(text) if self.ended else text.rfind("\n") + 1
        if end > 0 or not self.line:
            self.begun = time.monotonic()
        self.line = text[end:]
        return text[:end]

    def take_line(self) -> str:
        line, self.line = self.line, ""
        return line

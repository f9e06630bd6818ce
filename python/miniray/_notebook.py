"""Shows what workers print in the notebook's cell that runs. This is the kernel's side; _output.py has the workers'.

Each worker process sends the reading ends of its output pipes over one socket. A thread of the kernel reads the pipes,
and writes whole lines to the kernel's own streams. A cell ends after everything printed by then has been shown.
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

# The packages whose threads belong to the kernel.
_KERNEL = frozenset(
    {"IPython", "ipykernel", "jupyter_client", "tornado", "zmq", "debugpy", "pydevd", "_pydevd_bundle", "_pydev_bundle"}
)

_relay: Relay | None = None


def kernel_shell() -> Any:
    """IPython's shell if this process is a notebook's kernel; else None, also in forked workers of a kernel."""
    if _relay is None and _output.relay() is not None:
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if hasattr(shell, "kernel") else None


def show_output_of_workers() -> Relay:
    """Start the relay. Call it before a worker is started in a kernel; later calls return the same relay."""
    global _relay
    if _relay is None:
        _relay = Relay()
    return _relay


def write_errors(text: str) -> None:
    """Write to the standard error of the cell that runs. Any thread of the kernel may call this."""
    os.write(show_output_of_workers().errors, text.encode())


def is_kernel_thread(thread: threading.Thread) -> bool:
    """Whether the thread belongs to the kernel. A fork is safe beside it: no worker needs locks that it may hold."""
    target = getattr(thread, "_target", None)
    owner = getattr(target, "__module__", None) if target is not None else type(thread).__module__
    return (owner or "").partition(".")[0] in _KERNEL


def close_after_fork() -> None:
    """In a forked worker: close the pipes of the other workers."""
    global _relay
    if _relay is not None:
        _relay.close()
        _relay = None


class Relay:
    """Reads the output pipes of all workers in a thread, and writes to the kernel's streams."""

    def __init__(self) -> None:
        self._mine, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs.set_inheritable(True)  # workers that are spawned inherit it
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._mine, selectors.EVENT_READ)
        self._pipes: dict[int, _Pipe] = {}
        self._lock = threading.Lock()  # protects the pipes and their state
        self._unfinished: dict[str, _Pipe] = {}  # by stream: the pipe whose last line was shown without its end
        own, self.errors = os.pipe()  # for write_errors()
        self._add(own, "stderr").patience_s = 0
        kernel_shell().events.register("post_run_cell", self._at_end_of_cell)
        _output.announce(self._theirs.fileno())
        # Not a threading.Thread: some kernels show what such a thread prints in the cell that started the thread.
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
        """Show what is left in the pipes: everything that workers printed before their last answer to this cell."""
        with self._lock:
            self._read()
            self._show_unfinished(math.inf)
            self._unfinished.clear()  # the next cell begins with an empty output

    def _read(self) -> None:
        """Read everything that is there now. One read takes as much as a pipe can hold."""
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
                # Removed before it is closed: a worker that is forked in between must not close another file that has
                # got this number.
                del self._pipes[key.fd]
                os.close(key.fd)

    def _add(self, descriptor: int, stream: str) -> _Pipe:
        pipe = self._pipes[descriptor] = _Pipe(descriptor, stream)
        self._selector.register(descriptor, selectors.EVENT_READ)
        return pipe

    def _show_unfinished(self, now: float) -> None:
        """Show the beginnings of lines whose end has not come for a while."""
        for pipe in self._pipes.values():
            if pipe.line and now >= pipe.begun + pipe.patience_s:
                self._show(pipe, pipe.take_line())

    def _show(self, pipe: _Pipe, text: str) -> None:
        if not text:
            return
        before = self._unfinished.pop(pipe.stream, None)
        if before is not None and before is not pipe:
            text = "\n" + text  # another process has begun a line there
        if not text.endswith("\n"):
            self._unfinished[pipe.stream] = pipe
        try:
            getattr(sys, pipe.stream).write(text)
        except (AttributeError, OSError, ValueError):
            pass  # the program has replaced or closed the stream


class _Pipe:
    """The standard output or standard error of one process."""

    def __init__(self, descriptor: int, stream: str) -> None:
        self.descriptor = descriptor
        self.stream = stream
        self.patience_s = _UNFINISHED_S
        self.line = ""  # the beginning of a line whose end has not come yet
        self.begun = 0.0  # the time at which that beginning was read
        self.ended = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def read(self) -> str:
        """Return the lines that are complete; at the end of the stream, everything that is left."""
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

"""A program at a terminal of its own, for tests: keys that are pressed there do what a terminal makes of them.

with Terminal(folder, text) as terminal:
    terminal.wait_for("begun", 2)       # files that the program makes
    terminal.press(CTRL_C)
    ended = terminal.end()              # how long it took, its exit status, what it printed, what is left of it
"""

from __future__ import annotations

import fcntl
import os
import pty
import secrets
import signal
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

CTRL_C = b"\x03"
PATIENCE_S = 60.0  # with what takes a second on a machine that is not busy
HANGS_AFTER_S = 60.0
POLL_S = 0.01
MARK = "MINIRAY_TEST_MARK"
TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How a program ended. `seconds` are counted from the last key."""

    status: int
    output: str
    errors: str
    seconds: float
    left: list[str]


class Terminal:
    """The program, in the foreground of a session of its own; afterwards it has ended, and all that it started."""

    def __init__(self, folder: Path, text: str, *arguments: str) -> None:
        self.folder = folder
        script = folder / "program.py"
        script.write_text(text)
        self._output, self._errors = folder / "output.txt", folder / "errors.txt"
        self._mark = secrets.token_hex(8)
        environment = {**os.environ, "PYTHONPATH": str(TESTS), MARK: self._mark}
        self._keys, terminal = pty.openpty()
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *arguments, str(script)],
                stdin=terminal,
                stdout=output,
                stderr=errors,
                cwd=folder,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        os.close(terminal)
        self._pressed_at = time.monotonic()

    def wait_for(self, names: str, count: int = 1) -> None:
        """Until there are so many files whose names begin like this, each made by `task_functions` or the like."""
        deadline = time.monotonic() + PATIENCE_S
        while len(list(self.folder.glob(f"{names}*"))) < count:
            assert self._process.poll() is None, self.errors
            assert time.monotonic() < deadline, f"no {names}: {self.errors}"
            time.sleep(POLL_S)

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def press(self, key: bytes) -> None:
        self._pressed_at = time.monotonic()
        os.write(self._keys, key)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within so long."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> Ended:
        """How it ended, by itself."""
        assert self.wait(HANGS_AFTER_S), f"it does not end: {self._stacks()}"
        seconds = time.monotonic() - self._pressed_at
        deadline = time.monotonic() + 1.0  # the kernel may take a moment to do what it was told
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        output = self._output.read_text(errors="replace")
        return Ended(self._process.returncode, output, self.errors, seconds, list(left.values()))

    def _stacks(self) -> str:
        """What it printed, and where it and its workers are, if they heed SIGUSR1 as `faulthandler` does."""
        for pid in self._left():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        return self._output.read_text(errors="replace") + self.errors

    def _left(self) -> dict[int, str]:
        """Processes that descend from the program, by what it handed down to them."""
        mark = f"{MARK}={self._mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                if mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                pass  # it has just ended, or is somebody else's
        return found

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._keys)
        for pid in self._left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

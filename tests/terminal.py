"""A program at a terminal of its own, for tests: keys that are pressed there do what a terminal makes of them.

with Terminal(folder, text) as terminal:
    terminal.wait_for("begun", 2)       # files that the program makes
    terminal.press(CTRL_C)
    ended = terminal.end()              # its exit status, and what it printed; nothing that it started is left

Workers that were told to end are given GRACE_MS, which is longer than a program may take to end: one that waits for
them hangs, so no test has to look at the clock.
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

from waiting import until

CTRL_C = b"\x03"
HANGS_AFTER_S = 60.0
GRACE_MS = 1_000_000
STACKS_S = 1.0  # in which processes that were asked have written where they are
MARK = "MINIRAY_TEST_MARK"
TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int
    output: str
    errors: str


class Terminal:
    """The program, in the foreground of a session of its own; afterwards it has ended, and all that it started."""

    def __init__(self, folder: Path, text: str, *arguments: str) -> None:
        self.folder = folder
        script = folder / "program.py"
        script.write_text(text)
        self._output, self._errors = folder / "output.txt", folder / "errors.txt"
        self._mark = secrets.token_hex(8)
        environment = {
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "MINIRAY_TEST_GRACE_MS": str(GRACE_MS),
            MARK: self._mark,
        }
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

    def wait_for(self, names: str, count: int = 1) -> None:
        """Until there are so many files whose names begin like this, each made by `task_functions` or the like."""

        def are_there() -> bool:
            assert self._process.poll() is None, self.errors
            return len(list(self.folder.glob(f"{names}*"))) >= count

        until(are_there, what=f"{count} files {names}* of the program")

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def press(self, key: bytes) -> None:
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
        # The kernel may take a moment to do what it was told.
        until(lambda: not self._left(), what=lambda: f"the end of {list(self._left().values())}")
        return Ended(self._process.returncode, self._output.read_text(errors="replace"), self.errors)

    def _stacks(self) -> str:
        """What it printed, and where it and its workers are, if they heed SIGUSR1 as `faulthandler` does."""
        for pid in self._left():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
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

"""A coordinator in a testbed's hub that does what a test tells it, line by line, and may be killed at any point.

    coordinator = Coordinator(testbed, folder)
    coordinator.do("worker = RemoteWorker('mr-a', port, 'work.echo')")
    assert coordinator.do("worker.recv()").value == 7

The code runs in one scope. `begin` does not wait, so that the test can strike meanwhile; `result` collects.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waiting import PATIENCE_S

# The interpreter with MiniRay, here and on the hosts; normally the one that runs the tests, which needs no mention.
PYTHON = os.environ.get("MINIRAY_TEST_PYTHON")

SCRIPT = """
import asyncio, json, os, socket, sys, time
import miniray
from miniray import Cluster, NodeConfig, RemoteWorker, wait_any
import work

PYTHON = {python!r}

def node(host, num_workers=1, **options):
    return NodeConfig(host, num_workers=num_workers, base_port=0, python_bin=PYTHON, **options)

def zombies():
    found = []
    for child in open(f"/proc/self/task/{{os.getpid()}}/children").read().split():
        found.append(child + " " + open(f"/proc/{{child}}/stat").read().split(") ")[1][0])
    return found

def run(code):
    try:
        compiled = compile(code, "test", "eval")
    except SyntaxError:
        return exec(compile(code, "test", "exec"), globals())
    return eval(compiled, globals())

def converse(descriptor):
    lines = socket.socket(fileno=descriptor).makefile("rw")
    for line in lines:
        begun, outcome = time.monotonic(), {{"value": None, "error": "", "text": ""}}
        try:
            outcome["value"] = run(json.loads(line))
            json.dumps(outcome)
        except TypeError as error:
            outcome["value"] = repr(outcome["value"]) if outcome["value"] is not None else None
            outcome["text"] = str(error)
        except Exception as error:
            outcome["error"], outcome["text"] = type(error).__name__, str(error)
        outcome["seconds"] = time.monotonic() - begun
        lines.write(json.dumps(outcome) + "\\n")
        lines.flush()

if __name__ == "__main__":
    converse(int(sys.argv[1]))
"""

# What runs on the nodes. Each kind of worker says "up" when it does what it is for.
WORK = '''
import os, signal, subprocess, sys, time

def echo(handle):
    while True:
        handle.send(handle.recv())

def idle(handle):
    handle.send("up")
    while True:
        handle.recv()

def endless_loop(handle):
    handle.send("up")
    while True:
        pass

def stubborn(handle):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    handle.send("up")
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass

def blocked(handle):
    handle.send("up")
    time.sleep(1000)

def parent(handle):
    subprocess.Popen(["sleep", "1001"])
    subprocess.Popen("sleep 1002 & sleep 1003", shell=True)
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(1004)
        os._exit(0)
    handle.send("up")
    time.sleep(1000)

def printing(handle):
    handle.send("up")
    while True:
        print("x" * 1000)

def talker(handle):
    for number in range(1000):
        print("line", number)
    handle.send("up")
    handle.recv()

def flood(handle):
    handle.send("up")
    while True:
        handle.send(bytes(64 << 20))

KINDS = (idle, endless_loop, stubborn, blocked, parent, printing, flood)
KINDS_COUNT = len(KINDS)

def crowd(handle):
    KINDS[handle.recv()](handle)

def sink(handle):
    """Reads only when it has slept as long as it was told; then says how much came."""
    handle.send("up")
    time.sleep(handle.recv())
    while True:
        handle.send(len(handle.recv()))

def source(handle):
    """Sends as many byte strings of such a length as it was told, and a last word."""
    handle.send("up")
    while True:
        count, size = handle.recv()
        for number in range(count):
            handle.send(bytes([number % 256]) * size)
        handle.send("sent")
'''

# Where the first host's server is while it imports for ever, and how a test sees it.
SLOW = """
import socket, time
if socket.gethostname() == "mr-a":
    open("/tmp/importing", "w").close()
    time.sleep({seconds})
def fn(handle):
    handle.send("up")
    handle.recv()
"""


@dataclass(frozen=True)
class Outcome:
    value: Any
    error: str  # the type of what was raised, or ""
    text: str
    seconds: float


class Coordinator:
    """The process; `folder` exists, and gets the script and what is printed."""

    def __init__(self, testbed: Any, folder: Path, *, slow_import_s: float = 1000, stdout: Any = None) -> None:
        code = folder / "code"
        code.mkdir()
        self.code = code
        (code / "coordinate.py").write_text(SCRIPT.format(python=PYTHON))
        (code / "work.py").write_text(WORK)
        (code / "slow.py").write_text(SLOW.format(seconds=slow_import_s))
        self.output = folder / "output"
        self.testbed = testbed
        here, there = socket.socketpair()
        with there, self.output.open("wb") as output:
            self.process = testbed.popen(
                PYTHON or sys.executable,
                code / "coordinate.py",
                str(there.fileno()),
                env={"TMPDIR": str(testbed.home)},
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=subprocess.STDOUT if stdout is None else output,
                cwd=code,
            )
        self._socket = here
        self._lines = here.makefile("rw")

    def begin(self, code: str) -> None:
        self._lines.write(json.dumps(code) + "\n")
        self._lines.flush()

    def result(self, timeout: float = PATIENCE_S) -> Outcome:
        self._socket.settimeout(timeout)
        line = self._lines.readline()
        assert line, f"the coordinator has ended: {self.output.read_text(errors='replace')[-3000:]}"
        return Outcome(**json.loads(line))

    def has_result(self, timeout: float) -> bool:
        """Whether `result` would return at once; waits so long at most."""
        return bool(select.select([self._socket], [], [], timeout)[0])

    def do(self, code: str, timeout: float = PATIENCE_S) -> Outcome:
        """Has to succeed."""
        self.begin(code)
        outcome = self.result(timeout)
        assert not outcome.error, f"{code}: {outcome.error}: {outcome.text}"
        return outcome

    def attempt(self, code: str, timeout: float = PATIENCE_S) -> Outcome:
        self.begin(code)
        return self.result(timeout)

    def printed(self) -> str:
        return self.output.read_text(errors="replace")

    def others(self) -> dict[str, list[Any]]:
        """What lives in the testbed beside this very process."""
        found = self.testbed.survivors()
        kept = {name: [one for one in all_of if one.pid != self.process.pid] for name, all_of in found.items()}
        return {name: processes for name, processes in kept.items() if processes}

    def end(self) -> None:
        self._lines.close()
        self._socket.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()


@contextmanager
def coordinating(testbed: Any, folder: Path, **options: Any) -> Iterator[Coordinator]:
    """A coordinator in a folder of its own, and afterwards nothing of it, even if the test failed."""
    folder.mkdir()
    coordinator = Coordinator(testbed, folder, **options)
    try:
        yield coordinator
    finally:
        coordinator.process.send_signal(signal.SIGKILL)
        coordinator.end()
        for name in testbed.hosts:
            (testbed.hosts[name].tmp / "importing").unlink(missing_ok=True)
        for processes in testbed.survivors().values():
            for process in processes:
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

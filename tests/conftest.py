"""What every Python test shares: after each, nothing of it is left."""

from __future__ import annotations

import gc
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from call_workers import call_worker, talker  # noqa: F401 (fixtures)
from executors import executor, make_executor, make_pool, pool  # noqa: F401 (fixtures)
from hosts import hosts, shared_folder, testbed  # noqa: F401 (fixtures)
from memory_group import memory_group  # noqa: F401 (fixture)
from missing import (  # noqa: F401 (hooks)
    pytest_addoption,
    pytest_make_collect_report,
    pytest_runtest_makereport,
)
from waiting import PATIENCE_S, until

from miniray import _core

ROOT = Path(__file__).parent.parent
TESTS = Path(__file__).parent
KEY = secrets.token_hex(32)

# A shell without job control starts what is in the background with SIGINT ignored (`make test &`), and programs hand
# that down to whatever they start. Ctrl-C means the same to these tests however they were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


def leftovers() -> dict[str, list[str]]:
    """Descriptors, children and MiniRay's shared memory of this process."""
    _core._drop_unused_memory()
    descriptors = sorted(os.listdir("/proc/self/fd"), key=int)
    targets = []
    for number in descriptors:
        try:
            targets.append(f"{number} -> {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            pass  # the one that listed the folder
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    shared = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:miniray" in line]
    return {"descriptors": targets, "children": children, "shared memory": shared}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = leftovers()
    yield
    gc.collect()
    after = leftovers()
    # wait_any keeps one epoll set for each thread, and torch and numpy open what they like on first use.
    extra = set(after["descriptors"]) - set(before["descriptors"])
    assert not {entry for entry in extra if "socket" in entry or "pidfd" in entry or "memfd" in entry}
    assert after["children"] == before["children"]
    assert after["shared memory"] == before["shared memory"]


class Server:
    """`python -m miniray.worker_server` on a free port, with the functions of tests/work_functions.py."""

    def __init__(self, folder: Path, *arguments: str, key: str | None = KEY, **environment: str) -> None:
        self.key = key
        name = secrets.token_hex(4)
        self._output, self._log = folder / f"{name}.out", folder / f"{name}.log"
        self.environment = {**os.environ, **environment}
        self.environment.pop("MINIRAY_KEY", None)
        if key is not None:
            self.environment["MINIRAY_KEY"] = key
        command = [sys.executable, "-m", "miniray.worker_server", "--host", "127.0.0.1", "--port", "0", *arguments]
        with self._output.open("w") as output, self._log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=TESTS, env=self.environment, stdout=output, stderr=log)
        until(lambda: "listening on" in self.output or self.process.poll() is not None)
        found = re.match(r"listening on 127\.0\.0\.1:(\d+), running ", self.output)
        assert found is not None, self.output + self.log
        self.port = int(found.group(1))
        self.where = f"127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def connect(self, work_fn: Any = None, **options: Any) -> Any:
        import miniray

        return miniray.RemoteWorker("127.0.0.1", self.port, work_fn, **{"key": self.key, **options})

    def serves(self) -> bool:
        with self.connect("work_functions.echo") as worker:
            worker.send("still here")
            return bool(worker.recv(timeout=PATIENCE_S) == "still here")

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code. Afterwards it is gone, whatever happens."""
        try:
            self.process.send_signal(number)
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all the tests of a file, which leave it as it was."""
    made = Server(tmp_path_factory.mktemp("server"), "--work-fn", "work_functions.echo")
    yield made
    assert made.end() == 0, made.log


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers of a test's own."""
    made: list[Server] = []

    def start(*arguments: str, **options: Any) -> Server:
        made.append(Server(tmp_path, *arguments, **options))
        return made[-1]

    yield start
    for one in made:
        one.end(signal.SIGKILL)

"""The miniray command: what it says of commands that there are, and of those that there are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from conftest import KEY, ROOT

import miniray

PYTHON = [sys.executable, "-m", "miniray"]
CPP = [str(ROOT / "build/release/miniray")]
COMMANDS = """\
  doctor          Find what would make a training run hang or fail, on this machine or on several
  limits          Print the limits and time-outs
  worker-server   Start a worker for every connection that has the key (MINIRAY_KEY, or ~/.miniray/key)
miniray COMMAND --help says more about one.
"""


def run(*arguments: str) -> tuple[int, str, str]:
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("command", [PYTHON, CPP], ids=["python", "cpp"])
def test_an_unknown_command_lists_those_that_there_are(command: list[str]) -> None:
    assert run(*command, "foo") == (2, "", f'miniray: there is no command "foo". The commands are:\n{COMMANDS}')
    assert run(*command, "doctr") == (
        2,
        "",
        f'miniray: there is no command "doctr"; did you mean doctor? The commands are:\n{COMMANDS}',
    )
    code, out, told = run(*command)
    assert (code, out) == (2, "")
    assert run(*command, "--help") == (0, told, "")
    for line in COMMANDS.splitlines()[:-1]:
        name, _, what = line.strip().partition(" ")
        assert f"  {name:<28}{what.strip()}\n" in told
    assert told.endswith("miniray COMMAND --help says more about one.\n")
    assert max(map(len, told.splitlines())) <= 120
    code, out, told = run(*command, "limits", "x")
    assert (code, out) == (2, "")
    assert told == "The following argument was not expected: x\nRun with --help for more information.\n"


def test_worker_server_is_a_command_in_python_too() -> None:
    code, out, _ = run(*PYTHON, "worker-server", "--help")
    assert code == 0
    assert out.startswith("usage: miniray worker-server [-h]")
    environment = {**os.environ, "MINIRAY_KEY": KEY}
    command = [*PYTHON, "worker-server", "--host", "127.0.0.1", "--port", "0", "--work-fn", "work_functions.echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT / "tests") as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split()[2].partition(":")[2].rstrip(","))
        with miniray.RemoteWorker("127.0.0.1", port, key=KEY) as worker:
            worker.send("hello")
            assert worker.recv(timeout=30) == "hello"
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0

"""The miniray command: what it says of commands that there are, and of those that there are not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from conftest import KEY, ROOT

import miniray

PYTHON = [sys.executable, "-m", "miniray"]
CPP = [str(ROOT / "build/release/miniray")]
COMMANDS = """\
  doctor          Find what would make a training run hang or fail, on this machine or on several
  limits          Print the limits and time-outs
  worker-server   Start a worker for every connection that has the key (MINIRAY_KEY, or ~/.miniray/key)
miniray COMMAND --help says more about a command.
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
    assert told.endswith("miniray COMMAND --help says more about a command.\n")
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


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report of a check of this machine, where no GPU is visible."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "miniray", "doctor", "--json", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    return ended.returncode, json.loads(ended.stdout)


def test_the_doctor_counts_gpus_that_are_missing_as_a_problem() -> None:
    with socket.create_server(("", 0)) as listener:
        port = str(listener.getsockname()[1])
    exit_code, report = doctor("localhost", "localhost", "--port", port)
    problems = [found for found in report["findings"] if found["severity"] == "problem"]
    assert (exit_code, report["healthy"], problems) == (0, True, [])
    assert [node["node"] for node in report["nodes"]] == ["localhost", "localhost#1"]
    exit_code, report = doctor("--gpus-per-worker", "1", "--port", port)
    [problem] = [found for found in report["findings"] if found["severity"] == "problem"]
    assert (exit_code, report["healthy"], problem["node"], problem["check"]) == (1, False, "localhost", "gpu")
    assert problem["what"].startswith("has no GPU, so its workers would run without one: ")
    assert problem["cure"].endswith("if no GPU is needed there, leave gpus_per_worker out")


def test_a_node_that_the_doctor_cannot_start_has_a_cure() -> None:
    exit_code, report = doctor("--python", "/nowhere/python")
    [problem] = report["findings"]
    assert (exit_code, problem["check"]) == (1, "start")
    assert problem["what"].startswith("the node has no program /nowhere/python.")
    assert problem["cure"] == "Make this command work: '/nowhere/python' -c 'import miniray'"


def test_the_doctor_says_what_its_exit_codes_mean() -> None:
    command = [sys.executable, "-m", "miniray", "doctor", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "Exit codes: 0: no problem (there may be warnings), 1: a problem, or the check itself failed,\n" in shown
    assert "2: the arguments are wrong, 130: Ctrl-C." in shown

"""Other users of the machine: they are refused at every socket that has no port, even with the right key, and what they
plant in shared folders is neither used nor removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import miniray
from miniray import RemoteWorker, WorkerServer

KEY = "a" * 64
STRANGER = 12345  # the number of a user that owns nothing here

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as other users")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users may use."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


# The start of a script that goes on as another user, who may not be able to read the interpreter.
BECOME_STRANGER = f"""
import os, socket, sys
os.setgroups([])
os.setresgid({STRANGER}, {STRANGER}, {STRANGER})
os.setresuid({STRANGER}, {STRANGER}, {STRANGER})
"""


def as_stranger(text: str, *arguments: str) -> list[str]:
    """The command that runs a script without MiniRay as another user."""
    return [sys.executable, "-I", "-c", BECOME_STRANGER + text, *arguments]


CONNECT = """
connection = socket.socket(socket.AF_UNIX)
if len(sys.argv) > 2:
    connection.bind("\\0" + sys.argv[2] + "\\x1b]0;title\\x07\\nforged line")
connection.connect(sys.argv[1].replace("@", "\\0", 1))
heard = b""
try:
    connection.sendall(b"MiniRay?")
    heard = connection.recv(100)
except ConnectionError:
    pass  # it was closed before all was said
print(heard)
"""


def serve(at: str, work: Any = None) -> tuple[WorkerServer, threading.Thread]:
    server = WorkerServer(at, 0, work, key=KEY)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    return server, thread


@pytest.mark.parametrize("kind", ["path", "name"])
def test_a_server_refuses_other_users(open_folder: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    name = f"miniray-test-{os.getpid()}"
    at = str(open_folder / "socket") if kind == "path" else f"@{name}"
    server, thread = serve(at)
    try:
        if kind == "path":
            Path(at).chmod(0o777)
        command = as_stranger(CONNECT, at, f"{name}-client")
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert said.stdout == "b''\n", said.stderr
    finally:
        server.stop()
        thread.join()
    log = capfd.readouterr().err
    assert f"its process belongs to the user with the number {STRANGER}" in log
    assert f"refused @{name}-client\\x1b]0;title\\x07" in log
    assert "\x1b" not in log


LISTEN = """
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("listening", flush=True)
connection, _ = listener.accept()
print(connection.recv(100))
"""


def test_a_coordinator_sends_nothing_to_another_user_s_server() -> None:
    name = f"miniray-test-{os.getpid()}-squatted"
    squatter = subprocess.Popen(as_stranger(LISTEN, name), stdout=subprocess.PIPE, text=True)
    assert squatter.stdout is not None
    assert squatter.stdout.readline() == "listening\n"
    with pytest.raises(miniray.errors.Refused, match=f"belongs to the user with the number {STRANGER}"):
        RemoteWorker(f"@{name}", 0, "module.function", key=KEY)
    out, _ = squatter.communicate(timeout=60)
    assert out == "b''\n"


def speak_to_server(settings: dict[str, Any], home: Path) -> tuple[str, subprocess.Popen[bytes]]:
    """Starts a node's server, and returns its last line."""
    server = subprocess.Popen(
        [sys.executable, "-m", "miniray.worker_server", "--stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "HOME": str(home)},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    config = {
        "port": 0,
        "replaces": False,
        "local": True,
        "socket": "",
        "environment": {},
        "workdir": "",
        "unreachable_ms": 20_000,
        "one_stream": False,
        "code": None,
        "setup": None,
        "work_fn": "",
        **settings,
    }
    server.stdin.write(KEY.encode() + b"\n" + json.dumps(config).encode() + b"\n")
    server.stdin.flush()
    for line in server.stdout:
        if line.startswith((b"miniray-ready", b"miniray-failed")):
            return line.decode(), server
    raise AssertionError("the server has ended")


def end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.close()
    server.stdout.read()
    server.stdout.close()
    server.wait(60)


def test_a_folder_that_was_there_before_the_tunnel_s_is_not_removed(open_folder: Path, tmp_path: Path) -> None:
    planted = open_folder / "planted"
    planted.mkdir()
    (planted / "file").write_text("of somebody")
    said, server = speak_to_server({"socket": str(planted / "socket")}, tmp_path)
    end(server)
    assert said.startswith("miniray-failed"), said
    assert (planted / "file").read_text() == "of somebody"

    own = open_folder / "own"
    said, server = speak_to_server({"socket": str(own / "socket")}, tmp_path)
    assert said.startswith("miniray-ready"), said
    assert own.stat().st_mode & 0o777 == 0o700
    (own / "of somebody").touch()
    end(server)
    assert {path.name for path in own.iterdir()} == {"of somebody"}

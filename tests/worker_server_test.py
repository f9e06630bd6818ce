"""The worker server: its command line, its end, and itself as a class."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import json_client
import pytest
from waiting import is_gone, until

import miniray
from miniray import RemoteWorker, Worker, WorkerServer

OTHER_KEY = "0123456789abcdef" * 4
COMMANDS = [
    [sys.executable, "-m", "miniray.worker_server", "--work-fn", "work_functions.echo"],
    [Path(__file__).parent.parent / "build/release/miniray", "worker-server"],
]


def run_server(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """One that is expected to end by itself."""
    command = [sys.executable, "-m", "miniray.worker_server", "--host", "127.0.0.1", *arguments]
    environment = {**os.environ, "MINIRAY_KEY": OTHER_KEY}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False, **options)


# --- The command ------------------------------------------------------------------------------------------------------
def test_help_names_every_option() -> None:
    done = run_server("--help")
    assert done.returncode == 0
    for option in ("--host", "--port", "--workers", "--work-fn", "MINIRAY_KEY", "~/.miniray/key"):
        assert option in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_its_workers(start_server: Any, number: signal.Signals) -> None:
    server = start_server()
    polite, stubborn = server.connect("work_functions.echo"), server.connect("work_functions.stubborn")
    pids = [polite.pid, *stubborn.recv(timeout=30)]
    assert server.end(number) == 0
    assert until(lambda: all(map(is_gone, pids)))
    assert server.log == ""
    for worker in (polite, stubborn):
        with pytest.raises(miniray.WorkerDied, match="was ended because its worker server was stopped"):
            worker.recv(timeout=30)
    with pytest.raises(miniray.Refused, match="no server listens there"):
        server.connect()
    polite.close()
    stubborn.close()


def test_a_second_signal_ends_it_at_once(start_server: Any) -> None:
    server = start_server(MINIRAY_TEST_GRACE_MS="1000000")
    with server.connect("work_functions.stubborn") as worker:
        worker.recv(timeout=30)
        server.process.send_signal(signal.SIGTERM)
        assert until(lambda: _refused_to_connect(server.port))
        assert server.end() == 0
        with pytest.raises(miniray.WorkerDied):
            worker.recv(timeout=30)


def _refused_to_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_signal_during_an_import_is_not_lost(start_server: Any, tmp_path: Path) -> None:
    began = tmp_path / "began"
    (tmp_path / "slow_to_import.py").write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(1000)\n"
    )
    server = start_server(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        client = json_client.JsonClient(connection)
        client.prove(bytes.fromhex(server.key))
        text = b'{"work_fn": "slow_to_import.work"}'
        connection.sendall(struct.pack("<I", len(text)) + text)
        assert until(began.exists)
        assert server.end() == 0
        client.stream.close()


def test_a_port_that_is_taken_names_who_has_it(server: Any) -> None:
    done = run_server("--port", str(server.port))
    assert done.returncode != 0
    assert f"127.0.0.1:{server.port}" in done.stderr
    assert f"process {server.process.pid} (" in done.stderr
    assert "worker_server" in done.stderr
    assert "choose another port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_does_not_import_is_shown_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def work(handle):\n    pass\n\n1 / 0\n")
    (tmp_path / "needy.py").write_text("import no_such_module_of_mine\n")
    environment: dict[str, Any] = {"cwd": tmp_path}
    done = run_server("--port", "0", "--work-fn", "broken.work", **environment)
    assert done.returncode != 0
    assert 'broken.py", line 4' in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    done = run_server("--port", "0", "--work-fn", "needy.work", **environment)
    assert done.returncode != 0
    assert 'needy.py", line 1' in done.stderr
    assert "Check the spelling, install no_such_module_of_mine" in done.stderr
    assert "listening" not in done.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("work_functions.no_such_function", "has no 'no_such_function'"),
        ("work_functions.not_a_function", "is a int, not a function"),
        ("echo", 'is named "module.function"'),
        ("no_such_module_of_mine.work", "no_such_module_of_mine"),
    ],
)
def test_a_function_that_is_not_there_is_an_error_from_both_sides(server: Any, name: str, text: str) -> None:
    done = run_server("--port", "0", "--work-fn", name, cwd=Path(__file__).parent)
    assert done.returncode != 0
    assert text in done.stderr
    with pytest.raises(ValueError if "." not in name else miniray.Refused, match=re.escape(text)):
        server.connect(name)
    assert server.serves()


def test_bad_arguments(tmp_path: Path) -> None:
    assert "invalid int value" in run_server("--port", "many").stderr
    assert "0 to 65535" in run_server("--port", "70000").stderr
    assert "num_workers is 1 or more" in run_server("--port", "0", "--workers", "0").stderr
    with pytest.raises(miniray.UnknownHost, match=r"no-such-host\.invalid"):
        WorkerServer("no-such-host.invalid", 0, print, key=OTHER_KEY)


@pytest.mark.parametrize("command", COMMANDS, ids=["python", "cpp"])
@pytest.mark.parametrize(
    ("arguments", "address", "reach"),
    [
        ([], "127.0.0.1", "Only processes on this machine can connect. With --host 0.0.0.0, other machines can too."),
        (
            ["--host", "0.0.0.0"],
            "0.0.0.0",
            "Every machine that can reach this one can connect; those that have the key run code here as this user.",
        ),
    ],
    ids=["by default", "with --host 0.0.0.0"],
)
def test_a_server_listens_for_its_own_machine_unless_told_otherwise(
    command: list[Any], arguments: list[str], address: str, reach: str
) -> None:
    options: dict[str, Any] = {"env": {**os.environ, "MINIRAY_KEY": OTHER_KEY}, "cwd": Path(__file__).parent}
    with subprocess.Popen(
        [*command, *arguments, "--port", "0"], stdout=subprocess.PIPE, text=True, **options
    ) as process:
        assert process.stdout is not None
        found = re.match(rf"listening on {re.escape(address)}:(\d+), running ", process.stdout.readline())
        assert found is not None
        assert process.stdout.readline() == reach + "\n"
        assert is_reached_at("127.0.0.2", int(found.group(1))) == (address == "0.0.0.0")
        process.terminate()
        assert process.wait(60) == 0


def is_reached_at(address: str, port: int) -> bool:
    """A server that listens on 127.0.0.1 is not reached at 127.0.0.2; one that listens everywhere is."""
    try:
        socket.create_connection((address, port), timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True


# --- As a class -------------------------------------------------------------------------------------------------------
def test_a_server_in_a_forked_worker() -> None:
    factor = 3

    def triple(handle: Any) -> None:
        while True:
            handle.send(factor * handle.recv())

    def serve(handle: Any) -> None:
        server = WorkerServer("127.0.0.1", 0, triple, num_workers=2, key=OTHER_KEY)
        handle.send([server.port, server.worker_count])
        server.serve_forever()

    with Worker(serve) as serving:
        port, count = serving.recv(timeout=30)
        assert count == 0
        with RemoteWorker("127.0.0.1", port, key=OTHER_KEY) as worker:
            worker.send(14)
            assert worker.recv(timeout=30) == 42
        serving.kill()


@pytest.mark.parametrize(("host", "everywhere"), [({}, False), ({"host": ""}, False), ({"host": "0.0.0.0"}, True)])
def test_a_server_object_listens_for_its_own_machine_unless_told_otherwise(
    host: dict[str, str], everywhere: bool
) -> None:
    server = WorkerServer(**host, port=0, work_fn=print, key=OTHER_KEY)
    assert is_reached_at("127.0.0.1", server.port)
    assert is_reached_at("127.0.0.2", server.port) == everywhere


def test_a_server_in_a_thread() -> None:
    """It serves until the program ends, and then nothing of it is left."""
    script = """
        import threading, warnings
        from miniray import RemoteWorker, WorkerServer
        warnings.simplefilter("ignore")  # of forks in a program with threads
        def echo(handle):
            while True:
                handle.send(handle.recv())
        server = WorkerServer("127.0.0.1", 0, echo, key="0123456789abcdef" * 4)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        worker = RemoteWorker("127.0.0.1", server.port, key="0123456789abcdef" * 4)
        worker.send("from a thread's worker")
        print(worker.recv(timeout=30), server.worker_count, worker.pid)
        worker.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("from a thread's worker 1 "), done.stderr
    assert done.returncode == 0, done.stderr

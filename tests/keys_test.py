"""Where keys are: each server has its own, and no worker finds one in its memory, not even that of its own server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

# In place of a node's interpreter: keeps a copy of what the cluster sends to the server.
LISTENING_PYTHON = """\
    #!{python}
    import os, select, subprocess, sys
    child = subprocess.Popen([{python!r}, *sys.argv[1:]], stdin=subprocess.PIPE)
    with open({copy!r}, "ab", 0) as copy:
        while select.select([0], [], []) and (piece := os.read(0, 1 << 16)):  # the server has made it non-blocking
            copy.write(piece)
            try:
                child.stdin.write(piece)
                child.stdin.flush()
            except OSError:
                break
    child.stdin.close()
    sys.exit(child.wait())
"""


def traces_of(key: str) -> dict[str, bytes]:
    """What would do in place of a key, as it may lie in memory."""
    raw = bytes.fromhex(key)
    return {
        "the key": raw,
        "its digits": key.encode(),
        "its digits in capitals": key.upper().encode(),
        "the inner block of HMAC": bytes(byte ^ 0x36 for byte in raw),
        "the outer block of HMAC": bytes(byte ^ 0x5C for byte in raw),
    }


def found(key: str, memory: Path) -> list[str]:
    content = memory.read_bytes()
    assert len(content) > 1 << 20
    return [what for what, trace in traces_of(key).items() if trace in content]


def listening_python(folder: Path, name: str) -> tuple[Path, Path]:
    """An interpreter for a node, and the file with what its server gets."""
    program, copy = folder / f"{name}.py", folder / f"{name}.input"
    program.write_text(textwrap.dedent(LISTENING_PYTHON).format(python=sys.executable, copy=str(copy)))
    program.chmod(0o755)
    return program, copy


def run(folder: Path, text: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
    )


def test_no_worker_of_a_cluster_finds_a_key(tmp_path: Path) -> None:
    nodes = [listening_python(tmp_path, name) for name in ("one", "two")]
    script = """
        import json, sys
        from miniray import Cluster, NodeConfig, Worker
        import memory_work

        folder, *pythons = sys.argv[1:]
        nodes = [NodeConfig("localhost", 1, base_port=0, python_bin=python) for python in pythons]
        with Cluster(nodes) as cluster:
            workers = [*cluster.start("memory_work.dump"), *cluster.start("memory_work.dump")]
            cluster.relaunch("localhost")
            workers = [*workers[1:2], *workers[3:], *cluster.start("memory_work.dump", nodes=[0])]
            workers.append(Worker(memory_work.dump))  # has the memory of the coordinator
            for number, worker in enumerate(workers):
                worker.send(f"{folder}/{number}.memory")
                worker.recv()
            workers[-1].close()
            print(len(workers))
    """
    ended = run(tmp_path, script, str(tmp_path), *(str(program) for program, _ in nodes))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == 4
    keys = [re.findall(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", copy.read_bytes()) for _, copy in nodes]
    first = re.split(rb"(?<![0-9a-f])(?=[0-9a-f]{64}\n\{)", nodes[0][1].read_bytes())
    launches = [part[:64].decode() for part in first if re.match(rb"[0-9a-f]{64}\n", part)]
    assert len(launches) == 2, "each launch of a server has a key of its own"
    every = [*launches, keys[1][0].decode()]
    assert len(set(every)) == 3
    for number in range(4):
        for key in every:
            assert found(key, tmp_path / f"{number}.memory") == [], (number, key)


@pytest.mark.parametrize("kept_in", ["environment", "file"])
def test_no_worker_of_a_server_that_was_started_by_hand_finds_its_key(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_in: str
) -> None:
    key = os.urandom(32).hex()
    if kept_in == "environment":
        server = start_server("--work-fn", "memory_work.dump", key=key)
    else:
        (tmp_path / ".miniray").mkdir(mode=0o700)
        (tmp_path / ".miniray" / "key").write_text(key + "\n")
        (tmp_path / ".miniray" / "key").chmod(0o600)
        server = start_server("--work-fn", "memory_work.dump", key=None, HOME=str(tmp_path))
    with server.connect(key=key) as first, server.connect(key=key) as second:
        for number, worker in enumerate((first, second)):
            worker.send(str(tmp_path / f"{number}.memory"))
            worker.recv()
    for number in range(2):
        assert found(key, tmp_path / f"{number}.memory") == []


def test_a_server_in_a_program_wipes_the_key_of_the_environment_in_its_workers_only(tmp_path: Path) -> None:
    key = os.urandom(32).hex()
    script = """
        import multiprocessing, os, signal, sys
        from miniray import RemoteWorker, WorkerServer
        import memory_work

        def serve(there):
            server = WorkerServer("127.0.0.1", 0, memory_work.dump)
            there.send(server.port)
            server.serve_forever()

        os.environ["MINIRAY_KEY"] = os.environ["MINIRAY_KEY"]  # as programs do that change the environment
        here, there = multiprocessing.Pipe()
        server = multiprocessing.get_context("fork").Process(target=serve, args=[there])
        server.start()
        port = here.recv()
        with RemoteWorker("127.0.0.1", port) as worker:
            worker.send(sys.argv[1])
            worker.recv()
        RemoteWorker("127.0.0.1", port).close()
        server.kill()
        server.join()
    """
    ended = run(tmp_path, script, str(tmp_path / "memory"), MINIRAY_KEY=key)
    assert ended.returncode == 0, ended.stderr
    assert set(found(key, tmp_path / "memory")) <= {"its digits"}
    digits = (tmp_path / "memory").read_bytes().count(key.encode())
    assert digits == 0, f"{digits} copies"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_local_worker_has_no_key_of_the_environment(tmp_path: Path, start: str) -> None:
    key = os.urandom(32).hex()
    script = """
        import os, sys
        from miniray import Worker
        import memory_work

        if __name__ == "__main__":
            os.environ["MINIRAY_KEY"] = os.environ["MINIRAY_KEY"]  # as programs do that change the environment
            with Worker(memory_work.dump, start=sys.argv[2]) as worker:
                worker.send(sys.argv[1])
                worker.recv()
            print(os.environ["MINIRAY_KEY"])  # the program keeps it
    """
    ended = run(tmp_path, script, str(tmp_path / "memory"), start, MINIRAY_KEY=key)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == key + "\n"
    assert found(key, tmp_path / "memory") == []


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_pool_s_key_is_in_no_message_and_in_no_worker(tmp_path: Path, start: str) -> None:
    script = """
        import gc, json, os, socket, sys, time
        from miniray import Pool
        from miniray._pool_workers import LocalWorkers
        import memory_work

        def dump(path):
            memory_work.write_memory(path)
            return os.getpid()

        def key_of(source):
            here, there = socket.socketpair()
            with here, there:
                source._key.write_to(here.fileno())
                return there.recv(100).decode(), source._socket

        if __name__ == "__main__":
            with Pool(1, start=sys.argv[2]) as pool:
                pool.submit(dump, sys.argv[1]).result()
                [source] = [each for each in gc.get_objects() if isinstance(each, LocalWorkers)]
                first = key_of(source)
                old = source._server
                old.kill()  # its workers end with it, and the pool makes another server
                deadline = time.monotonic() + 60
                while source._server is old:
                    assert time.monotonic() < deadline, "the pool makes no other server"
                    time.sleep(0.01)
                print(json.dumps([first, key_of(source)]))
    """
    trace = tmp_path / "trace"
    ended = run(tmp_path, script, str(tmp_path / "memory"), start, MINIRAY_TRACE=str(trace))
    assert ended.returncode == 0, ended.stderr
    (key, name), (next_key, next_name) = json.loads(ended.stdout)
    assert len({key, next_key, name, next_name}) == 4, "a new server has a new key and a new name"
    assert found(key, tmp_path / "memory") == []
    assert key not in trace.read_text() + ended.stderr
    assert "<32 bytes>" not in trace.read_text()

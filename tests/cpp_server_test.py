"""C++ work functions behind a server: `miniray worker-server` and a shared library, talked to from Python."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import miniray
from miniray import RemoteWorker

LIBRARY = """
#include <miniray/miniray.hpp>

extern "C" void train_fn(miniray::Handle& handle) {
  for (;;) {
    const miniray::Value msg = handle.recv();
    double sum = 0;
    for (const double x : msg["batch"].array<const double>()) sum += x;
    handle.send({{"loss", sum}});
  }
}
extern "C" void fail(miniray::Handle&) { throw miniray::ValueError("no gradient"); }
extern "C" void crash(miniray::Handle&) { *static_cast<volatile int*>(nullptr) = 1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(__file__).parent.parent
    folder = tmp_path_factory.mktemp("library")
    (folder / "train.cpp").write_text(LIBRARY)
    includes = [f"-I{root}/include", f"-I{root}/build/release/include"]
    command = ["c++", "-std=c++20", "-shared", "-fPIC", *includes, "train.cpp", "-o", "libtrain.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "libtrain.so"


@contextmanager
def serving(root: Path, library: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [root / "build/release/miniray", "worker-server", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--work-fn", "./libtrain.so:train_fn", *options],
        cwd=library.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:")
        yield process, int(line.split(":")[1].split(",")[0])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()


@pytest.fixture
def server(root: Path, library: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with serving(root, library) as started:
        yield started


def test_a_function_of_a_library_runs_for_each_connection(server: tuple[subprocess.Popen[str], int]) -> None:
    _, port = server
    with RemoteWorker("127.0.0.1", port) as first, RemoteWorker("127.0.0.1", port) as second:
        assert first.pid != second.pid
        for worker in (first, second):
            worker.send({"batch": np.ones(1000)})
        assert [worker.recv() for worker in (first, second)] == [{"loss": 1000.0}, {"loss": 1000.0}]


@pytest.mark.parametrize("option", ["--encrypt", "--no-encrypt"])
def test_the_command_is_told_whether_to_encrypt(root: Path, library: Path, option: str) -> None:
    encrypts = option == "--encrypt"
    says = "this side was told not to" if encrypts else "it was told not to encrypt"
    with serving(root, library, option) as (_, port):
        with pytest.raises(miniray.Refused, match=rf"{says} \(encrypt=False, --no-encrypt\)"):
            RemoteWorker("127.0.0.1", port, encrypt=not encrypts)
        with RemoteWorker("127.0.0.1", port, encrypt=encrypts) as worker:
            worker.send({"batch": np.ones(10)})
            assert worker.recv() == {"loss": 10.0}


def test_a_connection_may_name_another_function(server: tuple[subprocess.Popen[str], int]) -> None:
    _, port = server
    with (
        RemoteWorker("127.0.0.1", port, "./libtrain.so:fail") as worker,
        pytest.raises(miniray.WorkerError, match="no gradient"),
    ):
        worker.recv()
    with RemoteWorker("127.0.0.1", port, "./libtrain.so:crash") as worker:
        with pytest.raises(miniray.WorkerDied, match="SIGSEGV") as died:
            worker.recv()
        assert "C++ stack at SIGSEGV" in died.value.stack
        assert "crash" in died.value.stack
    with pytest.raises(miniray.Refused, match=r'has no function nothing\. Declare it extern "C"'):
        RemoteWorker("127.0.0.1", port, "./libtrain.so:nothing")
    with pytest.raises(miniray.Refused, match=r"cannot load ./nothing\.so"):
        RemoteWorker("127.0.0.1", port, "./nothing.so:f")


def test_what_cannot_be_served_is_said_at_once(root: Path, library: Path) -> None:
    for work_fn, complaint in [
        ("./libtrain.so:nothing", "has no function nothing"),
        ("./nothing.so:f", "cannot load ./nothing.so"),
        ("train_fn", 'a work function is named "./library.so:function"'),
    ]:
        command = [root / "build/release/miniray", "worker-server", "--port", "0", "--work-fn", work_fn]
        done = subprocess.run(command, cwd=library.parent, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 2
        assert complaint in done.stderr

"""What a map with progress=True shows: a line that moves on a terminal, few plain lines elsewhere, nothing unasked."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest
from waiting import PATIENCE_S

TESTS = Path(__file__).parent

PROGRAM = """
from miniray import Pool
import task_functions
with Pool(2) as pool:
    if {way!r} == "starmap":
        results = pool.starmap(task_functions.square, [(n,) for n in range(40)], progress={progress})
    else:
        results = getattr(pool, {way!r})(task_functions.square, range(40), chunksize=1, progress={progress})
    print(sum(results))
"""
SUM = str(sum(n * n for n in range(40)))


def command(way: str, progress: bool) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(PROGRAM.format(way=way, progress=progress))]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS), "TERM": "xterm"}


@pytest.mark.parametrize("way", ["map", "imap_unordered", "starmap"])
def test_elsewhere_than_on_a_terminal(way: str) -> None:
    """Standard output is the program's own, and a log file gets whole lines, and few."""
    done = subprocess.run(
        command(way, True), capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), check=True
    )
    assert done.stdout == SUM + "\n"
    assert "40" in done.stderr
    assert not re.search(r"[\r\x1b]", done.stderr)
    assert done.stderr.endswith("\n")
    assert len(done.stderr.splitlines()) <= 20


def test_unasked_there_is_none() -> None:
    done = subprocess.run(
        command("map", False), capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), check=True
    )
    assert (done.stdout, done.stderr) == (SUM + "\n", "")


def on_a_terminal(program: list[str], columns: int) -> tuple[str, str]:
    """What a program prints, and what it shows on a terminal of this width."""
    mine, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen(
            program, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environment(), text=True
        ) as process:
            os.close(theirs)
            theirs = -1
            shown = read_all(mine)
            assert process.stdout is not None
            printed = process.stdout.read()
            assert process.wait(PATIENCE_S) == 0, shown
    finally:
        os.close(mine)
        if theirs >= 0:
            os.close(theirs)
    return printed, shown


@pytest.mark.parametrize("way", ["map", "imap_unordered", "starmap"])
def test_on_a_terminal(way: str) -> None:
    """One line that is written over, with how many are done, and at the end all of them."""
    printed, shown = on_a_terminal(command(way, True), 80)
    assert printed == SUM + "\n"
    assert "\r" in shown.replace("\r\n", "\n")
    assert re.search(r"40\s*/\s*40|100\s*%", shown), shown
    assert shown.endswith("\n")
    assert shown.replace("\r\n", "\n").count("\n") <= 3


@pytest.mark.parametrize("columns", [12, 40])
def test_on_a_narrow_terminal(columns: int) -> None:
    """A line that wraps could not be written over."""
    _, shown = on_a_terminal(command("map", True), columns)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown)]
    assert max(map(len, lines)) < columns
    assert any(line.startswith("40/40") for line in lines), shown


TRAINING = """
import time
from miniray import Cluster, NodeConfig

def train(handle):
    handle.recv()
    time.sleep(2)
    handle.send({"status": "ready"})

with Cluster([NodeConfig("localhost", num_workers=4, base_port=0)]) as cluster:
    print(len(cluster.training_group(cluster.start(train))))
"""


def test_ranks_that_are_missing_on_a_narrow_terminal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    printed, shown = on_a_terminal([sys.executable, str(script)], 40)
    assert printed == "4\n"
    lines = re.split(r"\r\x1b\[K|[\r\n]+", shown)
    assert max(map(len, lines)) < 40, shown
    assert any(line.startswith("miniray: 0 of 4 ranks ready after ") for line in lines), shown


def read_all(descriptor: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # nobody holds the other end any more
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)

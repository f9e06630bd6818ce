"""The C++ programs of bench-peers: each does one piece of work and prints a line for each figure, "row seconds"."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from peers.peer import ROOT, NoSuchThing

FOLDER = ROOT / "build/release/bench"
ALL_REDUCE_RANKS = (2, 4, 8)
MAP_US = (1, 10, 100, 1000)
ALL_REDUCE_BYTES = tuple(1024 * factor for factor in (1, 16, 256, 4096, 65536))
QUICK_BYTES = (1024, 1024 * 1024)


def program(name: str) -> str:
    path = FOLDER / name
    if not path.exists():
        raise NoSuchThing("not built: its headers are not installed, or make library has not run")
    return str(path)


def figures(command: list[str]) -> Iterator[tuple[str, float]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            row, seconds = line.split()
            yield row, float(seconds)
    if running.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {running.returncode}")


def all_reduce_bytes(quick: bool) -> tuple[int, ...]:
    return QUICK_BYTES if quick else ALL_REDUCE_BYTES

"""MINIRAY_TRACE: every message of the process, as lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import numpy as np
from miniray import Worker
def echo(handle):
    while True:
        handle.send(handle.recv())
with Worker(echo, name="echo") as worker:
    worker.send({"a": np.zeros((3, 4)), "t": "x" * 500, 7: float("nan"), "l": list("abcdefghijklmnopqrstuvwxyz")})
    worker.recv()
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_every_message_is_a_line_of_json() -> None:
    traced = [json.loads(line) for line in run(MINIRAY_TRACE="1").stderr.splitlines()]
    lines = [line for line in traced if line.get("kind") != "end"]  # the worker's last word, if it is in time for it
    assert [line["direction"] for line in lines].count("sent") == 2
    assert [line["direction"] for line in lines].count("received") == 2
    assert len({line["pid"] for line in lines}) == 2
    first = min(lines, key=lambda line: line["time"])
    assert first["peer"].endswith("(echo)")
    assert first["bytes"] > 500
    assert first["body"]["a"] == "<array float64 3x4>"
    assert first["body"]["t"].endswith("... (500 bytes)")
    assert first["body"]["7"] == "NaN"
    assert first["body"]["l"][-1] == "..."


def test_a_path_gets_the_lines_and_nothing_else_does(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    assert run(MINIRAY_TRACE=str(file)).stderr == ""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len([line for line in lines if line.get("kind") != "end"]) == 4


def test_off_by_default_and_a_bad_path_is_named() -> None:
    assert run(MINIRAY_TRACE="").stderr == ""
    assert "/nowhere/trace" in run(MINIRAY_TRACE="/nowhere/trace").stderr

"""Runs small programs as a user would: as a script of their own, whose ``__main__`` is theirs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

TIME_LIMIT_S = 100.0


def run_script(folder: Path, source: str, *arguments: str, piped: bool = False) -> str:
    """What the program prints. It has to end well. With ``piped``, Python reads it from a pipe: it has no file."""
    text = textwrap.dedent(source)
    if piped:
        command, given = [sys.executable, "-", *arguments], text
    else:
        script = folder / "program.py"
        script.write_text(text)
        command, given = [sys.executable, str(script), *arguments], None
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=TIME_LIMIT_S, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


BEGIN = """
import asyncio, functools, sys, threading
from miniray import Pool, Worker

class Cfg:
    def __init__(self, v): self.v = v
def d(c=Cfg(1)): return c.v
class Attribute:
    cfg = Cfg(1)
big = b""
def own(): return len(big)

if __name__ == "__main__":
    pool = Pool(2, start=sys.argv[1])
    def run(f, *args): return pool.submit(f, *args).result(60)
    BODY
    pool.shutdown()
"""


def lines(folder: Path, start: str, body: str) -> list[str]:
    """What a body prints that has a pool, and BEGIN's functions and classes."""
    indented = "\n    ".join(body.strip().splitlines())
    return run_script(folder, BEGIN.replace("BODY", indented), start).splitlines()

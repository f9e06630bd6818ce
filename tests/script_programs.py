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

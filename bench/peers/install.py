"""Installs the peers into a virtual environment of their own: ``python -m peers.install FOLDER MINIRAY_WHEEL``.

One that cannot be installed does not keep the others from being measured: it is named here, and again in the results.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from peers.peer import find_peers

COMMON = ("numpy", "packaging", "cloudpickle")  # for arrays, sizes on disk, and functions that MiniRay sends by value


def install(python: Path, *what: str) -> str | None:
    """Returns None, or why it failed."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return None if done.returncode == 0 else (lines or ["no reason was given"])[-1]


def main() -> None:
    folder, wheel = Path(sys.argv[1]), sys.argv[2]
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    for what in (COMMON, ("--no-deps", "--force-reinstall", wheel)):
        problem = install(python, *what)
        if problem is not None:
            sys.exit(f"cannot install {' '.join(what)}: {problem}")
    for name, peer in find_peers().items():
        problem = install(python, *peer.requirements) if peer.requirements else None
        print(f"{name}: " + (problem or "installed"), flush=True)


if __name__ == "__main__":
    main()

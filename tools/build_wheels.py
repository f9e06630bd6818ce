"""Builds a wheel for each installed CPython from 3.10 to 3.13, and runs the Python tests with each.

    python tools/build_wheels.py [version ...]

It looks for interpreters on the PATH and in pyenv, and puts the wheels into dist/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
BUILD = ("nanobind", "scikit-build-core", "cmake>=3.25", "ninja")
TEST = ("numpy", "pytest", "pytest-timeout")


def interpreter(version: str) -> str | None:
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")), reverse=True)
    for candidate in candidates:
        if candidate is None:
            continue
        asked = subprocess.run([candidate, "-V"], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and re.match(rf"Python {re.escape(version)}\.", asked.stdout):
            return candidate
    return None


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)


def build_and_test(version: str, python: str) -> Path:
    environment = ROOT / "build/wheels" / version
    inside = environment / "bin/python"
    if not inside.exists():
        run(python, "-m", "venv", environment)
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *BUILD, *TEST)
    before = set((ROOT / "dist").glob("*.whl"))
    tag = f"cp{version.replace('.', '')}"
    for old in before:
        if tag in old.name:
            old.unlink()
    pip = (inside, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", ".")
    (wheel,) = (path for path in (ROOT / "dist").glob("*.whl") if tag in path.name)
    run(*pip, "install", "-q", "--no-deps", "--force-reinstall", wheel)
    need_more = [f"--ignore=tests/{name}_test.py" for name in ("repository", "examples", "snippets")]
    run(inside, "-m", "pytest", *need_more)
    return wheel


def main() -> None:
    wanted = sys.argv[1:] or VERSIONS
    for version in wanted:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not installed, skipped", flush=True)
            continue
        print(f"Python {version}: {python}", flush=True)
        wheel = build_and_test(version, python)
        print(f"Python {version}: {wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB, tests passed", flush=True)


if __name__ == "__main__":
    main()

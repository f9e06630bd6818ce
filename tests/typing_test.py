"""The types that users see: two checkers, mypy and pyright, agree about what is right and what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import miniray

FOLDER = Path(__file__).parent / "typing"
CHECK_S = 110  # a checker that starts with a cold cache on a busy machine


def mypy(path: Path, cache: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S, cwd=path.parent)
    assert not done.stderr, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        name, number, kind, text = line.split(":", 3)
        if kind.strip() == "error":
            assert Path(name).name == path.name, line
            found[int(number)] = text
    return found


def pyright(path: Path, cache: Path) -> dict[int, str]:
    shutil.copy(path, cache)
    settings = {
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "useLibraryCodeForTypes": False,
    }
    (cache / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, done.stdout
    return {
        one["range"]["start"]["line"] + 1: one["message"]
        for one in report["generalDiagnostics"]
        if one["severity"] == "error"
    }


CHECKERS = pytest.mark.parametrize("check", [mypy, pyright], ids=["mypy", "pyright"])


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(miniray.__file__).parent / "py.typed").exists()


@CHECKERS
def test_right(check: object, tmp_path: Path) -> None:
    assert callable(check)
    assert check(FOLDER / "right.py", tmp_path) == {}


@CHECKERS
def test_wrong(check: object, tmp_path: Path) -> None:
    assert callable(check)
    lines = (FOLDER / "wrong.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    found = check(FOLDER / "wrong.py", tmp_path)
    assert set(found) == marked, found

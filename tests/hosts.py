"""Coordinators beside real ssh hosts, for tests: each is a script that runs in the hub of a testbed.

The folder of the scripts is in no host's sight, so what runs there was sent.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from testbed import Testbed
from waiting import PATIENCE_S, until

PROGRESS = re.compile(r"^miniray: \d+ of \d+ nodes ready after .*\n", re.M)  # of a start that takes over 3 s
WHOLE_LINES = {"PYTHONUNBUFFERED": ""}  # what a script prints does not come in pieces, between lines of its workers
SHARED_FOLDER = "/var/tmp"  # what is in here, every host sees


class Hosts:
    """A testbed, and a folder for the scripts of one test."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        self.testbed = testbed
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def write(self, files: Mapping[str, str], folder: Path | None = None) -> None:
        for name, text in files.items():
            path = (folder or self.folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def ends(
        self,
        text: str,
        *arguments: str,
        files: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script as coordinator, with these files beside it, to whatever end."""
        self.write({**(files or {}), "script.py": text})
        words = (sys.executable, self.folder / "script.py", *arguments)
        return self.testbed.run(*words, env={**WHOLE_LINES, **(env or {})}, timeout=timeout, cwd=self.folder)

    def run(self, text: str, *arguments: str, **options: Any) -> str:
        """The script ends well, and this is what it, and its workers, printed."""
        ended = self.ends(text, *arguments, **options)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        assert PROGRESS.sub("", ended.stderr) == "", ended.stderr
        return ended.stdout

    def value(self, text: str, *arguments: str, **options: Any) -> Any:
        """The script's only line is JSON."""
        return json.loads(self.run(text, *arguments, **options))

    def fail(self, text: str, *arguments: str, **options: Any) -> str:
        """The script ends with an exception: the last of its traceback, from the exception's name on."""
        ended = self.ends(text, *arguments, **options)
        assert ended.returncode == 1, ended.stderr + ended.stdout
        lines = ended.stderr.splitlines()
        last_frame = max(number for number, line in enumerate(lines) if line.startswith("  File "))
        first = next(n for n in range(last_frame, len(lines)) if lines[n] and not lines[n].startswith(" "))
        return "\n".join(lines[first:])

    def start(self, text: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a script that reads standard input and writes to standard output, and does not wait for it."""
        self.write({"script.py": text})
        child = self.testbed.popen(
            sys.executable,
            "-u",
            self.folder / "script.py",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._started.append(child)
        return child

    def end_scripts(self) -> None:
        """Those that a failed test left waiting."""
        for child in self._started:
            child.kill()
            child.communicate()

    def on_host(self, name: str, *words: str) -> str:
        """What a command prints in the network of a host, without the way through ssh."""
        namespace = f"/run/netns/{self.testbed.hosts[name].namespace}"
        return subprocess.run(
            ["nsenter", f"--net={namespace}", *words], capture_output=True, text=True, check=True
        ).stdout

    def assert_nothing_is_left(self) -> None:
        until(lambda: not self.testbed.survivors(), what=lambda: f"the end of {self.testbed.survivors()}")


def ended_with(child: subprocess.Popen[str], timeout: float = PATIENCE_S) -> tuple[str, str]:
    """What the script said after what was read already."""
    out, errors = child.communicate(timeout=timeout)
    return out, errors


@pytest.fixture(scope="session")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Three hosts, for all tests that leave them as they were."""
    reason = Testbed.available()
    if reason is not None:
        pytest.skip(f"no ssh hosts: {reason}")
    scripts = tmp_path_factory.mktemp("scripts")
    names = ("mr-a", "mr-b", "mr-c")
    with Testbed(tmp_path_factory.mktemp("testbed"), names, hidden={name: [scripts] for name in names}) as testbed:
        testbed.scripts = scripts  # type: ignore[attr-defined]
        yield testbed


@pytest.fixture
def hosts(testbed: Testbed) -> Iterator[Hosts]:
    """The three hosts, and a new folder for scripts. Afterwards nothing of the test runs on any of them."""
    made = Hosts(testbed, Path(tempfile.mkdtemp(dir=testbed.scripts)))  # type: ignore[attr-defined]
    yield made
    made.end_scripts()
    made.assert_nothing_is_left()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that all hosts see."""
    with tempfile.TemporaryDirectory(dir=SHARED_FOLDER) as folder:
        yield Path(folder)

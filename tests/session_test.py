"""Functions that are in no file: typed, piped in, given with -c, or run with exec. Every kind of worker takes them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pool_progress_test import read_all
from waiting import PATIENCE_S

SESSION = """\
from miniray import *
FACTOR = 2
class Point: x = 20

def times(n): return FACTOR * n

def work(h): h.send(times(h.recv() + Point.x))

def use(w): w.send(1); answer = w.recv(); w.close(); return answer

def report(*words): print("answer:", *words)

report("fork", use(Worker(work)))
report("spawn", use(Worker(work, start="spawn")))
report("closure", use(Worker((lambda m: lambda h: h.send(h.recv() * m))(5), start="spawn")))
pool = Pool(2)
report("pool", list(pool.map(times, range(3))), pool.submit(lambda: Point.x).result())
pool.shutdown()
pool = Pool(2, start="spawn")
report("pool", pool.submit(times, 4).result())
pool.shutdown()
cluster = Cluster([NodeConfig("localhost", 1, base_port=0)])
report("cluster", use(cluster.start(work)[0]))
cluster.stop()
"""

ANSWERS = ["fork 42", "spawn 42", "closure 5", "pool [0, 2, 4] 20", "pool 8", "cluster 42"]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "IPYTHONDIR": str(folder), "HOME": str(folder), "TERM": "dumb", "PYTHONWARNINGS": "default"}


def check(text: str) -> None:
    assert re.findall(r"^answer: (.*?)\r?$", text, re.MULTILINE) == ANSWERS, text
    assert "RuntimeWarning" not in text, text
    assert "Traceback" not in text, text


@pytest.mark.parametrize("shell", ["python -i", "ipython"])
def test_at_a_prompt(shell: str, tmp_path: Path) -> None:
    if shell == "ipython":
        pytest.importorskip("IPython")
    ipython = ["-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit"]
    command = [sys.executable, *(ipython if shell == "ipython" else ["-i"])]
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(tmp_path), cwd=tmp_path, process_group=0
    ) as process:
        os.close(theirs)
        try:
            for line in [*SESSION.splitlines(), "exit()"]:
                os.write(mine, line.encode() + b"\n")
            # A prompt stands before what is printed.
            shown = re.sub(r"(>>> |\.\.\. |In \[\d+\]: |   \.\.\.: |\r)+", "", read_all(mine))
            shown = shown.replace("\x1b[K", "\n")  # a line of progress, which is there if the nodes take a while
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            os.close(mine)
    check(shown)


@pytest.mark.parametrize("way", ["piped", "-c", "exec", "a file that is gone"])
def test_in_no_file(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text, given = SESSION, None
    if way == "exec":
        text = f"exec({SESSION!r}, globals())"
    elif way == "a file that is gone":
        text = f"import os\nos.remove(__file__)\n{SESSION}"
    if way == "piped":
        command, given = [sys.executable], text
    elif way == "-c":
        command = [sys.executable, "-c", text]
    else:
        script.write_text(text)
        command = [sys.executable, str(script)]
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )
    assert done.stderr == ""
    check(done.stdout)

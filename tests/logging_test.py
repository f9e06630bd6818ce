"""The logger "miniray": events at sensible levels, and silence until the program asks for more."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, until

from miniray import EventLog, Pool, RestartPolicy, Worker, WorkerDied, WorkerRestarted, _log


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def flaky(path: str) -> str:
    if not os.path.exists(path):
        with open(path, "w"):
            pass
        raise ValueError("the first time\x1b[2J")
    return "done"


def of(caplog: pytest.LogCaptureFixture, kind: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "miniray" and record.event.kind == kind]  # type: ignore[attr-defined]


def test_a_pool_tells_of_deaths_and_retries(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    with caplog.at_level(logging.DEBUG, "miniray"), Pool(1) as pool:
        assert isinstance(pool.submit(die).exception(PATIENCE_S), WorkerDied)
        retrying = pool.options(retries=1, retry_on=ValueError)
        assert retrying.submit(flaky, str(tmp_path / "flaky")).result(PATIENCE_S) == "done"
    [died] = of(caplog, "worker_died")
    assert died.levelno == logging.WARNING
    assert "SIGKILL" in died.getMessage()
    assert died.getMessage().startswith("worker_died on ")
    [retried] = of(caplog, "task_retried")
    assert r"the first time\x1b[2J" in retried.event.text  # type: ignore[attr-defined]
    assert (retried.levelno, r"the first time\x1b[2J" in retried.getMessage()) == (logging.INFO, True)
    assert {record.levelno for record in of(caplog, "worker_started")} == {logging.DEBUG}
    assert len(of(caplog, "worker_started")) == 2
    logged = [record.event for record in caplog.records]  # type: ignore[attr-defined]
    assert logged == list(pool.events)  # each once
    assert {event.kind for event in logged} <= documented_kinds()


def test_supervision_tells_of_restarts_and_refusals(caplog: pytest.LogCaptureFixture) -> None:
    policy = RestartPolicy(max_restarts=1, backoff_s=0)
    with caplog.at_level(logging.INFO, "miniray"), Worker(restart=policy) as worker:
        for expected in (WorkerRestarted, WorkerDied):
            with pytest.raises(expected):
                worker.call_remote("logging_test.die")
    kinds = [(record.event.kind, record.levelname) for record in caplog.records]  # type: ignore[attr-defined]
    assert kinds == [
        ("worker_died", "WARNING"),
        ("worker_restarted", "INFO"),
        ("worker_died", "WARNING"),
        ("restart_refused", "ERROR"),
    ]


def never_answers(handle: Any) -> None:
    os.read(handle.fileno(), 0)
    signal.pause()


def test_a_worker_that_does_not_answer_calls_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with Worker(never_answers) as silent, Worker(echo) as answers:
        name = silent.name
        pool = Pool([silent, answers])
        with caplog.at_level(logging.DEBUG, "miniray"):
            futures = [pool.submit(pow, 2, 3) for _ in range(8)]
            until(lambda: of(caplog, "worker_silent"))
        [record] = of(caplog, "worker_silent")
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"worker_silent on localhost ({name}): it was given a task ")
        assert "use Worker() or the work function miniray.serve_calls" in record.getMessage()
        assert sum(future.done() for future in futures) >= 1
        pool._driver.end()


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def test_the_log_is_as_the_documentation_has_it(root: Path) -> None:
    page = (root / "docs/supervision.md").read_text()
    code, lines = re.findall(r"^```python\n(import logging.*?)^```\n+```text\n(.*?)^```", page, re.S | re.M)[0]
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    shown = [line for line in ended.stderr.splitlines() if ":miniray:" in line]
    assert [re.sub(r"worker \d+", "worker N", line) for line in shown] == [
        re.sub(r"worker \d+", "worker N", line) for line in lines.splitlines()
    ]


def documented_kinds() -> set[str]:
    found = set()
    for page in ("supervision", "pool"):
        text = (Path(__file__).parent.parent / f"docs/{page}.md").read_text()
        for cells in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE):
            found |= set(re.findall(r"`(\w+)`", cells))
    return found


def test_every_kind_that_has_a_level_is_in_a_table() -> None:
    assert {*_log._DEBUG, *_log._WARNING, *_log._ERROR, "worker_restarted"} <= documented_kinds()


def test_levels_below_the_programs_own_are_not_made(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    with caplog.at_level(logging.WARNING, "miniray"):
        log.add("worker_started")
        log.add("something_else", "said")
        log.add("node_lost", "said", node="node1")
    assert [record.getMessage() for record in caplog.records] == ["node_lost on node1: said"]


SCRIPT = """
import os, sys
{begin}
from miniray import Pool
with Pool(1) as pool:
    assert pool.submit(os._exit, 3).exception() is not None
"""


@pytest.mark.parametrize("begin", ["", "import logging", "import logging; logging.getLogger('miniray')"])
def test_nothing_is_printed_by_default(begin: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(begin=begin)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_basic_config_shows_warnings_once() -> None:
    command = [sys.executable, "-c", SCRIPT.format(begin="import logging; logging.basicConfig()")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert ended.stderr.count("WARNING:miniray:worker_died on ") == 1
    assert ended.stderr.count("miniray") == ended.stderr.count("WARNING:miniray:")

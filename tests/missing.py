"""What a test needs and a machine may lack: by itself pytest skips such a test, and `make test` fails it.

`make test` installs all that the tests need (pytest's option --nothing-is-missing). What it cannot install, such as a
newer Python or more memory, is named by a reason that begins with NOT_HERE; only that is skipped there too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

NOT_HERE = "not on this machine: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nothing-is-missing", action="store_true", help="fail a test that lacks what it needs")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    return judge(item.config, report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    return judge(collector.config, report)


def judge(config: pytest.Config, report: Any) -> Any:
    """Makes a failure of what was skipped for want of something that was to be there."""
    if report.skipped and not hasattr(report, "wasxfail") and config.getoption("--nothing-is-missing"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(NOT_HERE):
            report.outcome = "failed"
            report.longrepr = f"skipped, though nothing is to be missing here: {reason}"
    return report

"""Workers that serve calls, for tests: on this machine, and through a worker server."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest


def connect(request: pytest.FixtureRequest, server: Any, work_fn: str) -> Any:
    import miniray

    if request.param == "local":
        module, _, name = work_fn.rpartition(".")
        return miniray.Worker(getattr(importlib.import_module(module), name))
    return server.connect(work_fn)


@pytest.fixture(params=["local", "remote"])
def call_worker(request: pytest.FixtureRequest, server: Any) -> Iterator[Any]:
    """Does nothing but serve calls."""
    with connect(request, server, "miniray.serve_calls") as made:
        yield made


@pytest.fixture(params=["local", "remote"])
def talker(request: pytest.FixtureRequest, server: Any) -> Iterator[Any]:
    """Has a loop of its own, which returns every message and remembers it."""
    with connect(request, server, "task_functions.note_and_echo") as made:
        yield made


def remote_text(error: BaseException) -> str:
    """The traceback that came along with what a call raised."""
    import miniray

    while not isinstance(error, miniray.RemoteTraceback):
        follows = error.__cause__ or error.__context__
        assert follows is not None
        error = follows
    return str(error)

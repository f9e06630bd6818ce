"""The table of docs/calls.md: what a message makes of a value, and what a call does, row by row."""

from __future__ import annotations

import re
from collections import OrderedDict
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from waiting import PATIENCE_S

from miniray import Pool, Worker

PAGE = Path(__file__).parent.parent / "docs/calls.md"
ROWS = re.findall(r"^\| `([^`]+)`.*? \| `([^`]+)`(?: from `send`)? \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
NAMES = {"OrderedDict": OrderedDict, "HTTPStatus": HTTPStatus, "np": np, "torch": torch}


def echo(handle: Any) -> None:
    while True:
        handle.send(handle.recv())


def identity(value: Any) -> Any:
    return value


def arrives(worker: Any, value: Any) -> str:
    """As the table has it: what is received, or the error of send."""
    try:
        worker.send(value)
    except (TypeError, OverflowError) as error:
        return type(error).__name__
    return repr(worker.recv(timeout=PATIENCE_S))


def test_the_table_has_its_rows() -> None:
    table = PAGE.read_text().partition("| sent | `recv()` returns |")[2].partition("\n\n")[0]
    assert len(ROWS) == table.count("\n| ") > 10


@pytest.mark.parametrize(("sent", "received", "called"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row(sent: str, received: str, called: str) -> None:
    value = eval(sent, NAMES)
    with Worker(echo) as worker, Pool(1) as pool:
        worker.register(identity)
        assert arrives(worker, value) == received
        assert repr(worker.call_remote("identity", value)) == called
        assert repr(pool.submit(identity, value).result(PATIENCE_S)) == called


def test_arrays_arrive_in_c_order_and_writable() -> None:
    array = np.asfortranarray(np.ones((2, 3)))
    array.flags.writeable = False
    tensor = torch.ones(2, 3).T
    with Worker(echo) as worker:
        worker.register(identity)
        worker.send([array, tensor])
        for there, transposed in (worker.recv(timeout=PATIENCE_S), worker.call_remote("identity", [array, tensor])):
            assert there.flags.c_contiguous
            assert there.flags.writeable
            assert transposed.is_contiguous()

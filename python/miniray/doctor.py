"""The report of ``cluster.check()`` and ``miniray doctor``, which find what would make a training run hang or fail."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any

from miniray import _core


@dataclass(frozen=True)
class Finding:
    """What is wrong (``what``), on which node, and its cure. ``severity`` is "problem" or "warning"."""

    severity: str
    node: str
    check: str
    what: str
    cure: str


@dataclass(frozen=True)
class CheckReport:
    """The result of a check. ``print(report)`` shows all of it. It is true if there is no problem; warnings do not
    count."""

    healthy: bool
    findings: list[Finding]
    nodes: list[dict[str, Any]]
    failed_nodes: list[str]
    text: str

    def __bool__(self) -> bool:
        return self.healthy

    def __str__(self) -> str:
        return self.text


def _report(text: str, value: dict[str, Any]) -> CheckReport:
    findings = [Finding(**finding) for finding in value["findings"]]
    return CheckReport(value["healthy"], findings, value["nodes"], value["failed_nodes"], text)


def describe_python(handle: _core.Handle) -> None:
    """A work function for the check: send the versions of Python, torch and NCCL on this node."""
    _silence_output()
    facts: dict[str, Any] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "torch_error": None,
        "cuda": None,
        "nccl": None,
    }
    try:
        facts.update(_describe_torch())
    except Exception as error:  # torch is installed, but a library that it needs is missing or has a wrong version
        facts["torch_error"] = f"{type(error).__name__}: {error}"
    handle.send(facts)


def _silence_output() -> None:
    """Send what libraries print when they are loaded to nowhere. It would get into the report, which may be JSON."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _describe_torch() -> dict[str, Any]:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:  # without an origin, it is only an empty folder named torch
        return {"torch": None}
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.version.cuda is not None:
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts

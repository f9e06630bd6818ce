"""One table of scenarios, tests/parity.json, runs from Python and from C++ against workers of both languages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
TABLE: list[dict[str, Any]] = json.loads((TESTS / "parity.json").read_text())
PATIENCE_S = 110


@pytest.mark.parametrize("workers", ["Python", "C++"])
@pytest.mark.parametrize("coordinator", ["Python", "C++"])
def test_scenarios(coordinator: str, workers: str, root: Path, tmp_path: Path) -> None:
    program = str(root / "build/release/tests/parity_program")
    command = [program] if coordinator == "C++" else [sys.executable, str(TESTS / "parity.py")]
    command += [str(TESTS / "parity.json"), str(tmp_path)]
    if coordinator != workers:
        command.append(program if workers == "C++" else sys.executable)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    seen = {told["name"]: told["outcomes"] for told in map(json.loads, run.stdout.splitlines())}
    assert (run.returncode, list(seen)) == (0, [scenario["name"] for scenario in TABLE]), run.stderr
    differences = []
    for scenario in TABLE:
        for step, outcome in zip(scenario["steps"], seen[scenario["name"]], strict=True):
            if not is_as_expected(step, outcome):
                differences.append(f"{scenario['name']}: {step}\n    {outcome}")
    assert not differences, "\n".join(differences)


def is_as_expected(step: dict[str, Any], outcome: dict[str, Any] | None) -> bool:
    if "is" in step:
        return outcome == {"is": step["is"]}
    if "fails" in step:
        return outcome is not None and outcome.get("fails") == step["fails"] and step.get("with", "") in outcome["with"]
    return outcome is None

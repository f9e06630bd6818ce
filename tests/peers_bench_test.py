"""The comparison with the peers runs, tiny, for MiniRay and the standard library, and its document can be drawn."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from testbed import Testbed

PEERS = ["miniray", "multiprocessing", "futures"]
HAVE_NO_ACTORS = {"futures"}
HAVE_NO_CPP = {"futures", "multiprocessing"}
ON_THIS_MACHINE_ONLY = {"futures", "multiprocessing"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results file of one run; the document is beside it."""
    file = tmp_path_factory.mktemp("peers") / "peers.json"
    bench = Path(__file__).parent.parent / "bench/peers_bench.py"
    command = [sys.executable, bench, "--quick", "--peers", ",".join(PEERS), "--python", sys.executable]
    subprocess.run([*command, "--output", file], check=True, timeout=100, capture_output=True)
    return file


@pytest.fixture(scope="module")
def results(output: Path) -> Any:
    return json.loads(output.read_text())


def test_every_row_gives_a_figure_or_there_is_no_such_thing(results: Any) -> None:
    assert len(results["rows"]) > 25
    for row, cells in results["rows"].items():
        for name in PEERS:
            cell = cells[name]
            if "why" not in cell:
                assert cell["median"] >= 0, (row, name)
                continue
            expected = {"no such thing", "comes with Python"}
            if row == "nodes" and Testbed.available() is not None:
                continue
            assert cell["why"] in expected, (row, name, cell)
            assert name != "miniray", (row, cell)
            if cell["why"] == "no such thing":
                assert (
                    name in HAVE_NO_ACTORS
                    or (row.startswith("cpp") and name in HAVE_NO_CPP)
                    or (row == "nodes" and name in ON_THIS_MACHINE_ONLY)
                ), (row, name)


def test_the_document_is_drawn_from_the_results(output: Path, results: Any) -> None:
    document = (output.parent / "benchmarks.md").read_text()
    for heading in ("## Goals", "## Where MiniRay loses", "## Calls and tasks", "## Growth: workers"):
        assert heading in document
    assert results["machine"] in document
    pictures = sorted((output.parent / "benchmarks").glob("*.svg"))
    assert len(pictures) == document.count(".svg)") == 11
    for picture in pictures:
        drawn = ElementTree.parse(picture).getroot()
        words = "".join(text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text"))
        assert "MiniRay" in words, picture


def test_an_unknown_peer_is_refused_with_those_that_there_are(root: Path) -> None:
    command = [sys.executable, root / "bench/peers_bench.py", "--peers", "rey"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "no such peer: rey; there are miniray, ray" in refused.stderr

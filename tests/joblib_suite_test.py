"""joblib's own test_parallel.py, with MiniRay's backend in place of "loky", joblib's default.

The programs that its tests start have it there, too. What does not apply is named below, with the reason; all else
passes.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

pytest.importorskip("joblib")

MEMMAP = "large arrays go through shared memory, not through files that are mapped"
OWN_POOL = "each Parallel has a pool of its own: give it one with parallel_config(pool=pool) to share its workers"

DOES_NOT_APPLY = {
    # Process pools within daemonic processes work, and so do those of multiprocessing within ours.
    "test_nested_parallel_warnings[[]loky-multiprocessing-True]": "there is no limit that it could warn of",
    "test_nested_parallel_warnings[[]multiprocessing-loky-True]": "there is no limit that it could warn of",
    "test_background_thread_parallelism[[]loky]": "who forks beside other threads is warned; start='spawn' is the cure",
    "test_parallel_pickling": "the error that __reduce__ raised arrives as it is, not as loky's PicklingError",
    "test_error_capture[[]loky]": "it looks for another pool after an error: ours goes on, with new workers",
    "test_parallel_with_interactively_defined_bound_method_loky": "it looks for the name of loky's processes in a log",
    "test_auto_memmap_on_arrays_from_generator[[]loky]": MEMMAP,
    "test_memmapping_leaks[[]loky]": MEMMAP,
    "test_multiple_generator_call_separated_gc[[]*-loky-True]": OWN_POOL + "; one does not end the other's",
    "test_initializer_reused[[]*]": OWN_POOL,
    "test_threadpool_limitation_in_child_*": "inner_max_num_threads takes fresh interpreters, as joblib's loky starts",
}
# Tests of loky's executor itself, or of what this suite has in its place.
NOT_OURS = ["test_loky_reuse_workers"]


@pytest.mark.timeout(300)
def test_all_that_applies_passes(tmp_path: Path) -> None:
    outcomes = run(tmp_path)
    assert len(outcomes) > 200
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    assert [name for name in failed if not matching(name)] == [], report(tmp_path)
    for pattern in DOES_NOT_APPLY:
        found = {outcomes[name] for name in fnmatch.filter(outcomes, pattern)}
        assert found, f"there is no {pattern}"
        assert "passed" not in found, f"{pattern} applies after all"


def matching(name: str) -> list[str]:
    return [pattern for pattern in DOES_NOT_APPLY if fnmatch.fnmatchcase(name, pattern)]


def run(folder: Path) -> dict[str, str]:
    """By the name of each test: passed, failed or skipped."""
    (folder / "sitecustomize.py").write_text("import joblib_suite\n")  # for the programs that the tests start
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, "-p", "joblib_suite"]
    command += ["-p", "no:cacheprovider", "-q", "--tb=short", "--timeout=100", f"--junitxml={folder}/outcomes.xml"]
    command += [*(f"--deselect=::{name}" for name in NOT_OURS), "--pyargs", "joblib.test.test_parallel"]
    paths = [str(folder), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with (folder / "report.txt").open("w") as output:
        subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output, timeout=280, check=False)
    tests = xml.etree.ElementTree.parse(folder / "outcomes.xml").iter("testcase")
    return {test.attrib["name"]: outcome([part.tag for part in test]) for test in tests}


def outcome(parts: list[str]) -> str:
    if "failure" in parts or "error" in parts:
        return "failed"
    return "skipped" if "skipped" in parts else "passed"


def report(folder: Path) -> str:
    return (folder / "report.txt").read_text()[-20000:]

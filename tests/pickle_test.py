"""pickle=False: whatever a worker answers, no code of its runs in the coordinator."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_worker import ANSWERS, hostile
from waiting import until

import miniray
from miniray import Cluster, NodeConfig, Pool, Worker

TESTS = Path(__file__).parent


def square(x: Any) -> Any:
    return x * x


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """It exists after the code of a hostile worker has run."""
    return str(tmp_path / "code has run here")


# --- Attacks ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_call_whose_answer_is_a_pickle_runs_no_code(answer: str, folder: str) -> None:
    with Worker(hostile(answer, folder), shared_memory=False, pickle=False) as worker:
        for ask in (
            lambda: worker.call_remote("work_functions.echo", 1),
            lambda: worker.call_async("work_functions.echo", 1).result(),
            lambda: worker.register("square", square),
            lambda: worker.create("counter", "task_functions.Counter"),
            lambda: worker.forget("square"),
        ):
            with pytest.raises(miniray.MiniRayError):
                ask()
            assert not os.path.exists(folder)


def test_by_default_results_are_pickles(folder: str) -> None:
    with Worker(hostile("value", folder), shared_memory=False) as worker:
        worker.call_remote("work_functions.echo", 1)
    assert os.path.exists(folder)


@pytest.mark.parametrize("ask", ["define", "create", "forget"])
def test_what_has_no_result_is_not_answered_with_a_pickle_by_default_either(ask: str, folder: str) -> None:
    with Worker(hostile("value", folder), shared_memory=False) as worker:
        tell = {
            "define": lambda: worker.register("square", square),
            "create": lambda: worker.create("counter", "task_functions.Counter"),
            "forget": lambda: worker.forget("square"),
        }
        with pytest.raises(miniray.ProtocolError, match="was told something, and answered with a result"):
            tell[ask]()
        assert not os.path.exists(folder)


def test_a_member_that_answers_the_initializer_with_a_pickle_is_lost_alone(folder: str) -> None:
    bad, good = Worker(hostile("value", folder), shared_memory=False, name="bad"), Worker(name="good serve_calls")
    with Pool([bad, good], initializer=square, initargs=(1,)) as pool:
        assert list(pool.map(square, range(10), chunksize=1)) == [n * n for n in range(10)]
        lost = until(lambda: [event for event in pool.events if event.kind == "worker_stillborn"])
        assert [event.worker for event in lost] == [bad.name]
    assert not os.path.exists(folder)


def taken_over_python(folder: Path, answer: str, code_folder: str) -> str:
    """An interpreter whose miniray.serve_calls was replaced, as it may be on a node that somebody has taken over."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if '--stdio' in sys.orig_argv:\n"
        f"    sys.path.append({str(TESTS)!r})\n"
        "    import hostile_worker, miniray, miniray.calls\n"
        f"    miniray.calls.serve_calls = hostile_worker.hostile({answer!r}, {code_folder!r})\n"
        "    miniray.serve_calls = miniray.calls.serve_calls\n"
    )
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("answer", ["value", "error", "unknown"])
def test_a_node_that_answers_the_pool_s_own_questions_with_pickles_is_lost_alone(
    answer: str, folder: str, tmp_path: Path
) -> None:
    nodes = [
        NodeConfig("localhost", 1, base_port=0, python_bin=taken_over_python(tmp_path, answer, folder)),
        NodeConfig("localhost", 1, base_port=0),
    ]
    with Cluster(nodes, progress=False) as cluster, Pool(cluster) as pool:
        assert pool.submit("math.sqrt", 16).result(60) == 4
        [event] = [event for event in pool.events if event.kind == "worker_refused"]
        assert "answered MiniRay's own question with" in event.text
    assert not os.path.exists(folder)

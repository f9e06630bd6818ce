"""Whatever a call does, its caller gets that very error and the worker goes on; if it dies, everybody is told why."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_functions
from call_workers import remote_text
from task_functions import OwnError
from waiting import PATIENCE_S, until

import miniray
from miniray import Worker


def goes_on(worker: Any) -> bool:
    return bool(worker.call_remote("task_functions.square", 6) == 36) and worker.is_alive()


def test_it_raises_what_was_raised(call_worker: Any) -> None:
    for call in (call_worker.call_remote, lambda *args: call_worker.call_async(*args).result(PATIENCE_S)):
        with pytest.raises(OwnError) as caught:
            call("task_functions.raise_own", "text", 42)
        assert (caught.value.text, caught.value.code) == ("text", 42)
        assert isinstance(caught.value.__cause__, miniray.RemoteTraceback)
        assert "in raise_own" in remote_text(caught.value)
        assert "raise OwnError(text, code)" in remote_text(caught.value)
    assert goes_on(call_worker)


def test_the_remote_text_shows_the_functions_own_frames_and_causes(call_worker: Any) -> None:
    with pytest.raises(ValueError, match=r"^boom$") as caught:
        call_worker.call_remote("task_functions.fail_from_a_cause", "boom")
    text = remote_text(caught.value)
    assert "the cause of it" in text
    assert "fail_from_a_cause" in text
    assert "ValueError: boom" in text
    assert "_work.py" not in text
    error = call_worker.call_async("task_functions.fail", "again").exception(PATIENCE_S)
    assert type(error) is ValueError


def test_an_exception_class_of_a_lambda(call_worker: Any) -> None:
    class Local(Exception):
        pass

    def fail() -> None:
        raise Local("defined in a test")

    call_worker.register(fail)
    with pytest.raises(Exception, match="defined in a test") as caught:
        call_worker.call_remote("fail")
    assert type(caught.value) is Local
    assert "Local" in remote_text(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "text"),
    [
        ("raise_holding", ["kept text"], "HoldsSomething", "kept text"),
        ("raise_wrong_arguments", ["kept text"], "WrongArguments", "kept text"),
        ("raise_no_text", [], "NoText", ""),
    ],
)
def test_an_exception_that_pickle_cannot_make_again(
    call_worker: Any, name: str, arguments: list[str], kind: str, text: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (NoText has none)
        call_worker.call_remote(f"task_functions.{name}", *arguments)
    error = caught.value
    assert type(error).__name__ == kind
    assert error.args == ((text,) if text else ())
    assert f"in {name}" in remote_text(error)
    assert goes_on(call_worker)


def test_a_huge_text_arrives(call_worker: Any) -> None:
    with pytest.raises(ValueError, match=r"^x+$") as caught:
        call_worker.call_remote("task_functions.raise_huge_text", 3_000_000)
    assert len(str(caught.value)) == 3_000_000
    assert goes_on(call_worker)


@pytest.mark.parametrize("name", ["refuses", "generator"])
def test_a_result_that_cannot_be_sent(call_worker: Any, name: str) -> None:
    with pytest.raises(TypeError, match="result") as caught:
        call_worker.call_remote(f"task_functions.{name}")
    assert "pickle" in str(caught.value)
    assert goes_on(call_worker)


def test_a_result_that_cannot_be_read(call_worker: Any) -> None:
    with pytest.raises(Exception, match="cannot be unpickled in another process"):
        call_worker.call_remote("task_functions.fails_there")
    assert goes_on(call_worker)


def test_arguments_that_cannot_be_sent_or_read(call_worker: Any) -> None:
    with pytest.raises(TypeError, match="refuses to be pickled"):
        call_worker.call_remote("task_functions.same", task_functions.Refuses())
    with pytest.raises(TypeError):
        call_worker.call_remote("task_functions.same", task_functions.generator())
    with pytest.raises(Exception, match="cannot be unpickled in another process"):
        call_worker.call_remote("task_functions.same", task_functions.FailsThere())
    with pytest.raises(TypeError, match="square"):
        call_worker.call_remote("task_functions.square", 1, 2, 3)
    assert goes_on(call_worker)


@pytest.mark.parametrize("code", [0, 3, "a message", None])
def test_sys_exit(call_worker: Any, code: Any) -> None:
    call_worker.register("leave", lambda: sys.exit(code))
    with pytest.raises(miniray.WorkerError, match="exit"):
        call_worker.call_remote("leave")
    assert goes_on(call_worker)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, StopIteration, BaseException, RecursionError])
def test_any_exception_whatsoever(call_worker: Any, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind("odd")

    call_worker.register(fail)
    with pytest.raises(BaseException, match="odd") as caught:
        call_worker.call_remote("fail")
    assert type(caught.value) is (miniray.WorkerError if kind is GeneratorExit else kind)
    assert goes_on(call_worker)


def test_a_worker_that_runs_out_of_stack(call_worker: Any) -> None:
    def deeper(n: int) -> int:
        return 1 + deeper(n + 1)

    call_worker.register(deeper)
    with pytest.raises(RecursionError):
        call_worker.call_remote("deeper", 0)
    assert goes_on(call_worker)


# --- Deaths -----------------------------------------------------------------------------------------------------------
# They wait until all calls are under way: one to a worker that is known to be dead is refused.
def abort(gate: str = "/") -> None:
    task_functions.wait_for(gate)
    os.abort()


def leave_at_once(gate: str) -> None:
    task_functions.wait_for(gate)
    os._exit(9)


def kill_itself(gate: str) -> None:
    task_functions.wait_for(gate)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("function", "cause"),
    [(abort, "SIGABRT"), (leave_at_once, "exited with code 9"), (kill_itself, "SIGKILL")],
    ids=["abort", "_exit", "kill"],
)
def test_a_worker_that_dies_in_a_call(call_worker: Any, function: Any, cause: str, tmp_path: Path) -> None:
    call_worker.register("end", function)
    before = call_worker.call_async("task_functions.square", 2)
    fatal = call_worker.call_async("end", str(tmp_path / "gate"))
    after = [call_worker.call_async("task_functions.square", number) for number in range(50)]
    (tmp_path / "gate").touch()
    assert before.result(PATIENCE_S) == 4
    for future in (fatal, *after):
        error = future.exception(PATIENCE_S)
        assert isinstance(error, miniray.WorkerDied)
        assert cause in str(error)
        with pytest.raises(miniray.WorkerDied):
            future.result(0)
    with pytest.raises(miniray.WorkerDied):
        call_worker.call_remote("task_functions.square", 2)
    assert not call_worker.is_alive()


def test_the_certificate_of_a_crash_has_the_stack(call_worker: Any) -> None:
    call_worker.register("end_here", abort)
    with pytest.raises(miniray.WorkerDied) as caught:
        call_worker.call_remote("end_here")
    assert "in abort" in caught.value.stack


def test_many_outstanding_when_it_is_killed(call_worker: Any, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    futures = [call_worker.call_async("task_functions.begin_and_wait_for", str(begun), str(tmp_path / "never"))]
    futures += [call_worker.call_async("task_functions.same", (number, np.zeros(10))) for number in range(60)]
    called: list[int] = []
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: called.append(number))
    assert until(lambda: begun.exists() or futures[0].done())
    os.kill(call_worker.pid, signal.SIGKILL)
    with pytest.raises(miniray.WorkerDied, match="SIGKILL"):
        futures[-1].result(PATIENCE_S)
    assert all(future.done() for future in futures)
    assert sorted(called) == list(range(61))
    assert all(isinstance(future.exception(0), miniray.WorkerDied) for future in futures)


def test_a_recv_or_a_send_that_notices_the_death_ends_the_futures(talker: Any, tmp_path: Path) -> None:
    future = talker.call_async("task_functions.wait_for", str(tmp_path / "never"))
    os.kill(talker.pid, signal.SIGKILL)
    with pytest.raises(miniray.WorkerDied):
        talker.recv(timeout=PATIENCE_S)
    assert future.done()
    assert isinstance(future.exception(0), miniray.WorkerDied)


def test_a_worker_that_is_closed_ends_its_futures(call_worker: Any, tmp_path: Path) -> None:
    future = call_worker.call_async("task_functions.wait_for", str(tmp_path / "never"))
    call_worker.kill()
    call_worker.close()
    with pytest.raises(EOFError):
        future.result(PATIENCE_S)
    with pytest.raises(EOFError):
        call_worker.call_remote("task_functions.square", 2)


def test_futures_of_a_worker_that_nobody_holds_any_more() -> None:
    """A future keeps what it needs: the worker lives as long as somebody may ask."""
    future = Worker().call_async("task_functions.square", 9)
    assert future.result(PATIENCE_S) == 81


def test_a_work_function_that_returns_or_raises_while_calls_wait(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    def ends(handle: Any) -> None:
        handle.recv()
        task_functions.wait_for(gate)

    def fails(handle: Any) -> None:
        ends(handle)
        raise KeyError("the loop failed")

    for work, kind in ((ends, EOFError), (fails, miniray.WorkerError)):
        with Worker(work) as worker:
            worker.send("go")
            future = worker.call_async("task_functions.square", 1)
            Path(gate).touch()
            assert isinstance(future.exception(PATIENCE_S), kind)
        os.unlink(gate)


def test_a_time_out_of_a_call_says_so_and_the_answer_is_not_lost(call_worker: Any, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    future = call_worker.call_async("task_functions.wait_for", gate, "late")
    with pytest.raises(TimeoutError):
        future.result(timeout=0.1)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    assert not future.done()
    Path(gate).touch()
    assert future.result(PATIENCE_S) == "late"

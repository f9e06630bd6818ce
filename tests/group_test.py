"""Groups of ranks: results, and what the other ranks hear when one of them fails."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE_S

import miniray
from miniray import Group, GroupBroken, UsageError, Worker


@contextlib.contextmanager
def ranks(count: int, function: Callable[[Group], Any], timeout: float | None = None) -> Iterator[list[Worker]]:
    """Workers that each run a function on their rank, and report what it returns or raises."""

    def work(handle: Any) -> None:
        group = Group(handle)
        try:
            handle.send({"result": function(group)})
        except Exception as error:
            handle.send({"error": type(error).__name__, "text": str(error)})
        handle.recv()  # the rank stays until the coordinator closes

    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(work)) for _ in range(count)]
        miniray.create_group(workers, timeout)
        yield workers


def results(count: int, function: Callable[[Group], Any], timeout: float | None = None) -> list[Any]:
    with ranks(count, function, timeout) as workers:
        return [worker.recv(timeout=PATIENCE_S) for worker in workers]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "complex128"])
@pytest.mark.parametrize("count", [0, 1, 1000, 300_001])
def test_all_reduce_sums_up(dtype: str, count: int) -> None:
    def sums(group: Group) -> bool:
        array = np.full(count, group.rank + 1, dtype)
        assert group.all_reduce(array) is array
        return bool((array == 6).all()) and len(array) == count

    assert results(3, sums) == [{"result": True}] * 3


def test_the_other_operations() -> None:
    def everything(group: Group) -> Any:
        size, rank = group.size, group.rank
        everyone = np.arange(size * 100_000, dtype=np.int32).reshape(size, -1)
        part = group.scatter(everyone if rank == 1 else None, np.empty(100_000, np.int32), root=1)
        np.testing.assert_array_equal(part, everyone[rank])
        np.testing.assert_array_equal(group.all_gather(part), everyone)
        gathered = group.gather(part, root=2)
        assert (gathered is None) == (rank != 2)
        if gathered is not None:
            np.testing.assert_array_equal(gathered, everyone)
        np.testing.assert_array_equal(group.reduce_scatter(everyone, part), size * everyone[rank])
        product = group.reduce(np.full(5, rank + 1.0), "product", root=1)
        assert product[4] == (6 if rank == 1 else rank + 1)
        assert (group.broadcast(product, root=1) == 6).all()
        assert group.all_reduce(np.array([rank, -rank]), "max").tolist() == [2, 0]
        assert group.all_reduce(np.array([rank, -rank]), "min").tolist() == [0, -2]
        group.barrier()
        return "right"

    assert results(3, everything) == [{"result": "right"}] * 3


def test_tensors() -> None:
    torch = pytest.importorskip("torch")

    def tensors(group: Group) -> Any:
        tensor = torch.full((1000,), float(group.rank + 1))
        group.all_reduce(tensor)
        gathered = group.all_gather(tensor)
        try:
            group.all_reduce(torch.ones(4, 4).t()[1:])
        except ValueError as error:
            return [float(tensor[7]), list(gathered.shape), str(error)]

    text = "the tensor is not contiguous; use tensor.contiguous()"
    assert results(2, tensors) == [{"result": [3.0, [2, 1000], text]}] * 2


@pytest.mark.parametrize("rounds", [0, 1, 20])
def test_a_rank_that_dies_is_named_to_the_others(rounds: int) -> None:
    def dies(group: Group) -> None:
        array = np.ones(1_000_000, np.float32)
        for _ in range(rounds):
            group.all_reduce(array, "max")
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            group.all_reduce(array, "max")

    with ranks(3, dies) as workers:
        for rank in (0, 2):
            report = workers[rank].recv(timeout=PATIENCE_S)
            assert report["error"] == "GroupBroken"
            assert f"rank 1 ({workers[1].name}) has died" in report["text"]
        with pytest.raises(miniray.WorkerDied):
            workers[1].recv(timeout=PATIENCE_S)


def test_different_calls_name_both() -> None:
    def differ(group: Group) -> None:
        group.all_reduce(np.ones(3 + group.rank, np.float32 if group.rank else np.float64))

    for report in results(2, differ):
        assert report["error"] == "GroupBroken"
        assert "all_reduce(sum, 3 x float64)" in report["text"]
        assert "all_reduce(sum, 4 x float32)" in report["text"]


def test_a_missing_rank_is_named_after_the_time_out() -> None:
    def missing(group: Group) -> str:
        if group.rank == 0:
            group.barrier()
        return "did nothing"

    waited, idle = results(2, missing, timeout=0.2)
    assert idle == {"result": "did nothing"}
    assert waited["error"] == "TimeoutError"
    assert "missing is rank 1 (worker" in waited["text"]
    assert "waited 0.2 s in barrier()" in waited["text"]


def test_a_rank_that_leaves_is_named() -> None:
    def work(handle: Any) -> None:
        group = Group(handle)
        if group.rank == 1:
            del group
            handle.send("left")
            handle.recv()
        with pytest.raises(GroupBroken, match=r"rank 1 .* has left the group"):
            group.barrier()
        handle.send("heard")

    with Worker(work) as one, Worker(work) as two:
        miniray.create_group([one, two])
        assert one.recv(timeout=PATIENCE_S) == "heard"
        assert two.recv(timeout=PATIENCE_S) == "left"


def test_an_interrupt_ends_the_wait_and_tells_the_others() -> None:
    def waits(group: Group) -> str:
        if group.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        elif group.rank == 1:
            with contextlib.suppress(TimeoutError):
                signal.sigtimedwait([], 1.5)
        try:
            group.barrier()
        except KeyboardInterrupt:
            return "interrupted"
        return "passed"

    first, second = results(2, waits)
    assert first == {"result": "interrupted"}
    assert second["error"] == "GroupBroken"
    assert "rank 0" in second["text"]


def test_mistakes_leave_the_group_usable() -> None:
    def errs(group: Group) -> list[str]:
        texts = []
        for mistake in (
            lambda: group.all_reduce(np.ones((4, 4))[:, 1]),
            lambda: group.all_reduce(np.ones(3), "mean"),
            lambda: group.broadcast(np.ones(3), root=5),
            lambda: group.all_reduce(np.ones(3, np.float16)),
            lambda: group.scatter(np.ones(5), np.ones(3), root=group.rank),
            lambda: group.all_reduce("text"),
        ):
            try:
                mistake()
            except (ValueError, TypeError, UsageError) as error:
                texts.append(str(error))
        group.barrier()
        return texts

    for report in results(2, errs):
        texts = report["result"]
        assert len(texts) == 6
        assert "not C-contiguous" in texts[0]
        assert 'there is no reduction "mean"' in texts[1]
        assert "there is no rank 5" in texts[2]
        assert "cannot reduce elements of float16" in texts[3]
        assert "2 parts of 24 bytes are needed" in texts[4]


def test_a_message_that_is_no_invitation() -> None:
    def work(handle: Any) -> None:
        try:
            Group.join(handle)
        except UsageError as error:
            handle.send(str(error))

    with Worker(work) as worker:
        worker.send({"cmd": "start"})
        assert "an invitation to a group was expected" in worker.recv(timeout=PATIENCE_S)
        with pytest.raises(UsageError, match="in the list twice"):
            miniray.create_group([worker, worker])
    with pytest.raises(UsageError, match="at least one worker"):
        miniray.create_group([])


def test_a_worker_that_waits_in_recv_is_told_how_to_join() -> None:
    def waits(handle: Any) -> None:
        handle.recv()

    def joins_later(handle: Any) -> None:
        try:
            handle.recv()
        except UsageError as error:
            handle.send(str(error))
        handle.send(Group(handle).rank)

    with Worker(joins_later) as one, Worker(joins_later) as two:
        miniray.create_group([one, two])
        for rank, worker in enumerate([one, two]):
            assert "an invitation to a group, which recv() does not return" in worker.recv(timeout=PATIENCE_S)
            assert worker.recv(timeout=PATIENCE_S) == rank
    with Worker(waits) as one:
        miniray.create_group([one])
        with pytest.raises(miniray.WorkerError, match=r"UsageError.*Call miniray\.Group\(handle\)"):
            one.recv(timeout=PATIENCE_S)

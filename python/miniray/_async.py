"""What asyncio needs: send, recv and wait on top of the core's calls that never block; futures; ``async with``."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from miniray import _core
from miniray.errors import WorkerDied, WorkerError

# A call of the same channel, made by other code, may read what is waited for here: then nothing more arrives at the
# socket, and the loop is not woken. So every wait looks around this often.
_SLICE_S = _core.limits.wait_slice_ms / 1000


class _Replaced(Exception):
    """While a coroutine waited, another call has found the end of the worker's process, and replaced it."""


async def recv(conversation: Any, max_size: int | None, timeout: float | None) -> Any:
    process = _process(conversation)
    try:
        return await _within(timeout, _recv(conversation, process, max_size), "nothing arrived")
    except (WorkerDied, WorkerError, _Replaced) as error:
        found = error
    await _recover(conversation, process)
    raise found


async def _recv(conversation: Any, process: int, max_size: int | None) -> Any:
    async with _turn(conversation, "_receiving"):
        while True:
            _require(process, conversation)
            arrived, message = conversation._recv_some(max_size)
            if arrived:
                return message
            descriptor = os.dup(conversation.fileno())  # a copy: close() elsewhere must not free its number
            try:
                await _ready_or_gone(conversation, descriptor, write=conversation._has_unsent())
            finally:
                os.close(descriptor)


async def send(conversation: Any, message: Any) -> None:
    process = _process(conversation)
    try:
        return await _send(conversation, process, message)
    except (WorkerDied, WorkerError, _Replaced) as error:
        found = error
    await _recover(conversation, process)
    raise found


async def _send(conversation: Any, process: int, message: Any) -> None:
    async with _turn(conversation, "_sending"):
        _require(process, conversation)
        done = conversation._send_some(message)
        if done:
            return
        descriptor = os.dup(conversation.fileno())  # recv may be watching the other one
        try:
            while not done:
                await _ready_or_gone(conversation, descriptor, write=True)
                _require(process, conversation)
                conversation._pump()  # the other side may be waiting for us to read
                done = conversation._flush_some()
        finally:
            os.close(descriptor)


def _process(conversation: Any) -> int:
    """Return the number of the worker's process: how often it was replaced."""
    supervision = getattr(conversation, "_supervision", None)  # handles and channels have none
    return 0 if supervision is None else int(supervision.restarts)


def _require(process: int, conversation: Any) -> None:
    """Raise ``_Replaced`` if the worker has another process than this one."""
    if _process(conversation) != process:
        raise _Replaced


async def _recover(worker: Any, process: int) -> None:
    """Recover a supervised worker, unless another call has; the loop runs during the pauses. Raises WorkerRestarted, or
    why it failed. Returns if the worker still has this process, and nothing to recover from."""
    supervision = getattr(worker, "_supervision", None)
    if supervision is None or (not supervision.pending and supervision.restarts == process):
        return
    async with _turn(worker, "_recovering"):  # coroutines that find the same end share one recovery
        while not supervision.recovered and (pause_s := supervision.pause_before_attempt(worker)) is not None:
            await asyncio.sleep(pause_s)
            supervision.attempt(worker)
    supervision.tell(worker)


async def until_done(future: Any) -> None:
    """Wait for a future of a call or of a pool. If the waiting task is cancelled, so is the future."""
    loop = asyncio.get_running_loop()
    settled: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not settled.done():
            settled.set_result(None)

    def wake(_: object) -> None:
        if asyncio._get_running_loop() is loop:
            settle()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(settle)

    future.add_done_callback(wake)
    try:
        await settled
    except asyncio.CancelledError:
        future.cancel()
        raise


def watch_replies(future: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Make this loop receive the replies of the future's worker until the future is done."""
    watch = getattr(future._worker, "_reply_watch", None)
    if watch is None or watch.loop is not loop:
        watch = future._worker._reply_watch = ReplyWatch(loop)
    watch.add(future)


class ReplyWatch:
    """The readers that an event loop has for one worker, shared by all of its calls that are awaited there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls = 0
        self._descriptors: list[int] = []
        self._next_look: asyncio.TimerHandle | None = None

    def add(self, future: Any) -> None:
        self._calls += 1
        if self._calls == 1:
            self._begin(future._worker)
        future._watched().callbacks.append(self._one_is_done)

    def _begin(self, worker: Any) -> None:
        self._descriptors = [os.dup(worker.fileno())]  # recv may be watching the other one
        if worker._host_may_vanish and worker.is_alive():
            self._descriptors.append(os.dup(worker._process_fileno()))
        for descriptor in self._descriptors:
            self.loop.add_reader(descriptor, self._receive, worker)
        self._watch_room(worker)
        self._look_later(worker)

    def _look_later(self, worker: Any) -> None:
        self._next_look = self.loop.call_later(_SLICE_S, self._look, worker)

    def _look(self, worker: Any) -> None:
        self._receive(worker)
        if self._descriptors:
            self._look_later(worker)

    def _watch_room(self, worker: Any) -> None:
        if worker._has_unsent():
            self.loop.add_writer(self._descriptors[0], self._receive, worker)
        else:
            self.loop.remove_writer(self._descriptors[0])

    def _receive(self, worker: Any) -> None:
        from miniray._call_future import _receive_replies

        _receive_replies(worker)
        if self._descriptors:
            self._watch_room(worker)

    def _one_is_done(self, _: object) -> None:
        if asyncio._get_running_loop() is self.loop or self.loop.is_closed():
            self._count_one()
        else:
            self.loop.call_soon_threadsafe(self._count_one)

    def _count_one(self) -> None:
        self._calls -= 1
        if self._calls == 0:
            self._end()

    def _end(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        if self._next_look is not None:
            self._next_look.cancel()
        for descriptor in descriptors:
            if not self.loop.is_closed():
                self.loop.remove_reader(descriptor)
                self.loop.remove_writer(descriptor)
            os.close(descriptor)

    def __del__(self) -> None:
        self._end()  # the loop is closed already


async def wait(worker: Any, timeout: float | None) -> int:
    process = _process(worker)
    try:
        return int(await _within(timeout, _wait(worker, process), f"{worker.name} still runs"))
    except _Replaced as replaced:
        found = replaced
    await _recover(worker, process)
    raise found


async def _wait(worker: Any, process: int) -> int:
    while worker.is_alive():
        watched, channel = os.dup(worker._process_fileno()), os.dup(worker.fileno())
        try:
            await _ready(watched, channel if not worker.ended else None, read=True)
        finally:
            os.close(watched)
            os.close(channel)
        _require(process, worker)
        worker._pump()  # it may be unable to end before its messages are read
    return int(worker.wait())


_KILL_S = _core.limits.kill_wait_ms / 1000


async def close(worker: Any) -> None:
    """Close a worker while the loop runs."""
    try:
        worker._end()
        if not await _ended_within(worker, _core.limits.close_grace_ms / 1000):
            worker.kill()
            if not await _ended_within(worker, _KILL_S):
                return await in_thread(worker.close, 0)  # it may take long if the host cannot be reached
    except asyncio.CancelledError:
        worker.kill()  # nobody will wait for it
        raise
    worker.close(0)


async def _ended_within(worker: Any, timeout: float) -> bool:
    async def ended() -> None:
        while worker.is_alive():
            process = os.dup(worker._process_fileno())
            try:
                await _ready(process, read=True)
            finally:
                os.close(process)

    try:
        await asyncio.wait_for(ended(), timeout)
    except asyncio.TimeoutError:
        return False
    return True


async def in_thread(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function that blocks in a thread of its own, which ends with the call. asyncio.to_thread keeps its thread,
    and a process with threads should not fork the next worker. If the waiting task is cancelled, the call goes on."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def call() -> None:
        error: BaseException | None = None
        try:
            function(*arguments)
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    thread = threading.Thread(target=call, name="miniray-closing")
    thread.start()
    await done
    thread.join()


async def _ready_or_gone(conversation: Any, descriptor: int, write: bool) -> None:
    """Wait until the socket is ready, or the worker is gone. The socket of a host that was cut off may stay silent for
    good; the connection that watches its process does not."""
    if not getattr(conversation, "_host_may_vanish", False) or not conversation.is_alive():
        return await _ready(descriptor, read=True, write=write)
    process = os.dup(conversation._process_fileno())
    try:
        await _ready(descriptor, read=True, write=write, process=process)
    finally:
        os.close(process)
    conversation._look_around()


async def _ready(
    *descriptors: int | None,
    read: bool = False,
    write: bool = False,
    process: int | None = None,
) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    watched = [descriptor for descriptor in descriptors if descriptor is not None]
    for descriptor in watched:
        if read:
            loop.add_reader(descriptor, wake)
        if write:
            loop.add_writer(descriptor, wake)
    if process is not None:
        loop.add_reader(process, wake)
    slice_is_over = loop.call_later(_SLICE_S, wake)
    try:
        await ready
    finally:
        slice_is_over.cancel()
        if process is not None:
            loop.remove_reader(process)
        for descriptor in watched:
            if read:
                loop.remove_reader(descriptor)
            if write:
                loop.remove_writer(descriptor)


def _turn(conversation: Any, name: str) -> asyncio.Lock:
    """Let one coroutine at a time do this, in the order in which they came. Each event loop has a lock of its own."""
    loop = asyncio.get_running_loop()
    owner, lock = getattr(conversation, name, (None, None))
    if owner is not loop or lock is None:
        lock = asyncio.Lock()
        setattr(conversation, name, (loop, lock))
    return lock


async def _within(timeout: float | None, work: Coroutine[Any, Any, Any], complaint: str) -> Any:
    if timeout is None:
        return await work
    try:
        return await asyncio.wait_for(work, timeout)
    except asyncio.TimeoutError:  # not yet the built-in one in Python 3.10
        raise TimeoutError(f"{complaint} after {timeout} s") from None

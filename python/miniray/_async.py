"""send, recv and wait for asyncio, over the core's calls that never block."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any


async def recv(conversation: Any, max_size: int | None, timeout: float | None) -> Any:
    return await _within(timeout, _recv(conversation, max_size), "nothing arrived")


async def _recv(conversation: Any, max_size: int | None) -> Any:
    async with _turn(conversation, "_receiving"):
        while True:
            arrived, message = conversation._recv_some(max_size)
            if arrived:
                return message
            descriptor = os.dup(conversation.fileno())  # a close() elsewhere wakes us, and nobody gets our number
            try:
                await _ready_or_gone(conversation, descriptor, write=conversation._has_unsent())
            finally:
                os.close(descriptor)


async def send(conversation: Any, message: Any) -> None:
    async with _turn(conversation, "_sending"):
        done = conversation._send_some(message)
        if done:
            return
        descriptor = os.dup(conversation.fileno())  # recv may be watching the other one
        try:
            while not done:
                await _ready_or_gone(conversation, descriptor, write=True)
                conversation._pump()  # the other side may be waiting for us to read
                done = conversation._flush_some()
        finally:
            os.close(descriptor)


async def wait_for_reply(worker: Any, settled: asyncio.Future[None]) -> None:
    """Until something came, or another has received what this waits for."""
    descriptor = os.dup(worker.fileno())
    try:
        await _ready_or_gone(worker, descriptor, write=worker._has_unsent(), or_else=settled)
    finally:
        os.close(descriptor)


async def wait(worker: Any, timeout: float | None) -> int:
    return int(await _within(timeout, _wait(worker), f"{worker.name} still runs"))


async def _wait(worker: Any) -> int:
    while worker.is_alive():
        process, channel = os.dup(worker._process_fileno()), os.dup(worker.fileno())
        try:
            await _ready(process, channel if not worker.ended else None, read=True)
        finally:
            os.close(process)
            os.close(channel)
        worker._pump()  # what it still sends, it may be waiting to get rid of
    return int(worker.wait())


async def _ready_or_gone(
    conversation: Any, descriptor: int, write: bool, or_else: asyncio.Future[None] | None = None
) -> None:
    """The socket of a host that was cut off may stay silent for good; the connection about its process does not."""
    if not getattr(conversation, "_host_may_vanish", False) or not conversation.is_alive():
        return await _ready(descriptor, read=True, write=write, or_else=or_else)
    process = os.dup(conversation._process_fileno())
    try:
        await _ready(descriptor, read=True, write=write, process=process, or_else=or_else)
    finally:
        os.close(process)
    conversation._look_around()


async def _ready(
    *descriptors: int | None,
    read: bool = False,
    write: bool = False,
    process: int | None = None,
    or_else: asyncio.Future[None] | None = None,
) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not ready.done():
            ready.set_result(None)

    if or_else is not None:
        or_else.add_done_callback(wake)

    watched = [descriptor for descriptor in descriptors if descriptor is not None]
    for descriptor in watched:
        if read:
            loop.add_reader(descriptor, wake)
        if write:
            loop.add_writer(descriptor, wake)
    if process is not None:
        loop.add_reader(process, wake)
    try:
        await ready
    finally:
        if process is not None:
            loop.remove_reader(process)
        for descriptor in watched:
            if read:
                loop.remove_reader(descriptor)
            if write:
                loop.remove_writer(descriptor)


def _turn(conversation: Any, name: str) -> asyncio.Lock:
    """One coroutine at a time, in the order in which they came; one lock for each event loop."""
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

"""Runs a work function in its process and says how it ended."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from miniray._core import Handle, _stack_signal, limits
from miniray.errors import EndOfStream

# Who has run out of memory needs some to say so. Nobody touches it, so it costs address space alone.
_RESERVE_BYTES = limits.memory_reserve_bytes

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(work_fn: Callable[[Handle], Any], handle: Handle, crash_descriptor: int) -> int | tuple[str, str, str] | None:
    """None if it returned, an exit code if it asked for one, else what it raised: type, text, traceback."""
    output = sys.modules.get("miniray._output")
    if output is not None:  # this is a notebook's worker
        output.join_after_fork()
    inherited = sys.exc_info()[1]  # the coordinator may have been handling it when it forked
    reserve = [bytes(_RESERVE_BYTES)]  # never touched: it takes no memory until it is given up
    faulthandler.enable(crash_descriptor)
    faulthandler.unregister(_stack_signal)  # a worker's own worker has that of the first
    faulthandler.register(_stack_signal, crash_descriptor)
    try:
        outcome = work_fn(handle)
        if type(outcome) is types.CoroutineType:
            import asyncio

            asyncio.run(outcome)
        return None
    except SystemExit as leave:
        return _exit_code(leave.code)
    except EndOfStream as end:
        if handle.ended:
            return None  # the coordinator has finished, and so has the work
        return _raised(end)
    except BaseException as error:  # KeyboardInterrupt too: whatever ended the work is told to the coordinator
        reserve.clear()
        _cut_off(error, inherited)
        return _raised(error)
    finally:
        try:
            _join_threads()
            _run_finalizers()
        except KeyboardInterrupt:
            pass  # nobody waits for them any more
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass  # the terminal is gone; the message to the coordinator matters more


def limit_threads() -> None:
    """In a forked worker whose parent had OpenMP threads: torch would ask for threads that are not there."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _join_threads() -> None:
    """As at the end of any program: executors hear that it ends, then threads that are not daemons finish."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    for end in reversed(list(threading._threading_atexits)):  # else the threads of open executors wait for work
        try:
            end()
        except Exception:
            traceback.print_exc()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _run_finalizers() -> None:
    """Those that multiprocessing would run at the end of this process: of its managers, pools and semaphores."""
    utilities = sys.modules.get("multiprocessing.util")
    if utilities is not None:
        utilities._run_finalizers()  # it leaves out those of the process that forked us


def _cut_off(error: BaseException, inherited: BaseException | None) -> None:
    """What was raised in the coordinator before the fork is not what the work function's error follows."""
    seen: set[int] = set()
    while inherited is not None and error.__context__ is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__context__ is inherited:
            error.__context__ = None
            return
        error = error.__context__


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _raised(error: BaseException) -> tuple[str, str, str]:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        below = below.tb_next  # the user's own frames begin after those that called them
    try:
        message = str(error)
    except BaseException as unprintable:
        message = f"(it has no text: {type(unprintable).__name__})"
    try:
        text = "".join(traceback.format_exception(kind, error, below))
    except BaseException as unprintable:  # what it is made of may raise anything
        text = f"{name} (it cannot be printed: {type(unprintable).__name__})"
    return name, _safe(message), _safe(text)


def _safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

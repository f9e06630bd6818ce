"""Runs a work function in the worker's process, and returns how it ended."""

from __future__ import annotations

import faulthandler
import os
import posix
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from miniray._core import Handle, _stack_signal, _wipe_bytes, _wipe_key_from_environment, limits
from miniray.errors import EndOfStream

# A worker that is out of memory needs some to report that. The reserve is never written: it costs only address space.
_RESERVE_BYTES = limits.memory_reserve_bytes

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(work_fn: Callable[[Handle], Any], handle: Handle, crash_descriptor: int) -> int | tuple[str, str, str] | None:
    """Return None if the function returned, an exit code if it raised SystemExit, else the type, text and traceback of
    its exception."""
    output = sys.modules.get("miniray._output")
    if output is not None:  # the coordinator is a notebook
        output.join_after_fork()
    inherited = sys.exc_info()[1]  # the exception that the coordinator was handling when it forked
    reserve = [bytes(_RESERVE_BYTES)]
    faulthandler.enable(crash_descriptor)
    faulthandler.unregister(_stack_signal)  # a worker's own worker has inherited the registration of the first
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
            return None  # the coordinator has closed, so the work is done
        return _raised(end)
    except BaseException as error:  # also KeyboardInterrupt: the coordinator gets whatever ended the work
        reserve.clear()
        _cut_off(error, inherited)
        return _raised(error)
    finally:
        try:
            _join_threads()
            _run_finalizers()
        except KeyboardInterrupt:
            pass  # the coordinator does not wait for them any more
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass  # the terminal is gone, but the coordinator must still get the message


def limit_threads() -> None:
    """Called in a forked worker whose parent had OpenMP threads: torch would wait for threads that do not exist."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def forget_key() -> None:
    """Remove MINIRAY_KEY from this process's memory: no worker needs it, nor does a server that has read it."""
    wanted = b"MINIRAY_KEY"
    # os.environ and the module posix have the same objects, and the process has the text.
    held = [getattr(os.environ, "_data", {}).pop(wanted, None), posix.environ.pop(wanted, None)]
    _wipe_key_from_environment()
    for value in held:
        if value is not None:
            _wipe_bytes(value)


def _join_threads() -> None:
    """Do what Python does at the end of a program: tell executors to end, then join threads that are not daemons."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    for end in reversed(list(threading._threading_atexits)):  # otherwise threads of open executors would wait for ever
        try:
            end()
        except Exception:
            traceback.print_exc()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _run_finalizers() -> None:
    """Run the finalizers of multiprocessing's managers, pools and semaphores, which run at the end of a process."""
    utilities = sys.modules.get("multiprocessing.util")
    if utilities is not None:
        utilities._run_finalizers()  # it skips the finalizers of the parent process


def _cut_off(error: BaseException, inherited: BaseException | None) -> None:
    """Remove the coordinator's exception from before the fork from the context of the work function's exception."""
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
        below = below.tb_next  # skips the frames of this package, which called the user's function
    try:
        message = str(error)
    except BaseException as unprintable:
        message = f"(it has no text: {type(unprintable).__name__})"
    try:
        text = "".join(traceback.format_exception(kind, error, below))
    except BaseException as unprintable:  # the parts of the exception may raise anything
        text = f"{name} (it cannot be printed: {type(unprintable).__name__})"
    return name, _safe(message), _safe(text)


def _safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

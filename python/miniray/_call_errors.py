"""The exceptions that calls raise here, made of what workers have said. A worker may have said anything."""

from __future__ import annotations

import io
from typing import Any

from miniray import _check, _core, _pickling
from miniray.errors import ProtocolError, TaskOutOfMemory, WorkerError

_QUOTED_MAX = _core.limits.quoted_bytes_max

Reply = tuple[str, Any]  # the kind and the body of a reply


class RemoteTraceback(Exception):
    """The traceback of an exception that was raised in another process. It is the cause of the exception here. ``text``
    is what the process sent; str() shows control characters in it as escapes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{_check.escaped(self.text.rstrip())}\n"""'


def error_in(worker: str, reply: Reply, shelf: _pickling.UnpickleContext) -> BaseException:
    kind, described = reply
    if kind in ("error", "unknown") and not _is_error(described):
        return _malformed(worker, described)
    if kind == "unknown" and not described.get("failed") and ("pickle" not in described or not shelf.takes_pickles):
        return LookupError(f"{_check.escaped(described['message'])}\n(in {worker})")
    if kind not in ("error", "unknown"):
        return ProtocolError(f"{worker} answered a call with what cannot be read: {str(reply)[:_QUOTED_MAX]}")
    return error_of(worker, described, shelf)


def _is_error(described: Any) -> bool:
    return isinstance(described, dict) and all(
        isinstance(described.get(part), str) for part in ("type", "message", "traceback")
    )


def _malformed(worker: str, described: Any) -> BaseException:
    sent = _check.shown(described)
    return ProtocolError(f"{worker} answered a call with an error that has no type, message and traceback: {sent}")


def error_of(worker: str, described: Any, shelf: _pickling.UnpickleContext) -> BaseException:
    """Return the exception that a worker has described. The worker may have sent anything."""
    if not _is_error(described):
        return _malformed(worker, described)
    text = described.get("traceback") or f"{described['type']}: {described['message']}"
    where = f"(in {worker})\n{text}"
    if "pickle" in described and shelf.takes_pickles:
        try:
            error = _pickling.Unpickler(io.BytesIO(described["pickle"]), shelf).load()
            if isinstance(error, BaseException):
                BaseException.__setattr__(_last_cause(error), "__cause__", RemoteTraceback(where))
                return error
        except Exception as why:
            where += f"\n(It could not be made anew here: {why!r})"
    if described["type"] in _OUT_OF_MEMORY:
        return TaskOutOfMemory(_check.escaped(described["message"]))
    raised = _check.escaped(f"{described['type']}: {described['message']}\n{where}")
    failed = WorkerError(f"a call in {worker} raised {raised}")
    failed._of_call = True
    failed.worker, failed.type = worker, described["type"]
    failed.message, failed.traceback = described["message"], text
    return failed


# In a C++ worker, and in a Python worker that sends no pickles.
_OUT_OF_MEMORY = ("miniray::TaskOutOfMemory", "miniray.errors.TaskOutOfMemory")


def _last_cause(error: BaseException) -> BaseException:
    """Return the first exception of the chain. A remote traceback set as its cause is printed first, and leaves the
    rest of the chain as it was."""
    seen = {id(error)}
    while True:
        follows = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if follows is None or id(follows) in seen:
            return error
        seen.add(id(follows))
        error = follows

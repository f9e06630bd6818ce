"""The exceptions of the package. Each derives from a built-in exception that programs already catch.

A time-out raises the built-in TimeoutError. A message that cannot be sent raises TypeError (or OverflowError, for an
int of more than 64 bits), whose text names the place in the message.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal


class MiniRayError(Exception):
    """The base class of the package's exceptions."""


class UsageError(MiniRayError, ValueError, RuntimeError):
    """The caller made a mistake, such as an argument out of range. The call has done nothing."""


class EndOfStream(MiniRayError, EOFError):
    """There are no more messages, because the other side has closed in good order."""


class MessageTooLarge(MiniRayError, ValueError):
    """A message is larger than a limit. A message that was to be received stays, for a call with a larger limit."""


class InboxFull(MiniRayError, RuntimeError):
    """More arrived than the inbox may hold: during a send; or replies while you wait for a message, or messages while
    you wait for a reply. Receive what has arrived first."""


class ProtocolError(MiniRayError, ConnectionError):
    """The other side sent bytes that are not a message, or what does not belong into this conversation."""


class Refused(MiniRayError, ConnectionRefusedError):
    """A connection to a server failed: no server listens there, or it has another key, another version, or no such work
    function."""


class UnknownHost(MiniRayError, OSError):
    """No address could be found for the name of a host."""


class ClusterError(MiniRayError, ConnectionError):
    """Some nodes could not be started. No node has a process left. ``failures`` maps each failed node to the reason."""

    failures: dict[str, str] = {}  # noqa: RUF012 (set on each instance)


class GroupBroken(MiniRayError, ConnectionError):
    """A rank of a ``miniray.Group`` has died, has left, or has made another call than the others."""


class GroupError(MiniRayError, ConnectionError):
    """A training group cannot continue: a rank has failed, or one node cannot reach another. No rank still waits.

    ``rank`` is the rank whose failure is the cause, if that is known. ``failures`` maps each failed rank to its error.
    """

    rank: int | None = None
    failures: dict[int, str] = {}  # noqa: RUF012 (set on each instance)


class TaskTimeout(MiniRayError, TimeoutError):
    """A task ran longer than its time-out. The pool has ended its worker."""


class TaskOutOfMemory(MiniRayError, MemoryError):
    """A task needed more memory than its limit."""


class WorkerError(MiniRayError, RuntimeError):
    """The work function raised an exception. The text has the traceback from the worker."""

    _of_call = False  # a function that was called raised it, and the worker goes on
    worker: str = ""
    type: str = ""
    message: str = ""
    traceback: str = ""


class WorkerDied(MiniRayError, ConnectionError, EOFError):
    """The worker's process ended before its work function returned. The text is its death certificate."""

    worker: str = ""
    cause: str = ""
    exit_code: int | None = None
    signal: _signal.Signals | int | None = None
    out_of_memory: bool = False
    peak_bytes: int = 0
    unreachable: bool = False
    stack: str = ""
    last_output: str = ""
    last_messages: str = ""


class WorkerRestarted(WorkerDied):
    """The process of a supervised worker died, and a new one has replaced it. The worker can be used again.

    Messages that the old process had not answered are lost.
    """

"""What goes wrong, as exceptions that derive from what people already catch.

Time-outs are the built-in TimeoutError; what cannot be sent is TypeError (or OverflowError, for an int of more than
64 bits), naming its place in the message.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal


class MiniRayError(Exception):
    """The base of the package's own exceptions."""


class UsageError(MiniRayError, ValueError, RuntimeError):
    """Something was asked that cannot be right. Nothing was done."""


class EndOfStream(MiniRayError, EOFError):
    """There are no more messages: the other side has finished, in good order."""


class MessageTooLarge(MiniRayError, ValueError):
    """A message is larger than a limit. What was to be received is still there."""


class InboxFull(MiniRayError, RuntimeError):
    """More arrived during a send than the inbox may hold. Call recv() between sends."""


class ProtocolError(MiniRayError, ConnectionError):
    """The other side sent bytes that are not a message."""


class Refused(MiniRayError, ConnectionRefusedError):
    """A server, or the way to it, said no: nobody listens, another key, another version, no such work function."""


class UnknownHost(MiniRayError, OSError):
    """No host of that name is known."""


class ClusterError(MiniRayError, ConnectionError):
    """Some nodes did not come up. Nothing was left running on any. ``failures`` says why, by node."""

    failures: dict[str, str] = {}  # noqa: RUF012 (set for each)


class GroupError(MiniRayError, ConnectionError):
    """A training group cannot go on: a rank has failed, or one node cannot reach another. No rank is left hanging.

    ``rank`` is whose failure is the cause, as far as that can be told, and ``failures`` what each failed rank said.
    """

    rank: int | None = None
    failures: dict[int, str] = {}  # noqa: RUF012 (set for each)


class TaskTimeout(MiniRayError, TimeoutError):
    """A task ran for longer than its time-out. Its worker was ended."""


class TaskOutOfMemory(MiniRayError, MemoryError):
    """A task needed more memory than it may take."""


class WorkerError(MiniRayError, RuntimeError):
    """The work function raised. The text has the remote traceback."""

    worker: str = ""
    type: str = ""
    message: str = ""
    traceback: str = ""


class WorkerDied(MiniRayError, ConnectionError, EOFError):
    """The worker's process ended without its work function returning. The text is its death certificate."""

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
    """A supervised worker's process died, and another has taken its place: the worker can be used again.

    What had been sent to the old process, and not answered, is lost.
    """

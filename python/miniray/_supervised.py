"""Workers that are replaced when they die. A class beside Worker, so that others pay nothing for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from miniray import _check
from miniray.errors import MiniRayError, UsageError, WorkerDied, WorkerError, WorkerRestarted
from miniray.supervision import EventLog, RestartPolicy
from miniray.worker import Worker, _live

_CERTIFICATE = tuple(WorkerDied.__annotations__)


@cache
def supervised_class(cls: Any) -> Any:
    """The class with supervision: of Worker, of RemoteWorker, or of what a user derived from one."""

    class Supervised(cls):  # type: ignore[misc]
        _supervision: Supervision

        @property
        def restarts(self) -> int:
            """How often it was replaced."""
            return self._supervision.restarts

        @property
        def events(self) -> EventLog:
            """What happened to it, and when; workers of a cluster share the cluster's."""
            return self._supervision.events

        def send(self, message: object) -> None:
            try:
                super().send(message)
            except (WorkerDied, WorkerError) as error:
                self._supervision.tell(self, error, self._recover(error))

        def recv(self, *mistake: Any, **limits: Any) -> Any:  # as the core checks them
            try:
                return super().recv(*mistake, **limits)
            except (WorkerDied, WorkerError) as error:
                self._supervision.tell(self, error, self._recover(error))

        def send_large(self, data: bytes | bytearray | memoryview) -> None:
            self.send(data)

        def recv_large(self) -> Any:
            try:
                return super().recv_large()
            except (WorkerDied, WorkerError) as error:
                self._supervision.tell(self, error, self._recover(error))

        def call_remote(self, *arguments: Any, **keywords: Any) -> Any:
            while True:
                try:
                    return super().call_remote(*arguments, **keywords)
                except WorkerDied as error:
                    recovered = self._recover(error)
                    if not (recovered and self._supervision.retries_calls):
                        self._supervision.tell(self, error, recovered)

        async def send_async(self, message: object) -> None:
            try:
                await super().send_async(message)
            except (WorkerDied, WorkerError) as error:
                self._supervision.tell(self, error, await self._supervision.recover_async(self, error))

        async def recv_async(self, *mistake: Any, **limits: Any) -> Any:
            try:
                return await super().recv_async(*mistake, **limits)
            except (WorkerDied, WorkerError) as error:
                self._supervision.tell(self, error, await self._supervision.recover_async(self, error))

        def _recover(self, error: WorkerDied | WorkerError) -> bool:
            return self._supervision.recover(self, error)

    Supervised.__name__, Supervised.__qualname__ = cls.__name__, cls.__qualname__
    Supervised.__module__, Supervised.__doc__ = cls.__module__, cls.__doc__
    return Supervised


class Supervision:
    """What a supervised worker has besides its process."""

    def __init__(
        self,
        replace: Callable[[Any], Worker],
        policy: RestartPolicy,
        on_restart: Callable[[Any], Any] | None,
        events: EventLog | None,
        node: str,
    ) -> None:
        self.restarts = 0
        self.events = events if events is not None else EventLog()
        self._replace = replace
        self._budget = policy._budget()
        self.retries_calls = policy.retry_calls
        self._on_restart = on_restart
        self._node = node
        self._restarting = False  # calls in on_restart are not supervised
        self._noted_pid = 0  # whose death is in the log
        self._failure = ""  # of the last attempt
        self._refusal = ""

    def recover(self, worker: Any, error: WorkerDied | WorkerError) -> bool:
        """Put another process in the place of the one that has ended, as the policy allows. True if that is done."""
        while (pause_s := self._pause_before_restart(worker, error)) is not None:
            time.sleep(pause_s)
            if self._restart(worker):
                return True
        return False

    async def recover_async(self, worker: Any, error: WorkerDied | WorkerError) -> bool:
        import asyncio

        while (pause_s := self._pause_before_restart(worker, error)) is not None:
            await asyncio.sleep(pause_s)
            if self._restart(worker):
                return True
        return False

    def tell(self, worker: Any, error: WorkerDied | WorkerError, recovered: bool) -> NoReturn:
        """One clear error: what the work function raised as it is, and a death with what was done about it."""
        if isinstance(error, WorkerError) or self._restarting or worker._closed:
            raise error
        if not recovered:
            error.args = (f"{error}\n\n{self._refusal}",)
            raise error
        note = (
            f"{worker.name} has taken its place ({self._budget.describe()}). What was sent to it and not answered is "
            "lost: send it again"
        )
        restarted = WorkerRestarted(f"{error}\n\n{note}")
        for name in _CERTIFICATE:
            setattr(restarted, name, getattr(error, name))
        raise restarted from None

    def note(self, worker: Any, kind: str, text: str, **details: Any) -> None:
        self.events.add(kind, text, node=self._node, worker=worker.name, **details)

    def _pause_before_restart(self, worker: Any, error: WorkerDied | WorkerError) -> float | None:
        """None if there is to be no restart."""
        if self._restarting or worker._closed:
            return None
        first_time = self._noted_pid != worker.pid
        if first_time:
            self._noted_pid, self._failure = worker.pid, ""
            self.note(worker, "worker_died", str(error), cause=getattr(error, "cause", "") or type(error).__name__)
        pause_s = self._budget.take(time.monotonic())
        if pause_s is None:
            last = f". The last time it failed: {self._failure}" if self._failure else ""
            refusal, self._refusal = self._refusal, self._budget.refusal() + last
            if first_time or refusal != self._refusal:
                self.note(worker, "restart_refused", self._refusal)
        return pause_s

    def _restart(self, worker: Any) -> bool:
        """One attempt. A new process that dies while on_restart gives it its state has not taken the place."""
        try:
            fresh = self._replace(worker)
        except UsageError:
            raise
        except (MiniRayError, OSError) as error:
            return self._failed(worker, error)
        worker._adopt(fresh)
        fresh._started = False
        _live.pop(id(fresh), None)
        self.restarts += 1
        self.note(worker, "worker_restarted", self._budget.describe(), restarts=self.restarts, pid=worker.pid)
        self._restarting = True
        try:
            worker.__dict__["_snapshot"] = fresh.__dict__.get("_snapshot")
            if "_registered" in worker.__dict__ or "_definitions" in worker.__dict__:
                from miniray import calls

                calls.register_again(worker)
            if self._on_restart is not None:
                self._on_restart(worker)
        except (WorkerDied, WorkerError) as error:
            return self._failed(worker, error)
        except BaseException:
            worker.kill()  # without its state it must not be taken for a good one
            raise
        finally:
            self._restarting = False
        return True

    def _failed(self, worker: Any, error: Exception) -> bool:
        self._noted_pid, self._failure = worker.pid, str(error)
        self.note(worker, "restart_failed", self._failure)
        return False


def supervise(
    worker: Any,
    replace: Callable[[Any], Worker],
    policy: RestartPolicy,
    on_restart: Callable[[Any], Any] | None,
    events: EventLog | None = None,
    node: str = "",
) -> None:
    """From now on, ``replace(worker)`` makes the process that takes the place of one that died."""
    plain: Any = type(worker)
    worker.__class__ = supervised_class(plain)
    worker._supervision = Supervision(replace, policy, on_restart, events, node)
    worker._supervision.note(worker, "worker_started", worker.name, pid=worker.pid)


def check(restart: RestartPolicy | None, on_restart: Callable[[Any], Any] | None) -> None:
    """Before anything is started."""
    if restart is None:
        raise UsageError("on_restart is of use only with a policy: restart=RestartPolicy()")
    if not isinstance(restart, RestartPolicy):
        raise TypeError(f"restart is a RestartPolicy, such as RestartPolicy(), not {_check.shown(restart)}")
    if on_restart is not None and not callable(on_restart):
        raise TypeError(f"on_restart is a function that takes the worker, not {type(on_restart).__name__}")

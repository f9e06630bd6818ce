"""Workers: functions that run in processes of their own, on this machine or on another."""

from __future__ import annotations

import atexit
import sys
import weakref

from miniray import _check, _core
from miniray.errors import MiniRayError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc are slow to import
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from typing_extensions import Self

    from miniray.calls import CallFuture, RemoteObject
    from miniray.supervision import EventLog, RestartPolicy

# The core's enum Closing: how to end workers.
FINISH, INTERRUPT, KILL = range(3)

# Workers that were started and not garbage-collected, so that all of them can be closed together when Python ends.
# The references have no callbacks, because Python code that runs when an object is destroyed swallows Ctrl-C.
_live: dict[int, weakref.ref[Worker]] = {}


def _add_live(worker: Worker) -> None:
    """Add a worker to ``_live``, and drop dead references now and then."""
    if len(_live) % 64 == 63:
        for number in [number for number, known in _live.items() if known() is None]:
            del _live[number]
    _live[id(worker)] = weakref.ref(worker)


@_check.suggest_arguments()
class Worker(_core.Worker):
    """Run ``work_fn(handle)`` in a process of its own. Exchange messages with it by ``send`` and ``recv``, and call
    functions in it by ``call_remote``: it answers calls while ``work_fn`` waits in ``handle.recv()``. Without
    ``work_fn``, the worker only answers calls.

    ``start="fork"`` (the default) works with any function, closures included. ``start="spawn"`` starts a fresh
    interpreter that imports the function, for programs that already use CUDA or threads; the script's own code must
    then be under ``if __name__ == "__main__":``. A function that cannot be imported, such as one that was typed into a
    notebook, is sent by value (with cloudpickle).

    ``codec``, "msgpack" or "json", is for sent messages; received messages may have either. With
    ``shared_memory=False``, large arrays go through the socket too. ``spin_us`` is how long a wait spins before it
    sleeps (0: it does not spin). ``message_bytes_max`` is the largest message in each direction, and
    ``inbox_bytes_max`` how much is held of what has arrived and was not received.

    A worker prints directly to the terminal, or to the running cell of a notebook. It leads a process group of its own,
    so Ctrl-C reaches only the coordinator. When the coordinator ends, the worker and all processes that it started end
    too.

    With ``restart=RestartPolicy()``, the process is replaced when a call on the worker finds that it has died.
    ``on_restart(worker)`` can then send the new process its state again, and the call raises WorkerRestarted. If the
    policy allows no more restarts, the call raises WorkerDied. ``restarts`` counts the restarts, and ``events`` lists
    what happened.

    With ``pickle=False``, calls send and take only what a message can hold, and neither side loads a pickle of the
    other: whatever the worker answers, no code of its runs in this process.
    """

    _host_may_vanish = False
    _sent: dict[str, Any] | None = None
    _supervision: _core._Supervision | None = None
    _retries_calls = False
    _takes_pickles = True
    events: EventLog  # only a supervised worker has it

    def __init__(
        self,
        work_fn: Callable[[_core.Handle], Any] | None = None,
        codec: str = "msgpack",
        start: str = "fork",
        *,
        name: str | None = None,
        shared_memory: bool = True,
        spin_us: int | None = None,
        inbox_bytes_max: int = _core.limits.inbox_bytes_max,
        message_bytes_max: int = _core.limits.message_bytes_max,
        restart: RestartPolicy | None = None,
        on_restart: Callable[[Any], Any] | None = None,
        pickle: bool = True,
    ) -> None:
        _check_restart(restart, on_restart)
        _check.boolean("pickle", pickle)
        if work_fn is None:
            work_fn = _calls().serve_calls
        if not callable(work_fn):
            raise TypeError(
                f"Worker takes a function that takes a handle, not {type(work_fn).__name__}{_was_it_called(work_fn)}"
            )
        if name is None:
            name = getattr(work_fn, "__qualname__", type(work_fn).__qualname__)
        _check.text("name", name, "a str, or None")
        _check.boolean("shared_memory", shared_memory)
        options = (
            name,
            codec,
            shared_memory,
            *_channel_options(codec, spin_us, inbox_bytes_max, message_bytes_max)[1:],
        )
        _stop_import()
        _show_output()
        try:
            if start == "fork":
                import miniray._work  # noqa: F401 (imported before the fork, so that no worker has to import it)
                from miniray import _script

                _warn_of_threads()
                snapshot = _script.Snapshot(keeps_all=not pickle)
                super().__init__(work_fn, *options)
                snapshot.pid = self.pid
                self._snapshot = snapshot
            elif start == "spawn":
                from miniray import _spawned

                specification = _spawned.describe(work_fn, pickle)
                super().__init__(_spawned.command(), *options)
                self.send(specification)
            else:
                raise ValueError(f'start is "fork" or "spawn", not {start!r}')
            self._started = True
            _add_live(self)
            self._say_whether_pickles(pickle)
        except BaseException as error:  # also Ctrl-C, which may come after the process was started
            if isinstance(error, KeyboardInterrupt):
                _core._note_interrupt()
            _core._discard(self)
            raise
        if restart is not None:
            from miniray import _supervised

            named: dict[str, Any] = {"name": name, "shared_memory": shared_memory, "spin_us": spin_us, "pickle": pickle}
            named.update(inbox_bytes_max=inbox_bytes_max, message_bytes_max=message_bytes_max)
            _supervised.supervise(
                self,
                lambda _: Worker(work_fn, codec, start, **named),
                restart,
                on_restart,
            )

    def register(self, name: str | Callable[..., Any], function: Callable[..., Any] | None = None) -> None:
        """Register a function in the worker, under this name or its own. The worker imports the function if it can;
        otherwise the function is sent by value (with cloudpickle)."""
        _calls().register(self, name, function)

    if TYPE_CHECKING:  # the core implements them

        def call_remote(self, name: str, /, *args: Any, **kwargs: Any) -> Any: ...
        def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> CallFuture[Any]: ...

    def create(self, name: str, kind: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> RemoteObject:
        """Create the object ``kind(*args, **kwargs)`` in the worker. ``call_remote("name.method")`` calls a method."""
        return _calls().create(self, name, kind, args, kwargs)  # type: ignore[no-any-return]

    def forget(self, name: str) -> None:
        """Drop a function or an object of the worker."""
        _calls().forget(self, name)

    @classmethod
    def _take_over(cls, ready: _core._ReadyWorker, sent: dict[str, Any] | None = None, pickle: bool = True) -> Self:
        """Return a worker that takes over one of the core's. ``sent`` describes its function if that goes by value."""
        worker = cls.__new__(cls)
        _core.Worker.__init__(worker, ready)
        worker._started = True
        _add_live(worker)
        worker._say_whether_pickles(pickle)
        worker._send_work(sent)
        return worker

    def _say_whether_pickles(self, pickle: bool) -> None:
        """Tell the worker to refuse pickles as this process does, unless ``pickle``."""
        if pickle:
            return
        self._takes_pickles = False
        try:
            self._ask("plain", None, False)
        except MiniRayError:
            pass  # it has ended already, which the next call on it says

    def _send_work(self, sent: dict[str, Any] | None) -> None:
        """Send the work function to a worker that cannot import it. This must be the worker's first message."""
        if sent is not None:
            self._sent = sent  # a process that replaces this one needs it too
            self.send(sent)

    @property
    def restarts(self) -> int:
        """How often the process was replaced."""
        return 0 if self._supervision is None else self._supervision.restarts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        """Close the worker. After an exception, such as Ctrl-C, interrupt it and soon kill it instead."""
        if kind is None:
            self.close()
        else:
            _core._close_all([self], INTERRUPT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object = None, *exception: object) -> None:
        from miniray import _async

        if kind is None:
            await _async.close(self)
        else:
            await _async.in_thread(self.__exit__, kind)

    def __repr__(self) -> str:
        if not getattr(self, "_started", False):  # a debugger may show an object whose __init__ has failed
            return f"<miniray.{type(self).__name__} that was not started>"
        return f"<miniray.{self.name}>"


@_check.suggest_arguments()
class RemoteWorker(Worker):
    """A worker on another machine. ``RemoteWorker(host, port)`` asks the worker server there to start a process.

    It has the same calls as ``Worker``. ``work_fn`` is a function or its name ("module.function"). A function that the
    server cannot import is sent by value (with cloudpickle). Without ``work_fn``, the server runs the function that it
    was started with. ``key`` is 64 hexadecimal digits; by default it is MINIRAY_KEY, or the content of ~/.miniray/key.
    If one host does not answer the other for ``unreachable_s`` seconds, each treats the other as gone. ``env`` is added
    to the worker's environment. ``restart`` and ``on_restart`` do what Worker's do; the server starts the new process.
    A connection that leaves this machine is encrypted. ``encrypt=False`` is for networks that you trust; the server
    must be started with it too. ``encrypt=True`` also encrypts a connection within this machine.
    ``pickle=False`` does what Worker's does: use it for servers that you do not trust with this process.
    """

    _host_may_vanish = True

    def __init__(
        self,
        host: str,
        port: int,
        work_fn: str | Callable[[_core.Handle], Any] | None = None,
        codec: str = "msgpack",
        *,
        key: str | None = None,
        connect_timeout_s: float = _core.limits.connect_timeout_ms / 1000,
        unreachable_s: float = _core.limits.unreachable_ms / 1000,
        env: Mapping[str, str] | None = None,
        encrypt: bool | None = None,
        spin_us: int | None = None,
        inbox_bytes_max: int = _core.limits.inbox_bytes_max,
        message_bytes_max: int = _core.limits.message_bytes_max,
        restart: RestartPolicy | None = None,
        on_restart: Callable[[Any], Any] | None = None,
        pickle: bool = True,
    ) -> None:
        _check_restart(restart, on_restart)
        _check.boolean("pickle", pickle)
        _stop_import()
        options = _remote_options(
            connect_timeout_s, unreachable_s, env, encrypt, codec, spin_us, inbox_bytes_max, message_bytes_max
        )
        name, sent = _reference(work_fn, pickle)
        request = ([_address(host, port)], name, _key(key), *options)
        [ready] = _core._connect(*request)
        _core.Worker.__init__(self, ready)
        self._started = True
        _add_live(self)
        self._say_whether_pickles(pickle)
        self._send_work(sent)
        if restart is not None:
            _supervise(self, request, restart, on_restart)


def create_remote_workers(
    addresses: Iterable[tuple[str, int]],
    work_fn: str | Callable[[_core.Handle], Any] | None = None,
    codec: str = "msgpack",
    *,
    key: str | None = None,
    connect_timeout_s: float = _core.limits.connect_timeout_ms / 1000,
    unreachable_s: float = _core.limits.unreachable_ms / 1000,
    env: Mapping[str, str] | None = None,
    encrypt: bool | None = None,
    spin_us: int | None = None,
    inbox_bytes_max: int = _core.limits.inbox_bytes_max,
    message_bytes_max: int = _core.limits.message_bytes_max,
    restart: RestartPolicy | None = None,
    on_restart: Callable[[Any], Any] | None = None,
    pickle: bool = True,
) -> list[RemoteWorker]:
    """Return ``[RemoteWorker(host, port) for host, port in addresses]``, but connect to all servers at the same time.
    If one connection fails, close all others.

    With ``restart``, each worker has a policy of its own.
    """
    _check_restart(restart, on_restart)
    _check.boolean("pickle", pickle)
    _stop_import()
    options = _remote_options(
        connect_timeout_s, unreachable_s, env, encrypt, codec, spin_us, inbox_bytes_max, message_bytes_max
    )
    name, sent = _reference(work_fn, pickle)
    wanted, what = _addresses(addresses), (name, _key(key), *options)
    made = [RemoteWorker._take_over(ready, sent, pickle) for ready in _core._connect(wanted, *what)]
    if restart is not None:
        for worker, address in zip(made, wanted, strict=True):
            _supervise(worker, ([address], *what), restart, on_restart)
    return made


def _supervise(
    worker: RemoteWorker, request: Any, restart: RestartPolicy, on_restart: Callable[[Any], Any] | None
) -> None:
    from miniray import _supervised

    sent, pickle = worker._sent, worker._takes_pickles

    def replace(_: Any) -> RemoteWorker:
        return RemoteWorker._take_over(_core._connect(*request)[0], sent, pickle)

    _supervised.supervise(worker, replace, restart, on_restart, node=request[0][0][0])


def _was_it_called(work_fn: object) -> str:
    return ": pass the function itself, without calling it" if isinstance(work_fn, int | float | list | dict) else ""


def _channel_options(
    codec: Any, spin_us: Any, inbox_bytes_max: Any, message_bytes_max: Any
) -> tuple[str, int | None, int, int]:
    _check.text("codec", codec, 'a str, "msgpack" or "json"')
    spin_us = None if spin_us is None else _check.integer("spin_us", spin_us, 0, what="an int, or None")
    inbox_bytes_max = _check.integer("inbox_bytes_max", inbox_bytes_max, 1)
    return codec, spin_us, inbox_bytes_max, _check.integer("message_bytes_max", message_bytes_max, 1)


def _remote_options(
    connect_timeout_s: Any, unreachable_s: Any, env: Any, encrypt: Any, *options: Any
) -> tuple[Any, ...]:
    return (
        _check.number("connect_timeout_s", connect_timeout_s, what="a number of seconds"),
        _check.number("unreachable_s", unreachable_s, what="a number of seconds"),
        _check.environment("env", env),
        _check.boolean_or_none("encrypt", encrypt),
        *_channel_options(*options),
    )


def _address(host: Any, port: Any) -> tuple[str, int]:
    _check.text("host", host, "a str, the name or the address of a machine")
    name, colon, number = host.rpartition(":")
    if colon and number.isdigit() and ":" not in name:
        raise UsageError(f'host is "{host}"; give the name of the machine and the port apart: "{name}", {number}')
    return host, _check.integer("port", port, 0, 65535)


def _addresses(addresses: Any) -> list[tuple[str, int]]:
    made = []
    for address in _check.listed("addresses", addresses, 'a list of pairs, such as ("node1", 10000)'):
        if not isinstance(address, tuple | list) or len(address) != 2:
            raise TypeError(f'an address is a pair, such as ("node1", 10000), not {_check.shown(address)}')
        made.append(_address(*address))
    return made


def _key(key: Any) -> str:
    """Return the key, or "" for None: the core then looks for the user's key."""
    return "" if key is None else _check.text("key", key, "a str of 64 hexadecimal digits, or None")


def _reference(work_fn: str | Callable[[_core.Handle], Any] | None, pickle: bool) -> tuple[str, dict[str, Any] | None]:
    """Return the name of the function for the request to a server, and what ``_send_work`` has to send, if anything."""
    if work_fn is None:
        return "", None
    from miniray import _sent_work

    # Such a server does not have the coordinator's script.
    return _sent_work.reference(work_fn, has_script=False, takes_pickles=pickle)


def _calls() -> Any:
    from miniray import calls

    return calls


def _check_restart(restart: RestartPolicy | None, on_restart: Callable[[Any], Any] | None) -> None:
    if restart is not None or on_restart is not None:
        from miniray import _supervised

        _supervised.check(restart, on_restart)


# The line of the script that started the first worker; 0 if that was not at the script's top level.
first_start_line: int | None = None


def _stop_import() -> None:
    """Called before workers are started. If this process imports the coordinator's script only for its functions, stop
    the import here: the functions above this line are defined."""
    global first_start_line
    spawned = sys.modules.get("miniray._spawned")
    if spawned is not None:
        spawned.refuse_while_importing()
    if first_start_line is None:
        frame, script = sys._getframe(1), sys.modules["__main__"].__dict__
        while frame.f_back is not None and not (frame.f_globals is script and frame.f_code.co_name == "<module>"):
            frame = frame.f_back
        first_start_line = frame.f_lineno if frame.f_globals is script else 0


def _warn_of_threads() -> None:
    threading = sys.modules.get("threading")
    if threading is None:
        return
    # The threads of MiniRay and of IPython hold no lock that a worker needs.
    others = [thread for thread in threading.enumerate() if not thread.name.startswith("miniray-")]
    if len(others) > 1 and "IPython" in sys.modules:
        from miniray import _notebook

        others = [thread for thread in others if not _notebook.is_kernel_thread(thread)]
    if len(others) > 1:
        _warn(
            f"this process has {len(others)} Python threads; a forked worker gets only the calling one, "
            'and locks that the others hold stay locked in it. Start workers before threads, or with start="spawn"'
        )


def _warn(text: str) -> None:
    """Show a warning with the line of the program that called the package, directly or through joblib."""
    import warnings

    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("miniray", "joblib"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _show_output() -> None:
    """Called before a worker is started. In a notebook, make its output appear in the running cell."""
    if "ipykernel" in sys.modules:
        from miniray import _notebook

        if _notebook.kernel_shell() is not None:
            _notebook.show_output_of_workers()


def _flush_output() -> None:
    """Called before every fork. The child would get a copy of buffered output, and print it a second time."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # the stream is replaced, closed or full, which is not MiniRay's error


def ends_by_exception() -> bool:
    """Return whether Python ends because of Ctrl-C or an uncaught exception. (An interactive session continues after an
    uncaught exception.) When a notebook's kernel ends, the user has restarted or stopped it, and waits for nothing."""
    notebook = sys.modules.get("miniray._notebook")
    if notebook is not None and notebook.kernel_shell() is not None:
        return True
    interactive = sys.flags.interactive or hasattr(sys, "ps1")
    return _core._just_interrupted() or (getattr(sys, "last_type", None) is not None and not interactive)


@atexit.register
def _close_all() -> None:
    """Close all workers together when Python ends, with one grace for all."""
    workers = [worker for known in list(_live.values()) if (worker := known()) is not None]
    _core._close_all(workers, INTERRUPT if ends_by_exception() else FINISH)

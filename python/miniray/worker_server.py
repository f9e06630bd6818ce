"""A server that starts a worker for every connection. Run it on the machine where the workers should run:

miniray worker-server --host 0.0.0.0 --port 10000 --workers 4 --work-fn my_module.train_fn

Without --host, only processes on that machine can connect.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from miniray import _check, _core, _functions, _work


@_check.suggest_arguments()
class WorkerServer(_core.WorkerServer):
    """Listen on ``host:port``, and fork a worker that runs ``work_fn(handle)`` for each connection.

    By default, only processes on this machine can connect. With ``host="0.0.0.0"``, other machines can too.

    ``work_fn`` is a function, or its name ("module.function"), which is imported now. A connection may name another
    function. Port 0 stands for any free port; the attribute ``port`` has its number. At most ``num_workers`` workers
    are alive at a time (None: no limit). They neither send nor receive messages of more than ``message_bytes_max``.
    Connections require a shared key: ``key``, or MINIRAY_KEY, or the content of ~/.miniray/key, which is made on first
    use. Connections that leave this machine are encrypted. ``encrypt=False`` is for networks that you trust; clients
    must say the same. ``encrypt=True`` encrypts all connections. With ``pickle=False``, workers send and take no
    pickles: functions are named, and arguments and results are plain data.

    A worker ends with its connection, and all workers end with the server.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 10000,
        work_fn: str | Callable[[_core.Handle], Any] | None = None,
        num_workers: int | None = None,
        *,
        key: str | None = None,
        message_bytes_max: int = _core.limits.message_bytes_max,
        encrypt: bool | None = None,
        pickle: bool = True,
    ) -> None:
        from miniray.worker import _key, _show_output, _stop_import

        _stop_import()
        _show_output()
        _check.text("host", host, "a str, an address of this machine")
        _check.integer("port", port, 0, 65535)
        _check.boolean("pickle", pickle)
        if num_workers is not None:
            _check.integer("num_workers", num_workers, what="an int (None: no limit)")
            if num_workers < 1:
                raise ValueError(f"num_workers is 1 or more (None: no limit), not {num_workers}")
        work = _functions.find(work_fn) if isinstance(work_fn, str) else work_fn
        if work is not None and not callable(work):
            raise TypeError(f"work_fn is a function that takes a handle, or its name, not {_check.shown(work)}")
        largest = _check.integer("message_bytes_max", message_bytes_max, 1)
        encrypts = _check.boolean_or_none("encrypt", encrypt)
        super().__init__(host, port, work, num_workers or 0, _key(key), largest, encrypts, pickle)


def main(arguments: list[str] | None = None, command: str = "python -m miniray.worker_server") -> None:
    """Run the command line: ``miniray worker-server --help``, or ``python -m miniray.worker_server --help``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--stdio"]:  # a cluster has started this server, and sends its settings on standard input
        if sys.path[0] in ("", os.getcwd()):
            sys.path.pop(0)  # modules in the folder where ssh logs in must not hide others
        sys.exit(_core._serve_stdio())

    import argparse

    parser = argparse.ArgumentParser(
        prog=command,
        description="Start a worker for every connection that has the key (MINIRAY_KEY, or ~/.miniray/key).",
    )
    host_help = "the address to listen on (default: 127.0.0.1, for this machine only; 0.0.0.0: for other machines too)"
    parser.add_argument("--host", default="127.0.0.1", help=host_help)
    parser.add_argument("--port", type=int, default=10000, help="the port; 0: any free port (default: 10000)")
    parser.add_argument("--workers", type=int, default=None, help="the most workers at a time (default: no limit)")
    parser.add_argument("--work-fn", help="module.function; without it, connections must name the function to run")
    parser.add_argument(
        "--message-bytes-max",
        type=int,
        default=_core.limits.message_bytes_max,
        help="the largest message of a worker, in bytes (default: 64 GiB)",
    )
    parser.add_argument(
        "--encrypt",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="encrypt all connections, or none, which is for networks that you trust; clients must say the same "
        "(default: those that leave this machine)",
    )
    parser.add_argument(
        "--no-pickle", action="store_true", help="refuse pickles: callers name functions and send plain data"
    )
    options = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        if options.work_fn is not None:
            _import_or_explain(options.work_fn)
        server = WorkerServer(
            options.host,
            options.port,
            options.work_fn,
            options.workers,
            message_bytes_max=options.message_bytes_max,
            encrypt=options.encrypt,
            pickle=not options.no_pickle,
        )
        _work.forget_key()
        work = options.work_fn or "what connections ask for"
        print(f"listening on {options.host}:{server.port}, running {work}; Ctrl-C ends it and its workers")
        print(_core._who_can_connect(options.host), flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)
    except (OSError, ValueError, ImportError, AttributeError, TypeError) as error:
        sys.exit(f"miniray worker-server: {error}")


def _import_or_explain(name: str) -> None:
    try:
        _functions.find(name)
    except Exception as error:
        sys.exit(f"miniray worker-server: {_functions.explain(name, error)}")


if __name__ == "__main__":
    main()

"""A server that starts a worker for every connection: run it where the workers shall run.

miniray worker-server --port 10000 --workers 4 --work-fn my_module.train_fn
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from miniray import _check, _core, _functions


@_check.suggest_arguments()
class WorkerServer(_core.WorkerServer):
    """Listen on ``host:port``, and fork a worker that runs ``work_fn(handle)`` for each connection.

    ``work_fn`` is a function or its name, "module.function", imported now; a connection may name another. Port 0 is any
    free one: see ``port``. At most ``num_workers`` live at a time (None: as many as come). Only who has the key is let
    in: ``key``, MINIRAY_KEY, or ~/.miniray/key, which is made on first use.

    A worker ends with its connection, and all of them with the server.
    """

    def __init__(
        self,
        host: str = "0.0.0.0",
        port: int = 10000,
        work_fn: str | Callable[[_core.Handle], Any] | None = None,
        num_workers: int | None = None,
        *,
        key: str | None = None,
    ) -> None:
        from miniray.worker import _key, _show_output, _stop_import

        _stop_import()
        _show_output()
        _check.text("host", host, "a str, an address of this machine")
        _check.integer("port", port, 0, 65535)
        if num_workers is not None:
            _check.integer("num_workers", num_workers, what="an int (None: as many as come)")
            if num_workers < 1:
                raise ValueError(f"num_workers is 1 or more (None: as many as come), not {num_workers}")
        work = _functions.find(work_fn) if isinstance(work_fn, str) else work_fn
        if work is not None and not callable(work):
            raise TypeError(f"work_fn is a function that takes a handle, or its name, not {_check.shown(work)}")
        super().__init__(host, port, work, num_workers or 0, _key(key))


def main(arguments: list[str] | None = None, command: str = "python -m miniray.worker_server") -> None:
    """The command line: ``miniray worker-server --help``, or ``python -m miniray.worker_server --help``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--stdio"]:  # a cluster started it, and says on standard input what to do
        if sys.path[0] in ("", os.getcwd()):
            sys.path.pop(0)  # the folder in which ssh logs in must not hide other modules
        sys.exit(_core._serve_stdio())

    import argparse

    parser = argparse.ArgumentParser(
        prog=command,
        description="Start a worker for every connection that has the key (MINIRAY_KEY, or ~/.miniray/key).",
    )
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen on (default: all of this machine's)")
    parser.add_argument("--port", type=int, default=10000, help="0: any that is free (default: 10000)")
    parser.add_argument("--workers", type=int, default=None, help="at most so many at a time (default: no limit)")
    parser.add_argument("--work-fn", help="module.function; without it, connections must say what to run")
    options = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        if options.work_fn is not None:
            _import_or_explain(options.work_fn)
        server = WorkerServer(options.host, options.port, options.work_fn, options.workers)
        work = options.work_fn or "what connections ask for"
        print(f"listening on {options.host}:{server.port}, running {work}; Ctrl-C ends it and its workers", flush=True)
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

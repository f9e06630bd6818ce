"""The miniray command: ``miniray``, or ``python -m miniray``."""

from __future__ import annotations

import sys

from miniray import _core


def main() -> None:
    if sys.argv[1:2] == ["worker-server"]:
        from miniray import worker_server

        return worker_server.main(sys.argv[2:], "miniray worker-server")
    from miniray._cluster_arguments import attendant_command

    try:
        sys.exit(_core._run_command(sys.argv[1:], sys.executable, attendant_command()))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

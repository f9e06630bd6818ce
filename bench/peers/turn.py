"""One turn of one peer, in a process of its own: ``python -m peers.turn PEER WORK WORKERS SIZES``.

Prints a line for each figure, marked, since libraries print what they like. The peer is stopped at the end.
"""

from __future__ import annotations

import json
import sys
import traceback

from peers.measure import WORKS
from peers.peer import NoSuchThing, find_peer

MARK = "@figure "
LINE_MAX = 300


def tell(**what: object) -> None:
    sys.stdout.write("\n" + MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    name, work, workers, sizes = sys.argv[1:5]
    peer = find_peer(name)()
    try:
        for row, value in WORKS[work](peer, int(workers), json.loads(sizes)):
            tell(row=row, value=value)
    except NoSuchThing as reason:
        tell(row=None, value=str(reason))
    except Exception as error:
        traceback.print_exc()
        tell(row=None, value=f"failed: {type(error).__name__}: {error}"[:LINE_MAX])
    tell(row="stopping", value=0.0)
    peer.stop()


if __name__ == "__main__":
    main()

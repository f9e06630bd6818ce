"""Finds the versions of the peers and their size on disk, requirements included. Runs in the peers' own interpreter.

``python -m peers.installed`` prints JSON: for each peer its version and bytes, or why it cannot be imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from peers.peer import Peer, find_peers
from peers.sockets_peer import PROGRAM, Sockets

# Python and ssh need these packages themselves, so they count for no peer.
THERE_ANYWAY = ("python3-minimal", "openssh-client", "libstdc++6")


def distributions(name: str, found: dict[str, int]) -> dict[str, int]:
    """The distribution and its requirements on this machine, without extras, with the bytes of each."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    key = canonicalize_name(name)
    if key not in found:
        there = metadata.distribution(name)
        files = [Path(str(file.locate())) for file in there.files or []]
        found[key] = sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
        for text in there.requires or []:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                distributions(wanted.name, found)
    return found


def debian_bytes(packages: tuple[str, ...]) -> int:
    """The bytes of these packages and of what only they need."""
    extra = _closure(packages) - _closure(THERE_ANYWAY)
    words = ["dpkg-query", "--show", "--showformat=${Installed-Size}\\n", *sorted(extra)]
    sizes = subprocess.run(words, capture_output=True, text=True).stdout.split()
    return sum(int(size) for size in sizes) * 1024


def _closure(packages: tuple[str, ...]) -> set[str]:
    words = ["apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests", "--no-conflicts"]
    words += ["--no-breaks", "--no-replaces", "--no-enhances", *packages]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line for line in lines if line and not line.startswith((" ", "<", "|"))}


def describe(peer: type[Peer]) -> dict[str, str | int]:
    if peer is Sockets:
        return {"version": "", "bytes": PROGRAM.stat().st_size} if PROGRAM.exists() else {"missing": "not built"}
    if peer.module is None or peer.distribution is None:
        return {"version": "", "bytes": 0}  # comes with Python
    probe = subprocess.run([sys.executable, "-c", f"import {peer.module}"], capture_output=True, text=True)
    if probe.returncode != 0:
        return {"missing": "not installed: " + (probe.stderr.strip().splitlines() or ["no reason was given"])[-1]}
    total = sum(distributions(peer.distribution, {}).values())
    return {
        "version": metadata.version(peer.distribution),
        "bytes": total + (debian_bytes(peer.debian) if peer.debian else 0),
    }


if __name__ == "__main__":
    print(json.dumps({name: describe(peer) for name, peer in find_peers().items()}))

"""Finds the processes of a turn by a mark in their environment, measures what they use, and ends them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "PEERS_TURN"
POLL_S = 0.02
KIBIBYTE = 1024
LISTENING = "0A"
TICKS = os.sysconf("SC_CLK_TCK")


def marked(token: str) -> list[int]:
    """The living processes that were started with this mark, or by such a process."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in numbers if is_marked(pid, token)]


def is_marked(pid: int, token: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has just ended, or we may not look into it
    return f"{MARK}={token}".encode() in environment.split(b"\0")


@dataclass
class Usage:
    memory_bytes: int  # proportional set size: memory that several processes share is divided among them
    processes: int
    threads: int
    ports: int  # TCP ports on which a process listens
    cpu_s: float  # CPU time used so far


def usage(pids: list[int]) -> Usage:
    total = Usage(0, 0, 0, 0, 0.0)
    sockets: set[str] = set()
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            status = Path(f"/proc/{pid}/status").read_text()
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            for entry in os.scandir(f"/proc/{pid}/fd"):
                sockets.add(os.readlink(entry.path))
        except OSError:
            continue  # the process has ended meanwhile
        total.memory_bytes += int(_line(rollup, "Pss:")) * KIBIBYTE
        total.threads += int(_line(status, "Threads:"))
        total.processes += 1
        total.cpu_s += (int(stat[11]) + int(stat[12])) / TICKS
    total.ports = len(_listening() & sockets)
    return total


def _line(text: str, name: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith(name))


def _listening() -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENING:
                found.add(f"socket:[{words[9]}]")
    return found


def wait_for_end(token: str, within_s: float) -> list[int]:
    """Waits for the end of the processes, and returns those that are still there."""
    deadline = time.monotonic() + within_s
    while (left := marked(token)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def end_all(token: str, spare: int = 0) -> None:
    """Kills all processes with the mark except `spare`. Before a kill, it checks the process again, its pid pinned."""
    while pids := [pid for pid in marked(token) if pid != spare]:
        for pid in pids:
            try:
                pinned = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if is_marked(pid, token):
                    signal.pidfd_send_signal(pinned, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended first
            finally:
                os.close(pinned)
        time.sleep(POLL_S)

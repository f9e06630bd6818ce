"""Compares MiniRay with yardsticks, and writes the table to bench/results/.

    python bench/run.py [--rounds 7] [--quick] [--only WORD]

The two sides of a row take turns, each in a process of its own, and their medians are compared. The budgets are ratios,
because a ratio is more stable than a time.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
Measure = Callable[[], float]


def core(row: str, count: int, **settings: str) -> Measure:
    """Times a row of core_bench. The settings are added to its environment."""
    return lambda: _number([str(ROOT / "build/release/bench/core_bench"), row, str(count)], settings)


def python(row: str, count: int) -> Measure:
    return lambda: _number([sys.executable, str(ROOT / "bench/python_bench.py"), row, str(count)])


def _number(command: list[str], settings: dict[str, str] | None = None) -> float:
    environment = {**os.environ, **(settings or {})}
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def interpreter(code: str) -> Measure:
    """How long a fresh interpreter takes to run one line, in nanoseconds: the best of five runs."""

    def run() -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter_ns() - start)
        return float(min(times))

    return run


@dataclass
class Row:
    what: str
    yardstick: str
    budget: float
    ours: Measure
    theirs: Measure
    unit: str = "us"


def rows(scale: float) -> list[Row]:
    def n(count: int) -> int:
        return max(2, int(count * scale))

    raw, raw_tcp = core("socketpair/raw", n(20_000)), core("tcp/raw", n(20_000))
    raw_large, raw_large_tcp = core("large/raw", n(40)), core("large_tcp/raw", n(40))
    pair, tcp = "raw socketpair ping-pong", "raw TCP loopback ping-pong"
    return [
        Row("small round trip, C++ local, no spinning", pair, 1.15, core("socketpair/sleeping", n(20_000)), raw),
        Row("small round trip, C++ local", pair, 0.5, core("socketpair/spinning", n(20_000)), raw),
        Row("small round trip, Python local, no spinning", pair, 1.5, python("small_sleeping", n(20_000)), raw),
        Row("small round trip, Python local", pair, 1.5, python("small", n(20_000)), raw),
        Row(
            "small round trip over TCP, C++ RemoteWorker, no spinning",
            tcp,
            1.15,
            core("tcp/sleeping", n(20_000)),
            raw_tcp,
        ),
        Row("small round trip over TCP, Python RemoteWorker", tcp, 1.4, python("tcp", n(20_000)), raw_tcp),
        Row("8 MiB array echo, Python local", "raw socketpair echo of 8 MiB", 0.6, python("large", n(40)), raw_large),
        Row(
            "8 MiB array echo over TCP, C++ RemoteWorker",
            "raw TCP echo of 8 MiB",
            1.1,
            core("large_tcp/ours", n(40)),
            raw_large_tcp,
        ),
        Row(
            "8 MiB array echo over TCP, Python RemoteWorker",
            "raw TCP echo of 8 MiB",
            1.1,
            python("large_tcp", n(40)),
            raw_large_tcp,
        ),
        Row(
            "128 MB made in place, to a worker and a small answer, C++",
            "one memcpy of 128 MB",
            1 / 50,
            core("in_place/ours", n(20)),
            core("in_place/raw", n(20)),
        ),
        Row(
            "one-way small messages, pipelined",
            "raw 64-byte writes",
            2.0,
            core("one_way/ours", n(100_000)),
            core("one_way/raw", n(100_000)),
        ),
        Row(
            "a list of one million floats, echo",
            "lines of JSON",
            1 / 30,
            python("floats", n(10)),
            python("json_lines", 2),
        ),
        Row(
            "start a worker and get its first answer, C++",
            "bare fork",
            2.0,
            core("start/ours", n(300)),
            core("start/raw", n(300)),
        ),
        Row(
            "start a worker and get its first answer, Python",
            "bare fork",
            2.0,
            python("start", n(300)),
            python("start_bare", n(300)),
        ),
        Row(
            "wait_any, one of 4,000 ready" if scale >= 1 else "wait_any, one of 40 ready",
            "one of 4 ready",
            1.5,
            python("wait_any_4000" if scale >= 1 else "wait_any_40", n(2000)),
            python("wait_any_4", n(2000)),
        ),
    ]


def measure(row: Row, rounds: int) -> str:
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(row.theirs())
        ours.append(row.ours())
    a, b = statistics.median(ours), statistics.median(theirs)
    ratio = a / b
    verdict = "yes" if ratio <= row.budget else f"**no**, by {100 * (ratio / row.budget - 1):.0f} %"
    spread = f"{min(ours) / b:.2f} to {max(ours) / b:.2f}"
    return (
        f"| {row.what} | {a / 1000:.1f} us | {row.yardstick}: {b / 1000:.1f} us | {ratio:.3g}x ({spread}) "
        f"| {row.budget:.3g}x | {verdict} |"
    )


def import_row() -> str:
    empty, ours = interpreter("pass"), interpreter("import miniray")
    extra = statistics.median(ours() - empty() for _ in range(5)) / 1e6
    return (
        f"| `import miniray` | {extra:.1f} ms more | an empty Python | | 20 ms | {'yes' if extra <= 20 else '**no**'} |"
    )


def wheel_row() -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            folder,
            str(ROOT),
        ]
        subprocess.run(command, check=True, capture_output=True)
        size = next(Path(folder).glob("*.whl")).stat().st_size / 1e6
    return f"| the built wheel | {size:.2f} MB | | | 1.5 MB | {'yes' if size <= 1.5 else '**no**'} |"


def machine() -> str:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
    cores = Path("/proc/cpuinfo").read_text().count("processor\t")
    return f"{cores} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="check that everything runs, and write nothing")
    parser.add_argument("--only", default="", help="measure only rows that contain this word, and write nothing")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    lines = [
        "# MiniRay compared with yardsticks",
        "",
        f"Measured on {time.strftime('%Y-%m-%d')} with {machine()}. The figures are medians of {options.rounds} "
        "rounds, in which the two sides take turns; the ratios of the best and the worst round are in brackets. "
        "`make bench` makes this page.",
        "",
        "| what | MiniRay | yardstick | ratio | budget | met |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for row in rows(0.01 if options.quick else 1):
        if options.only in row.what:
            lines.append(measure(row, options.rounds))
            print(lines[-1], flush=True)
    if options.only or options.quick:
        return
    for extra in (import_row, wheel_row):
        lines.append(extra())
        print(lines[-1], flush=True)
    results = ROOT / "bench/results"
    results.mkdir(exist_ok=True)
    (results / "yardsticks.md").write_text("\n".join(lines) + "\n")
    print("Written to bench/results/yardsticks.md")


if __name__ == "__main__":
    main()

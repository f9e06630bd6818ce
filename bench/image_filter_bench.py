"""Compares the image filter of examples/ with the same filter in OpenMP and MPI, and writes bench/results/.

    python bench/image_filter_bench.py [--rounds 5] [--quick]

The programs in bench/image_filter/ take turns. Each prints the median of five runs; the median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from run import machine  # noqa: E402

SOURCES = ROOT / "bench/image_filter"
RESULTS = ROOT / "bench/results/image_filter.md"
RUN_LIMIT_S = 100.0
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-w"]
CORES = os.cpu_count() or 1


def build(folder: Path) -> dict[str, list[str]]:
    """The commands of the programs that could be built. MPI may not be installed."""
    commands = {"one thread": [str(folder / "openmp"), "1"]}
    subprocess.run(["c++", *FLAGS, "-fopenmp", SOURCES / "openmp.cpp", "-o", folder / "openmp"], check=True)
    commands["MiniRay"] = [str(ROOT / "build/release/bench/image_filter_miniray"), str(CORES)]
    commands["OpenMP"] = [str(folder / "openmp"), str(CORES)]
    if shutil.which("mpicxx") is not None and shutil.which("mpirun") is not None:
        subprocess.run(["mpicxx", *FLAGS, SOURCES / "mpi.cpp", "-o", folder / "mpi"], check=True)
        commands["Open MPI"] = ["mpirun", "--oversubscribe", "-n", str(CORES), str(folder / "mpi"), str(CORES)]
    return commands


def seconds(command: list[str], width: int, height: int) -> float:
    *words, processes = command
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    whole = [*words, str(width), str(height), processes]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=True, timeout=RUN_LIMIT_S)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small image and one round; writes no file")
    options = parser.parse_args()
    width, height, rounds = (192, 108, 1) if options.quick else (1920, 1080, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        commands = build(Path(folder))
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                found[name].append(seconds(command, width, height))
    medians = {name: statistics.median(values) for name, values in found.items()}
    lines = [
        "# An image filter on all cores",
        "",
        f"A bilateral filter over {width} by {height} pixels ([image_filter.hpp](../../examples/image_filter.hpp)), on "
        f"{machine()}. The programs take turns; a figure is the median of {rounds} rounds of five runs. Threads share "
        "the image; processes are sent their rows and send the result back, and that is part of the time.",
        "",
        "| | time | times as fast as one thread |",
        "|---|---:|---:|",
        *(
            f"| {name} | {value * 1000:.1f} ms | {medians['one thread'] / value:.2f} |"
            for name, value in medians.items()
        ),
    ]
    print("\n".join(lines))
    if not options.quick:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

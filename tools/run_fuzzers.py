"""Runs the fuzzers of a build folder, several at a time, and prints how many inputs each has executed.

    tools/run_fuzzers.py BUILD --seconds 300       runs each fuzzer this long
    tools/run_fuzzers.py BUILD --inputs 100000000  runs the fuzzers in turn, until all together have executed so many

Each fuzzer starts from tests/corpus and from what it found in earlier runs, which is in BUILD/corpus. After the first
failure, the script stops the other fuzzers and prints the failure; the input is in BUILD. It needs the programs in
BUILD/fuzzers and Python, but no compiler. The random numbers depend on --seed alone.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import corpus

SLICE_S = 20  # how long a fuzzer runs before another has its turn
INPUT_BYTES_MAX = 4096
LOG_LINES = 60


class Run:
    """One process of a fuzzer."""

    def __init__(self, build: Path, fuzzer: Path, number: int, seconds: float, seed: int) -> None:
        self.name = fuzzer.name
        self.log = build / f"{self.name}.{number}.log"
        found, seeds = build / "corpus" / self.name, build / "seeds" / self.name
        for folder in (found, seeds):
            folder.mkdir(parents=True, exist_ok=True)
        options = {
            "max_total_time": max(1, round(seconds)),
            "timeout": 10,
            "rss_limit_mb": 2048,
            "max_len": INPUT_BYTES_MAX,
            "print_final_stats": 1,
            "seed": seed * 100_000 + number,  # not 0, which is a random seed
            "artifact_prefix": f"{build}/{self.name}-",
        }
        command = [str(fuzzer), *(f"-{name}={value}" for name, value in options.items()), str(found), str(seeds)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def executed(self) -> int:
        """How many inputs it has executed: all of them if it has ended, else those that it last spoke of."""
        log = self.log.read_text(errors="replace")
        in_the_end = re.findall(r"^stat::number_of_executed_units: (\d+)", log, re.M)
        numbers = in_the_end or re.findall(r"^#(\d+)\t", log, re.M)
        return int(numbers[-1]) if numbers else 0


def run_all(build: Path, fuzzers: list[Path], options: argparse.Namespace, executed: Counter[str]) -> None:
    """Counts how many inputs each fuzzer has executed. Exits if one fails."""
    turns = enumerate(itertools.cycle(fuzzers) if options.inputs else fuzzers, 1)
    seconds = SLICE_S if options.inputs else options.seconds
    running: list[Run] = []
    number = 0

    def has_more() -> bool:  # each fuzzer runs once, however few inputs are asked for
        return not options.inputs or number < len(fuzzers) or executed.total() < options.inputs

    try:
        while True:
            while len(running) < options.jobs and has_more():
                number, fuzzer = next(turns, (number, None))
                if fuzzer is None:
                    break
                running.append(Run(build, fuzzer, number, seconds, options.seed))
            if not running:
                return
            time.sleep(0.1)
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                executed[run.name] += run.executed()
                if run.process.returncode != 0:
                    print(*run.log.read_text(errors="replace").splitlines()[-LOG_LINES:], sep="\n")
                    sys.exit(
                        f"{run.name} failed (exit code {run.process.returncode}); its input is {build}/{run.name}-*"
                    )
                run.log.unlink()
    finally:
        for run in running:
            run.process.kill()
            run.process.wait()
            executed[run.name] += run.executed()


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the fuzzers of a build folder.")
    parser.add_argument("build", type=Path)
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--seconds", type=float, help="how long each fuzzer runs")
    amount.add_argument("--inputs", type=int, help="how many inputs all fuzzers execute together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many run at a time (default: all cores)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    fuzzers = sorted((options.build / "fuzzers").glob("*_fuzz"))
    if not fuzzers:
        sys.exit(f"there are no fuzzers in {options.build}/fuzzers. Run `make fuzz`, which builds them")
    corpus.unpack(options.build / "seeds")
    begin = time.monotonic()
    executed: Counter[str] = Counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    try:
        run_all(options.build, fuzzers, options, executed)
    finally:
        for fuzzer in fuzzers:
            print(f"{fuzzer.name:26} {executed[fuzzer.name]:>14,} inputs")
        print(f"{'together':26} {executed.total():>14,} inputs in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()

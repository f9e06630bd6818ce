"""The program of `make demo`. It verifies programs that a model wrote: first in one process, then with a pool on all
cores, then with the same code on two servers.

    python examples/demo.py [node1 node2 ...] [--candidates 240] [--workers 4] [--time-limit 1]

Some of the programs crash, hang, use up memory or kill the process that started them. One process does not survive
them. The pool gives a verdict on each program, replaces the worker that was killed, and reports why it died. A node is
a host name that ssh knows; without nodes, the script starts two servers on this machine.
"""

import argparse
import os
import random
import resource
import sys
import time
from concurrent.futures import as_completed

import verify_rollouts

from miniray import Cluster, MiniRayError, NodeConfig, Pool, Worker, WorkerDied

QUESTIONS, EXPECTED = [2, 3, 30, 15_000], [0, 1, 10, 1754]  # for each number, how many primes are below it
USUAL = {"answers right": 80, "answers wrong": 12, "has a syntax error": 4, "raises an exception": 4}
FIRST_CRASH = 40  # the first program that ends the loop in one process
PICTURE_WIDTH, PICTURE_HEIGHT = 64, 16
LOOP_MEMORY_BYTES = 2 << 30  # protects the machine: in the loop, programs have no limits of their own


def collect(number, time_limit_s):
    """Make the list of programs, always the same: many of the usual kinds, and one of each other kind among them."""
    dice = random.Random(4)
    sources = {kind: source for _, kind, source in verify_rollouts.ROLLOUTS}
    kinds = [*USUAL, *dice.choices(list(USUAL), list(USUAL.values()), k=number - len(USUAL))]
    others = [kind for kind in sources if kind not in (*USUAL, "crashes")]
    hostile = ["crashes", *dice.sample(others, len(others))]
    first = min(FIRST_CRASH, number // 2)
    for place, kind in enumerate(hostile):
        kinds[first + (number * 3 // 4 - first) * place // len(hostile)] = kind
    terms = {"questions": QUESTIONS, "time_limit_s": time_limit_s, "memory_limit_bytes": 64 << 20}
    return [{"kind": kind, "source": sources[kind], **terms} for kind in kinds]


# --- 1. One process ---------------------------------------------------------------------------------------------------
def verify_in_a_loop(handle, tasks):
    """The simplest solution: every program runs in this process."""
    resource.setrlimit(resource.RLIMIT_AS, (LOOP_MEMORY_BYTES, LOOP_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    for task in tasks:
        try:
            program, sys.stdout = {"__name__": "candidate"}, nowhere
            exec(task["source"], program)
            verdict = "passed" if [program["solve"](n) for n in QUESTIONS] == EXPECTED else "wrong answer"
        except Exception as error:
            verdict = f"raised {type(error).__name__}"
        handle.send(verdict)


def show_one_process(tasks, time_limit_s):
    print(f"One process, a loop over {len(tasks)} programs:")
    given, start = 0, time.perf_counter()
    with Worker(lambda handle: verify_in_a_loop(handle, tasks)) as loop:
        try:
            while True:  # until a program ends the loop
                loop.recv(timeout=10 * time_limit_s)
                given += 1
                show_progress(given, len(tasks))
        except (TimeoutError, MiniRayError) as error:
            end = "It hangs." if isinstance(error, TimeoutError) else str(error).splitlines()[0]
        rate = given / (time.perf_counter() - start)
        show_progress(given, len(tasks), last=True)
        print(f"  {given} verdicts, {rate:.0f} a second. Program {given + 1} {tasks[given]['kind']}:")
        print(f"  | {end}\n  The other {len(tasks) - given} programs get no verdict.\n")
        loop.kill()


# --- 2. A pool --------------------------------------------------------------------------------------------------------
def verify_timed(task):
    """The task. It runs in a worker, here or on another machine, and starts a process for the program."""
    begun = time.time()
    told = verify_rollouts.outcome(task)
    return {"pid": os.getpid(), "begun": begun, "ended": time.time(), **told}


def verify_all(pool, tasks):
    """Return the verdicts in the order of the tasks, the working times of each worker, and the deaths of workers."""
    futures = {pool.submit(verify_timed, task): number for number, task in enumerate(tasks)}
    verdicts, spans, deaths = [""] * len(tasks), {}, {}
    for done, future in enumerate(as_completed(futures), start=1):
        number = futures[future]
        verdicts[number] = verify_rollouts.verdict(future, EXPECTED)
        if isinstance(error := future.exception(), WorkerDied):
            deaths[number] = error
        else:
            told = future.result()
            waited = verdicts[number] == "time limit"
            spans.setdefault(told["pid"], []).append((told["begun"], told["ended"], waited))
        show_progress(done, len(tasks), last=done == len(tasks))
    return verdicts, spans, deaths


def show_pool(pool, tasks):
    start = time.time()
    verdicts, spans, deaths = verify_all(pool, tasks)
    took_s = time.time() - start
    print(f"  {len(verdicts)} verdicts in {took_s:.1f} s, {len(verdicts) / took_s:.0f} a second.")
    show_timeline(spans, start, took_s)
    return verdicts, deaths


def show_timeline(spans, start, took_s):
    """Print a line for each worker process, which shows what the worker did during the run."""
    for pid, work in sorted(spans.items(), key=lambda entry: min(entry[1]))[-PICTURE_HEIGHT:]:
        cells = []
        for column in range(PICTURE_WIDTH):
            begin, end = (start + took_s * (column + step) / PICTURE_WIDTH for step in (0, 1))
            shares = {True: 0.0, False: 0.0}
            for begun, ended, waited in work:
                shares[waited] += max(0.0, min(end, ended) - max(begin, begun)) / (end - begin)
            busy = shares[True] + shares[False]
            cells.append("~" if shares[True] > shares[False] else "#" if busy > 0.5 else "+" if busy > 0.05 else " ")
        print(f"  worker {pid:<8} |{''.join(cells)}|")
    print(f"  {'':15} 0 s{f'{took_s:.1f} s':>{PICTURE_WIDTH - 1}}")
    print(f"  {'':15} # verifies   ~ waits for a program until its time limit\n")


def show_death(task, death):
    print("  A worker was killed on the way, and another took its place. Its death certificate, abridged:")
    for line in str(death).split("\n\n")[0].splitlines():
        print(f"  | {line if len(line) <= 110 else line[:107] + '...'}")
    print(f"  It was verifying a program that {task['kind']}: {task['source']}\n")


def show_verdicts(tasks, verdicts):
    found = sorted({(task["kind"], verdict) for task, verdict in zip(tasks, verdicts, strict=True)})
    kinds = [task["kind"] for task in tasks]
    for kind, verdict in found:
        print(f"  {kinds.count(kind):6}  {kind:<25}{verdict}")
    print()


def show_progress(done, total, last=False):
    """Show a bar on a terminal, and nothing elsewhere."""
    if sys.stdout.isatty():
        filled = 40 * done // total
        print(f"\r  [{'#' * filled}{'.' * (40 - filled)}] {done}/{total}", end="\n" if last else "", flush=True)


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description="Verify programs that a model wrote; some of them kill their worker.")
    parser.add_argument("nodes", nargs="*", default=["localhost", "localhost"])
    parser.add_argument("--candidates", type=int, default=120 * cores)
    parser.add_argument("--workers", type=int, default=2 * cores, help="number of workers; some of them only wait")
    parser.add_argument("--time-limit", type=float, default=1, help="seconds for each program")
    options = parser.parse_args()
    if options.candidates < 3 * len(verify_rollouts.ROLLOUTS):
        parser.error(f"--candidates: must be at least {3 * len(verify_rollouts.ROLLOUTS)}, to have one of each kind")
    tasks = collect(options.candidates, options.time_limit)

    show_one_process(tasks, options.time_limit)

    print(f"Pool({options.workers}) on {cores} cores, each program in a process with limits on time and memory:")
    with Pool(options.workers) as pool:
        here, deaths = show_pool(pool, tasks)
    for number, death in deaths.items():
        show_death(tasks[number], death)
    show_verdicts(tasks, here)

    share = max(1, options.workers // len(options.nodes))
    nodes = [NodeConfig(host, num_workers=share, base_port=0) for host in options.nodes]
    print(f"Pool(cluster), the same code on {len(nodes)} servers ({', '.join(options.nodes)}):")
    with Cluster(nodes) as cluster, Pool(cluster) as pool:
        there, deaths = show_pool(pool, tasks)
    differ = sum(a != b for a, b in zip(here, there, strict=True))
    print(f"  {'The same verdicts' if not differ else f'{differ} verdicts differ'}, {len(deaths)} worker replaced.")


if __name__ == "__main__":
    main()

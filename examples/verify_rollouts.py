"""Verify thousands of programs that a model wrote: each in a process of its own, with limits on time and memory.

    python examples/verify_rollouts.py [node1 node2 ...] [--candidates 2000] [--workers 2 ...] [--time-limit 2]
                                       [--memory-limit-mib 256]

A node is a host name that ssh knows; without nodes, the script uses this machine. Nodes need Python and MiniRay;
MiniRay copies this script. If you give several numbers of workers, the script measures each of them.

A candidate's process never has the expected answers, and the script does not trust what it sends. This is not a
sandbox: only a container can protect files, and other processes of the same user, from a candidate, and stop a
candidate that moves into a process group of its own (setsid, setpgid).
"""

import argparse
import collections
import mmap
import os
import random
import resource
import time

from miniray import Cluster, EndOfStream, MiniRayError, NodeConfig, Pool, Worker, WorkerDied, WorkerError

ANSWER_BYTES_MAX = 1 << 20
RESERVE_BYTES = 8 << 20  # freed when a candidate fails, because reporting that it ran out of memory needs some memory

# These replace the rollouts of a model that was asked for the number of primes below n. For each kind: how many in a
# thousand, what they do, and their source.
QUESTIONS = [2, 3, 30, 500]
RIGHT = "def solve(n): return sum(all(i % d for d in range(2, int(i**0.5) + 1)) for i in range(2, n))"
ROLLOUTS = [
    (635, "answers right", RIGHT),
    (200, "answers wrong", "def solve(n): return n // 3"),
    (50, "has a syntax error", "def solve(n) return 1"),
    (10, "has another name", "def resolve(n): return 1"),
    (20, "raises an exception", "def solve(n): return 1 // (n - n)"),
    (10, "exits", "raise SystemExit"),
    (10, "crashes", "import os; os.abort()"),
    (10, "prints a lot", "print('so far so good, ' * 1_000_000)\n" + RIGHT),
    (10, "answers a lot", "def solve(n): return 'x' * 2_000_000"),
    (10, "says that it passed", "import sys; sys._getframe(1).f_locals['handle'].send({'verdict': 'passed'})"),
    (10, "eats memory", "hog = []\nwhile True: hog.append(bytearray(1000))"),
    (5, "kills its verifier", "import os; os.kill(os.getppid(), 9)"),
    (5, "leaves a process behind", "import os\nif os.fork() == 0:\n    while True: pass\n" + RIGHT),
    (5, "waits for processes", "import os; os.system('sleep 1000 | sleep 1000')"),
    (5, "waits for ever", "import time; time.sleep(1000)"),
    (5, "never ends", "while True: pass"),
]


# 1. Define what the process of a candidate does
def run_candidate(handle, task):
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    with open("/proc/self/statm") as sizes:
        memory_bytes = int(sizes.read().split()[0]) * resource.getpagesize() + task["memory_limit_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with mmap.mmap(-1, RESERVE_BYTES):
        program = {"__name__": "candidate"}
        exec(task["source"], program)
        handle.send([program["solve"](question) for question in task["questions"]])


# 2. Define the task: run one candidate, and return its answers, or how it ended
def outcome(task):
    # A fork takes a millisecond. Whatever happens, all processes that the candidate started are killed at the end.
    candidate = Worker(lambda handle: run_candidate(handle, task), shared_memory=False)
    try:
        return {"answers": repr(candidate.recv(max_size=ANSWER_BYTES_MAX, timeout=task["time_limit_s"]))}
    except TimeoutError:
        return {"verdict": "time limit"}
    except WorkerError as error:
        name = ascii(error.type)[1:-1][:80]  # the candidate may have chosen this name
        return {"verdict": "memory limit" if name == "MemoryError" else f"raised {name}"}
    except WorkerDied as death:
        return {"verdict": f"died by {death.signal.name}" if death.signal else f"exited with {death.exit_code}"}
    except EndOfStream:
        return {"verdict": "no answer"}
    except MiniRayError as error:  # too large, or not even a message
        return {"verdict": f"refused: {type(error).__name__}"}
    finally:
        candidate.kill()
        candidate.close()


# 3. Keep every worker busy. If a candidate kills its worker, the pool replaces the worker, and the others go on
def verify(pool, sources, limits, expected):
    """Return the verdicts, in the order of the sources."""
    tasks = [{"source": source, "questions": QUESTIONS, **limits} for source in sources]
    futures = [pool.submit(outcome, task) for task in tasks]
    return [verdict(future, expected) for future in futures]


def verdict(future, expected):
    try:
        told = future.result()
    except WorkerDied:
        return "ended its verifier"
    # Compare text: an object that the candidate made could claim to be equal to anything.
    return told.get("verdict") or ("passed" if told["answers"] == repr(expected) else "wrong answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*", default=["localhost"])
    parser.add_argument("--candidates", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=[2], nargs="+", help="workers on each node")
    parser.add_argument("--time-limit", type=float, default=2, help="seconds for each candidate")
    parser.add_argument("--memory-limit-mib", type=int, default=256, help="limit for each process of a candidate")
    options = parser.parse_args()
    limits = {"time_limit_s": options.time_limit, "memory_limit_bytes": options.memory_limit_mib << 20}

    # 4. Collect the rollouts: one of each kind, and the rest in the usual proportions. The expected answers, which
    # would normally come from a file, stay in this process.
    dice = random.Random(1)
    more = max(0, options.candidates - len(ROLLOUTS))
    rollouts = ROLLOUTS[: options.candidates] + dice.choices(ROLLOUTS, [share for share, _, _ in ROLLOUTS], k=more)
    dice.shuffle(rollouts)
    expected = [0, 1, 10, 95]

    for count in options.workers:
        # 5. Launch the verifiers (ssh, then TCP). Port 0 means any free port.
        nodes = [NodeConfig(host, num_workers=count, base_port=0) for host in options.nodes]
        with Cluster(nodes) as cluster, Pool(cluster) as pool:
            workers = len(pool.workers)
            start = time.perf_counter()
            verdicts = verify(pool, [source for _, _, source in rollouts], limits, expected)
            took_s = time.perf_counter() - start

        rate = 60 * len(verdicts) / took_s
        print(f"{workers} workers on {len(nodes)} nodes: {rate:,.0f} verifications/minute", flush=True)

    # 6. Print the verdicts of the last run for each kind
    kinds = [kind for _, kind, _ in rollouts]
    for (kind, verdict), number in sorted(collections.Counter(zip(kinds, verdicts, strict=True)).items()):
        print(f"{number:7}  {kind:<25}{verdict}")


if __name__ == "__main__":
    main()

"""Multiply pairs of matrices on all cores: eight workers, plain messages, round robin.

    python examples/matmul.py [--pairs 64] [--size 1000] [--workers 8]

The script does this twice: first it sends the matrices as lists of lists, then as arrays. It compares both with one
process that multiplies the same pairs by itself.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy needs no threads: the workers run in parallel

import numpy as np

from miniray import Worker


# 1. Define work function
def matrix_worker(handle):
    """A worker that multiplies matrices."""
    while True:
        msg = handle.recv()

        if msg["cmd"] == "multiply":
            A = np.array(msg["A"])
            B = np.array(msg["B"])
            result = np.matmul(A, B)
            handle.send({"result": result.tolist()})

        elif msg["cmd"] == "multiply arrays":
            handle.send({"result": np.matmul(msg["A"], msg["B"])})

        elif msg["cmd"] == "shutdown":
            break


def show_progress(title, done, total):
    """Show a bar on a terminal, and a few lines elsewhere."""
    if sys.stdout.isatty():
        filled = 40 * done // total
        print(f"\r{title:<12} [{'#' * filled}{'.' * (40 - filled)}] {done}/{total}", end="", flush=True)
        if done == total:
            print()
    elif done == total or done % max(1, total // 4) == 0:
        print(f"{title:<12} {done}/{total}", flush=True)


def multiply_all(workers, matrices, as_lists):
    # 4. Distribute work
    results = []
    for i, (A, B) in enumerate(matrices):
        worker = workers[i % len(workers)]
        if as_lists:
            worker.send({"cmd": "multiply", "A": A.tolist(), "B": B.tolist()})
        else:
            worker.send({"cmd": "multiply arrays", "A": A, "B": B})

    # 5. Collect results
    for i in range(len(matrices)):
        worker = workers[i % len(workers)]
        result = worker.recv()
        results.append(result["result"])
        show_progress("as lists" if as_lists else "as arrays", i + 1, len(matrices))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()

    # 2. Spawn local workers (fork + socketpair)
    workers = [Worker(matrix_worker) for _ in range(options.workers)]

    # 3. Generate work
    shape = (options.size, options.size)
    matrices = [(np.random.rand(*shape), np.random.rand(*shape)) for _ in range(options.pairs)]
    took = {}
    for as_lists in (True, False):
        start = time.perf_counter()
        results = multiply_all(workers, matrices, as_lists)
        took[as_lists] = time.perf_counter() - start
        assert np.allclose(results[-1], np.matmul(*matrices[-1]))

    # 6. Cleanup
    for worker in workers:
        worker.send({"cmd": "shutdown"})
        worker.wait()

    start = time.perf_counter()
    results = [np.matmul(A, B) for A, B in matrices]
    alone = time.perf_counter() - start
    print(
        f"Computed {len(results)} matrix products of {options.size}x{options.size} with {options.workers} workers on "
        f"{os.cpu_count()} cores, twice:\n"
        f"  sent as lists    {took[True]:6.2f} s\n"
        f"  sent as arrays   {took[False]:6.2f} s\n"
        f"  one process      {alone:6.2f} s"
    )


if __name__ == "__main__":
    main()

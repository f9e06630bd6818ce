"""Estimate pi on all cores of this machine or of others, with tasks that hang, crash and fail now and then.

    python examples/pool.py [node1 node2 ...] [--tasks 200] [--samples 20000] [--workers 2]

A node is a host name that ssh knows; without nodes, the script uses this machine. Nodes need Python and MiniRay;
MiniRay copies this script.
"""

import argparse
import os
import random
import time

from miniray import Cluster, NodeConfig, Pool, TaskTimeout, WorkerDied


# 1. Define tasks, which are plain functions
def hits(seed, samples):
    """Draw random points in a square, and count those in the circle."""
    dice = random.Random(seed)
    return sum(dice.random() ** 2 + dice.random() ** 2 <= 1 for _ in range(samples))


def fail(how):
    if how == "crash":
        os.abort()
    if how == "hang":
        time.sleep(1000)
    raise ValueError(f"it was told to {how}")


def show(pool, tasks, samples):
    # 2. Run many small tasks: in order, in chunks, with progress
    start = time.perf_counter()
    found = list(pool.map(hits, range(tasks), [samples] * tasks, progress=True))
    took_s = time.perf_counter() - start
    workers = len(pool.workers)
    pi = 4 * sum(found) / (tasks * samples)
    print(f"pi is about {pi:.3f}: {tasks} tasks on {workers} workers, {tasks / took_s:,.0f} a second")

    # 3. Run tasks with options of their own, and print how they end
    strict = pool.options(timeout=2, retries=1)
    for how in ("raise", "crash", "hang"):
        try:
            strict.submit(fail, how).result()
        except (ValueError, WorkerDied, TaskTimeout) as error:
            print(f"{how}: {type(error).__name__}: {str(error).splitlines()[0]}")

    # 4. Print the events that the pool recorded
    for event in pool.events:
        if event.kind.startswith("task_"):
            print(f"{event.kind}: {event.text.splitlines()[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2, help="workers on each node")
    options = parser.parse_args()

    # 5. Run the same code on this machine or on a cluster
    if not options.nodes:
        with Pool(options.workers) as pool:
            show(pool, options.tasks, options.samples)
        return
    nodes = [NodeConfig(host, num_workers=options.workers, base_port=0) for host in options.nodes]
    with Cluster(nodes) as cluster, Pool(cluster) as pool:
        show(pool, options.tasks, options.samples)


if __name__ == "__main__":
    main()

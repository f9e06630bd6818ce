"""Multiply pairs of matrices on several machines: the workers of matmul.py, started through ssh.

    python examples/cluster_matmul.py [node1 node2 ...] [--pairs 64] [--size 500] [--workers 4] [--tunnel]

A node is a host name that ssh knows; without nodes, the script starts two servers on this machine. Nodes need Python,
numpy and MiniRay; MiniRay copies this script.
"""

import argparse

import numpy as np

from miniray import Cluster, NodeConfig


# 1. Define work function
def matrix_worker(handle):
    """A worker that multiplies matrices."""
    while True:
        msg = handle.recv()

        if msg["cmd"] == "multiply":
            handle.send({"result": np.matmul(msg["A"], msg["B"])})

        elif msg["cmd"] == "shutdown":
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*", default=["localhost", "localhost"])
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4, help="workers on each node")
    parser.add_argument("--tunnel", action="store_true", help="send everything through ssh")
    options = parser.parse_args()

    # 2. Launch the cluster (ssh, then TCP). Port 0 means any free port.
    nodes = [NodeConfig(host, num_workers=options.workers, base_port=0) for host in options.nodes]
    with Cluster(nodes, tunnel=options.tunnel) as cluster:
        workers = cluster.start(work_fn="__main__.matrix_worker")

        # 3. Generate work
        shape = (options.size, options.size)
        matrices = [(np.random.rand(*shape), np.random.rand(*shape)) for _ in range(options.pairs)]

        # 4. Simple round-robin scheduling
        for i, (A, B) in enumerate(matrices):
            workers[i % len(workers)].send({"cmd": "multiply", "A": A, "B": B})

        # 5. Collect results
        results = [workers[i % len(workers)].recv()["result"] for i in range(len(matrices))]
        assert np.allclose(results[-1], np.matmul(*matrices[-1]))
        print(f"Computed {len(results)} matrix products with {len(workers)} workers on {len(nodes)} nodes")

        # 6. Cleanup
        cluster.broadcast({"cmd": "shutdown"})


if __name__ == "__main__":
    main()

"""Programs that wait for workers in every way there is, for tests that press Ctrl-C meanwhile.

A grace lasts for ever in them (`Terminal` sees to that), so that one which waits for a grace does not end.
"""

from __future__ import annotations

import signal
import textwrap

from terminal import Ended

BEGIN = """
import asyncio, atexit, concurrent.futures, faulthandler, os, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1)  # for whoever asks why it hangs
import miniray
from miniray import Cluster, NodeConfig, Pool, Worker, as_completed, wait_any
from waiting import until

def begun(name=""):
    with open(f"part{name}{os.getpid()}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"part{name}{os.getpid()}", f"begun{name}{os.getpid()}")

def sleep(_=None):
    begun()
    time.sleep(1000)

def spin(_=None):
    begun()
    while True:
        pass

def stubborn(_=None):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sleep()

def blocked(_=None):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sleep()

def in_c(_=None):
    begun()
    sum(range(10**13))

def with_a_thread(_=None):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    sleep()

def with_a_child(_=None):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"])
    begun()
    child.wait()

def tidy(_=None):
    begun()
    try:
        time.sleep(1000)
    finally:
        open("tidied", "w").close()

def block(_=None):
    begun("block")
    threading.Event().wait()

def begun_files():
    return [name for name in os.listdir() if name.startswith("begun")]

def wait_for_begun(count=1):
    until(lambda: len(begun_files()) >= count, what=f"{count} have begun")

def nodes():
    return [NodeConfig("localhost", num_workers=1, base_port=0), NodeConfig("localhost", num_workers=1, base_port=0)]

def rank(handle):
    handle.recv()
    handle.send({"status": "ready"})
    sleep()

def main():
BODY

if __name__ == "__main__":
    main()
"""

# What the program waits in, and how many processes have begun by then. Each works for ever, unless it is ended.
PLACES: dict[str, tuple[str, int]] = {
    "future.result": ("with Pool(2) as pool: [pool.submit(sleep) for _ in range(20)][0].result()", 2),
    "future.result without with": ("pool = Pool(2); [pool.submit(sleep) for _ in range(20)][0].result()", 2),
    "map": ("with Pool(2) as pool: list(pool.map(sleep, range(20)))", 2),
    "map without with": ("pool = Pool(2); list(pool.map(sleep, range(20)))", 2),
    "imap_unordered": ("with Pool(2) as pool: list(pool.imap_unordered(sleep, iter(range(20))))", 2),
    "starmap": ("with Pool(2) as pool: pool.starmap(sleep, [[1]] * 20)", 2),
    "spawned pool": ("with Pool(2, start='spawn') as pool: list(pool.map(sleep, range(20)))", 2),
    "shutdown": ("pool = Pool(2); [pool.submit(sleep) for _ in range(20)]; pool.shutdown()", 2),
    "leaving with": (
        """
        with Pool(2) as pool:
            for _ in range(20):
                pool.submit(sleep)
        """,
        2,
    ),
    "time.sleep": (
        """
        with Pool(2) as pool:
            for _ in range(20):
                pool.submit(sleep)
            time.sleep(1000)
        """,
        2,
    ),
    "concurrent.futures.wait": (
        "with Pool(2) as pool: concurrent.futures.wait([pool.submit(sleep) for _ in range(20)])",
        2,
    ),
    "concurrent.futures.as_completed": (
        "with Pool(2) as pool: list(concurrent.futures.as_completed([pool.submit(sleep) for _ in range(20)]))",
        2,
    ),
    "await a pool's future": (
        """
        async def work():
            async with Pool(2) as pool:
                await asyncio.gather(*(asyncio.wrap_future(pool.submit(sleep)) for _ in range(20)))
        asyncio.run(work())
        """,
        2,
    ),
    "a callback that blocks": (
        """
        with Pool(2) as pool:
            pool.submit(abs, 1).add_done_callback(block)
            pool.submit(sleep).result()
        """,
        2,
    ),
    "a callback that blocks, without with": (
        "pool = Pool(2); pool.submit(abs, 1).add_done_callback(block); wait_for_begun(); time.sleep(1000)",
        1,
    ),
    "a callback that blocks a shutdown": (
        "pool = Pool(2); pool.submit(abs, 1).add_done_callback(block); pool.shutdown()",
        1,
    ),
    "a callback that blocks a cluster's pool": (
        """
        with Cluster(nodes()) as cluster, Pool(cluster) as pool:
            pool.submit(abs, 1).add_done_callback(block)
            pool.shutdown()
        """,
        1,
    ),
    "a callback of a call that blocks": (
        "worker = Worker(); future = worker.call_async('os.getpid'); future.add_done_callback(block); future.result()",
        1,
    ),
    "given workers": ("with Pool([Worker(), Worker()]) as pool: list(pool.map(sleep, range(20)))", 2),
    "recv": ("worker = Worker(sleep); worker.recv()", 1),
    "recv within with": ("with Worker(sleep) as worker: worker.recv()", 1),
    "recv of several": ("workers = [Worker(sleep) for _ in range(4)]; workers[0].recv()", 4),
    "recv of a spawned one": ("with Worker(sleep, start='spawn') as worker: worker.recv()", 1),
    "close": ("worker = Worker(sleep); wait_for_begun(); worker.close(1000)", 1),
    "wait": ("worker = Worker(sleep); worker.wait()", 1),
    "wait_any": ("workers = [Worker(sleep) for _ in range(2)]; wait_any(workers)", 2),
    "call_remote": ("worker = Worker(); worker.register('sleep', sleep); worker.call_remote('sleep')", 1),
    "CallFuture.result": (
        "worker = Worker(); worker.register('sleep', sleep); worker.call_async('sleep').result()",
        1,
    ),
    "as_completed": (
        """
        workers = [Worker() for _ in range(2)]
        for worker in workers:
            worker.register("sleep", sleep)
        list(as_completed([worker.call_async("sleep") for worker in workers]))
        """,
        2,
    ),
    "await recv_async": (
        """
        async def work():
            async with Worker(sleep) as worker:
                await worker.recv_async()
        asyncio.run(work())
        """,
        1,
    ),
    "await a call": (
        """
        async def work():
            worker = Worker()
            worker.register("sleep", sleep)
            await worker.call_async("sleep")
        asyncio.run(work())
        """,
        1,
    ),
    "gather": (
        """
        with Cluster(nodes()) as cluster:
            cluster.start(sleep)
            cluster.gather()
        """,
        2,
    ),
    "gather without with": ("cluster = Cluster(nodes()); cluster.start(sleep); cluster.gather()", 2),
    "cluster.stop": ("cluster = Cluster(nodes()); cluster.start(sleep); cluster.stop()", 2),
    "a pool on a cluster": (
        "with Cluster(nodes()) as cluster, Pool(cluster) as pool: list(pool.map(sleep, range(20)))",
        2,
    ),
    "a pool on a cluster without with": ("pool = Pool(Cluster(nodes())); list(pool.map(sleep, range(20)))", 2),
    "a training group's gather": (
        """
        cluster = Cluster(nodes())
        cluster.start(rank)
        group = cluster.training_group(progress=False)
        group.gather()
        """,
        2,
    ),
}


def program(body: str) -> str:
    return BEGIN.replace("BODY", textwrap.indent(textwrap.dedent(body).strip(), "    "))


def ends_as_python_does(ended: Ended) -> None:
    """By KeyboardInterrupt, with its traceback and nothing else, and nothing is left."""
    assert ended.status == -signal.SIGINT, ended.errors
    assert ended.errors.startswith("Traceback (most recent call last):"), ended.errors
    assert ended.errors.rstrip().endswith("KeyboardInterrupt"), ended.errors
    assert "terminate called" not in ended.errors
    assert "miniray:" not in ended.errors, ended.errors
    assert "Exception ignored" not in ended.errors, ended.errors

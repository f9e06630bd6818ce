"""MiniRay in a notebook: what is defined in cells works in every kind of worker, and what workers print is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kernels import Kernel
from waiting import until

DEFINITIONS = """
import os, subprocess, sys, threading, time
from miniray import *

class Point:
    def __init__(self, x): self.x = x

def double(n): return 2 * n

def work(handle):
    while True:
        handle.send(Point(double(handle.recv())).x)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    made.run(DEFINITIONS)
    yield made
    made.close()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_functions_of_cells_in_workers(kernel: Kernel, start: str) -> None:
    """Without a warning about the threads that every kernel has."""
    shown = kernel.run(f"""
with Worker(work, start={start!r}) as worker:
    worker.send(21)
    print(worker.recv())
""")
    assert (shown.stdout, shown.stderr) == ("42\n", "")


def test_a_lambda_in_a_fresh_interpreter(kernel: Kernel) -> None:
    code = "with Worker(lambda handle: handle.send(double(3)), start='spawn') as worker: print(worker.recv())"
    assert kernel.run(code).stdout == "6\n"


def test_threads_of_the_user_are_warned_about(kernel: Kernel) -> None:
    shown = kernel.run("""
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
Worker(work).close()
stop.set()
thread.join()
""")
    assert "RuntimeWarning: this process has 2 Python threads" in shown.stderr


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_functions_of_cells_in_pools(kernel: Kernel, start: str) -> None:
    shown = kernel.run(f"""
with Pool(2, start={start!r}) as pool:
    print(pool.submit(double, 4).result())
    print(list(pool.map(lambda n: Point(n).x + 1, range(3))))
""")
    assert (shown.stdout, shown.stderr) == ("8\n[1, 2, 3]\n", "")


def test_functions_of_cells_on_a_cluster(kernel: Kernel) -> None:
    """Also in the worker that takes the place of one that died."""
    shown = kernel.run("""
with Cluster([NodeConfig("localhost", 2, base_port=0)]) as cluster:
    workers = cluster.start(work, restart=RestartPolicy(backoff_s=0))
    cluster.broadcast(4)
    print(cluster.gather())
    workers[0].kill()
    try:
        workers[0].recv()
    except WorkerRestarted:
        workers[0].send(5)
        print(workers[0].recv())
    [other] = cluster.start(lambda handle: work(handle), num_workers=1)
    other.kill()
    other = cluster.replace(other)
    other.send(6)
    print(other.recv())
    with Pool(cluster) as pool:
        print(pool.submit(double, 7).result())
""")
    assert (shown.stdout, shown.stderr) == ("[8, 8]\n10\n12\n14\n", "")


def test_functions_of_cells_at_a_worker_server(kernel: Kernel) -> None:
    shown = kernel.run("""
key = "12" * 32
def serve(handle):
    server = WorkerServer("127.0.0.1", 0, key=key)
    handle.send(server.port)
    server.serve_forever()
with Worker(serve) as server:
    port = server.recv()
    with RemoteWorker("127.0.0.1", port, work, key=key) as worker:
        worker.send(8)
        print(worker.recv())
    for worker in create_remote_workers([("127.0.0.1", port)] * 2, work, key=key):
        worker.send(9)
        print(worker.recv())
        worker.close()
    server.kill()
""")
    assert shown.lines == ["16", "18", "18"]


def test_a_training_group_of_a_cells_function(kernel: Kernel) -> None:
    shown = kernel.run("""
def rank(handle):
    config = NCCLConfig(**handle.recv())
    handle.send({"status": "ready"})
    if handle.recv() == "die":
        os._exit(1)
    handle.send(double(config.rank))
def drive(group):
    if group.attempt == 0:
        group.broadcast("die")
    else:
        group.broadcast("go")
    return group.gather()
with Cluster([NodeConfig("localhost", 2, base_port=0)]) as cluster:
    print(cluster.run_group(rank, drive, restart=RestartPolicy(backoff_s=0), progress=False))
""")
    assert shown.stdout == "[0, 2]\n"


def test_the_modules_beside_the_notebook_go_along(kernel: Kernel) -> None:
    shown = kernel.run("""
with open("beside.py", "w") as file:
    file.write("def triple(n): return 3 * n")
def lazily(handle):
    import beside
    handle.send([beside.triple(5), "beside.py" in beside.__file__])
with Cluster([NodeConfig("localhost", 1, base_port=0, workdir="/")]) as cluster:
    print(cluster.start(lazily)[0].recv())
""")
    assert shown.stdout == "[15, True]\n"


def test_without_cloudpickle_the_cure_is_named(kernel: Kernel) -> None:
    cells = [
        "Worker(lambda handle: None, start='spawn')",
        "Cluster([NodeConfig('localhost', base_port=0)]).start(lambda handle: None)",
    ]
    kernel.run("hidden, sys.modules['cloudpickle'] = sys.modules['cloudpickle'], None")
    try:
        for cell in cells:
            failed = kernel.fail(cell)
            assert failed.error == "TypeError"
            assert "pip install cloudpickle" in failed.message
    finally:
        kernel.run("sys.modules['cloudpickle'] = hidden")


def test_what_is_no_function_is_refused(kernel: Kernel) -> None:
    failed = kernel.fail("Cluster([NodeConfig('localhost', base_port=0)]).start(5)")
    assert failed.message == "work_fn is a function that takes a handle, or its name, not the int 5"


PRINTS = """
def prints(n):
    print("printed", "in", "pieces", n)
    os.write(1, b"written\\n")
    subprocess.run(["echo", "by a child"])
    print("of errors", file=sys.stderr)
    return n
def prints_and_ends(handle):
    prints(0)
    handle.send(1)
    print("last", end="")
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_a_worker_prints_is_shown(kernel: Kernel, start: str) -> None:
    """Whichever way it prints, in the cell that runs, up to its end."""
    kernel.run(PRINTS)
    shown = kernel.run(f"worker = Worker(prints_and_ends, start={start!r})\nworker.wait()\nworker.close()")
    assert shown.lines == ["printed in pieces 0", "written", "by a child", "last"]
    assert shown.stderr == "of errors\n"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_a_pool_prints_is_shown_in_the_cell_that_runs(kernel: Kernel, start: str) -> None:
    """The pool was made, and had its first tasks, in other cells."""
    kernel.run(f"{PRINTS}\npool = Pool(2, start={start!r})")
    for count in (1, 3):
        shown = kernel.run(f"for future in [pool.submit(prints, n) for n in range({count})]: future.result()")
        assert sorted(shown.lines) == sorted(
            ["written", "by a child"] * count + [f"printed in pieces {n}" for n in range(count)]
        )
        assert shown.stderr == "of errors\n" * count
    assert kernel.run("pool.shutdown()").messages == []


def test_what_a_cluster_prints_is_shown(kernel: Kernel) -> None:
    kernel.run(PRINTS)
    shown = kernel.run("""
with Cluster([NodeConfig("localhost", 2, base_port=0)]) as cluster:
    cluster.start(lambda handle: handle.send(prints(1)))
    cluster.gather()
""")
    for worker in (0, 1):
        for line in ("printed in pieces 1", "written", "by a child"):
            assert f"[localhost/{worker}] {line}" in shown.lines
    assert len(re.findall("of errors", shown.stdout + shown.stderr)) == 2


def test_ten_thousand_lines_of_four_workers(kernel: Kernel) -> None:
    """None is lost or broken, though some are longer than a pipe takes at once, and letters have several bytes."""
    shown = kernel.run("""
def prints_many(n):
    for number in range(2500):
        print("\u00e9" * (5000 if number % 500 == 0 else number % 50), n, number)
with Pool(4) as pool:
    for future in [pool.submit(prints_many, n) for n in range(4)]:
        future.result()
""")
    lengths = [5000 if number % 500 == 0 else number % 50 for number in range(2500)]
    expected = [f"{'é' * length} {n} {number}" for n in range(4) for number, length in enumerate(lengths)]
    assert len(shown.lines) == len(expected)
    assert sorted(shown.lines) == sorted(expected)


def test_what_is_printed_while_no_cell_runs_is_shown(kernel: Kernel) -> None:
    """In the cell that ran last, as everything that is late."""
    cell = kernel.begin("""
def prints_late(handle):
    handle.recv()
    print("late")
    print("and unfinished", end="", flush=True)
    handle.recv()
worker = Worker(prints_late)
stop = threading.Timer(0.5, lambda: worker.send("now"))
stop.start()
""")
    kernel.show_late(cell, "late\nand unfinished")
    assert kernel.run("worker.close()").stdout == ""


def test_a_handler_of_logging_prints_in_workers_too(kernel: Kernel) -> None:
    shown = kernel.run("""
import logging
logger = logging.getLogger("cell")
logger.addHandler(logging.StreamHandler(sys.stdout))
def logs(handle):
    logger.warning("logged")
Worker(logs).wait()
""")
    assert shown.stdout == "logged\n"


def test_progress_is_one_line_that_moves(kernel: Kernel) -> None:
    kernel.run("pool = Pool(2)")  # its threads belong to this cell; the line does not
    code = "list(pool.map(lambda n: time.sleep(0.02), range(40), chunksize=1, progress=True))\npool.shutdown()"
    shown = kernel.run(code)
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.endswith("\n")
    assert shown.stderr.startswith("\r[")
    assert "40/40" in shown.stderr.split("\r")[-1]
    assert shown.stderr.count("\r") > 2


def test_a_worker_has_workers(kernel: Kernel) -> None:
    """Whose output finds its way too, and who see no kernel."""
    shown = kernel.run("""
def nested(handle):
    with Worker(lambda inner: print("from within")) as inner:
        inner.wait()
    with Pool(2) as pool:
        list(pool.map(double, range(4), progress=True))
with Worker(nested) as worker:
    worker.wait()
""")
    assert shown.stdout == "from within\n"
    assert re.fullmatch("4/4, .*\n", shown.stderr)


def test_the_pipes_of_workers_go_with_them(kernel: Kernel) -> None:
    kernel.run("def descriptors(): return len(os.listdir('/proc/self/fd'))")
    kernel.run("""
before = descriptors()
for _ in range(10): Worker(print).close()
with Pool(4) as pool: pool.submit(pow, 2, 3)
""")
    assert until(lambda: kernel.run("print(descriptors() - before)").stdout == "0\n")


def test_tables(kernel: Kernel) -> None:
    shown = kernel.run("pool = Pool(2)\npool.submit(double, 1).result()\npool")
    assert shown.html.count("<tr>") == 3
    assert "Pool of 2 workers; tasks: 0 queued, 0 running, 1 done, 0 failed" in shown.html
    kernel.run("pool.shutdown()")
    shown = kernel.run("""
cluster = Cluster([NodeConfig("localhost", 2, base_port=0)])
def ready(handle):
    handle.recv()
    handle.send({"status": "ready"})
    handle.recv()
cluster.start(ready)
cluster
""")
    assert "Cluster of 1 nodes, 2 workers" in shown.html
    assert shown.html.count("<tr>") == 2
    shown = kernel.run("group = cluster.training_group()\ngroup")
    assert "Training group of 2 ranks" in shown.html
    assert shown.html.count("<tr>") == 3
    shown = kernel.run("cluster.stop()\ncluster")
    assert "not running" in shown.html


def test_tables_escape_what_they_show() -> None:
    from miniray._html import table

    html = table("<a>", ["<b>"], [["<c>"], ["&"]] * 20)
    assert "<a>" not in html
    assert "<b>" not in html
    assert "&lt;c&gt;" in html
    assert "&amp;" in html
    assert "and 16 more" in html

"""What workers print: on the coordinator, line by line, marked, in order and complete, whatever becomes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hosts import WHOLE_LINES, Hosts

import miniray

SCRIPT = """
    import json, sys
    from miniray import Cluster, NodeConfig, WorkerDied

    def work(handle):
        import os, subprocess, sys, time
        exec(handle.recv())

    if __name__ == "__main__":
        nodes, pieces, options = json.loads(sys.argv[1])
        deaths = []
        with Cluster([NodeConfig(host, count, base_port=0) for host, count in nodes], **options) as cluster:
            workers = cluster.start(work)
            for worker, piece in zip(workers, pieces, strict=True):
                worker.send(piece)
            for worker in workers:
                try:
                    worker.recv()
                except EOFError as error:
                    if isinstance(error, WorkerDied):
                        deaths.append(json.dumps(["died", str(error), error.last_output]))
        for death in deaths:
            print(death)  # not between the lines of workers
"""


def both_printed(hosts: Hosts, nodes: list[tuple[str, int]], *pieces: str, **options: object) -> tuple[bytes, bytes]:
    """Runs a piece of code in each worker, and returns all that the coordinator's standard output and errors got."""
    hosts.write({"script.py": SCRIPT})
    what = json.dumps([nodes, [dedent(piece) for piece in pieces], options])
    command = hosts.testbed.command(sys.executable, hosts.folder / "script.py", what, env=WHOLE_LINES)
    ended = subprocess.run(command, capture_output=True, timeout=60, cwd=hosts.folder, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def printed(hosts: Hosts, nodes: list[tuple[str, int]], *pieces: str, **options: object) -> bytes:
    """What came to standard output, where nothing comes to standard error."""
    out, errors = both_printed(hosts, nodes, *pieces, **options)
    assert errors == b""
    return out


def of(label: str, output: bytes) -> list[str]:
    """The lines of one worker."""
    mark = f"[{label}] "
    lines = output.decode().splitlines()
    return [line.removeprefix(mark) for line in lines if line.startswith(mark)]


MIXED = """
    for i in range(50):
        print("out", i)
        print("err", i, file=sys.stderr)
        os.write(1, b"raw %d\\n" % i)
"""
# More than is read at once is in the pipe when the worker is gone.
KILLED = """
    import fcntl
    fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
    sys.stdout.write("".join(f"line {i}\\n" for i in range(50_000)))
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
"""
CHILDREN = """
    print("before")
    subprocess.run(["sh", "-c", "echo from a child; echo and its complaint >&2"])
    print("no newline at the end", end="")
"""
BYTES = """
    os.write(1, b"caf\\xc3\\xa9 \\xff\\xfe\\x00|\\r\\t.\\n")
    os.write(1, b"\\n>mr-a/9 not a label\\nminiray-failed {}\\n")
"""


def test_every_kind_of_printing(hosts: Hosts) -> None:
    out, errors = both_printed(hosts, [("mr-a", 3), ("mr-b", 2)], MIXED, KILLED, CHILDREN, BYTES, "pass")
    marked = [line for line in out.split(b"\n") if not line.startswith(b'["died"')]
    assert {line.partition(b" ")[0] for line in marked} == {b"[mr-a/0]", b"[mr-a/1]", b"[mr-a/2]", b"[mr-b/0]", b""}
    text = out.replace(b"\xff\xfe\x00", b"...")
    assert of("mr-a/0", text) == [f"{kind} {i}" for i in range(50) for kind in ("out", "raw")]
    assert of("mr-a/0", errors) == [f"err {i}" for i in range(50)]
    assert of("mr-a/1", text) == [f"line {i}" for i in range(50_000)]
    assert of("mr-a/2", text) == ["before", "from a child", "no newline at the end"]
    assert of("mr-a/2", errors) == ["and its complaint"]
    assert len(errors.splitlines()) == 51
    assert [line for line in marked if line.startswith(b"[mr-b/0]")] == [
        b"[mr-b/0] caf\xc3\xa9 \xff\xfe\x00|\r\t.",
        b"[mr-b/0] ",
        b"[mr-b/0] >mr-a/9 not a label",
        b"[mr-b/0] miniray-failed {}",
    ]


def test_standard_errors_of_all_kinds_go_to_standard_error(hosts: Hosts) -> None:
    complaints = """
        import faulthandler, logging, warnings
        logging.warning("from logging")
        warnings.warn("from warnings")
        os.write(2, b"!mr-a/9 no label\\n>mr-a/9 neither\\n\\xff\\n")
        sys.stderr.write("x" * 200_000 + "\\n")
        sys.stderr.write("no newline at the end")
        sys.stderr.flush()
        os.kill(os.getpid(), 9)
    """
    out, errors = both_printed(hosts, [("mr-a", 1)], complaints)
    [death] = out.splitlines()
    assert "no newline at the end" in json.loads(death)[2]
    lines = of("mr-a/0", errors.replace(b"\xff", b"?"))
    assert len(lines) == len(errors.splitlines())
    assert lines[0] == "WARNING:root:from logging"
    assert "UserWarning: from warnings" in lines[1]
    assert lines[-1] == "no newline at the end"
    long = [line for line in lines if line.startswith("xxx")]
    assert "".join(long) == "x" * 200_000
    assert [line for line in lines[2:-1] if line not in long][-3:] == ["!mr-a/9 no label", ">mr-a/9 neither", "?"]


def test_the_last_lines_are_in_the_death_certificate(hosts: Hosts) -> None:
    out = printed(hosts, [("mr-a", 1)], KILLED)
    [line] = [line for line in out.splitlines() if line.startswith(b'["died"')]
    _, text, last_output = json.loads(line)
    assert "worker " in text.splitlines()[0]
    assert "SIGKILL" in text
    assert text.count("line 49999") == 1
    tail = last_output.splitlines()
    assert len(tail) > 100
    assert tail[1:] == [f"line {i}" for i in range(50_000 - len(tail) + 1, 50_000)]


def test_many_lines_from_many_workers(hosts: Hosts) -> None:
    lines = """
        for i in range(10_000):
            print("line", i, "." * 20)
    """
    out = printed(hosts, [("mr-a", 2), ("localhost", 2)], *[lines] * 4)
    for label in ("mr-a/0", "mr-a/1", "localhost/0", "localhost/1"):
        assert of(label, out) == [f"line {i} {'.' * 20}" for i in range(10_000)]
    assert len(out.splitlines()) == 40_000


def test_a_very_long_line_comes_in_pieces(hosts: Hosts) -> None:
    long = """
        for letter in "aä":
            for size in (1 << 18, 1 << 20, 1_000_000):
                print(letter * size)
    """
    lines = of("localhost/0", printed(hosts, [("localhost", 1)], long))
    assert "".join(lines) == "a" * ((1 << 18) + (1 << 20) + 1_000_000) + "ä" * ((1 << 18) + (1 << 20) + 1_000_000)
    assert "" not in lines
    assert max(len(line.encode()) for line in lines) <= 2 << 16


def test_to_files(hosts: Hosts, tmp_path: Path) -> None:
    folder = tmp_path / "deep/logs"
    assert printed(hosts, [("mr-a", 2), ("localhost", 1)], MIXED, "print('second')", "pass", output=str(folder)) == b""
    assert {path.name for path in folder.iterdir()} == {"mr-a.0.log", "mr-a.1.log"}
    mixed = [f"{kind} {i}" for i in range(50) for kind in ("out", "err", "raw")]
    assert (folder / "mr-a.0.log").read_text().splitlines() == mixed
    assert (folder / "mr-a.1.log").read_text() == "second\n"


def test_two_sets_of_workers_are_told_apart(hosts: Hosts) -> None:
    text = hosts.run("""
        import os
        from miniray import Cluster, NodeConfig

        def first(handle):
            print("first", os.getpid())

        def second(handle):
            print("second", os.getpid())

        with Cluster([NodeConfig("localhost", 2)]) as cluster:
            for work in (first, second):
                cluster.start(work)
            pids = [worker.pid for worker in cluster.workers]
        print(pids)
    """)
    pids = json.loads(text.splitlines()[-1])
    assert sorted(text.splitlines()[:-1]) == [
        f"[localhost/{i}] {name} {pid}"
        for i, (name, pid) in enumerate(zip(["first"] * 2 + ["second"] * 2, pids, strict=True))
    ]


@pytest.mark.parametrize("flush", [True, False])
def test_what_is_printed_while_the_node_imports(hosts: Hosts, flush: bool) -> None:
    module = f"""
        import sys
        print("one", flush={flush})
        print("two", file=sys.stderr)
        sys.stdout.write("three")

        def work(handle):
            print("working")
    """
    script = """
        from miniray import Cluster, NodeConfig
        with Cluster([NodeConfig("mr-a", 2)]) as cluster:
            cluster.start("module.work")
    """
    ended = hosts.ends(script, files={"module.py": module})
    assert sorted(ended.stdout.splitlines()) == ["[mr-a/0] working", "[mr-a/1] working"]
    assert sorted(ended.stderr.splitlines()) == ["[mr-a] one", "[mr-a] three", "[mr-a] two"]


def test_many_lines_to_both_streams(hosts: Hosts) -> None:
    lines = """
        for i in range(5_000):
            print("out", i, "." * 20)
            print("err", i, "." * 20, file=sys.stderr)
    """
    out, errors = both_printed(hosts, [("mr-a", 1), ("localhost", 1)], lines, lines)
    for label in ("mr-a/0", "localhost/0"):
        assert of(label, out) == [f"out {i} {'.' * 20}" for i in range(5_000)]
        assert of(label, errors) == [f"err {i} {'.' * 20}" for i in range(5_000)]


def test_nobody_reads(hosts: Hosts) -> None:
    """The coordinator's standard output is a pipe that nobody empties: workers wait, and nothing is lost."""
    script = """
        import sys
        from miniray import Cluster, NodeConfig

        def work(handle):
            for i in range(50_000):
                print("line", i, "." * 40)
            handle.send("done")

        if __name__ == "__main__":
            with Cluster([NodeConfig("localhost", 1)]) as cluster:
                [worker] = cluster.start(work)
                try:
                    worker.recv(timeout=0.5)
                except TimeoutError:
                    print("held up", file=sys.stderr, flush=True)
                sys.stdin.readline()
                worker.recv()
    """
    child = hosts.start(script)
    assert child.stderr is not None
    assert child.stderr.readline() == "held up\n"
    out, errors = child.communicate("go on\n", timeout=30)
    assert errors == ""
    assert out.splitlines() == [f"[localhost/0] line {i} {'.' * 40}" for i in range(50_000)]


def test_output_that_cannot_be_kept(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = hosts.fail(f"""
        from miniray import Cluster, NodeConfig
        Cluster([NodeConfig("localhost")], output="{tmp_path}/file/logs")
    """)
    assert text == f"miniray.errors.UsageError: cannot make the folder {tmp_path}/file/logs (output): Not a directory"


MANY_FILES = """
    import os, sys, time
    from pathlib import Path
    from miniray import Cluster, NodeConfig

    def work(handle):
        while True:
            print("line", handle.recv())
            handle.send(None)

    def link_of(descriptor):
        try:
            return os.readlink(descriptor)
        except FileNotFoundError:  # it was closed in between
            return ""

    def open_files(folder):
        \"\"\"How many files in the folder a child of this process holds open: the attendant writes them.\"\"\"
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        links = [[link_of(link) for link in Path(f"/proc/{child}/fd").iterdir()] for child in children]
        return max(sum(link.startswith(folder) for link in each) for each in links)

    def lines(folder):
        return sum(len(file.read_text().splitlines()) for file in Path(folder).iterdir())

    if __name__ == "__main__":
        folder, count = sys.argv[1], int(sys.argv[2])
        with Cluster([NodeConfig("localhost", count, base_port=0)], output=folder) as cluster:
            workers = cluster.start(work)
            for number in (1, 2):
                for worker in workers:
                    worker.send(number)
                    worker.recv()
                deadline = time.monotonic() + 60
                while lines(folder) < number * count:
                    assert time.monotonic() < deadline, "the attendant has not written all lines"
                    time.sleep(0.01)
                print(open_files(folder))
"""


def test_more_files_than_may_be_open_are_all_written(tmp_path: Path) -> None:
    limit = miniray._core.limits.output_files_open_max
    count = limit + 6
    script = tmp_path / "script.py"
    script.write_text(dedent(MANY_FILES))
    folder = tmp_path / "logs"
    command = [sys.executable, script, folder, str(count)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert all(1 <= int(held) <= limit for held in ended.stdout.split())
    assert len(ended.stdout.split()) == 2
    assert len(list(folder.iterdir())) == count
    assert {file.read_text() for file in folder.iterdir()} == {"line 1\nline 2\n"}

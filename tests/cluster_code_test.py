"""The user's code goes along: whatever the function is called and wherever it is, nodes that have nothing run it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hosts import Hosts

import miniray

ANSWER = """
    def work(handle):
        handle.send("as asked")
"""


def script(work_fn: str, definitions: str = "", host: str = "mr-a", options: str = "") -> str:
    """Starts one worker without any `if __name__ == "__main__"`, and prints what it sends."""
    return dedent(definitions) + dedent(f"""
        from miniray import Cluster, NodeConfig

        with Cluster([NodeConfig({host!r}, 1)]{options}) as cluster:
            [worker] = cluster.start({work_fn})
            print(worker.recv())
    """)


# --- Where the function is --------------------------------------------------------------------------------------------
LAZY_IMPORT = """
    def work(handle):
        import lazy
        handle.send(lazy.text)
"""

HELPERS = """
    class Answers:
        @staticmethod
        def work(handle):
            handle.send(text())

    def text():
        return "as asked"
"""

ARGUMENTS = """
    import argparse
    import sys

    def work(handle):
        handle.send(options.text if sys.argv[1:] == ["--text", "as asked"] else sys.argv)

    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True)
    options = parser.parse_args()
"""

GUARDED = """
    from miniray import Cluster, NodeConfig

    def main():
        with Cluster([NodeConfig("mr-a", 1)]) as cluster:
            [worker] = cluster.start(work)
            print(worker.recv())

    if __name__ == "__main__":
        main()

    def work(handle):
        handle.send("as asked")
"""


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (script('"module.work"'), {"module.py": ANSWER}),
        (script('"top.inner.module.work"'), {"top/__init__.py": "", "top/inner/module.py": ANSWER}),
        (script("module.work", "from top import module"), {"top/__init__.py": "", "top/module.py": ANSWER}),
        (script("module.work", "from top import module"), {"top/module.py": ANSWER}),
        (script("work", LAZY_IMPORT), {"lazy.py": "text = 'as asked'"}),
        (script("Answers.work", HELPERS), {}),
        (script('"__main__.Answers.work"', HELPERS), {}),
        (script('"__main__.work"', ARGUMENTS), {}),
    ],
    ids=[
        "module",
        "inner package",
        "function of a package",
        "folder without __init__",
        "lazy import",
        "helpers in __main__",
        "a method's name",
        "arguments",
    ],
)
def test_the_function_is_found(hosts: Hosts, text: str, files: dict[str, str]) -> None:
    assert hosts.run(text, "--text", "as asked", files=files) == "as asked\n"


def test_a_script_that_is_a_module_of_a_package(hosts: Hosts) -> None:
    files = {
        "top/__init__.py": "",
        "top/helper.py": "text = 'as asked'",
        "top/inner/__init__.py": "",
        "top/inner/main.py": script(
            "work",
            """
            from ..helper import text
            def work(handle):
                from . import __name__ as package
                handle.send([text, package, __name__])
            """,
        ),
    }
    hosts.write(files)
    ended = hosts.testbed.run(sys.executable, "-m", "top.inner.main", cwd=hosts.folder)
    assert (ended.stdout, ended.stderr) == ("['as asked', 'top.inner', '__miniray_main__']\n", "")


def test_a_script_elsewhere_on_the_path(hosts: Hosts) -> None:
    """The function's module is beside no script, but where PYTHONPATH says."""
    hosts.write({"library/elsewhere.py": ANSWER})
    printed = hosts.run(script('"elsewhere.work"'), env={"PYTHONPATH": str(hosts.folder / "library")})
    assert printed == "as asked\n"


def test_servers_without_a_function_have_the_code_too(hosts: Hosts) -> None:
    text = """
        from miniray import Cluster, NodeConfig
        with Cluster([NodeConfig("mr-a", 1)]) as cluster:
            cluster.launch_servers()
            print(cluster.connect_to_servers("module.work")[0].recv())
    """
    assert hosts.run(text, files={"module.py": ANSWER}) == "as asked\n"


def test_installed_functions_need_no_code(hosts: Hosts) -> None:
    """The function is part of Python itself."""
    text = "from miniray import Cluster, NodeConfig\nc = Cluster([NodeConfig('mr-a', 1)])\nc.start('json.dumps')"
    ended = hosts.testbed.run(sys.executable, "-c", text + "[0].recv()")
    assert "TypeError: Object of type Handle is not JSON serializable" in ended.stderr


@pytest.mark.parametrize(
    ("work_fn", "message"),
    [
        ("5", "TypeError: work_fn is a function that takes a handle, or its name, not the int 5"),
        (
            '"work"',
            r"ValueError: a function is named \"module.function\", not 'work'; "
            r"one of the script itself is \"__main__.work\"",
        ),
        (
            "holds(threading.Lock())",
            "TypeError: cannot send holds.<locals>.<lambda> to another process: cannot pickle '_thread.lock' object",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_here(hosts: Hosts, work_fn: str, message: str) -> None:
    assert re.fullmatch(
        message, hosts.fail(script(work_fn, "import threading\ndef holds(lock): return lambda handle: lock"))
    )


@pytest.mark.parametrize("work_fn", ["lambda handle: handle.send(VALUE)", "make()"])
def test_what_no_node_could_import_is_sent(hosts: Hosts, work_fn: str) -> None:
    make = "VALUE = 7\ndef make():\n    def inner(handle): handle.send(VALUE)\n    return inner"
    assert hosts.run(script(work_fn, make)) == "7\n"


@pytest.mark.parametrize("way", ["-c", "-i", "standard input"])
def test_a_session(hosts: Hosts, way: str) -> None:
    """What was typed is in no file; the node gets it by value."""
    text = (
        "from miniray import Cluster, NodeConfig\nVALUE = 7\ndef f(h): h.send(VALUE)\n\n"
        "cluster = Cluster([NodeConfig('mr-a', 1)])\nprint(cluster.start(f)[0].recv())\ncluster.stop()\n"
    )
    if way == "-c":
        ended = hosts.testbed.run(sys.executable, "-c", text)
    else:
        ended = hosts.testbed.run(sys.executable, "-i" if way == "-i" else "-", input=text)
    assert ended.stdout == "7\n", ended.stderr


@pytest.mark.parametrize(
    ("work_fn", "why"),
    [
        (
            '"__main__.work"',
            "__main__.work is not there: <module '__miniray_main__' from '.*/script.py'> has no 'work'; the script was "
            "imported only up to line 5, where it starts workers. Define the function above that line, or put the code "
            'that starts workers under if __name__ == "__main__":',
        ),
        ('"module.nothing"', "module.nothing is not there: <module 'module' from '.*'> has no 'nothing'"),
        ('"module.number"', "module.number is a int, not a function that takes a handle"),
    ],
)
def test_what_is_not_there_on_the_node(hosts: Hosts, work_fn: str, why: str) -> None:
    text = hosts.fail(script(work_fn) + "def work(handle): pass\n", files={"module.py": "number = 5"})
    told = text.splitlines()[2].removeprefix("mr-a: ")
    assert re.fullmatch(why, told), told


def test_a_guarded_script_may_define_the_function_later(hosts: Hosts) -> None:
    text = dedent(GUARDED)
    assert "name 'work' is not defined" in hosts.fail(text)  # that is Python's own rule
    assert hosts.run(text.replace("start(work)", "start('__main__.work')")) == "as asked\n"


# --- What is sent -----------------------------------------------------------------------------------------------------
@pytest.fixture
def cache(hosts: Hosts) -> Path:
    """The cache of mr-b, empty at first."""
    cache = hosts.testbed.hosts["mr-b"].home / ".cache/miniray"
    shutil.rmtree(cache, ignore_errors=True)
    return cache


def contents(folder: Path) -> dict[str, int]:
    """What makes a file a new one, by its text."""
    return {path.read_text(): path.stat().st_ino for path in folder.iterdir()}


def test_what_a_node_has_is_not_sent_again(hosts: Hosts, cache: Path) -> None:
    files = {
        "module.py": dedent(ANSWER),
        "other.py": "# other\n",
        "top/__init__.py": "",
        "top/deep/leaf.py": "# leaf\n",
    }
    noise = {"notes.txt": "text", "data/big.csv": "1,2", "top/__pycache__/x.py": "", "no-id/a.py": ""}
    text = script('"module.work"', host="mr-b")
    assert hosts.run(text, files={**files, **noise}) == "as asked\n"
    first = contents(cache / "files")
    assert set(first) - {""} == {*files.values(), text} - {""}
    [folder] = (cache / "code").iterdir()
    shipped = {str(path.relative_to(folder / "0")) for path in folder.rglob("*.py")}
    assert shipped == {*files, "script.py"}
    inode = folder.stat().st_ino

    assert hosts.run(text) == "as asked\n"
    assert contents(cache / "files") == first
    assert [path.stat().st_ino for path in (cache / "code").iterdir()] == [inode]

    assert hosts.run(text, files={"other.py": "# changed\n"}) == "as asked\n"
    second = contents(cache / "files")
    assert {content: second[content] for content in first} == first
    assert set(second) - set(first) == {"# changed\n"}
    assert len(list((cache / "code").iterdir())) == 2


def test_a_changed_function_is_the_one_that_runs(hosts: Hosts) -> None:
    for answer in ("one", "two", "one"):
        module = f"def work(handle): handle.send('{answer}')"
        assert hosts.run(script('"module.work"'), files={"module.py": module}) == f"{answer}\n"


def test_a_damaged_cache_is_repaired(hosts: Hosts, cache: Path) -> None:
    """A folder that was left half made is not used, and two clusters at once do not disturb each other."""
    text = script('"module.work"', host="mr-b")
    assert hosts.run(text, files={"module.py": ANSWER}) == "as asked\n"
    [folder] = (cache / "code").iterdir()
    shutil.rmtree(folder)
    (cache / "code" / (folder.name + ".0123")).mkdir()
    assert hosts.run(text) == "as asked\n"


def test_too_much_code(hosts: Hosts) -> None:
    limit = miniray.limits.code_bytes_max
    big = hosts.folder / "big.py"
    big.touch()
    os.truncate(big, limit)
    assert hosts.fail(script("work", "def work(handle): pass")).splitlines() == [
        "miniray.errors.UsageError: the code to copy to the nodes is too large: it has 2 files and 64 MiB; the limits "
        "are 10000 files (code_files_max) and 64 MiB (code_bytes_max). The largest files are:",
        f"  {big} (64 MiB)",
        f"  {hosts.folder}/script.py (0 MiB)",
        "Move the script into a folder of its own, or set ship_code=False and install the code on the nodes",
    ]


def test_code_that_stays_here(hosts: Hosts, shared_folder: Path) -> None:
    text = script('"module.work"', options=", ship_code=False")
    hosts.write({"module.py": ANSWER})
    assert hosts.fail(text).splitlines()[2:] == [
        "mr-a: cannot import module.work:",
        "ModuleNotFoundError: No module named 'module'",
        "Check the spelling, install module on this machine, or put its file beside the coordinator's script.",
    ]
    visible = Hosts(hosts.testbed, shared_folder)
    assert visible.run(text, files={"module.py": ANSWER}) == "as asked\n"
    assert visible.run(script("work", ANSWER, options=", ship_code=False")) == "as asked\n"

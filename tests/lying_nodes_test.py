"""Nodes that do not keep to the launch protocol: each fails by itself with an error that says what it sent, writes no
file of its choice, and the others go on."""

from __future__ import annotations

import json
import os
import pty
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from waiting import until

# In place of a node's interpreter: passes on what the real server says, except for what a behaviour does.
LIAR = """\
    #!{python}
    import json, os, select, signal, subprocess, sys
    def say(text):
        data = text if isinstance(text, bytes) else text.encode()
        while data:
            select.select([], [1], [])  # the real server has made it non-blocking
            data = data[os.write(1, data):]
    def for_ever(text):
        while True:
            say(text)
    def stall():
        signal.pause()
    real = subprocess.Popen([{python!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
    def on(line):
        say(line)
    try:
        exec(open({behaviour!r}).read())
        for line in real.stdout:
            on(line)
        code = real.wait()
    except OSError:
        code = 1
    finally:
        real.kill()
    sys.exit(code)
"""

WORK = """
    import os

    def echo(handle):
        while True:
            handle.send(handle.recv())

    def printing(handle):
        print("a line")
        os.write(1, handle.recv().encode() + b"\\n")
        handle.send("done")
        handle.recv()
"""


class Scene:
    """A folder with scripts, and a liar whose behaviour can be changed between launches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.behaviour = folder / "behaviour"
        self.behaviour.write_text("")
        self.python = folder / "liar.py"
        text = textwrap.dedent(LIAR).format(python=sys.executable, behaviour=str(self.behaviour))
        self.python.write_text(text)
        self.python.chmod(0o755)
        (folder / "work.py").write_text(textwrap.dedent(WORK))

    def command(self, script: str, *arguments: str) -> list[str]:
        (self.folder / "script.py").write_text(textwrap.dedent(script))
        return [sys.executable, str(self.folder / "script.py"), *arguments]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "LIAR": str(self.python), "XDG_CACHE_HOME": str(self.folder / "cache")}

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            self.command(script, *arguments),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=300,
            cwd=self.folder,
            env=self.environment(),
            check=False,
        )
        until(lambda: not self.survivors(), what=lambda: f"the end of {self.survivors()}")
        return ended

    def survivors(self) -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if str(self.folder).encode() in words and int(entry.name) != os.getpid():
                found.append(words.decode())
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# Node 1 lies when it is launched again; the worker of node 0 serves on, and an honest launch works afterwards.
RELAUNCH = """
    import json, os, sys
    from miniray import Cluster, ClusterError, NodeConfig

    if __name__ == "__main__":
        honest = ""
        results = []
        liar = NodeConfig("localhost", 1, base_port=0, python_bin=os.environ["LIAR"])
        nodes = [NodeConfig("localhost", 1, base_port=0), liar]
        with Cluster(nodes) as cluster:
            well, _ = cluster.start("work.echo")
            for behaviour, timeout in json.loads(sys.argv[1]):
                open("behaviour", "w").write(behaviour)
                try:
                    cluster.relaunch(1, timeout)
                    results.append(None)
                except ClusterError as error:
                    results.append(error.failures["localhost#1"])
                well.send(behaviour)
                assert well.recv(timeout=60) == behaviour
            open("behaviour", "w").write("")
            cluster.relaunch(1)
            [back] = cluster.start("work.echo", nodes=[1])
            back.send("back")
            assert back.recv(timeout=60) == "back"
        # Not ru_maxrss, which also counts the process that this one was forked from.
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
        mib = int(peak.split()[1]) // 1024
        print(json.dumps([results, mib]))
"""


def lies_at(step: str, lie: str, then: str = "say(line)") -> str:
    """A behaviour: at the line of the real server that begins with this word, something else."""
    return f"def on(line):\n if line.startswith(b'miniray-{step}'):\n  {lie}\n {then}\n"


ELSE = "line.startswith(b'miniray-{}') or say(line)"

LIES = {
    "an endless line": (lies_at("server", "for_ever(b'x' * 65536)"), 'a line of more than 2 MiB: "xxx'),
    "endless lines": (lies_at("server", "for_ever(b'you have mail\\n' * 5000)"), 'at last "you have mail"'),
    "ready at once": (
        lies_at("importing", 'say(\'miniray-ready {"port": 1, "address": "::1", "pid": 1}\\n\')'),
        "ready",
    ),
    "two greetings": (lies_at("server", "say(line)"), "miniray-server"),
    "importing twice": (lies_at("importing", "say(line)"), "miniray-importing {}"),
    "files that nobody has": (
        lies_at("server", "say(line); say('miniray-need [\"' + '0' * 64 + '\"]\\n')", ELSE.format("server")),
        "not in the bundle",
    ),
    "files again and again": (lies_at("importing", "for_ever('miniray-need []\\n')"), "miniray-need []"),
    "needs that are no list": (lies_at("importing", "say('miniray-need 7\\n')"), "miniray-need 7"),
    "the program, which it has": (lies_at("server", "say('miniray-send-program\\n')"), "miniray-send-program"),
    "no JSON": (lies_at("server", "say(b'miniray-server \\x1b]0;title\\x07{\\n')"), r"\x1b]0;title\x07{"),
    "no version": (lies_at("server", "say('miniray-server {}\\n')"), "miniray-server {}"),
    "a version with escapes": (
        lies_at("server", 'say(\'miniray-server {"version": "\\\\u001b[2J", "protocol": 1}\\n\')'),
        r"\x1b[2J",
    ),
    "an address of this machine's own": (
        lies_at("ready", 'say(\'miniray-ready {"port": 1, "address": "@here", "pid": 1}\\n\')'),
        '"@here"',
    ),
    "an impossible port": (
        lies_at("ready", 'say(\'miniray-ready {"port": 65536, "address": "::1", "pid": 1}\\n\')'),
        "its port is 65536",
    ),
    "a failure with escapes": (
        lies_at("importing", 'say(\'miniray-failed {"why": "no \\\\u001b[2J"}\\n\')'),
        r"no \x1b[2J",
    ),
    "an end": (lies_at("importing", "os._exit(7)"), "exit code 7"),
}


def test_lies_in_the_launch(scene: Scene) -> None:
    ended = scene.run(RELAUNCH, json.dumps([[behaviour, None] for behaviour, _ in LIES.values()]))
    assert ended.returncode == 0, ended.stderr
    results, mib = json.loads(ended.stdout)
    for (name, (_, said)), result in zip(LIES.items(), results, strict=True):
        assert result is not None, name
        assert said in result, name
        assert len(result) < 2000
    assert mib < 200


@pytest.mark.parametrize("seed", range(3))
def test_any_lies_at_any_step(scene: Scene, seed: int) -> None:
    chance = random.Random(seed)
    lies = [
        "say(os.urandom({n}))",
        "say(os.urandom({n}) + b'\\n')",
        "say(b'miniray-{word} ' + bytes({n}) + b'\\n')",
        "say('miniray-{word} [[[[{{\"why\": {n}\\n')",
        'say(\'miniray-{word} {{"port": {n}, "address": null, "why": [], "version": 1}}\\n\')',
        "say('{stream}{label} text\\n' * {n})",
        "say(line[:{n}])",
        "say(line * 3)",
        "os._exit({n} % 256)",
        "os.close(1)",
        "stall()",
    ]
    behaviours: list[Any] = []
    for _ in range(12):
        behaviour = ""
        for step in chance.sample(("server", "need", "importing", "ready"), chance.randint(1, 2)):
            lie = chance.choice(lies).format(
                n=chance.choice((0, 1, 7, 80, 5000, 70_000)),
                word=chance.choice(("server", "need", "importing", "ready", "failed", "send-program", "")),
                stream=chance.choice(">!"),
                label=chance.choice(("localhost/0", "localhost#1/99", "../../x", "\\0", "localhost#1/-1", "")),
            )
            behaviour += f"if line.startswith(b'miniray-{step}'): {lie}\n"
        body = textwrap.indent(behaviour + chance.choice(("say(line)", "")) + "\n", " ")
        behaviours.append([f"def on(line):\n{body}", 3.0])  # one that stalls is given up after this time
    ended = scene.run(RELAUNCH, json.dumps(behaviours))
    assert ended.returncode == 0, ended.stderr
    _, mib = json.loads(ended.stdout)
    assert mib < 200


# --- After the launch -------------------------------------------------------------------------------------------------
OUTPUT = """
    import json, os, sys
    from miniray import Cluster, NodeConfig

    if __name__ == "__main__":
        liar = NodeConfig("localhost", 1, base_port=0, python_bin=os.environ["LIAR"])
        nodes = [NodeConfig("localhost", 2, base_port=0), liar]
        with Cluster(nodes, output=sys.argv[2] if len(sys.argv) > 2 else None) as cluster:
            for worker in cluster.start("work.printing", nodes=[0]):
                worker.send(sys.argv[1])
                worker.recv(timeout=60)
"""
CHOSEN_NAMES = {
    "a path": b">../../evil text\n",
    "a NUL": b">localhost#1/../sitecustomize.py\0 text\n",
    "no such worker": b">localhost#1/1 text\n",
    "another node's": b">localhost/0 forged\n",
    "not quite a number": b"!localhost#1/00 text\n",
    "a sign": b">localhost#1/+0 text\n",
    "nothing": b"> text\n",
    "an endless line": b"x" * (3 << 20),
}


@pytest.mark.parametrize("name", CHOSEN_NAMES)
def test_a_node_chooses_no_file(scene: Scene, name: str) -> None:
    lie = CHOSEN_NAMES[name]
    scene.behaviour.write_text(
        lies_at("ready", f"say(line); say({lie[:100]!r} * {len(lie) // len(lie[:100])})", ELSE.format("ready"))
    )
    folder = scene.folder / "deep" / "logs"
    ended = scene.run(OUTPUT, "the end", str(folder))
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in folder.iterdir()} == {"localhost.0.log", "localhost.1.log"}
    assert {path.name for path in folder.parent.iterdir()} == {"logs"}
    for number in range(2):
        assert (folder / f"localhost.{number}.log").read_text() == "a line\nthe end\n"
    assert "miniray: ended the connection to localhost#1, because it sent " in ended.stderr
    assert "\0" not in ended.stderr
    assert len(ended.stderr) < 2000


# Several nodes that say anything once they are ready, beside an honest one whose workers print meanwhile.
ANYTHING = """
    import json, os, sys
    from miniray import Cluster, NodeConfig

    if __name__ == "__main__":
        liar = NodeConfig("localhost", 1, base_port=0, python_bin=os.environ["LIAR"])
        liars = [liar] * int(sys.argv[2])
        with Cluster([NodeConfig("localhost", 2, base_port=0), *liars], output=sys.argv[1]) as cluster:
            for worker in cluster.start("work.printing", nodes=[0]):
                worker.send("the end")
                assert worker.recv(timeout=60) == "done"
            children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            attendants = [pid for pid in children if b"attend" in open(f"/proc/{pid}/cmdline", "rb").read()]
            assert len(attendants) == 1, attendants
            status = open(f"/proc/{attendants[0]}/status").read()
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
            print(int(peak.split()[1]) // 1024)
"""
LIARS = 5
SAID = """
import itertools, random
def mine():
    for number in itertools.count():
        try:
            os.close(os.open(f"{folder}/liar{{number}}", os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            pass
number = mine()
chance = random.Random(f"{seed}/{{number}}")
def label():
    return chance.choice((b"localhost#%d/0" % (number + 1), b"localhost#1/0", b"localhost/0", b"../../x", b"\\0", b"",
                          b"localhost#%d/probe" % (number + 1), b"localhost#%d/99999999999999999999" % (number + 1)))
def lie():
    kind, size = chance.randrange(10), chance.choice((0, 1, 7, 80, 5000, 70_000))
    if kind == 0:
        say(chance.randbytes(size))
    elif kind == 1:
        say(chance.randbytes(size) + b"\\n")
    elif kind == 2:
        say(b"miniray-" + chance.choice((b"ready", b"failed", b"server", b"need", b"")) + b" [7]\\n")
    elif kind == 3:
        say(b"\\n" * size)
    elif kind == 4:
        say((b"a word of the server\\n") * size)
    elif kind == 5 and chance.random() < 0.2:
        os.close(1)
    elif kind == 6 and chance.random() < 0.2:
        os._exit(chance.randrange(256))
    elif kind == 7 and chance.random() < 0.2:
        stall()
    elif kind == 8:
        os.write(2, chance.randbytes(size))
    else:
        text = chance.randbytes(min(size, 100)).replace(b"\\n", b"")
        say(chance.choice((b">", b"!")) + label() + b" " + text + b"\\n")
def on(line):
    say(line)
    while line.startswith(b"miniray-ready"):
        lie()
"""


@pytest.mark.parametrize("seed", range(4))
def test_whatever_ready_nodes_say_the_honest_one_is_heard(scene: Scene, seed: int) -> None:
    """It takes the lines of each liar until one of them is refused."""
    (scene.folder / "liars").mkdir()
    scene.behaviour.write_text(SAID.format(seed=seed, folder=scene.folder / "liars"))
    folder = scene.folder / "logs"
    ended = scene.run(ANYTHING, str(folder), str(LIARS))
    assert ended.returncode == 0, (seed, ended.stderr[-4000:])
    assert len(list((scene.folder / "liars").iterdir())) == LIARS
    allowed = {f"localhost.{number}.log" for number in range(2)}
    allowed |= {f"localhost#{number}.{what}.log" for number in range(1, LIARS + 1) for what in ("0", "probe")}
    assert {path.name for path in folder.iterdir()} <= allowed
    for number in range(2):
        assert (folder / f"localhost.{number}.log").read_text() == "a line\nthe end\n"
    assert int(ended.stdout) < 100, "MiB of the attendant"


def on_a_terminal(scene: Scene, script: str, *arguments: str) -> bytes:
    """What a terminal gets from a script."""
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            scene.command(script, *arguments), stdout=theirs, stderr=theirs, cwd=scene.folder, env=scene.environment()
        )
    finally:
        os.close(theirs)
    text = b""
    with open(ours, "rb", 0) as terminal:
        try:
            while piece := terminal.read(4096):
                text += piece
        except OSError:  # how a pseudo-terminal ends
            pass
    assert child.wait(60) == 0, text
    return text


CONTROLS = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\x1b[6n tab\tis caf\u00e9 \x9b2J \x7f"


def test_a_terminal_gets_no_control_characters_but_colours(scene: Scene) -> None:
    printing = f"""
        from miniray import Cluster, NodeConfig
        if __name__ == "__main__":
            with Cluster([NodeConfig("localhost", 1, base_port=0)], progress=False) as cluster:
                [worker] = cluster.start("work.printing")
                worker.send({CONTROLS!r})
                worker.recv(timeout=60)
    """
    (scene.folder / "work.py").write_text(
        textwrap.dedent(WORK)
        + "import sys\nif 'miniray.worker_server' in sys.argv[0] or True: print('\\x1b[2Jimport')\n"
    )
    expected = (
        "[localhost/0] \x1b[31mred\x1b[0m \\x1b]0;title\\x07 \\x1b[2J\\x1b[6n tab\tis caf\u00e9 \\x9b2J \\x7f".encode()
    )
    shown = on_a_terminal(scene, printing)
    assert expected in shown.splitlines()
    assert b"\x1b[2J" not in shown
    assert b"[localhost] \\x1b[2Jimport" in shown
    # A pipe gets every byte.
    piped = scene.run(printing)
    assert f"[localhost/0] {CONTROLS}" in piped.stdout.split("\n")

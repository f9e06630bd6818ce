"""The script's own functions, classes and globals in workers: one of each, whichever way it came."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_programs import run_script

SCRIPT = """
import collections, dataclasses, enum, sys
from miniray import Pool, Worker, serve_calls

class Color(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass
class Point:
    x: int
    def moved(self, by):
        return Point(self.x + by)

class MyErr(Exception):
    pass

counter = 0
def bump():
    global counter
    counter += 1
    return counter

def fail():
    raise MyErr("failed")

def caught(f):
    try:
        f()
    except MyErr:
        return True
    return False

class Calls:
    '''A worker, with a pool's submit.'''
    def __init__(self, **options):
        self.worker = Worker(**options)
        self.count = 0
    def submit(self, fn, *args):
        self.count += 1
        self.worker.register(f"f{self.count}", fn)
        return self.worker.call_async(f"f{self.count}", *args)
    def shutdown(self):
        self.worker.close()

KINDS = {
    "pool": lambda: Pool(1),
    "spawned pool": lambda: Pool(1, start="spawn"),
    "given workers": lambda: Pool([Worker()]),
    "given spawned workers": lambda: Pool([Worker(serve_calls, start="spawn")]),
    "worker": lambda: Calls(),
    "spawned worker": lambda: Calls(work_fn=serve_calls, start="spawn"),
}

if __name__ == "__main__":
    pool = KINDS[sys.argv[1]]()
    ask = lambda fn, *args: pool.submit(fn, *args).result()
    BODY
    pool.shutdown()
"""

KINDS = ["pool", "spawned pool", "given workers", "given spawned workers", "worker", "spawned worker"]


def run(folder: Path, body: str, kind: str) -> list[str]:
    indented = "\n    ".join(body.strip().splitlines())
    return run_script(folder, SCRIPT.replace("BODY", indented), kind).splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_of_each_class(tmp_path: Path, kind: str) -> None:
    body = """
print(ask(lambda c: c is Color.RED, Color.RED))
print(ask(lambda: Color.BLUE) is Color.BLUE)
print(ask(lambda p: (isinstance(p, Point), p == Point(3), type(p) is Point), Point(3)))
print(ask(lambda: Point(4)) == Point(4), type(ask(lambda: Point(4))) is Point)
print(ask(Point.moved, Point(1), 2) == Point(3))
print(ask(lambda k: k is Point, Point), ask(lambda: Point) is Point)
print(ask(lambda f: f is bump, bump))
"""
    expected = ["True", "True", "(True, True, True)", "True True", "True", "True True", "True"]
    assert run(tmp_path, body, kind) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_globals_are_those_of_the_script_there(tmp_path: Path, kind: str) -> None:
    body = """
print([ask(lambda: bump()) for _ in range(3)], ask(lambda: counter), ask(bump), counter)
"""
    assert run(tmp_path, body, kind) == ["[1, 2, 3] 3 4 0"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_scripts_exceptions_are_caught_there_and_here(tmp_path: Path, kind: str) -> None:
    body = """
print(ask(lambda: caught(fail)), ask(caught, fail), ask(lambda: caught(lambda: fail())))
try:
    ask(lambda: fail())
except MyErr as error:
    print("caught", error)
"""
    assert run(tmp_path, body, kind) == ["True True True", "caught failed"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_defined_after_the_workers(tmp_path: Path, kind: str) -> None:
    body = """
factor = 3
class Late:
    size = 5
    def __init__(self, x): self.x = x
    def __eq__(self, other): return type(self) is type(other) and self.x == other.x
    def scaled(self): return Late(self.x * factor)
def late(x): return later(x) + 1
def later(x): return x * factor if x > 0 else late(-x)
class Shade(enum.Enum):
    DARK = 1
print(ask(late, 2), ask(lambda: late(-2)), ask(late, -3))
print(ask(Late.scaled, Late(2)) == Late(6), ask(lambda l: l.scaled(), Late(2)) == Late(6))
print(ask(lambda: Late(1)) == Late(1), ask(lambda l: isinstance(l, Late), Late(1)))
print(ask(lambda s: s is Shade.DARK, Shade.DARK), ask(lambda: Shade.DARK) is Shade.DARK)
"""
    assert run(tmp_path, body, kind) == ["7 8 11", "True True", "True True", "True True"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_defined_anew(tmp_path: Path, kind: str) -> None:
    """A later call has the later one; what was made of the old one is still of the old one."""
    body = """
def f(x, plus=1): return x + plus
print(ask(f, 1))
def f(x, plus=2): return x + plus
print(ask(f, 1), ask(lambda: f(1)))
def f(x, plus=2): return -x - plus
print(ask(f, 1), ask(lambda: f(1)))
old = Point(1)
Old = Point
class Point:
    def __init__(self, x): self.x = x
    def name(self): return "new"
print(ask(lambda p: type(p) is Point, old), ask(lambda p: type(p) is Point, Point(1)))
print(type(ask(lambda p: p, old)) is Old, type(ask(lambda p: p, Point(1))) is Point)
print(ask(lambda: Point(1).name()), ask(lambda p: p.moved(1).x if hasattr(p, "moved") else None, old))
"""
    assert run(tmp_path, body, kind)[:5] == ["2", "3 3", "-3 -3", "False True", "True True"]


@pytest.mark.parametrize("kind", KINDS)
def test_globals_that_got_another_value(tmp_path: Path, kind: str) -> None:
    body = """
factor = 1
ask_factor = lambda x: x * factor
futures = []
for factor in range(1, 6):
    futures.append(pool.submit(lambda x: x * factor, 10))
print([future.result() for future in futures])
factor = 7
print(ask(ask_factor, 1))
factor = 8
print(ask(ask_factor, 1))
def uses_what_comes_later(): return comes_later
try:
    ask(uses_what_comes_later)
except NameError as error:
    print(error)
comes_later = "it came"
print(ask(uses_what_comes_later))
"""
    expected = ["[10, 20, 30, 40, 50]", "7", "8", "name 'comes_later' is not defined", "it came"]
    assert run(tmp_path, body, kind) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_classes_that_know_each_other(tmp_path: Path, kind: str) -> None:
    body = """
class A: pass
class B(A):
    a = A()
A.b = B()
A.itself = A
class C(B): pass
print(ask(lambda c: (isinstance(c, B), isinstance(c, A), type(A.b) is B, type(B.a) is A, A.itself is A), C()))
print(type(ask(lambda: C())) is C, type(ask(lambda: A.b)) is B)
"""
    assert run(tmp_path, body, kind) == ["(True, True, True, True, True)", "True True"]


@pytest.mark.parametrize("kind", KINDS)
def test_local_functions_and_classes(tmp_path: Path, kind: str) -> None:
    body = """
def main():
    class Local:
        def __init__(self, x): self.x = x
    class Odd(ValueError):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")
            self.a = a
    def even(n): return True if n == 0 else odd(n - 1)
    def odd(n): return False if n == 0 else even(n - 1)
    def fail(): raise Odd(1, 2)
    print(ask(lambda l: isinstance(l, Local), Local(1)), type(ask(lambda: Local(2))) is Local)
    print(ask(even, 10), ask(lambda: odd(10)))
    try:
        ask(fail)
    except Odd as error:
        print(error, error.a)
main()
"""
    assert run(tmp_path, body, kind) == ["True True", "True False", "1 and 2 1"]


def test_what_cannot_be_sent_is_used_where_it_is(tmp_path: Path) -> None:
    """A lock of the script: a forked worker has it."""
    body = """
import threading
print(ask(lambda: lock.acquire(False)), ask(lambda: lock.acquire(False)), lock.acquire(False))
"""
    script = SCRIPT.replace("counter = 0", "import threading; lock = threading.Lock(); counter = 0")
    indented = "\n    ".join(body.strip().splitlines())
    for kind in KINDS:
        assert run_script(tmp_path, script.replace("BODY", indented), kind) == "True False True\n"


def test_what_cannot_be_sent_and_is_not_there_is_named(tmp_path: Path) -> None:
    body = """
import threading
late_lock = threading.Lock()
try:
    ask(lambda: late_lock.acquire(False))
except TypeError as error:
    print("late_lock" in str(error), "lock" in str(error))
print(ask(lambda: 1))
"""
    for kind in KINDS:
        assert run(tmp_path, body, kind) == ["True True", "1"]


STALE = """
import threading
from miniray import Pool, Worker

limit = 1
class Config:
    name = "old"
class Uses:
    def both(self): return limit, Config.name
    @property
    def limit(self): return limit
    @staticmethod
    def static(): return Config.name
def direct(): return limit, Config.name
def indirect(): return direct()
def checks(x): return isinstance(x, Config)
def unused():
    if limit < 0:
        return later_lock
    return "not needed"

with Pool(2) as pool, Worker() as worker, Pool([Worker(), Worker()]) as given:
    def asks(fn, *args):
        worker.register("f", fn)
        return [pool.submit(fn, *args).result(), given.submit(fn, *args).result(), worker.call_remote("f", *args)]
    print(asks(indirect))
    limit = 2
    print(asks(indirect), asks(direct))
    class Config:
        name = "new"
    print(asks(indirect), asks(Uses().both), asks(Uses.static), asks(checks, Config()))
    print(asks(lambda: Uses().limit), list(pool.map(checks, [Config()] * 5)))
    later_lock = threading.Lock()
    print(asks(unused))
    limit = 3
    print(asks(indirect))
"""


def test_functions_that_forked_workers_have_see_globals_that_got_another_value(tmp_path: Path) -> None:
    old, two, new, three = (1, "old"), (2, "old"), (2, "new"), (3, "new")
    expected = [
        f"{[old] * 3}",
        f"{[two] * 3} {[two] * 3}",
        f"{[new] * 3} {[new] * 3} {['new'] * 3} {[True] * 3}",
        f"{[2] * 3} {[True] * 5}",
        f"{['not needed'] * 3}",
        f"{[three] * 3}",
    ]
    assert run_script(tmp_path, STALE).splitlines() == expected


def test_code_without_a_file_and_code_that_was_executed(tmp_path: Path) -> None:
    source = """
    import enum
    from miniray import Pool, Worker, serve_calls
    pools = [Pool(1), Pool(1, start="spawn"), Pool([Worker()]), Pool([Worker(serve_calls, start="spawn")])]
    code = '''
    import enum
    class Color(enum.Enum):
        RED = 1
    counter = 0
    def bump():
        global counter
        counter += 1
        return counter
    def is_red(c): return c is Color.RED
    '''
    import textwrap
    names = {"__name__": "somewhere"}
    exec(textwrap.dedent(code), names)
    exec(textwrap.dedent(code))
    for pool in pools:
        for found in (names, globals()):
            counted = [pool.submit(found["bump"]).result() for _ in range(3)]
            print(pool.submit(found["is_red"], found["Color"].RED).result(), counted)
        pool.shutdown()
    """
    expected = "True [1, 2, 3]\n" * 8
    assert run_script(tmp_path, source) == expected
    assert run_script(tmp_path, source, piped=True) == expected


def test_the_scripts_objects_in_maps_and_maps_of_late_functions(tmp_path: Path) -> None:
    source = """
    import enum
    from miniray import Pool
    class Color(enum.Enum):
        RED = 1
        BLUE = 2
    if __name__ == "__main__":
        for options in ({}, {"start": "spawn"}):
            with Pool(2, **options) as pool:
                class Late:
                    def __init__(self, x): self.x = x
                def late(l): return Late(l.x + 1), Color.RED
                found = list(pool.map(late, [Late(n) for n in range(500)]))
                print([l.x for l, _ in found] == list(range(1, 501)))
                print(all(type(l) is Late and c is Color.RED for l, c in found))
                print(sorted(pool.imap_unordered(lambda n: n * 2, range(100))) == list(range(0, 200, 2)))
                print(pool.starmap(lambda a, b: a is b, [(Color.RED, Color.RED), (Color.RED, Color.BLUE)]))
    """
    assert run_script(tmp_path, source) == "True\nTrue\nTrue\n[True, False]\n" * 2


ROUNDS = """
import sys, random
from miniray import Cluster, NodeConfig, Pool, Worker, serve_calls
MAKE = {
    "1": lambda: Pool(1), "2": lambda: Pool(2), "4": lambda: Pool(4), "spawn": lambda: Pool(2, start="spawn"),
    "given": lambda: Pool([Worker(), Worker(serve_calls, start="spawn")]),
    "cluster": lambda: Pool(cluster),
}
if __name__ == "__main__":
    cluster = Cluster([NodeConfig("localhost", 2, 0)], progress=False) if sys.argv[1] == "cluster" else None
    pool = MAKE[sys.argv[1]]()
    wrong = 0
    for round in range(int(sys.argv[2])):
        exec(f"def f(x): return x + {round}")
        first = f
        futures = [(pool.submit(f, n), n + round) for n in range(8)]
        exec(f"def f(x): return x - {round}")
        futures += [(pool.submit(f, n), n - round) for n in range(4)]
        futures += [(pool.submit(first, n), n + round) for n in range(4)]
        kind = round % 3
        if kind == 0:
            wrong += list(pool.map(lambda x: f(x) + first(x), range(8))) != [2 * x for x in range(8)]
        elif kind == 1:
            wrong += sorted(pool.imap_unordered(first, range(8))) != [x + round for x in range(8)]
        wrong += sum(future.result() != expected for future, expected in futures)
    print("wrong", wrong)
    pool.shutdown()
    if cluster:
        cluster.stop()
"""


@pytest.mark.parametrize(
    ("kind", "rounds"), [("1", 700), ("2", 700), ("4", 400), ("spawn", 300), ("given", 300), ("cluster", 300)]
)
def test_functions_defined_after_their_pool_are_never_missed(tmp_path: Path, kind: str, rounds: int) -> None:
    assert run_script(tmp_path, ROUNDS, kind, str(rounds)) == "wrong 0\n"


def test_an_initializer_that_workers_do_not_have(tmp_path: Path) -> None:
    source = """
    from miniray import Pool, Worker, serve_calls
    def late():
        global ready
        ready = "ready"
    given = [Worker(serve_calls, start="spawn")]
    for pool in (Pool(2, start="spawn", initializer=late), Pool(given, initializer=late)):
        print(pool.submit(lambda: ready).result())
        pool.shutdown()
    """
    assert run_script(tmp_path, source, piped=True) == "ready\nready\n"

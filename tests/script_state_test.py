"""Functions that hold something, globals that change, and things that cannot be sent: never a silently old answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_programs import lines, run_script


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_global_that_several_functions_use_follows(tmp_path: Path, start: str) -> None:
    body = """
def f(): return G
class C:
    def m(self): return G
for G in (10, 11, 12): print(run(lambda: (G, f(), C().m())))
"""
    assert lines(tmp_path, start, body) == [str((n, n, n)) for n in (10, 11, 12)]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_a_function_holds_is_sent_as_it_is_now(tmp_path: Path, start: str) -> None:
    body = """
def main():
    got = []
    f = lambda: i
    for i in range(3): got.append(run(f))
    held = []
    g = lambda: len(held)
    for _ in range(3):
        got.append(run(g))
        held.append(1)
    listed = []
    p = functools.partial(len, listed)
    for _ in range(2):
        got.append(run(p))
        listed.append(1)
    class Called:
        k = 0
        def __call__(self): return self.k
    called = Called()
    for called.k in range(2): got.append(run(called))
    def attribute(): return attribute.k
    for attribute.k in range(2): got.append(run(attribute))
    h = lambda x: (x, i)
    i = 7
    got.append(list(pool.map(h, [1])))
    i = 8
    got.append(list(pool.map(h, [1])))
    print(got)
main()
"""
    expected = [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 1, [(1, 7)], [(1, 8)]]
    assert lines(tmp_path, start, body) == [str(expected)]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_defaults_and_members_that_are_objects_count(tmp_path: Path, start: str) -> None:
    body = """
print(run(d), run(lambda: Attribute.cfg.v))
def d(c=Cfg(8)): return c.v
class Attribute:
    cfg = Cfg(9)
print(run(d), run(lambda: Attribute.cfg.v))
"""
    assert lines(tmp_path, start, body) == ["1 1", "8 9"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_cannot_be_sent_is_never_an_older_value(tmp_path: Path, start: str) -> None:
    body = """
def leave(): raise SystemExit(3)
class Leaves:
    def __reduce__(self): return leave, ()
class Cancels:
    def __reduce__(self): raise asyncio.CancelledError
def cancels(x=Cancels()): return 1
class Unsendable:
    lock = threading.Lock()
    class Inner: pass
conn = g = "old"
print(run(lambda: conn), run(lambda: g))
conn, g = threading.Lock(), Leaves()
for f in (lambda: conn, lambda: g, cancels, lambda: Unsendable, lambda: Unsendable):
    try:
        print("wrong", run(f))
    except BaseException as error:
        print(type(error).__name__)
print(run(abs, -3), run(lambda: 4))
"""
    shown = lines(tmp_path, start, body)
    assert shown[0] == "old old"
    assert shown[-1] == "3 4"
    assert len(shown) == 7
    assert not {line for line in shown if "wrong" in line or "WorkerDied" in line or "Timeout" in line}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_class_defined_anew_while_its_tasks_wait(tmp_path: Path, start: str) -> None:
    body = """
futures = []
for i in range(200):
    exec(f"class RC:\\n  z={i}\\n  def m(self): return self.z", globals())
    futures += [(pool.submit(lambda: RC.z), i), (pool.submit(lambda o: (isinstance(o, RC), o.m()), RC()), (True, i))]
print(sum(future.result(60) != expected for future, expected in futures))
"""
    assert lines(tmp_path, start, body) == ["0"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_functions_with_a_cache(tmp_path: Path, start: str) -> None:
    body = """
@functools.cache
def late(n): return n + 1
@functools.lru_cache(maxsize=2)
def other(n): return late(n) + 1
print(run(late, 3), run(lambda: late(4)), list(pool.map(other, range(3))))
"""
    assert lines(tmp_path, start, body) == ["4 5 [2, 3, 4]"]


def test_functions_of_the_script_by_their_names(tmp_path: Path) -> None:
    for start in ("fork", "spawn"):
        body = "print(run('__main__.d'), run('math.sqrt', 4))"
        assert lines(tmp_path, start, body) == ["1 2.0"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_large_values_of_a_global_are_not_kept(tmp_path: Path, start: str) -> None:
    """Neither here nor in the worker."""
    body = """
def peak():  # in MB. What getrusage says begins with the peak of the process that started this one
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
for i in range(60):
    big = bytes(10_000_000) + bytes([i])
    assert run(lambda: big[-1]) == i
for i in range(60):
    big = bytes(10_000_000) + bytes([i])
    run(own)
print(peak() < 450, all(n < 450 for n in pool.map(lambda _: peak(), range(4))))
"""
    assert lines(tmp_path, start, body) == ["True True"]


def test_a_view_keeps_its_pool() -> None:
    from miniray import Pool

    view = Pool(1).options(timeout=60)
    assert view.submit(abs, -1).result(60) == 1
    view._pool.shutdown()


def test_a_replaced_workers_error_follows_from_nothing_before_it() -> None:
    import miniray

    def work(handle: object) -> None:
        message = handle.recv()  # type: ignore[attr-defined]
        if message == "die":
            import os

            os.abort()
        raise ValueError("its own")

    with miniray.Worker(work, restart=miniray.RestartPolicy(backoff_s=0)) as worker:
        worker.send("die")
        with pytest.raises(miniray.WorkerRestarted):
            worker.recv(timeout=60)
        worker.send("raise")
        with pytest.raises(miniray.WorkerError, match="its own") as caught:
            worker.recv(timeout=60)
        assert "SIGABRT" not in str(caught.value)


def test_open_files_are_refused() -> None:
    """Their text would arrive instead of them."""
    from miniray import Pool

    with Pool(1) as pool, open(__file__) as text, open(__file__, "rb") as data:
        for file in (text, data):
            with pytest.raises(TypeError, match=r"argument 1 of len.*an open file.*Send its path"):
                pool.submit(len, file).result(60)
        with pytest.raises(TypeError, match=r"the result cannot be sent back: an open file.*Send its path"):
            pool.submit(open, __file__).result(60)


FOLLOWED = """
import collections, functools, types
from miniray import Pool, Worker

n = 1
def passed_on(f):
    @functools.wraps(f)
    def call(*args): return f(*args)
    return call
def plain(): return n
@passed_on
def wrapped(): return n
def with_default(f=plain): return f()
def with_named_default(*, f=plain): return f()
class Base:
    def m(self): return n
class Derived(Base):
    pass
class Outer:
    class Inner:
        def m(self): return n
class Decorated:
    @passed_on
    def m(self): return n
    @property
    @passed_on
    def p(self): return n
    @functools.cached_property
    def cached(self): return n
    @functools.singledispatchmethod
    def dispatched(self, x): return n
class Meta(type):
    def make(cls): return n
class Made(metaclass=Meta):
    pass
class Called:
    def __call__(self): return n
@functools.singledispatch
def dispatched(x): return n
@dispatched.register
def _(x: int): return n
@functools.lru_cache(maxsize=0)
def cached(): return n
functions, table, pair, nested = [plain], {"plain": plain}, (plain, 1), [{"plain": [plain]}]
part, derived, called, bound = functools.partial(plain), Derived(), Called(), Derived().m
holder = types.SimpleNamespace(f=plain)
def by_list(): return functions[0]()
def by_dict(): return table["plain"]()
def by_tuple(): return pair[0]()
def by_nested(): return nested[0]["plain"][0]()
def by_part(): return part()
def by_object(): return derived.m()
def by_called(): return called()
def by_bound(): return bound()
def by_holder(): return holder.f()
def by_property(): return Decorated().p
def by_cached_property(): return Decorated().cached
def by_method(): return Decorated().dispatched(1)
def by_meta(): return Made.make()
calls = [
    (plain,), (wrapped,), (with_default,), (with_named_default,), (Derived().m,), (Outer.Inner().m,), (Decorated().m,),
    (called,), (dispatched, 1), (dispatched, "x"), (cached,), (part,), (bound,), (by_list,), (by_dict,), (by_tuple,),
    (by_nested,), (by_part,), (by_object,), (by_called,), (by_bound,), (by_holder,), (by_property,),
    (by_cached_property,), (by_method,), (by_meta,),
]
with Pool(1) as pool:
    wrong = []
    for call in calls:  # each alone: a call that tells the worker of the global would do so for others
        for n in (1, 2, 1, 3):
            if (got := pool.submit(*call).result(60)) != n:
                wrong.append((call, n, got))
    print(wrong)
"""


def test_a_global_that_got_another_value_is_seen_through_whatever_holds_the_function(tmp_path: Path) -> None:
    assert run_script(tmp_path, FOLLOWED) == "[]\n"


OTHER_VALUES = """
import array, collections, datetime, decimal, fractions, functools, operator, pathlib, re, sys
import numpy as np
from miniray import Pool

def twice(x): return 2 * x
def thrice(x): return 3 * x
VALUES = [
    (decimal.Decimal(1), decimal.Decimal(2)), (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)), (range(3), range(4)), (slice(1), slice(2)),
    (np.arange(3), np.arange(1, 4)), (np.float32(1), np.float32(2)), (re.compile("a"), re.compile("b")),
    (pathlib.Path("a"), pathlib.Path("b")), (collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
    (collections.deque([1]), collections.deque([2])), (bytearray(b"a"), bytearray(b"b")),
    (array.array("i", [1]), array.array("i", [2])), (functools.partial(pow, 2), functools.partial(pow, 3)),
    (len, sum), (operator.itemgetter(0), operator.itemgetter(1)), (twice, thrice),
    (functools.partial(twice), functools.partial(thrice)), ([twice], [thrice]), ([lambda: 1], [lambda: 2]),
]
which = 0
def shown(x):
    if isinstance(x, list): x = x[0]
    return repr(x.__code__.co_consts) if hasattr(x, "__code__") else repr(x).split(" at ")[0]
def functions():
    for number in range(len(VALUES)):
        exec(f"def f{number}(x=VALUES[{number}][which]): return shown(x)", globals())
        exec(f"class C{number}:\\n  x = VALUES[{number}][which]\\n  def m(self): return shown(vars(C{number})['x'])",
             globals())
functions()
if __name__ == "__main__":
    with Pool(1, start="spawn") as pool:
        which = 1
        functions()
        for number, (old, new) in enumerate(VALUES):
            for f in (globals()[f"f{number}"], globals()[f"C{number}"]().m):
                got = pool.submit(f).result(60)
                if got != shown(new):
                    print("wrong", old, new, got)
    print("done")
"""


def test_defaults_and_members_of_any_type_are_compared(tmp_path: Path) -> None:
    """A spawned worker has the functions of the script's file, and these have other defaults now."""
    assert run_script(tmp_path, OTHER_VALUES) == "done\n"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_a_call_does_to_what_a_function_holds_is_gone_with_the_call(tmp_path: Path, start: str) -> None:
    body = """
def main():
    n = 0
    def count(_=None):
        nonlocal n
        n += 1
        return n
    def collect(_=None, seen=[]):
        seen.append(1)
        return len(seen)
    async def wait(seen=[]):
        seen.append(1)
        return len(seen)
    def attribute():
        attribute.n += 1
        return attribute.n
    attribute.n = 0
    def through(f=count): return f()
    def constant(k=(1, "x")): return k
    pool = Pool(1, start=sys.argv[1])
    def several(f): return [pool.submit(f).result(60) for _ in range(3)]
    for f in (count, collect, wait, attribute, through, functools.partial(count), constant): print(several(f))
    for _ in range(2): print(list(pool.map(count, range(3), chunksize=3)))
    n = 5
    print(several(count), n)
    pool.shutdown()
    with Worker() as worker:
        worker.register("count", count)
        print([worker.call_remote("count") for _ in range(3)])
main()
"""
    assert lines(tmp_path, start, body) == [
        *["[1, 1, 1]"] * 6,
        "[(1, 'x'), (1, 'x'), (1, 'x')]",
        *["[1, 2, 3]"] * 2,
        "[6, 6, 6] 5",
        "[6, 7, 8]",
    ]


UNDER_WAY = """
import sys, threading, time
from miniray import Cluster, NodeConfig, Pool, Worker
if __name__ == "__main__":
    cluster = Cluster([NodeConfig("localhost", 1, 0)], progress=False) if sys.argv[1] == "cluster" else None
    pool = {
        "fork": lambda: Pool(1), "spawn": lambda: Pool(1, start="spawn"), "cluster": lambda: Pool(cluster),
        "given": lambda: Pool([Worker(start="spawn")]),
    }[sys.argv[1]]()
    pool.submit(time.sleep, 0.3)
    def base(): return 1
    def rate(): return base()
    def price(x): return x * rate()
    class Order:
        def price(self): return price(factor)
    def of(order): return order.price()
    futures = []
    for factor in (10, 20):
        futures += [pool.submit(price, factor), pool.submit(lambda: price(factor)), pool.submit(of, Order())]
        results = pool.map(price, [factor])
        def base(): return 2
        first = results if factor == 10 else first
    print([future.result(60) for future in futures], list(first), list(results))
    # Afterwards: versions that no task has are not kept.
    for factor in range(500):
        assert pool.submit(of, Order()).result(60) == 2 * factor
    print(len(pool._driver.definitions._open) <= 16)
    pool.shutdown()
    if cluster:
        cluster.stop()
"""


@pytest.mark.parametrize("start", ["fork", "spawn", "given", "cluster"])
def test_calls_under_way_have_what_was_defined_when_they_were_made(tmp_path: Path, start: str) -> None:
    """Their worker is busy meanwhile, and then asks for the functions that it does not have."""
    shown = run_script(tmp_path, UNDER_WAY, start).splitlines()
    assert shown == ["[10, 10, 10, 40, 40, 40] [10] [40]", "True"]


def test_a_spawned_workers_own_functions_find_no_older_value_that_was_sent_for_others(tmp_path: Path) -> None:
    source = """
    from miniray import Pool
    n = 0
    def own(): return n
    if __name__ == "__main__":
        with Pool(1, start="spawn") as pool:
            print(pool.submit(own).result(60))
            for n in (1, 2, 3):
                print(pool.submit(own).result(60), pool.submit(lambda: (n, own())).result(60))
    """
    assert run_script(tmp_path, source).splitlines() == ["0", "0 (1, 1)", "2 (2, 2)", "3 (3, 3)"]

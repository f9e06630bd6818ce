"""Classes of the script: what is special about them is there when they are made again in a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_programs import lines


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_class_that_looks_up_its_own_name_when_another_is_derived_from_it(tmp_path: Path, start: str) -> None:
    body = """
class Base:
    kinds = {}
    def __init_subclass__(cls):
        Base.kinds[cls.__name__] = 1
class Sub(Base):
    pass
print(run(lambda: (Sub.__name__, Base.kinds)))
print(run(lambda kind: kind.__mro__[1].kinds, Sub))
"""
    assert lines(tmp_path, start, body) == ["('Sub', {'Sub': 1})", "{'Sub': 1}"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_functools_wraps_is_made_again(tmp_path: Path, start: str) -> None:
    body = """
@functools.singledispatch
def name(x): return "any"
@name.register
def _(x: int): return "int"
@name.register(Cfg)
def _(x): return "Cfg"
class Square:
    @functools.cached_property
    def area(self): return 4
    @functools.singledispatchmethod
    def grow(self, by): return "any"
    @grow.register
    def _(self, by: str): return "str"
print(run(lambda: (name(1), name("x"), name(Cfg(1)))), run(name, 1))
print(run(lambda: (Square().area, Square().grow(1), Square().grow("x"))))
"""
    assert lines(tmp_path, start, body) == ["('int', 'any', 'Cfg') int", "(4, 'any', 'str')"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_classes_with_slots_keep_them(tmp_path: Path, start: str) -> None:
    body = """
import dataclasses, typing
@dataclasses.dataclass(slots=True)
class Point:
    x: int = 1
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int = 1
class One:
    __slots__ = "x"
class Two(One):
    __slots__ = ("__private", "__weakref__")
    def __init__(self): self.x, self.__private = 1, 2
    def private(self): return self.__private
class Named(typing.NamedTuple):
    x: int = 1
def extended(thing):
    try:
        thing.another = 1
    except (AttributeError, TypeError):  # frozen ones raise TypeError
        return thing
    return "was extended"
print(run(extended, Point(3)), run(Point), run(Frozen, 4), run(extended, Frozen(5)), run(Named, 6))
print(type(run(extended, Two())) is Two, run(Two().private), run(lambda: extended(Two())).x)
print(hasattr(run(Two), "__dict__"))
"""
    points = "Point(x=3) Point(x=1) Frozen(x=4) Frozen(x=5) Named(x=6)"
    assert lines(tmp_path, start, body) == [points, "True 2 1", "False"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_metaclass_that_looks_up_its_own_name(tmp_path: Path, start: str) -> None:
    body = """
class Meta(type):
    made = []
    def __new__(meta, name, bases, members):
        kind = super().__new__(meta, name, bases, members)
        Meta.made.append(name)
        return kind
class Model(metaclass=Meta):
    def run(self): return "Model" in Meta.made
print(run(Model().run), type(run(Model)) is Model)
"""
    assert lines(tmp_path, start, body) == ["True True"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_enums_whose_members_have_attributes(tmp_path: Path, start: str) -> None:
    body = """
import enum
class Planet(enum.Enum):
    EARTH = (5, 6)
    WORLD = (5, 6)
    def __init__(self, mass, radius): self.mass = mass
    def heavy(self): return self.mass > 4
class Labelled(int, enum.Enum):
    ONE = (1, "one")
    def __new__(cls, number, label):
        made = int.__new__(cls, number)
        made._value_, made.label = number, label
        return made
print(run(lambda p: (p.mass, p.heavy(), p is Planet["WORLD"]), Planet.EARTH), run(lambda: Planet.WORLD) is Planet.EARTH)
print(run(lambda: (Labelled(1).label, Labelled.ONE + 1)), run(lambda: Labelled.ONE) is Labelled.ONE, Planet.EARTH.mass)
"""
    assert lines(tmp_path, start, body) == ["(5, True, True) True", "('one', 2) True 5"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_local_class_is_called_as_a_task(tmp_path: Path, start: str) -> None:
    body = """
def main():
    class Local:
        def __init__(self, x=1): self.x = x
        def own(self): return type(self) is Local
    def itself(): return itself
    print(type(run(Local)) is Local, run(Local, 3).x, run(Local(4).own), run(lambda l: isinstance(l, Local), Local()))
    print({type(one) is Local for one in pool.map(Local, range(4))}, callable(run(itself)()))
    print(type(run(type("Made", (), {}))).__name__)
main()
"""
    assert lines(tmp_path, start, body) == ["True 3 True True", "{True} True", "Made"]

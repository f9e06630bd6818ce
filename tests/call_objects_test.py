"""Objects that live on a worker: made there, called by their methods, and forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import task_functions
from call_workers import remote_text
from task_functions import Counter
from waiting import PATIENCE_S


def test_an_object_lives_there(call_worker: Any) -> None:
    counter = call_worker.create("counter", Counter, 10, step=2)
    assert counter.increment(5) == 20
    assert call_worker.call_remote("counter.increment") == 22
    assert counter.call_async("increment", times=2).result(PATIENCE_S) == 26
    assert call_worker.call_async("counter.increment", 2).result(PATIENCE_S) == 30
    assert counter.whereabouts() == call_worker.pid
    other = call_worker.create("other", Counter, 0)
    assert other.increment() == 1
    assert counter.increment(0) == 30
    assert "counter" in repr(counter)


def test_a_method_raises_what_it_raised(call_worker: Any) -> None:
    counter = call_worker.create("counter", Counter, 1)
    with pytest.raises(LookupError, match="no luck at 1") as caught:
        counter.fail()
    assert "in fail" in remote_text(caught.value)
    assert counter.increment() == 2
    with pytest.raises(ValueError, match="0 or more, not -1"):
        call_worker.create("bad", Counter, -1)
    with pytest.raises(TypeError):
        call_worker.create("bad", Counter)
    with pytest.raises(LookupError, match="bad"):
        call_worker.call_remote("bad.increment")


def test_an_unknown_method_names_those_that_are_there(call_worker: Any) -> None:
    counter = call_worker.create("counter", Counter, 1)
    with pytest.raises(AttributeError, match="decrement") as caught:
        counter.decrement(1)
    assert "increment" in str(caught.value)
    assert "whereabouts" in str(caught.value)
    assert "__init__" not in str(caught.value)
    with pytest.raises(LookupError, match="clock") as unknown:
        call_worker.call_remote("clock.tick")
    assert "counter" in str(unknown.value)


def test_what_is_forgotten_is_gone(call_worker: Any) -> None:
    counter = call_worker.create("counter", Counter, 1)
    call_worker.register("square", task_functions.square)
    call_worker.forget("counter")
    with pytest.raises(LookupError, match="counter"):
        counter.increment()
    call_worker.forget("square")
    with pytest.raises(LookupError, match="square"):
        call_worker.call_remote("square", 1)
    again = call_worker.create("counter", Counter, 5)
    assert again.increment() == 6
    replaced = call_worker.create("counter", Counter, 50)
    assert replaced.increment() == 51

"""Pool.map and its variants: gives the core's flow of a map its items, and hands out their results."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any

from miniray import _call_errors, _check, _core, _pickling
from miniray._pool_driver import name_of
from miniray.errors import ProtocolError


class Mapping:
    """One call of map. The thread that delivers results settles chunks and sends the next; the caller takes results."""

    def __init__(
        self,
        submitter: Any,
        fn: Callable[..., Any] | str,
        items: Iterable[Any],
        *,
        star: bool,
        chunksize: int | None,
        ordered: bool,
        progress: bool,
    ) -> None:
        self._driver = submitter._driver
        self._driver.begin()
        self._options = submitter._options
        self._terms = submitter._terms
        self._fn = fn
        self._function = self._driver.function(fn, for_map=True)
        self._needs = self._driver.needs_of(self._function)
        self._star = star
        listed = isinstance(items, (list, tuple, range))
        total = len(items) if listed else None  # type: ignore[arg-type]
        self._items = iter(items)
        workers = max(1, self._driver.workers)
        self._flow = _core._MapFlow(
            self._driver.core,
            self._function.handle,
            total=total,
            chunk_size=None if chunksize is None else min(chunksize, sys.maxsize),
            one_by_one=self._options.timeout is not None or self._options.memory_bytes is not None,
            workers=workers,
            ordered=ordered,
            results_bytes_max=self._driver.results_bytes_max,
            retries=self._options.retries if self._options.retry_on else 0,
        )
        self._condition = self._driver.condition
        self._results: dict[int, tuple[list[Any], dict[int, BaseException], int]] = {}  # by their first item
        self._interrupted = self._timed_out = False
        self._began_ns = time.monotonic_ns()
        self._feeding = threading.Lock()  # held by the thread that sends
        self._must_feed = False
        self._failure: BaseException | None = None
        self._bar: Any = None
        if progress:
            from miniray._pool_progress import Bar

            self._bar = Bar(total, workers)
        # An iterator may wait for anything, and the thread that delivers results must not.
        self._feeder = (
            None if listed else threading.Thread(target=self._feed_lazily, name="miniray-pool-items", daemon=True)
        )
        try:
            self._driver.note_mapping(self, True)
            if self._feeder is None:
                self._feed()
            else:
                self._feeder.start()
        except BaseException:  # such as Ctrl-C: nobody will take results
            self._interrupted = True
            self._abandon_surely()
            raise

    # Sending.

    def _feed(self) -> None:
        """Send as many chunks as the workers can be busy with, and one more for each.

        If another thread is sending already, it goes on: pickling an item may take long, or even wait for the pool,
        whose results have to be delivered meanwhile.
        """
        self._must_feed = True
        while self._must_feed and self._feeding.acquire(blocking=False):
            try:
                self._must_feed = False
                while wanted := self._flow.wanted():
                    items: list[Any] = []
                    failure: Exception | None = None
                    try:
                        items.extend(itertools.islice(self._items, wanted))
                    except Exception as error:  # the iterator's, after the items that extend() has kept
                        failure = error
                    first = self._flow.read(len(items), wanted)
                    if first is not None and items:
                        self._send(items, first)
                    if failure is not None:
                        raise failure
                    if first is None or not items:
                        break
            finally:
                self._feeding.release()
        if not self._flow.reads_on:
            self._note_last()

    def _feed_lazily(self) -> None:
        try:
            while self._flow.reads_on:
                with self._condition:
                    while self._flow.reads_on and not self._flow.wanted():
                        self._condition.wait()
                self._feed()
        except BaseException as error:
            self._fail(error)

    def _note_last(self) -> None:
        """Note that all items have gone out, or that no more will."""
        self._driver.note_mapping(self, False)
        with self._condition:
            self._condition.notify_all()

    def _fail(self, error: BaseException) -> None:
        """The pool is closed or broken, or the caller's iterator raised: nothing more is sent."""
        self._failure = error
        self._flow.stop()
        self._note_last()

    def hurry(self, cancel: bool) -> None:
        """The pool is being shut down. All that is left goes out now, however much room the results take; or nothing
        more goes out."""
        self._flow.hurry()
        if cancel:
            self._fail(CancelledError("the pool was shut down before all items had gone out"))
        else:
            self._go_on_or_fail()

    def stop_iterating(self) -> None:
        """Somebody waits for the end of the pool. An iterator may have no end, so no more is taken from it."""
        if self._feeder is not None:
            self.hurry(cancel=True)

    def _send(self, items: list[Any], first: int, tries: int = 0) -> None:
        core = self._driver.core
        chunk = _Chunk(self, items, core.next_number())
        self._flow.begin(chunk.number, first, len(items), tries)  # first: Ctrl-C may come right after the submission
        try:
            self._submit(items, chunk)
        except BaseException as failure:  # of an item that is pickled, SystemExit for one; or of a signal's handler
            if chunk.submitted:  # its outcome will come
                raise
            self._flow.withdraw(chunk.number)
            if isinstance(failure, KeyboardInterrupt) or _is_of_a_signal(failure):
                raise
            if len(items) > 1:  # perhaps only one of them cannot be sent
                for index, item in enumerate(items):
                    self._send([item], first + index, tries)
                return
            if isinstance(failure, Exception):
                failure = self._driver.explain_items(failure, self._fn, items, first)
            self._arrive(first, [None], {0: failure})
            return
        if self._flow.abandoned:  # meanwhile
            self._take_back(chunk.number)

    def _submit(self, items: list[Any], chunk: _Chunk) -> None:
        core, function, pack = self._driver.core, self._function.handle, self._driver.pack
        memory_bytes = self._options.memory_bytes
        if memory_bytes is None:
            core.submit_map(function, items, self._star, self._terms, chunk, self._needs, pack, chunk.number)
        else:  # the limit is one of a call
            arguments = items[0] if self._star else items
            core.submit(function, arguments, {}, self._terms, memory_bytes, chunk, self._needs, pack, chunk.number)

    # In the thread that delivers results.

    def settle(self, chunk: _Chunk, kind: str, what: Any, worker: str | None, size: int, extra: Any) -> None:
        fate, first, tries, may_retry = self._flow.finish(chunk.number, kind)
        if fate == "sent_singly":
            for index, item in enumerate(chunk.items):
                self._send([item], first + index)
        if fate != "arrives":
            return
        count = len(chunk.items)
        values: list[Any] = [None] * count
        errors: dict[int, BaseException] = {}
        try:
            if kind == "values":
                self._flow.measure(count, extra)
                values, errors = self._read_values(count, what, worker or "")
            elif kind == "value":
                values = [what]
            elif kind == "pickle":
                values = [_pickling.unpickled(what, self._driver.definitions)]
            else:
                error = self._driver.error_of(self._options, kind, what, worker or "", extra)
                errors = dict.fromkeys(range(count), error)
        except BaseException as unreadable:
            errors = dict.fromkeys(range(count), unreadable)
        again = [index for index, error in errors.items() if may_retry and isinstance(error, self._options.retry_on)]
        if kind in ("died", "cancelled", "broken") or not again:
            self._arrive(first, values, errors, size, kind == "cancelled")
        else:  # items that raised what their terms name go out again, each by itself
            for index, value in enumerate(values):
                if index in again:
                    self._send([chunk.items[index]], first + index, tries + 1)
                else:
                    self._arrive(first + index, [value], {0: errors[index]} if index in errors else {})
        self._go_on_or_fail()

    def _read_values(self, count: int, what: Any, worker: str) -> tuple[list[Any], dict[int, BaseException]]:
        shelf = self._driver.definitions
        match what:
            case [results, list(failed)] if all(_is_failure(one, count) for one in failed):
                pass
            case _:
                raise ProtocolError(f"{worker} answered a map of {count} items with {_check.shown(what)}")
        values = results if isinstance(results, list) else _pickling.unpickled(results, shelf)
        errors = {index: _call_errors.error_of(worker, described, shelf) for index, described in failed}
        if not isinstance(values, list) or len(values) != count:
            raise ProtocolError(f"{worker} answered a map of {count} items with {_check.shown(values)}")
        return values, errors

    def _go_on(self) -> None:
        if self._feeder is not None:
            with self._condition:
                self._condition.notify_all()
        else:
            self._feed()

    def _go_on_or_fail(self) -> None:
        try:
            self._go_on()
        except Exception as error:
            self._fail(error)

    def _arrive(
        self,
        first: int,
        values: list[Any],
        errors: dict[int, BaseException],
        size: int = 0,
        cancelled: bool = False,
    ) -> None:
        done, failed = len(values) - len(errors), 0 if cancelled else len(errors)
        with self._condition:
            self._results[first] = (values, errors, size)
            self._flow.arrive(first, len(values), size, done, failed)
            self._condition.notify_all()
        if self._bar is not None:
            self._bar.advance(done, len(errors))

    # The caller.

    def results(self, timeout: float | None) -> Iterator[Any]:
        deadline = None if timeout is None else time.monotonic() + timeout
        iterator = self._iterate(deadline, timeout)
        mapping = weakref.ref(self)
        self._iterator = weakref.ref(iterator, lambda _: _dropped(mapping()))
        return iterator

    def _iterate(self, deadline: float | None, timeout: float | None) -> Iterator[Any]:
        try:
            yield from self._yield_results(deadline, timeout)
        finally:  # once more: a second Ctrl-C may have come before the first could do it
            self._abandon_surely()
            if self._bar is not None:
                self._bar.close()

    def _yield_results(self, deadline: float | None, timeout: float | None) -> Iterator[Any]:
        try:
            while (taken := self._take(deadline, timeout)) is not None:
                values, errors, size = taken
                del taken  # what was handed out is the caller's alone
                failed = min(errors, default=len(values))
                del values[failed:]
                values.reverse()
                yield from itertools.starmap(values.pop, itertools.repeat((), len(values)))
                if errors:
                    raise _not_an_end(errors[failed])
                if self._flow.hand_out(size):  # sending had paused
                    self._go_on()
        except KeyboardInterrupt:
            _core._note_interrupt()
            raise
        finally:
            self._abandon_surely()

    def _take(self, deadline: float | None, timeout: float | None) -> Any:
        with self._condition:
            while True:
                if (first := self._flow.take()) is not None:
                    if self._feeder is not None:
                        self._condition.notify_all()  # there is room for another chunk
                    return self._results.pop(first)
                if self._flow.is_settled:
                    if self._failure is not None:
                        raise self._failure
                    return None
                self._driver.refuse_to_wait_here()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._timed_out = True
                    name = name_of(self._fn)
                    raise TimeoutError(
                        f"the map of {name} is not done after {timeout} s, and what was left of it is cancelled"
                    )
                self._condition.wait(left)

    def _abandon_surely(self) -> None:
        """Even if Ctrl-C is pressed again meanwhile."""
        again: KeyboardInterrupt | None = None
        while True:
            try:
                self._abandon()
                break
            except KeyboardInterrupt as pressed:
                _core._note_interrupt()
                again = pressed
        if again is not None:
            raise again

    def _abandon(self) -> None:
        """Nobody will ask for the rest. After Ctrl-C or a time-out, what runs is ended too, so that its workers are
        free."""
        self._interrupted = self._interrupted or self._interrupted_since()
        under_way = self._flow.abandon()
        self._note_last()
        for number in under_way:
            self._take_back(number)

    def _interrupted_since(self) -> bool:
        """Whether Ctrl-C was pressed after the map began, and just now."""
        return _core._just_interrupted(self._began_ns)

    def _take_back(self, number: int) -> None:
        core = self._driver.core
        core.interrupt(number) if self._interrupted else core.cancel(number, self._timed_out)


def _dropped(mapping: Mapping | None) -> None:
    """Nobody has taken, or will take, a result. All items are done all the same, unless that was because of Ctrl-C."""
    if mapping is not None and mapping._interrupted_since():
        mapping._abandon_surely()


def _is_of_a_signal(error: BaseException) -> bool:
    """Return whether a signal's handler has raised this, in the middle of something else."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _not_an_end(error: BaseException) -> BaseException:
    """StopIteration out of an iterator would say that there are no more results."""
    if not isinstance(error, StopIteration):
        return error
    ended = RuntimeError("a call raised StopIteration, which would end the results here")
    ended.__cause__ = error
    return ended


def _is_failure(failed: Any, count: int) -> bool:
    """Return whether this is [index of an item, error]."""
    return isinstance(failed, list) and len(failed) == 2 and type(failed[0]) is int and 0 <= failed[0] < count


class _Chunk:
    """Items that travel together. The core gives it back with their outcome."""

    __slots__ = ("items", "mapping", "number", "submitted")

    def __init__(self, mapping: Mapping, items: list[Any], number: int) -> None:
        self.mapping, self.items, self.number = mapping, items, number
        self.submitted = False  # the core sets it

    def settle(self, kind: str, what: Any, worker: str | None, size: int, extra: Any) -> None:
        self.mapping.settle(self, kind, what, worker, size, extra)

"""map and its kin: items go out in chunks, as long as their measured time suggests, and results come back in order or
as they come."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any

from miniray import _calls, _core, _pickling
from miniray.errors import WorkerDied


class Mapping:
    """One call of map. The delivering thread settles its chunks and sends the next; the caller takes results."""

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
        self._inside = submitter._inside
        self._options = submitter._options
        self._terms = submitter._terms
        self._fn = fn
        self._function = self._inside.function(fn, for_map=True)
        self._needs = self._inside.needs_of(self._function)
        self._star = star
        self._ordered = ordered
        listed = isinstance(items, (list, tuple, range))
        self._total = len(items) if listed else None  # type: ignore[arg-type]
        self._items = iter(items)
        self._exhausted = False
        self._workers = max(1, self._inside.workers)
        self._plan = _core._MapPlan(
            total=self._total,
            chunk_size=None if chunksize is None else min(chunksize, sys.maxsize),
            one_by_one=self._options.timeout is not None or self._options.memory_bytes is not None,
            workers=self._workers,
            mean_ns=self._inside.means_ns.get(self._function.number, 0.0),
        )
        self._condition = self._inside.condition
        self._sent = 0  # items
        self._expected = 0  # items that were taken and have no result yet, wherever they are
        self._under_way: dict[_Chunk, None] = {}
        self._results: dict[int, Any] = {}
        self._arrived: deque[Any] = deque()
        self._next = 0
        self._bytes = 0
        self._abandoned = False
        self._interrupted = False
        self._began_ns = time.monotonic_ns()
        self._hurries = False
        self._feeding = threading.Lock()  # of whoever sends
        self._must_feed = False
        self._failure: BaseException | None = None
        self._bar: Any = None
        if progress:
            from miniray._pool_progress import Bar

            self._bar = Bar(self._total, self._workers)
        self._inside.begin()
        # An iterator may wait for anything, and the thread that delivers must not.
        self._feeder = (
            None if listed else threading.Thread(target=self._feed_lazily, name="miniray-pool-items", daemon=True)
        )
        try:
            self._inside.note_mapping(self, True)
            if self._feeder is None:
                self._feed()
            else:
                self._feeder.start()
        except BaseException:  # Ctrl-C, say: there will be nobody to take results
            self._interrupted = True
            self._abandon_surely()
            raise

    # Sending.

    def _feed(self) -> None:
        """As many chunks as the workers can be busy with, and one more for each. If a thread is at it already, that one
        goes on: to pickle an item may take long, even wait for the pool, whose results must be delivered meanwhile."""
        self._must_feed = True
        while self._must_feed and self._feeding.acquire(blocking=False):
            try:
                self._must_feed = False
                while self._has_room() and (chunk := self._take_chunk()):
                    self._send_next(chunk)
            finally:
                self._feeding.release()
            if self._exhausted or self._abandoned:
                self._inside.note_mapping(self, False)

    def _has_room(self) -> bool:
        if self._abandoned or (self._bytes > self._inside.results_bytes_max and not self._hurries):
            return False
        return self._plan.has_room(len(self._under_way), len(self._arrived))

    def _feed_lazily(self) -> None:
        try:
            while not self._exhausted and not self._abandoned:
                with self._condition:
                    while not self._has_room() and not self._abandoned:
                        self._condition.wait()
                chunk = self._take_chunk()
                if self._failure is not None:
                    break
                if chunk and not self._abandoned:
                    self._send_next(chunk)
        except BaseException as error:
            self._fail(error)
        finally:
            self._inside.note_mapping(self, False)
            with self._condition:
                self._condition.notify_all()

    def _fail(self, error: BaseException) -> None:
        """The pool is closed or broken, or the caller's iterator raised: nothing more is sent."""
        with self._condition:
            self._exhausted = True
            self._failure = error
            self._condition.notify_all()
        self._inside.note_mapping(self, False)

    def hurry(self, cancel: bool) -> None:
        """The pool is to be shut down: all that is left goes out, whatever room the results take; or nothing more."""
        self._hurries = True
        if cancel:
            self._fail(CancelledError("the pool was shut down before all items had gone out"))
        else:
            self._go_on()

    def stop_iterating(self) -> None:
        """Somebody waits for the end of the pool, and so does not wait for an iterator, which may have none."""
        if self._feeder is not None:
            self.hurry(cancel=True)

    def _take_chunk(self) -> list[Any]:
        if self._exhausted:
            return []
        length = self._plan.next_length()
        chunk = list(itertools.islice(self._items, length))
        with self._condition:  # the caller must not see the end of the items before it sees that these are expected
            self._expected += len(chunk)
            self._exhausted = len(chunk) < length
            if self._exhausted:
                self._condition.notify_all()
        return chunk

    def _send_next(self, items: list[Any]) -> None:
        first, self._sent = self._sent, self._sent + len(items)
        self._plan.sent(len(items))
        self._send(items, first)

    def _send(self, items: list[Any], first: int, tries: int = 0) -> None:
        chunk = _Chunk(self, items, first, tries)
        self._under_way[chunk] = None
        chunk.number = self._inside.core.next_number()  # before: Ctrl-C may come when it has just been submitted
        try:
            self._submit(items, chunk)
        except Exception as failure:
            if len(items) > 1:  # one of them cannot be sent, perhaps: the others can
                for index, item in enumerate(items):
                    self._send([item], first + index, tries)
                del self._under_way[chunk]
                return
            del self._under_way[chunk]
            error = self._inside.explain_items(failure, self._fn, items, first)
            self._arrive(chunk, [None] * len(items), {i: error for i in range(len(items))}, 0)
            return
        if self._abandoned:  # meanwhile
            self._take_back(chunk)

    def _submit(self, items: list[Any], chunk: _Chunk) -> None:
        core: _core._Pool = self._inside.core
        memory_bytes = self._options.memory_bytes
        if memory_bytes is None:
            core.submit_map(
                self._function.handle,
                items,
                self._star,
                self._terms,
                chunk,
                self._needs,
                self._inside.pack,
                chunk.number,
            )
            return
        [item] = items
        arguments = item if self._star else [item]
        core.submit(
            self._function.handle,
            arguments,
            {},
            self._terms,
            memory_bytes,
            chunk,
            self._needs,
            self._inside.pack,
            chunk.number,
        )

    # The delivering thread.

    def settle(self, chunk: _Chunk, kind: str, what: Any, worker: str | None, size: int, extra: Any) -> None:
        del self._under_way[chunk]
        if kind == "cancelled" and self._abandoned:
            return  # it has not failed
        count = len(chunk.items)
        values: list[Any] = [None] * count
        errors: dict[int, BaseException] = {}
        try:
            if kind == "values":
                shelf = self._inside.definitions
                results, failed = what
                values = results if isinstance(results, list) else _pickling.unpickled(results, shelf)
                errors = {index: _calls.error_of(worker or "", described, shelf) for index, described in failed}
                self._measure(count, extra)
                if errors and self._retry(chunk, values, errors):
                    return
            elif kind == "value":
                values = [what]
            elif kind == "pickle":
                values = [_pickling.unpickled(what, self._inside.definitions)]
            else:
                error = self._inside.error_of(self._options, kind, what, worker or "", extra)
                if count > 1 and isinstance(error, WorkerDied) and not self._abandoned:
                    return self._split(chunk)
                errors = dict.fromkeys(range(count), error)
                if kind in ("timeout", "error") and self._retry(chunk, values, errors):
                    return
        except BaseException as unreadable:
            errors = dict.fromkeys(range(count), unreadable)
        self._arrive(chunk, values, errors, size)
        self._go_on()

    def _go_on(self) -> None:
        if self._feeder is not None:
            return  # it was told that something has come
        try:
            self._feed()
        except Exception as error:
            self._fail(error)

    def _measure(self, items: int, ns: int) -> None:
        self._plan.measured(items, ns)
        means = self._inside.means_ns
        if len(means) >= _core.limits.means_max:  # of lambdas there is no end
            means.clear()
        means[self._function.number] = self._plan.mean_ns

    def _split(self, chunk: _Chunk) -> None:
        """One of its items may have killed the worker: each is tried by itself, even those that had been done."""
        for index, item in enumerate(chunk.items):
            self._send([item], chunk.first + index)

    def _retry(self, chunk: _Chunk, values: list[Any], errors: dict[int, BaseException]) -> bool:
        """Items that raised what their terms name go out again, each by itself."""
        if not self._options.retry_on or chunk.tries >= self._options.retries:
            return False
        again = [index for index, error in errors.items() if isinstance(error, self._options.retry_on)]
        if not again:
            return False
        for index, value in enumerate(values):
            if index in again:
                self._send([chunk.items[index]], chunk.first + index, chunk.tries + 1)
            else:
                kept = {0: errors[index]} if index in errors else {}
                self._arrive(_Chunk(self, [chunk.items[index]], chunk.first + index), [value], kept, 0)
        return True

    def _arrive(self, chunk: _Chunk, values: list[Any], errors: dict[int, BaseException], size: int) -> None:
        chunk.size = size
        with self._condition:
            self._bytes += size
            self._expected -= len(values)
            if self._ordered:
                self._results[chunk.first] = (chunk, values, errors)
            else:
                self._arrived.append((chunk, values, errors))
            self._inside._done += len(values) - len(errors)
            self._inside._failed += len(errors)
            self._condition.notify_all()
        if self._bar is not None:
            self._bar.advance(len(values) - len(errors), len(errors))

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
                chunk, values, errors = taken
                del taken  # what was handed out is the caller's alone
                failed = min(errors, default=len(values))
                del values[failed:]
                values.reverse()
                yield from itertools.starmap(values.pop, itertools.repeat((), len(values)))
                if errors:
                    raise _not_an_end(errors[failed])
                self._took(chunk)
        except KeyboardInterrupt:
            _core._note_interrupt()
            raise
        finally:
            self._abandon_surely()

    def _take(self, deadline: float | None, timeout: float | None) -> Any:
        with self._condition:
            while True:
                if self._ordered and self._next in self._results:
                    taken = self._results.pop(self._next)
                    self._next += len(taken[1])
                    return taken
                if not self._ordered and self._arrived:
                    if self._feeder is not None:
                        self._condition.notify_all()  # there is room for another
                    return self._arrived.popleft()
                if self._failure is not None and not self._under_way:
                    raise self._failure
                if self._exhausted and not self._expected and self._failure is None:
                    return None
                self._inside.refuse_to_wait_here()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"not all results are there after {timeout} s")
                self._condition.wait(left)

    def _took(self, chunk: _Chunk) -> None:
        with self._condition:
            paused = self._bytes > self._inside.results_bytes_max
            self._bytes -= chunk.size
            resume = paused and self._bytes <= self._inside.results_bytes_max
            if resume:
                self._condition.notify_all()
        if resume:
            self._go_on()

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
        """Nobody will ask for the rest. After Ctrl-C, what runs is interrupted, so that the pool has room."""
        self._interrupted = self._interrupted or self._interrupted_since()
        with self._condition:
            self._abandoned = True
            self._condition.notify_all()
        self._inside.note_mapping(self, False)
        for chunk in reversed(list(self._under_way)):  # what runs comes last: nothing then takes its place
            if chunk.number:
                self._take_back(chunk)

    def _interrupted_since(self) -> bool:
        """Whether Ctrl-C has just come, and not before the map began."""
        return _core._just_interrupted(self._began_ns)

    def _take_back(self, chunk: _Chunk) -> None:
        core = self._inside.core
        core.interrupt(chunk.number) if self._interrupted else core.cancel(chunk.number, False)


def _dropped(mapping: Mapping | None) -> None:
    """Nobody has taken, or will take, a result. All items are done all the same, unless that was because of Ctrl-C."""
    if mapping is not None and mapping._interrupted_since():
        mapping._abandon_surely()


def _not_an_end(error: BaseException) -> BaseException:
    """StopIteration out of an iterator would say that there are no more results."""
    if not isinstance(error, StopIteration):
        return error
    ended = RuntimeError("a call raised StopIteration, which would end the results here")
    ended.__cause__ = error
    return ended


class _Chunk:
    """Some of the items, together on their way; the core gives it back with what became of them."""

    __slots__ = ("first", "items", "mapping", "number", "size", "tries")

    def __init__(self, mapping: Mapping, items: list[Any], first: int, tries: int = 0) -> None:
        self.mapping, self.items, self.first, self.tries = mapping, items, first, tries
        self.number = self.size = 0  # the core's number, once it is there

    def settle(self, kind: str, what: Any, worker: str | None, size: int, extra: Any) -> None:
        self.mapping.settle(self, kind, what, worker, size, extra)

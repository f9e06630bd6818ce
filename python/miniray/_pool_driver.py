"""Drives a pool: owns the core, which runs tasks and replaces workers, and the thread that hands out the core's news.

A driver holds no reference to its Pool, which may be dropped while tasks run.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import contextmanager
from typing import Any

from miniray import _call_errors, _check, _core, _pickling, _unsendable
from miniray._definitions import Definition, Definitions, is_same
from miniray._function_state import has_no_state, may_change
from miniray._future import PoolBroken, PoolFuture, new_condition
from miniray._outline import describe_arguments, outlined
from miniray._waiting import Latch
from miniray.errors import ProtocolError, TaskTimeout, UsageError
from miniray.supervision import EventLog, RestartPolicy
from miniray.worker import INTERRUPT, KILL

_FUNCTION = type(lambda: None)
_DELIVERIES_MAX = _core.limits.deliveries_max
_LAST_STEPS_S = _core.limits.last_steps_ms / 1000
_DELIVERY_S = _core.limits.delivery_ms / 1000
_LOGGER = logging.getLogger("miniray")

live: set[PoolDriver] = set()  # those whose threads run


class _ParentsCore:
    """Stands for the core of a pool in a child of fork(), where the core's thread does not run: every use is refused,
    because it would wait forever."""

    def __init__(self, core: Any) -> None:
        self._kept = core  # the parent's, whose destructor must not run here

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            "the pool belongs to the process that made it, and this process is a child of that one. Make a Pool in "
            "this process"
        )


def _leave_pools_to_the_parent() -> None:
    for driver in live:
        driver.core = _ParentsCore(driver.core)


os.register_at_fork(after_in_child=_leave_pools_to_the_parent)


def end_those_on(cluster: Any) -> None:
    """End the pools that use a cluster, which is about to stop."""
    pools = [driver for driver in list(live) if driver.source.is_on(cluster)]
    if any(driver.delivers_here() for driver in pools):
        raise RuntimeError(
            "a cluster cannot be stopped in the callback of a task on it: its pool would wait here for itself. Stop it "
            "in a thread of its own"
        )
    for driver in pools:
        driver.begin_to_end()
    for driver in pools:
        driver.wait_for_the_end()


def name_of(fn: Any) -> str:
    return fn if isinstance(fn, str) else str(getattr(fn, "__qualname__", type(fn).__qualname__))


class PoolDriver:
    def __init__(
        self,
        source: Any,
        initializer: Callable[..., Any] | None,
        initargs: tuple[Any, ...],
        restart: RestartPolicy | None,
        results_bytes_max: int,
        takes_pickles: bool = True,
    ) -> None:
        self.source = source
        self.takes_pickles = takes_pickles
        self.results_bytes_max = results_bytes_max
        self.events = EventLog()
        self.condition = new_condition()
        self.core: Any = _core._Pool(self.events)
        snapshots, all_forked = source.snapshots()
        self.definitions = Definitions(snapshots, all_forked, self.core.new_function, self._describe, takes_pickles)
        self.functions: dict[Any, Definition] = {}
        self._anonymous: weakref.WeakKeyDictionary[Any, Definition] = weakref.WeakKeyDictionary()  # such as lambdas
        self._pid = os.getpid()
        self._mappings: set[Any] = set()  # the maps that have more to submit
        self._ended = Latch()  # set when the workers have ended, too
        self._ending = Latch()  # set when nothing is to be tried or replaced any more
        self._deliveries = 0  # begun
        self._delivers = False  # the deliverer may be in a function of the user's, such as a future's callback
        self._stop_lock = threading.Lock()
        self._stopped = False
        self._tickets: queue.SimpleQueue[_core._Ticket | None] = queue.SimpleQueue()
        self._deliverer = threading.Thread(target=self._deliver, name="miniray-pool", daemon=True)
        self._replacer: threading.Thread | None = None
        self.workers = 0  # how many it begins with, and means to have
        for node in source.nodes:
            self.core.add_node(node.name, node.cpus, node.gpu_names, node.custom)
        first = self.function(initializer) if initializer is not None else None
        try:
            self.core.start(
                source.in_core(),
                restart._fields() if restart is not None else None,
                first and first.handle,
                initargs,
                self.needs_of(first) if first is not None else None,
                self.pack,
                takes_pickles,
            )
        except _unsendable.NeedsPickle as error:
            raise self.explain(error, initializer, initargs, {}) from None
        for worker, why in source.refused():
            self.events.add("worker_refused", why, worker=worker)
        try:
            for node_number, worker in source.first():
                self.core.add_worker(node_number, worker, source.may_be_silent(worker))
                self.workers += 1
            for node_number, link in source.links().items():
                self.core.set_link(node_number, link)
            live.add(self)
            self._deliverer.start()
        except BaseException:  # such as Ctrl-C
            self.begin_to_end()
            if self not in live or not self._ended.wait(_LAST_STEPS_S):  # the thread has not begun
                self._stop()
                self._drop_definitions()
            raise

    # Called by threads that submit tasks.

    def terms(self, options: Any) -> Any:
        return self.core.terms(
            options.num_cpus,
            options.num_gpus,
            dict(options.resources),
            options.node or "",
            options.strategy,
            options.timeout,
            options.retries,
        )

    def function(self, fn: Any, for_map: bool = False) -> Definition:
        """Return the function as the core knows it: by its name if that suffices, by value if a worker asks for that.

        What the function holds is sent as it is now. A change that a call makes there is not seen by the next call; of
        a map, not by the next map.
        """
        if isinstance(fn, str):
            made = self.functions.get(fn)
            if made is None:
                made = self.functions[fn] = self.definitions.of_name(fn)
            return made
        if not callable(fn):
            raise TypeError(f"submit takes a function and its arguments, not {_check.shown(fn)}")
        known = self.functions.get(fn) if type(fn).__hash__ is not None else None
        if known is None and isinstance(fn, _FUNCTION):
            known = self._anonymous.get(fn)
        if known is not None and (known.name is not None or has_no_state(fn)):
            return known
        made = self.definitions.of_function(fn, each_call_anew=not for_map)
        if made.name is not None:
            self.functions[fn] = made
        elif isinstance(fn, _FUNCTION) and not (for_map and may_change(fn)):
            if known is not None and is_same(known, made):
                return known  # nothing in its closure has changed since it was sent
            self._anonymous[fn] = made
        return made

    def needs_of(self, definition: Definition) -> Any:
        """Return what a worker has to be told of before it runs the function now; None if that is nothing."""
        if not definition.needs and not definition.globals and not definition.may_look_up:
            return None
        return self.definitions.handle_of(self.definitions.closure_of(definition), self.core.needs)

    def pack(self, thing: Any) -> tuple[Any, Any]:
        """Pickle arguments for any of the workers. Returns the pickle, and what a worker has to be told of first. None
        in place of the pickle: a message can hold them."""
        if not self.takes_pickles:
            _unsendable.require_plain_parts(thing)
            return None, None
        packed, closure = self.definitions.pack(thing)
        return packed, None if closure is None else self.definitions.handle_of(closure, self.core.needs)

    def explain(self, error: Exception, fn: Any, arguments: Any, keywords: Any) -> Exception:
        """Return the error of a task that could not be submitted, with the argument that is to blame."""
        return _unsendable.explain_call(error, name_of(fn), arguments, keywords, self.definitions.takes)

    def explain_items(self, error: Exception, fn: Any, items: Any, first: int) -> Exception:
        return _unsendable.explain_items(error, name_of(fn), items, first, self.definitions.takes)

    def _describe(self, definition: Definition) -> None:
        slot = "" if definition.slot is None else "{}:{}".format(*definition.slot)
        thing = definition.thing
        name = definition.name if thing is None else getattr(thing, "__qualname__", None) or type(thing).__qualname__
        self.core.describe(definition.handle, definition.described, definition.by_value, slot, name)

    def begin(self) -> None:
        """Raise if the pool takes no tasks. The core counts those that have not ended: Ctrl-C between two lines would
        spoil a count that is kept here."""
        if (why := self.core.broken()) is not None:
            raise PoolBroken(why)
        if self.core.refuses_tasks():
            raise RuntimeError("cannot schedule new futures after shutdown")

    @staticmethod
    def drop(driver: PoolDriver) -> None:
        """Shut down the pool that nobody refers to any more."""
        driver.shut_down(False, False)

    def shut_down(self, wait: bool, cancel_futures: bool) -> None:
        if os.getpid() != self._pid:
            return  # a forked child must not end its parent's pool
        self.core.refuse_tasks()
        if cancel_futures:
            self.core.cancel_waiting()
        for mapping in list(self._mappings):
            mapping.hurry(cancel_futures)
        self.core.nudge()
        if wait:
            self.wait_for_the_end()

    def end(self) -> None:
        """End the pool without finishing anything: what has not begun is cancelled; what runs is interrupted, and soon
        killed."""
        self.begin_to_end()
        self.wait_for_the_end()

    def begin_to_end(self, how: int = INTERRUPT) -> None:
        if os.getpid() != self._pid:
            return
        self.core.refuse_tasks()
        for mapping in list(self._mappings):
            mapping.hurry(True)
        self._ending.set()
        self.core.hurry(how)
        self.core.cancel_all()
        self.core.nudge()

    def refuse_to_wait_here(self) -> None:
        if os.getpid() != self._pid:
            self.core.wait_news()  # raises
        if self.delivers_here():
            raise RuntimeError(
                "this thread delivers the pool's results, so it would wait here forever. A future's callback, and what "
                "pickles an item of map, must not wait for a result of the same pool: wait in a thread of its own"
            )

    def note_mapping(self, mapping: Any, has_more: bool) -> None:
        """Note whether a map has more items to send. A shutdown waits for those that have."""
        if has_more:
            self._mappings.add(mapping)
        elif mapping in self._mappings:
            self._mappings.discard(mapping)
            if self.core.refuses_tasks():
                self.core.nudge()

    def delivers_here(self) -> bool:
        """Return whether this is the thread that hands out news."""
        return threading.current_thread() is self._deliverer

    def wait_for_the_end(self) -> None:
        """Wait until the workers have ended. The first Ctrl-C meanwhile interrupts what still runs, the second kills
        it."""
        if os.getpid() != self._pid or self.delivers_here():
            return
        for mapping in list(self._mappings):
            mapping.stop_iterating()
        interrupt, how = None, INTERRUPT
        while True:
            try:
                if self._ending.is_set():
                    self._end_despite_callbacks()
                self._ended.wait()
                if not self._delivers:
                    self._deliverer.join(_LAST_STEPS_S)
                break
            except BaseException as raised:  # whatever a signal's handler raises
                interrupt = interrupt or raised
                if how > KILL:
                    break
                self.begin_to_end(how)
                how += 1
        if interrupt is not None:
            raise interrupt

    def _end_despite_callbacks(self) -> None:
        """Wait until the workers have ended. If a callback blocks the thread that would end them, end them without it.

        That takes a thread of its own, because this one must stay free for a second Ctrl-C.
        """
        seen = self._deliveries
        while not self._ended.wait(_DELIVERY_S):
            if self._delivers and self._deliveries == seen:
                threading.Thread(target=self._stop, name="miniray-pool-end", daemon=True).start()
                return
            seen = self._deliveries

    def _stop(self) -> None:
        """End the workers. The thread that delivers and one that does not wait for it may both call this."""
        with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
            try:
                self._end_workers()
            finally:
                live.discard(self)
                self._ended.set()

    # The thread that hands out news.

    def _deliver(self) -> None:
        """Deliver until the end. No exception may end the thread while somebody waits for a future: whatever goes wrong
        ends the tasks with PoolBroken, and what is left is delivered."""
        try:
            for attempt in range(_DELIVERIES_MAX):
                try:
                    self._deliver_until_the_end()
                    break
                except BaseException as error:
                    _LOGGER.exception("a pool cannot go on after this")
                    if attempt == 0:
                        self.core.break_down(f"the pool cannot go on: {type(error).__name__}: {error}")
        finally:
            self._delivers = False
            self._stop()
            self._drop_definitions()

    def _deliver_until_the_end(self) -> None:
        while self._mappings or not self.core.is_finished():
            self._delivers = False
            news = self.core.wait_news()
            if news is None:
                break
            self._deliveries += 1
            self._delivers = True
            outcomes, tickets, unknown, noted = news
            if noted:
                self.events._log_new()
            for outcome in outcomes:
                try:
                    self._settle(*outcome)
                except BaseException:  # a callback raised; those of other futures are still to come
                    _LOGGER.exception("a pool's thread goes on after this")
            if outcomes:
                del outcome
            del outcomes, news  # futures are not kept alive while this waits
            asked = [self.definitions.by_number(number) for number in unknown]
            self._send_by_value([definition for definition in asked if definition is not None])
            for ticket in tickets:
                self._tickets.put(ticket)
                if self._replacer is None and not self._ending.is_set():
                    replacer = threading.Thread(target=self._replace, name="miniray-pool-workers", daemon=True)
                    try:
                        replacer.start()
                    except RuntimeError as error:  # the system has no room for a thread; the core tries again
                        if (waiting := self._tickets.get()) is not None:
                            waiting.fail(str(error))
                    else:
                        self._replacer = replacer

    def _end_workers(self) -> None:
        self._tickets.put(None)
        self._ending.set()
        self.core.stop()
        if self._replacer is not None:
            self._replacer.join(_LAST_STEPS_S)  # it may be in a function of the user's
        self.source.close()

    def _drop_definitions(self) -> None:
        """Drop what tasks were made of. Python keeps a pool's finalizer until the very end, and that must not keep the
        script's globals, too."""
        self.definitions.clear()
        self.functions.clear()
        self._anonymous.clear()

    def _settle(self, owner: Any, kind: str, what: Any, worker: str | None, size: int, extra: Any) -> None:
        if type(owner) is not PoolFuture:
            owner.settle(kind, what, worker, size, extra)
            return
        if kind == "value":
            self._finish(owner, what, None)
            return
        if kind == "cancelled":
            owner._cancelled_by_pool()
            return
        value, error = None, None
        try:
            if kind == "pickle":
                value = _pickling.unpickled(what, self.definitions)
            else:
                error = self.error_of(owner._options, kind, what, worker or "", extra)
        except BaseException as unreadable:
            error = unreadable
            if kind == "pickle":
                self.core.count_unreadable()
        if kind not in ("pickle", "unreadable") and error is not None and self._try_again(owner, error, extra):
            return
        self._finish(owner, value, error)

    @staticmethod
    def _finish(future: PoolFuture[Any], value: Any, error: BaseException | None) -> None:
        if future._state != "PENDING":
            return  # it was cancelled
        try:
            future._finish(value, error)
        except InvalidStateError:
            pass  # in this very moment

    def _try_again(self, future: PoolFuture[Any], error: BaseException, task: _core._Task) -> bool:
        """Submit a task once more after an exception that its terms name."""
        if not task.may_be_tried_again or not isinstance(error, future._options.retry_on):
            return False
        if self._ending.is_set() or future.cancelled():
            return False  # the pool ends, or nobody wants the result any more
        self.events.add("task_retried", f"it raised {type(error).__name__}: {error}")
        self.core.resubmit(task, future)
        if future.cancelled():  # in this very moment
            self.core.cancel(future._number, True)
        return True

    def error_of(self, options: Any, kind: str, what: Any, worker: str, task: Any) -> BaseException:
        if kind == "unreadable":
            if not isinstance(what, ProtocolError | MemoryError):
                return what  # type: ignore[no-any-return]
            unreadable = ProtocolError(f"{worker} sent a reply that cannot be read: {what or type(what).__name__}")
            unreadable.__cause__ = what
            return unreadable
        name = "the task" if options.name is None else f'the task "{options.name}"'
        if kind == "error":
            return _call_errors.error_in(worker, what, self.definitions)
        if kind == "died":
            error: BaseException = what
            of = "" if options.name is None else f" of {name}"
            limit = "" if options.memory_bytes is None else f" (memory_bytes={options.memory_bytes})"
            tries = "" if task.tries < 2 else f", which was tried {task.tries} times"
            error.args = (f"{error}\nIt died while running {self._running(task)}{of}{limit}{tries}.",)
            return error
        if kind == "timeout":
            doing = f". It was doing this:\n{what}" if what else ""
            return TaskTimeout(f"{name} ran for more than {options.timeout} s in {worker}, which was ended{doing}")
        if kind == "broken":
            return PoolBroken(what)
        return CancelledError("the task was cancelled")

    def _running(self, task: Any) -> str:
        """Return a task's call as text for people: score(sample={'id': 3})."""
        name = task.function_name
        try:
            number, arguments, rest, *_ = task.call()
            keywords = None if task.is_map else rest
            if isinstance(arguments, dict):
                unpacked = outlined(arguments, self._name_of)
                arguments, keywords = (unpacked, None) if task.is_map else unpacked
            if task.is_map:
                [item] = arguments
                arguments = item if rest else [item]
            thing = self.definitions.thing_or_none(number)
            return f"{name}({describe_arguments(thing, arguments, keywords or {})})"
        except Exception:
            return f"{name}(...)"

    def _name_of(self, number: int) -> str:
        thing = self.definitions.thing_or_none(number)
        return str(getattr(thing, "__qualname__", "?"))

    def _send_by_value(self, unknown: list[Definition]) -> None:
        """Send workers the values of functions that they do not know by name. All values are made before it is asked
        what each of them needs: they may need each other."""
        for definition in unknown:
            with self._or_say_why(definition):
                self.definitions.to_value(definition)
        if unknown:
            for handle, handles in self.definitions.grown():
                self.core.change_needs(handle, handles)
        for definition in unknown:
            needs: list[Definition] = []
            with self._or_say_why(definition):
                needs = self.definitions.closure_of(definition).definitions
            self.core.redefine(definition.handle, definition.described, [one.handle for one in needs])

    @contextmanager
    def _or_say_why(self, definition: Definition) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # whatever the script's objects raise when they are pickled
            definition.described = {"missing": f"{definition.name} cannot be sent to another process: {error}"}

    # The thread that replaces workers where the core cannot, because it may have to call the user's functions.

    def _replace(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            if self._ending.is_set():
                continue
            try:
                worker = self.source.replace(ticket.node, ticket.gone)
                if self._ending.is_set():  # the pool has ended meanwhile
                    worker.kill()
                    continue
                ticket.fill(worker)
            except LookupError as error:
                ticket.refuse(str(error))
            except Exception as error:
                ticket.fail(str(error))

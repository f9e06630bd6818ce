"""Collective operations among workers. Those of one machine share memory; those of several are connected by TCP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from miniray import _core
from miniray.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miniray._core import Handle


def create_group(
    workers: Iterable[Any],
    timeout: float | None = None,
    *,
    ports: tuple[int, int] | None = None,
    unreachable_s: float = _core.limits.unreachable_ms / 1000,
    encrypt: bool | None = None,
) -> None:
    """Make a group of these workers: the n-th worker has rank n. Each of them must call ``Group(handle)`` next.

    ``timeout`` is how many seconds a call of a rank waits for the others; by default, 600.

    If all workers are processes of this machine, it returns at once. Otherwise it waits until all ranks have joined and
    are connected to each other. It raises GroupBroken, which names ranks, addresses and causes, if some cannot connect,
    WorkerDied if a worker dies, and TimeoutError, which names the missing ranks, after ``timeout``; the ranks that have
    joined raise GroupBroken then, and the workers can be used further. ``ports`` is the range of ports, as
    (first, last), on which the ranks listen meanwhile; by default they take any free ports. A machine that does not
    answer for ``unreachable_s`` seconds is treated as gone. What ranks of different machines send to each other is
    encrypted, unless ``encrypt`` is False, or it is None and all connections to workers on other machines were made
    with ``encrypt=False``, such as those of a cluster.
    """
    first, last = (0, 0) if ports is None else ports
    if ports is not None and first == 0:
        raise UsageError(f"the ports of a group are a range of numbers from 1 to 65535, not {first} to {last}")
    if timeout is None:
        timeout = _core.limits.group_timeout_ms / 1000
    _core._create_group(list(workers), timeout, first, last, unreachable_s, encrypt)


class Group:
    """A rank of a group, in a worker. ``Group(handle)`` receives the invitation that ``create_group(workers)`` in the
    coordinator has sent, and waits until all ranks have joined.

        def work(handle):
            group = miniray.Group(handle)
            gradients = np.ones(1000, np.float32) * group.rank
            group.all_reduce(gradients)                # every rank has the sum now

    All ranks make the same calls in the same order, with arrays of the same size and dtype: C-contiguous numpy arrays,
    torch tensors on the CPU, or other objects with such memory. Every rank gets the same bits. ``op`` is "sum",
    "product", "min" or "max".

    If a rank dies, leaves or makes another call, the calls of all others raise GroupBroken, which names the rank,
    within a second or two. If a rank is missing for longer than the time-out, they raise TimeoutError. The group cannot
    be used afterwards.
    """

    def __init__(self, handle: Handle) -> None:
        self._core = _core.Group(handle)

    @classmethod
    def join(cls, handle: Handle) -> Group:
        """Do the same as ``Group(handle)``, as in C++."""
        return cls(handle)

    @property
    def rank(self) -> int:
        """This worker's position in the list that the coordinator gave to ``create_group``."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._core.size

    def barrier(self) -> None:
        """Wait until all ranks have called ``barrier()``."""
        self._core.barrier()

    def all_reduce(self, array: Any, op: str = "sum") -> Any:
        """Replace the elements of every rank's array by their reduction over all ranks. Returns the array."""
        self._core.all_reduce(_memory(array), op)
        return array

    def reduce(self, array: Any, op: str = "sum", root: int = 0) -> Any:
        """Replace the elements of the root's array by the reduction over all ranks. Returns the array."""
        self._core.reduce(_memory(array), op, root)
        return array

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Replace the elements of every rank's array by those of the root. Returns the array."""
        self._core.broadcast(_memory(array), root)
        return array

    def scatter(self, all: Any, part: Any, root: int = 0) -> Any:
        """Fill every rank's ``part`` with its share of the root's ``all``, which has the parts of all ranks in their
        order. Other ranks may pass None for ``all``. Returns ``part``."""
        self._core.scatter(_memory(all) if self.rank == root else None, _memory(part), root)
        return part

    def gather(self, part: Any, root: int = 0) -> Any:
        """Return the parts of all ranks to the root, as a new array whose first dimension is the rank. Other ranks get
        None."""
        memory = _memory(part)
        all_parts = _new(part, self.size) if self.rank == root else None
        self._core.gather(memory, None if all_parts is None else _memory(all_parts), root)
        return all_parts

    def all_gather(self, part: Any) -> Any:
        """Return the parts of all ranks to every rank, as a new array whose first dimension is the rank."""
        all_parts = _new(part, self.size)
        self._core.gather(_memory(part), _memory(all_parts), -1)
        return all_parts

    def reduce_scatter(self, all: Any, part: Any, op: str = "sum") -> Any:
        """Fill every rank's ``part`` with its share of the reduction of ``all`` over all ranks. Returns ``part``."""
        self._core.reduce_scatter(_memory(all), _memory(part), op)
        return part


def _torch() -> Any:
    return sys.modules.get("torch")


def _memory(array: Any) -> Any:
    """Return an object whose memory is that of the array, and which has the buffer protocol."""
    torch = _torch()
    if torch is not None and isinstance(array, torch.Tensor):
        if array.device.type != "cpu":
            raise TypeError(f"a group handles tensors on the CPU, and this one is on {array.device}; use tensor.cpu()")
        if not array.is_contiguous():
            raise ValueError("the tensor is not contiguous; use tensor.contiguous()")
        return array.detach().numpy()
    flags = getattr(array, "flags", None)
    if flags is not None and not getattr(flags, "c_contiguous", True):
        raise ValueError("the array is not C-contiguous; use numpy.ascontiguousarray(array)")
    return array


def _new(part: Any, size: int) -> Any:
    """Return an uninitialised array like ``size`` parts."""
    torch = _torch()
    if torch is not None and isinstance(part, torch.Tensor):
        return part.new_empty((size, *part.shape))
    import numpy

    like = numpy.asarray(part)
    return numpy.empty((size, *like.shape), like.dtype)

"""Collective operations among workers of one machine, through memory that all of them share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from miniray import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miniray._core import Handle


def create_group(workers: Iterable[Any], timeout: float | None = None) -> None:
    """Make a group of these workers: the n-th worker has rank n. Each of them must call ``Group(handle)`` next.

    ``timeout`` is how many seconds a call of a rank waits for the others; by default, 600. Raises UsageError, and
    invites nobody, if a worker is on another machine.
    """
    _core._create_group(list(workers), _core.limits.group_timeout_ms / 1000 if timeout is None else timeout)


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
    within a second. If a rank is missing for longer than the time-out, they raise TimeoutError. The group cannot be
    used afterwards.
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

"""Converts arrays of numpy and tensors of torch for messages, and back.

Neither library is required: a sender that has an array has already imported its library, and a receiver without numpy
gets a ``miniray.Array``.
"""

from __future__ import annotations

import importlib
import operator
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from miniray._core import Array, _make_array

if TYPE_CHECKING:
    from collections.abc import Sequence


@cache
def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def empty(shape: int | Sequence[int], dtype: Any = "float64") -> Any:
    """Return an uninitialised numpy array in memory that is sent to processes of this machine without a copy.

    Sending it, alone or inside a message, makes the array and the arrays that it is a view of read-only, because the
    receivers use the same memory. What a receiver writes to its array, only the receiver sees. Other views that were
    made before the send, and tensors that share the memory, must not be written to either. The memory is used again
    when neither this process nor a receiver has the array any more. To other machines, it is sent like any array. So
    are arguments of a pool's tasks, of which the pool keeps a copy.

    Without numpy, it returns a ``miniray.Array``.
    """
    try:
        extents = tuple(operator.index(extent) for extent in ((shape,) if hasattr(shape, "__index__") else shape))
    except TypeError:
        raise TypeError(f"the shape of an array is an int or a tuple of ints, and this shape is {shape!r}") from None
    if any(extent < 0 for extent in extents):
        raise ValueError(f"the shape of an array has integers that are not negative, and this shape is {shape!r}")
    numpy = _library("numpy")
    text = str(dtype)
    if text.startswith("torch."):
        name = text.removeprefix("torch.")
    elif numpy is None or text == "bfloat16":
        name = text
    else:
        name = numpy.dtype(dtype).name
    return build(_make_array(name, extents))


def build(array: Array) -> Any:
    """Return the receiver's object for a received array: a tensor, a numpy array, or the ``miniray.Array`` itself."""
    numpy, torch = _library("numpy"), _library("torch") if array.form == "tensor" else None
    dtype, shape = array.dtype, array.shape
    if torch is not None:
        if array.nbytes == 0:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        return torch.frombuffer(array, dtype=getattr(torch, dtype)).reshape(shape)
    if numpy is None:
        return array
    if dtype == "bfloat16":  # numpy has no bfloat16; its bits are the upper half of a float32
        bits = numpy.ndarray(shape, "uint16", array)
        return (bits.astype("uint32") << 16).view("float32")
    return numpy.ndarray(shape, dtype, array)


def describe(thing: Any) -> tuple[str, Any, Any]:
    """Return how to send an object: ("value", plain object, None), or ("array" or "tensor", memory, name of the dtype,
    None for the memory's own), or ("refuse", what the object is, cure)."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(thing, numpy.ndarray):
        return _describe_ndarray(numpy, thing)
    if numpy is not None and isinstance(thing, (numpy.datetime64, numpy.timedelta64)):
        return "refuse", f"a numpy.{type(thing).__name__}", "convert it to a number or a str"
    if numpy is not None and isinstance(thing, numpy.generic):
        plain = thing.item()
        if isinstance(plain, (int, float, str, bytes)) and not isinstance(plain, numpy.generic):
            return "value", plain, None
        if isinstance(plain, complex):
            return "array", numpy.asarray(thing), None
        return "refuse", f"a numpy.{type(thing).__name__}", "convert it to a number or a str"
    if torch is not None and isinstance(thing, torch.Tensor):
        return _describe_tensor(torch, thing)
    from miniray import _unsendable

    return "refuse", *_unsendable.describe(thing)


def is_exact(thing: Any) -> bool:
    """Return whether the receiver gets an equal object of the same type for an array or a tensor."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(thing) is numpy.ndarray:
        return thing.dtype.kind in "biufc" and thing.dtype.isnative and thing.dtype.itemsize <= 16
    if torch is not None and type(thing) is torch.Tensor:
        return thing.device.type == "cpu" and thing.layout == torch.strided and not thing.requires_grad
    return False


def _describe_ndarray(numpy: Any, array: Any) -> tuple[str, Any, Any]:
    if isinstance(array, numpy.ma.MaskedArray):
        return "refuse", "a masked array", "send its data and its mask"
    if array.dtype.name == "bfloat16":  # a dtype of the package ml_dtypes, which JAX uses
        return "array", numpy.ascontiguousarray(array).view("uint16").reshape(array.shape), "bfloat16"
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        return "refuse", f"an array of {array.dtype}", "convert it to a numeric dtype"
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = numpy.ascontiguousarray(array)
    return "array", array, None


def _describe_tensor(torch: Any, tensor: Any) -> tuple[str, Any, Any]:
    if tensor.device.type != "cpu":
        return "refuse", f"a tensor on {tensor.device}", "send tensor.cpu()"
    if tensor.layout != torch.strided:
        return "refuse", f"a tensor of layout {tensor.layout}", "send tensor.to_dense()"
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    dtype = str(dense.dtype).removeprefix("torch.")
    if dtype == "bfloat16":
        return "tensor", dense.view(torch.int16).numpy(), dtype
    try:
        return "tensor", dense.numpy(), dtype
    except TypeError:
        return "refuse", f"a tensor of {dtype}", "convert it to a dtype that numpy has, or to bfloat16"

"""What this machine has, GPUs and NUMA nodes, and running next to one's GPU."""

from __future__ import annotations

from dataclasses import dataclass

from miniray import _check, _core


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees. ``index`` is its number among all of the machine; ``numa_node`` -1: not known."""

    index: int
    name: str
    uuid: str
    pci_address: str
    memory_bytes: int
    numa_node: int
    visible_as: str


@dataclass(frozen=True)
class NumaNode:
    """Memory, and the CPUs next to it."""

    index: int
    cpus: list[int]


@dataclass(frozen=True)
class Machine:
    """``gpus`` are those that this process sees, as CUDA numbers them; ``notes`` say what is not known, and why."""

    gpus: list[Gpu]
    numa_nodes: list[NumaNode]
    driver_version: str
    notes: list[str]


def discover_machine() -> Machine:
    """Ask the NVIDIA driver (NVML) and hwloc. A machine without either has a note that says so."""
    gpus, numa_nodes, driver_version, notes = _core._discover_machine()
    return Machine([Gpu(*gpu) for gpu in gpus], [NumaNode(*node) for node in numa_nodes], driver_version, notes)


def get_gpu_numa_node(gpu_id: int) -> int:
    """The NUMA node of the GPU that this process sees as cuda:``gpu_id``; -1 if it is not known."""
    return _core._get_gpu_numa_node(_check.integer("gpu_id", gpu_id, 0))


def set_gpu_affinity(gpu_id: int) -> list[int]:
    """Run this thread, and what it starts from now on, on the CPUs next to cuda:``gpu_id``, and return which.

    If it is not known which are, or all are, nothing changes and the list is empty.
    """
    return _core._set_gpu_affinity(_check.integer("gpu_id", gpu_id, 0))

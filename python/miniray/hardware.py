"""Finds the GPUs and NUMA nodes of this machine, and runs a process on the CPUs next to its GPU."""

from __future__ import annotations

from dataclasses import dataclass

from miniray import _check, _core


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees. ``index`` is its number among all GPUs of the machine. ``numa_node`` is -1 if it is
    not known. ``visible_as`` is the entry of CUDA_VISIBLE_DEVICES that names it in this process."""

    index: int
    name: str
    uuid: str
    pci_address: str
    memory_bytes: int
    numa_node: int
    visible_as: str


@dataclass(frozen=True)
class NumaNode:
    """A part of the memory, and the CPUs next to it that this process may use."""

    index: int
    cpus: list[int]


@dataclass(frozen=True)
class Machine:
    """The hardware of this machine. ``gpus`` are the GPUs that this process sees, in CUDA's order; ``notes`` say what
    could not be found out, why, and what to install."""

    gpus: list[Gpu]
    numa_nodes: list[NumaNode]
    driver_version: str
    notes: list[str]


def discover_machine() -> Machine:
    """Ask the NVIDIA driver (NVML) and hwloc for the hardware. If one of them is missing, a note says so."""
    gpus, numa_nodes, driver_version, notes = _core._discover_machine()
    return Machine([Gpu(*gpu) for gpu in gpus], [NumaNode(*node) for node in numa_nodes], driver_version, notes)


def get_gpu_numa_node(gpu_id: int) -> int:
    """Return the NUMA node of the GPU that this process sees as cuda:``gpu_id``, or -1 if it is not known. Raises
    UsageError if the process sees no such GPU."""
    return _core._get_gpu_numa_node(_check.integer("gpu_id", gpu_id, 0))


def set_gpu_affinity(gpu_id: int) -> list[int]:
    """Move this thread, and every thread and process that it starts from now on, to the CPUs next to cuda:``gpu_id``,
    and return these CPUs.

    If they are not known, or are all CPUs, nothing changes, and the list is empty. Raises UsageError if the process
    sees no such GPU.
    """
    return _core._set_gpu_affinity(_check.integer("gpu_id", gpu_id, 0))

"""A machine that another is described as: 8 GPUs on 2 NUMA nodes. No such machine is needed, and none is had."""

from __future__ import annotations

from pathlib import Path


def described_machine(root: Path, cpus_per_node: int = 1) -> dict[str, str]:
    """The variables that describe it. With one CPU on each NUMA node, these are CPUs 0 and 1 of the real machine."""
    return {
        "MINIRAY_NVML_LIBRARY": str(root / "build/release/tests/libfake_nvml.so"),
        "HWLOC_SYNTHETIC": f"numa:2 core:{cpus_per_node} pu:1",
    }

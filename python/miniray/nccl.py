"""What torch.distributed and NCCL need to know to find each other, for each process of a group."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from miniray import _core


@dataclass
class NCCLConfig:
    """One process's place in a group.

    ``config.__dict__`` can be sent as a message, and ``NCCLConfig(**handle.recv())`` makes it a config again.
    ``interface`` is there only where Gloo would choose a network interface that the other nodes cannot reach.
    """

    master_addr: str
    master_port: int = _core.limits.master_port
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    interface: str | None = None

    def __post_init__(self) -> None:
        if self.interface is None:
            self.__dict__.pop("interface", None)  # the class says None; the message need not
        if not isinstance(self.master_addr, str):
            raise TypeError(f"master_addr is a str, the name or the address of rank 0's node, not {self.master_addr!r}")
        for name in ("master_port", "world_size", "rank", "local_rank"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} is an int, not {value!r}")
        _core._check_nccl_config(self._fields())

    def _fields(self) -> tuple[str, int, int, int, int, str]:
        return self.master_addr, self.master_port, self.world_size, self.rank, self.local_rank, self.interface or ""


def create_nccl_configs(
    master_addr: str, nodes: Iterable[tuple[str, int]], master_port: int = _core.limits.master_port
) -> list[NCCLConfig]:
    """A config for each process of ``nodes=[(name, number of processes), ...]``, in that order.

    Rank 0 is the first process of the first node, and ``master_addr`` is that node, as the others can reach it.
    """
    listed = list(nodes)
    for node in listed:
        if len(node) != 2 or not isinstance(node[1], int):
            raise TypeError(f'nodes are pairs such as ("node1", 4), not {node!r}')
    made = _core._create_nccl_configs(master_addr, listed, master_port)
    return [NCCLConfig(**config) for config in made]


def setup_nccl_env(config: NCCLConfig) -> dict[str, str | None]:
    """Set MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK, for ``init_process_group(init_method="env://")``.

    Returns what they were before (None: not set), for ``restore_nccl_env``.
    """
    variables = _core._nccl_env(config._fields())
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    return before


def restore_nccl_env(before: Mapping[str, str | None]) -> None:
    """Undo ``setup_nccl_env``."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def print_nccl_config(config: NCCLConfig) -> None:
    """One line: the rank, the size of the group, and where its master is."""
    print(_core._describe_nccl_config(config._fields()), flush=True)

"""The settings with which the processes of a group find each other in torch.distributed and NCCL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from miniray import _check, _core
from miniray.errors import UsageError


@_check.suggest_arguments()
@dataclass
class NCCLConfig:
    """The settings of one process of a group.

    ``config.__dict__`` can be sent as a message, and ``NCCLConfig(**handle.recv())`` makes a config of it again.
    ``interface`` is set only if Gloo would by itself choose a network interface that the other nodes cannot reach.
    """

    master_addr: str
    master_port: int = _core.limits.master_port
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    interface: str | None = None

    def __post_init__(self) -> None:
        if self.interface in (None, ""):
            self.__dict__.pop("interface", None)  # keeps it out of __dict__, which is sent; the class has the default
        _core._check_nccl_config(_fields(self))


def _fields(config: NCCLConfig) -> tuple[str, int, int, int, int, str]:
    """The fields as the core takes them. They are checked each time, because a program may have assigned to them."""
    if not isinstance(config, NCCLConfig):
        raise TypeError(f"config is an NCCLConfig, such as NCCLConfig(**handle.recv()), not {config!r}")
    _check_address(config.master_addr)
    numbers = config.master_port, config.world_size, config.rank, config.local_rank
    for name, number in zip(("master_port", "world_size", "rank", "local_rank"), numbers, strict=True):
        _check_number(name, number)
    if not isinstance(config.interface, str | None):
        raise TypeError(f"interface is a str, the name of a network interface, or None, not {config.interface!r}")
    return config.master_addr, *numbers, config.interface or ""


def _check_address(address: str) -> None:
    if not isinstance(address, str):
        raise TypeError(f"master_addr is a str, the name or the address of rank 0's node, not {address!r}")


def _check_number(name: str, number: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} is an int, not {number!r}")
    if not -(2**31) <= number < 2**31:
        raise UsageError(f"{name} is out of range: {number}")


def create_nccl_configs(
    master_addr: str, nodes: Iterable[tuple[str, int]], master_port: int = _core.limits.master_port
) -> list[NCCLConfig]:
    """Return one config for each process of ``nodes=[(name, number of processes), ...]``, in that order.

    Rank 0 is the first process of the first node. ``master_addr`` is an address of that node that all others reach.
    """
    _check_address(master_addr)
    _check_number("master_port", master_port)
    listed = list(nodes)
    for node in listed:
        if not isinstance(node, tuple | list) or [type(part) for part in node] != [str, int]:
            raise TypeError(f'nodes are pairs such as ("node1", 4), not {node!r}')
        _check_number(f"the number of processes of {node[0]}", node[1])
    made = _core._create_nccl_configs(master_addr, listed, master_port)
    return [NCCLConfig(**config) for config in made]


def setup_nccl_env(config: NCCLConfig) -> dict[str, str | None]:
    """Set MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and LOCAL_RANK, for ``init_process_group(init_method="env://")``.

    Returns the values that they had before (None: not set), for ``restore_nccl_env``.
    """
    variables = _core._nccl_env(_fields(config))
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
    """Print one line: the rank, the size of the group, and the address of its master."""
    print(_core._describe_nccl_config(_fields(config)), flush=True)

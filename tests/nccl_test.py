"""A process's place in a group: its fields, as a message, in the environment, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

import pytest

from miniray import (
    NCCLConfig,
    UsageError,
    Worker,
    create_nccl_configs,
    print_nccl_config,
    restore_nccl_env,
    setup_nccl_env,
)

VARIABLES = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"}
ADDRESS = "master_addr is the name or the address of rank 0's node, such as 10.0.0.1, not "


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without what the tests set; afterwards as it was, whatever they leave."""
    for name in (*VARIABLES, "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "to be put back as it was")
        monkeypatch.delenv(name)
    return monkeypatch


# --- A config ---------------------------------------------------------------------------------------------------------
def test_fields_and_defaults() -> None:
    config = NCCLConfig("10.0.0.1")
    assert [field.name for field in dataclasses.fields(NCCLConfig)] == [
        "master_addr",
        "master_port",
        "world_size",
        "rank",
        "local_rank",
        "interface",
    ]
    assert dataclasses.astuple(config) == ("10.0.0.1", 29500, 1, 0, 0, None)
    assert dataclasses.astuple(NCCLConfig("node1", 29501, 8, 5, 1, "eth0")) == ("node1", 29501, 8, 5, 1, "eth0")
    assert repr(config) == (
        "NCCLConfig(master_addr='10.0.0.1', master_port=29500, world_size=1, rank=0, local_rank=0, interface=None)"
    )


def test_an_interface_is_in_the_message_only_if_there_is_one() -> None:
    """Else a program that knows the five fields alone could not take it."""
    five = {"master_addr": "10.0.0.1", "master_port": 29500, "world_size": 1, "rank": 0, "local_rank": 0}
    for interface in (None, ""):
        assert NCCLConfig("10.0.0.1", interface=interface).__dict__ == five
    config = NCCLConfig("10.0.0.1", interface="eth0")
    assert config.__dict__ == five | {"interface": "eth0"}
    for one in (config, NCCLConfig("10.0.0.1")):
        assert copy.deepcopy(one) == dataclasses.replace(one) == one
    assert config != NCCLConfig("10.0.0.1")


def take_config(handle: Any) -> None:
    config = NCCLConfig(**handle.recv())
    before = setup_nccl_env(config)
    handle.send([config == NCCLConfig(**handle.recv()), config.__dict__, {name: os.environ[name] for name in before}])


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize("interface", [None, "eth0"])
def test_a_config_is_a_message(codec: str, interface: str | None, environment: pytest.MonkeyPatch) -> None:
    config = NCCLConfig("fd00::1", 29501, 4, 3, 1, interface)
    with Worker(take_config, codec) as worker:
        worker.send(config.__dict__)
        worker.send(config.__dict__)
        same, back, variables = worker.recv()
    assert same
    assert NCCLConfig(**back) == config
    assert variables == {
        "MASTER_ADDR": "fd00::1",
        "MASTER_PORT": "29501",
        "WORLD_SIZE": "4",
        "RANK": "3",
        "LOCAL_RANK": "1",
        **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
    }


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"master_addr": ""}, ADDRESS + '""'),
        ({"master_addr": "node 1"}, ADDRESS + '"node 1"'),
        ({"master_addr": "user@node1"}, ADDRESS + '"user@node1"'),
        ({"master_addr": "node1\n"}, ADDRESS + '"node1\n"'),
        ({"master_addr": "tcp://node1"}, ADDRESS + '"tcp://node1"; leave out the scheme'),
        ({"master_addr": "node1:29500"}, ADDRESS + '"node1:29500"; the port goes into master_port'),
        ({"master_port": 0}, "master_port is a number from 1 to 65535, not 0"),
        ({"master_port": 65536}, "master_port is a number from 1 to 65535, not 65536"),
        ({"master_port": 2**40}, "master_port is out of range: 1099511627776"),
        ({"world_size": 0}, "world_size is a number from 1 to 1000000, not 0"),
        ({"world_size": 1_000_001}, "world_size is a number from 1 to 1000000, not 1000001"),
        ({"world_size": -(2**31) - 1}, "world_size is out of range: -2147483649"),
        ({"rank": -1}, "rank is a number from 0 to 0 (world_size is 1), not -1"),
        ({"rank": 4, "world_size": 4}, "rank is a number from 0 to 3 (world_size is 4), not 4"),
        ({"local_rank": -1}, "local_rank is a number from 0 to 0 (world_size is 1), not -1"),
        ({"local_rank": 4, "world_size": 4}, "local_rank is a number from 0 to 3 (world_size is 4), not 4"),
        ({"interface": "eth 0"}, 'interface is the name of a network interface, such as eth0, not "eth 0"'),
        ({"interface": "/dev/eth0"}, 'interface is the name of a network interface, such as eth0, not "/dev/eth0"'),
    ],
)
def test_a_field_that_cannot_be_right_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        NCCLConfig(**{"master_addr": "10.0.0.1", **fields})
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"master_addr": None}, "master_addr is a str, the name or the address of rank 0's node, not None"),
        ({"master_addr": b"node1"}, "master_addr is a str, the name or the address of rank 0's node, not b'node1'"),
        ({"master_port": "29500"}, "master_port is an int, not '29500'"),
        ({"world_size": 2.0}, "world_size is an int, not 2.0"),
        ({"rank": True}, "rank is an int, not True"),
        ({"local_rank": None}, "local_rank is an int, not None"),
        ({"interface": 5}, "interface is a str, the name of a network interface, or None, not 5"),
        ({"status": "ready"}, "NCCLConfig() has no argument 'status'"),
    ],
)
def test_a_field_of_another_type_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as refused:
        NCCLConfig(**{"master_addr": "10.0.0.1", **fields})
    assert str(refused.value) == text


def test_ends_of_the_ranges() -> None:
    for fields in (
        {"master_port": 1},
        {"master_port": 65535},
        {"world_size": 1_000_000, "rank": 999_999, "local_rank": 999_999},
    ):
        config = NCCLConfig("a", **fields)
        assert config.__dict__.items() >= fields.items()


# --- A config for each process ----------------------------------------------------------------------------------------
def test_ranks_follow_the_nodes() -> None:
    """As seed 000 calls it."""
    configs = create_nccl_configs(
        master_addr="192.168.1.10",
        nodes=[("node1", 4), ("node2", 4)],
        master_port=29501,  # Different port!
    )
    assert configs == [NCCLConfig("192.168.1.10", 29501, 8, rank, rank % 4) for rank in range(8)]
    uneven = create_nccl_configs("node1", iter([("node1", 1), ["node2", 3]]))
    assert [(config.rank, config.local_rank) for config in uneven] == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert {config.master_port for config in uneven} == {29500}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("a", []), UsageError, "nodes is empty; it is a list of at least one (name, number of processes)"),
        (("a", [("node1", 0)]), UsageError, "each node needs at least one process, and node1 has 0"),
        (("a", [("n", 2**30), ("m", 2**30)]), UsageError, "world_size is a number from 1 to 1000000, not 2147483647"),
        (("a", [("n", 2**40)]), UsageError, "the number of processes of n is out of range: 1099511627776"),
        (("a:1", [("n", 1)]), UsageError, ADDRESS + '"a:1"; the port goes into master_port'),
        (("a", [("n", 1)], 0), UsageError, "master_port is a number from 1 to 65535, not 0"),
        (("a", [("n", 1)], "1"), TypeError, "master_port is an int, not '1'"),
        ((5, [("n", 1)]), TypeError, "master_addr is a str, the name or the address of rank 0's node, not 5"),
        (("a", {"node1": 4}), TypeError, "nodes are pairs such as (\"node1\", 4), not 'node1'"),
        (("a", ["n4"]), TypeError, "nodes are pairs such as (\"node1\", 4), not 'n4'"),
        (("a", [4]), TypeError, 'nodes are pairs such as ("node1", 4), not 4'),
        (("a", [("n", 4.0)]), TypeError, "nodes are pairs such as (\"node1\", 4), not ('n', 4.0)"),
        (("a", [("n", True)]), TypeError, "nodes are pairs such as (\"node1\", 4), not ('n', True)"),
        (("a", [(1, 4)]), TypeError, 'nodes are pairs such as ("node1", 4), not (1, 4)'),
        (("a", [("n", 4, 5)]), TypeError, "nodes are pairs such as (\"node1\", 4), not ('n', 4, 5)"),
    ],
)
def test_nodes_that_cannot_be_right_are_refused(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as refused:
        create_nccl_configs(*arguments)
    assert str(refused.value) == text


# --- The environment --------------------------------------------------------------------------------------------------
def test_the_environment_is_set_and_given_back(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("RANK", "7")
    environment.setenv("MASTER_PORT", "")
    before = setup_nccl_env(NCCLConfig("10.0.0.1", 29501, 4, 2, 1))
    assert {name: os.environ[name] for name in VARIABLES} == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29501",
        "WORLD_SIZE": "4",
        "RANK": "2",
        "LOCAL_RANK": "1",
    }
    assert before == {"MASTER_ADDR": None, "MASTER_PORT": "", "WORLD_SIZE": None, "RANK": "7", "LOCAL_RANK": None}
    again = setup_nccl_env(NCCLConfig("10.0.0.2", world_size=4, rank=3))
    assert (again["MASTER_ADDR"], again["RANK"], os.environ["RANK"]) == ("10.0.0.1", "2", "3")
    restore_nccl_env(again)
    assert (os.environ["MASTER_ADDR"], os.environ["RANK"]) == ("10.0.0.1", "2")
    restore_nccl_env(before)
    assert {name: os.environ[name] for name in VARIABLES & os.environ.keys()} == {"RANK": "7", "MASTER_PORT": ""}
    restore_nccl_env(before)  # no harm in once more


def test_gloos_interface_is_set_unless_the_user_has_done_so(environment: pytest.MonkeyPatch) -> None:
    config = NCCLConfig("10.0.0.1", interface="eth1")
    before = setup_nccl_env(config)
    assert (os.environ["GLOO_SOCKET_IFNAME"], before["GLOO_SOCKET_IFNAME"]) == ("eth1", None)
    restore_nccl_env(before)
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    environment.setenv("GLOO_SOCKET_IFNAME", "mine")
    before = setup_nccl_env(config)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "mine"
    assert before.keys() == VARIABLES


def test_what_cannot_be_right_sets_nothing(environment: pytest.MonkeyPatch) -> None:
    config = NCCLConfig("10.0.0.1")
    config.rank = 1
    with pytest.raises(UsageError, match=r"^rank is a number from 0 to 0 \(world_size is 1\), not 1$"):
        setup_nccl_env(config)
    config.rank = "0"  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"^rank is an int, not '0'$"):
        setup_nccl_env(config)
    with pytest.raises(TypeError) as refused:
        setup_nccl_env({"rank": 0})  # type: ignore[arg-type]
    assert str(refused.value) == "config is an NCCLConfig, such as NCCLConfig(**handle.recv()), not {'rank': 0}"
    assert not VARIABLES & os.environ.keys()


# --- For people -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            NCCLConfig("10.0.0.1", world_size=8, rank=5, local_rank=1),
            "rank 5 of 8 (local rank 1), master 10.0.0.1:29500",
        ),
        (
            NCCLConfig("fd00::1", 29501, interface="eth0"),
            "rank 0 of 1 (local rank 0), master [fd00::1]:29501, Gloo through eth0",
        ),
    ],
)
def test_print(config: NCCLConfig, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_nccl_config(config)
    assert capsys.readouterr().out == line + "\n"

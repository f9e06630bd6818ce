"""The training examples on real ssh hosts: they learn, agree, go on from a checkpoint, and leave nothing when killed.

The hosts do not see the checkpoints: those are in the coordinator's /tmp.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts
from testbed import Testbed

EXAMPLES = ("train_ddp.py", "train_fsdp.py")
TWO_NODES = ("mr-a", "mr-b")
WORKERS = ("--workers", "2")
STEPS, STEPS_BEFORE = 8, 4
PATIENCE_S = 100.0  # of what takes a few seconds on a machine that is not busy
ROUNDING = 1e-3  # ranks that are more, or others, add in another order


def words(root: Path, example: str, *arguments: object) -> list[str]:
    return [sys.executable, str(root / "examples" / example), *WORKERS, *map(str, arguments)]


def train(testbed: Testbed, root: Path, example: str, *arguments: object) -> str:
    """What it printed when it ended well."""
    ended = testbed.run(*words(root, example, *arguments), timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def losses(printed: str) -> dict[int, float]:
    """By step."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)", printed, re.MULTILINE)}


def load(path: Path) -> Any:
    torch = pytest.importorskip("torch")
    return torch.load(path)


@dataclass
class Training:
    """Of one example: a run that nobody interrupted, and the checkpoint of one that stopped halfway."""

    example: str
    printed: str
    halfway: Path

    @property
    def losses(self) -> dict[int, float]:
        return losses(self.printed)


@pytest.fixture(scope="module", params=EXAMPLES)
def training(request: pytest.FixtureRequest, testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Training:
    pytest.importorskip("torch")
    root, folder, example = Path(__file__).parent.parent, tmp_path_factory.mktemp("training"), request.param
    printed = train(testbed, root, example, *TWO_NODES, "--steps", STEPS, "--checkpoint", folder / "whole.pt")
    halfway = folder / "halfway.pt"
    train(testbed, root, example, "mr-c", "--steps", STEPS_BEFORE, "--checkpoint", halfway)
    return Training(example, printed, halfway)


def test_the_loss_falls_and_all_ranks_have_the_same_weights(training: Training) -> None:
    assert list(training.losses) == list(range(1, STEPS + 1))
    assert training.losses[STEPS] < 0.6 * training.losses[1]
    digests = re.findall(r"^weights of the ranks: (.*)$", training.printed, re.MULTILINE)[0].split()
    assert (len(digests), len(set(digests))) == (4, 1)


def test_a_checkpoint_is_whole(training: Training) -> None:
    """Nothing of how it was distributed is left in it."""
    checkpoint = load(training.halfway)
    assert checkpoint["step"] == STEPS_BEFORE
    weights, optimizer = checkpoint["state"]["model"], checkpoint["state"]["optimizer"]["state"]
    assert weights["layers.1.linear1.weight"].shape == (256, 64)
    assert optimizer.keys() == weights.keys()
    assert all(optimizer[name]["exp_avg"].shape == weights[name].shape for name in weights)
    assert {float(state["step"]) for state in optimizer.values()} == {STEPS_BEFORE}


def go_on(hosts: Hosts, root: Path, example: str, training: Training, folder: Path) -> None:
    """The example does the second half of the training, on twice as many ranks."""
    checkpoint = folder / "checkpoint.pt"
    checkpoint.write_bytes(training.halfway.read_bytes())
    more = ["--steps", STEPS - STEPS_BEFORE, "--checkpoint", checkpoint, "--resume"]
    resumed = losses(train(hosts.testbed, root, example, *TWO_NODES, *more))
    expected = {step: loss for step, loss in training.losses.items() if step > STEPS_BEFORE}
    assert resumed == pytest.approx(expected, rel=ROUNDING)
    assert load(checkpoint)["step"] == STEPS


def test_another_run_goes_on_as_if_nothing_had_been(
    hosts: Hosts, root: Path, tmp_path: Path, training: Training
) -> None:
    go_on(hosts, root, training.example, training, tmp_path)


@pytest.mark.parametrize("training", ["train_ddp.py"], indirect=True)
def test_what_ddp_began_fsdp_finishes(hosts: Hosts, root: Path, tmp_path: Path, training: Training) -> None:
    go_on(hosts, root, "train_fsdp.py", training, tmp_path)


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_killed_run_leaves_its_last_checkpoint_and_nothing_else(
    hosts: Hosts, root: Path, tmp_path: Path, example: str
) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    endless = [*TWO_NODES, "--steps", 1_000_000, "--save-every", 2, "--checkpoint", checkpoint]
    child = hosts.testbed.popen(
        *words(root, example, *endless), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert child.stdout is not None
        printed = []
        for line in child.stdout:
            printed.append(line)
            if line.startswith("step 4: saved"):
                break
        assert child.poll() is None, printed
        assert all(len(hosts.testbed.processes(node)) >= 3 for node in TWO_NODES)  # a server and its workers
    finally:
        child.kill()
        child.communicate()
    hosts.assert_nothing_is_left()
    step = load(checkpoint)["step"]
    assert (step >= 4, step % 2) == (True, 0)


def test_who_is_killed_while_saving_has_the_checkpoint_of_before(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    checkpoint = tmp_path / "checkpoint.pt"
    script = f"""
import os, signal, sys
sys.path[:0] = [{str(root / "examples")!r}]
import torch, training

def is_killed_halfway(checkpoint, path):
    with open(path, "wb") as file:
        file.write(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)

training.save({{"step": 1}}, {str(checkpoint)!r})
torch.save = is_killed_halfway
training.save({{"step": 2}}, {str(checkpoint)!r})
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == -9, ended.stderr
    assert load(checkpoint) == {"step": 1}

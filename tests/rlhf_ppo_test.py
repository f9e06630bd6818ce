"""The RLHF example on two real ssh hosts: the policy learns, and the picture shows it."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from statistics import mean

import pytest
from hosts import Hosts

STEPS = 20
BOTTOM, TOP = 340, 40  # where the picture has a reward of 0, and of 1


def test_the_reward_grows(hosts: Hosts, root: Path) -> None:
    """It guesses at first: one digit of ten is right. By the last step, seven of ten are."""
    picture = hosts.folder / "reward.svg"
    words = ("mr-a", "mr-b", "--rollouts", "2", "--steps", str(STEPS), "--curve", picture)
    ended = hosts.testbed.run(sys.executable, root / "examples/rlhf_ppo.py", *words, timeout=110)
    assert ended.returncode == 0, ended.stdout + ended.stderr

    rewards = [float(reward) for reward in re.findall(r"^step +\d+: reward ([\d.]+),", ended.stdout, re.MULTILINE)]
    assert len(rewards) == STEPS, ended.stdout
    assert mean(rewards[:3]) < 0.2, rewards
    assert mean(rewards[-3:]) > 0.5, rewards

    [curve] = xml.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}polyline")
    heights = [float(point.split(",")[1]) for point in curve.attrib["points"].split()]
    assert [(BOTTOM - height) / (BOTTOM - TOP) for height in heights] == pytest.approx(rewards, abs=0.002)

"""Simulations of nodes that exchange messages, on a network where all may happen that
happens to streams of bytes.

They find what depends on the order of threads, of frames, and of breaks: what is lost or
comes twice, wake-ups that are lost, and waits that never end. No tick repairs anything.
A seed that fails fails again: `simulate(SEED)`.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from support.simulation.messages import simulate
from support.simulation.planted import BUGS, Bug, is_found, slow_if_rare

SEEDS = range(200)
FOUND_LATE = {"only_a_message_that_waits_asks_for_credit", "nobody_reads_for_a_sender"}
"""Bugs that need many seeds."""


@pytest.mark.parametrize("seed", SEEDS)
def test_all_messages_arrive_once_in_order_and_all_nodes_end(seed):
    simulate(seed)


@pytest.mark.parametrize(
    "bug", slow_if_rare(BUGS, FOUND_LATE), ids=lambda bug: bug.name
)
def test_bug_is_found_by_these_seeds(bug: Bug):
    assert is_found(bug, lambda seed: simulate(seed, bug.streams), SEEDS)


def test_a_seed_has_one_course_in_every_process():
    code = "from support.simulation.messages import simulate; print(simulate(5))"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        "PYTHONHASHSEED": "12",
    }
    run = [sys.executable, "-c", code]
    printed = subprocess.check_output(run, env=environment, text=True, timeout=60)
    assert printed.strip() == str(simulate(5)) == str(simulate(5))


@pytest.mark.slow
@pytest.mark.parametrize("count", range(100))
def test_more_seeds(count):
    first = secrets.randbits(40)
    print(f"seeds from {first}")
    for seed in range(first, first + 100):
        simulate(seed)

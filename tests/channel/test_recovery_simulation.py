"""Simulations of runs whose processes are killed, frozen and replaced, also with clocks that
differ by an hour.

At the end all processes that live have met in one attempt. No message of another attempt and
none of an older process is received. A seed that fails fails again:
`simulate_recovery(SEED)`.
"""

from __future__ import annotations

import secrets

import pytest
from support.marks import slow_but
from support.simulation.planted import Bug, is_found, slow_if_rare
from support.simulation.planted_in_recovery import RECOVERY_BUGS
from support.simulation.recovery import simulate_recovery, with_doubles_only

SEEDS = range(200)
FOUND_LATE = {"a_clock_that_is_behind_stays_behind"}
"""Bugs that need many seeds."""


@pytest.mark.parametrize("seed", slow_but(range(8), SEEDS))
def test_all_processes_meet_in_one_attempt(seed):
    simulate_recovery(seed)


@pytest.mark.parametrize("seed", slow_but(range(2), range(50)))
def test_second_processes_do_not_end_an_attempt(seed):
    assert simulate_recovery(seed, "tcp", with_doubles_only)[1] == 1


@pytest.mark.parametrize(
    "bug", slow_if_rare(RECOVERY_BUGS, FOUND_LATE), ids=lambda bug: bug.name
)
def test_bug_is_found_by_these_seeds(bug: Bug):
    assert is_found(bug, lambda seed: simulate_recovery(seed, bug.streams), SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("count", range(10))
def test_more_seeds(count):
    first = secrets.randbits(40)
    print(f"seeds from {first}")
    for seed in range(first, first + 100):
        simulate_recovery(seed)

"""Simulations of asynchronous training, on a network where all may happen that
happens to streams of bytes.

In each of them a push is applied once and in the order of its worker, a step begins with
parameters that are as new as its mode says, all parameters of an answer are of one
version and do not change while they are used, a drain waits for all, and everything ends.
"""

from __future__ import annotations

import secrets

import pytest
from support.simulation.planted import Bug, is_found, slow_if_rare
from support.simulation.planted_in_training import TRAINING_BUGS
from support.simulation.training import simulate_training

SEEDS = range(60)
FOUND_LATE = {
    "a_buffer_is_used_again_before_its_readers_release_it",
    "the_oldest_version_is_used",
    "a_worker_does_not_wait_for_its_own",
    "nobody_is_woken_by_gradients",
    "a_merge_has_the_newest_step_only",
    "an_update_is_applied_twice",
    "nobody_is_woken_by_an_answer",
    "parameters_are_read_during_an_update",
}
"""Bugs that need many seeds."""


@pytest.mark.parametrize("seed", SEEDS)
def test_training_is_exact_and_ends(seed):
    simulate_training(seed)


@pytest.mark.parametrize(
    "bug", slow_if_rare(TRAINING_BUGS, FOUND_LATE), ids=lambda bug: bug.name
)
def test_bug_is_found_by_these_seeds(bug: Bug):
    assert is_found(bug, simulate_training, SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("count", range(50))
def test_more_seeds(count):
    first = secrets.randbits(40)
    print(f"seeds from {first}")
    for seed in range(first, first + 40):
        simulate_training(seed)

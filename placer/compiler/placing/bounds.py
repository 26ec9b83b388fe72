"""A time that no placement can beat, whatever it costs to send values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from placer.compiler.placing.problem import Group, Problem

_ONE: Final = 1_000_000
"""The weight of the first kind of devices; weights are integers."""


def least_load(problem: Problem) -> int:
    """Return the nanoseconds of a step that the slowest stage takes at least.

    The work is at best divided evenly among all devices. No group is on more devices than may
    share a stage.

    Raises:
        ValueError: a group can run on none of the kinds.
    """
    counts = {each.kind: each.count for each in problem.devices if each.count}
    calls = problem.microbatches * problem.call + problem.update
    largest = max(
        (_least_time(problem, group, counts) for group in problem.groups), default=0
    )
    times = [
        {
            kind: problem.microbatches * group.time(kind) + group.once
            for kind in counts
            if kind in group.forward
        }
        for group in problem.groups
    ]
    return calls + max(largest, _least_even(times, counts))


def _least_time(problem: Problem, group: Group, counts: Mapping[str, int]) -> int:
    """Return the nanoseconds of the stage that only has one group."""
    count = problem.microbatches
    times = [
        -(-count * group.time(kind) // replicas) + group.once
        for kind, most in counts.items()
        if kind in group.forward
        for replicas in problem.replicas
        if replicas <= most
    ]
    if not times:
        raise ValueError(f"no device can run group {group.name}")
    return min(times)


def _least_even(times: Sequence[Mapping[str, int]], counts: Mapping[str, int]) -> int:
    """Return the least time in which devices do work that can be cut anywhere.

    This is a linear program. Any weights of the kinds give a bound: the weighted work of
    each group, where it weighs least, over the weight of all devices.
    """
    weights = dict.fromkeys(counts, _ONE)

    def bound() -> int:
        work = sum(
            min(weights[kind] * time for kind, time in of_group.items())
            for of_group in times
        )
        return -(-work // sum(weights[kind] * counts[kind] for kind in counts))

    best = bound()
    for changed in [*counts][1:]:
        # The best weight is one at which a group weighs the same on two kinds.
        equal = {0, weights[changed]}
        for of_group in times:
            time = of_group.get(changed, 0)
            others = [weights[k] * of_group[k] for k in of_group if k != changed]
            if time and others:
                equal.add(min(others) // time)
        values = []
        for weight in sorted(equal):
            weights[changed] = weight
            if any(weights.values()):
                values.append((bound(), weight))
        best, weights[changed] = max(values)
    return best

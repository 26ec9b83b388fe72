"""The best cuts of an order into stages, by dynamic programming.

A stage is an interval of the order on one or more equal devices. The slowest stage decides how
many microbatches a pipeline completes in a time, so its load is minimized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from placer.compiler.placing.loads import Loads
from placer.compiler.placing.problem import Devices, Problem

UNREACHED = 1 << 62
"""A load of stages that do not exist or do not fit."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The interval `[first, end)` of an order on `replicas` devices of a kind."""

    first: int
    end: int
    kind: str
    replicas: int = 1


Stages = tuple[Stage, ...]
_Used = tuple[int, ...]
"""The number of stages, then the number of devices of each kind."""


def best_cuts(
    loads: Loads, replicas: Sequence[int] = (1,), most: int = UNREACHED - 1
) -> list[Stages]:
    """Return, for each number of stages and of devices of each kind, the stages whose
    slowest takes the least time. Of equal ones the first stages are the shortest.

    Args:
        loads: the loads of an order.
        replicas: the numbers of devices that may share a stage.
        most: the longest time of interest, in nanoseconds of a step. A small one saves most
            of the search.

    Returns:
        The stages, by ascending numbers. Numbers for which nothing fits are left out, or for
        which the slowest stage takes longer than `most`.
    """
    problem = loads.problem
    count = len(loads.order)
    used = [*_numbers(problem, count, max(replicas))]
    table = {each: [UNREACHED] * (count + 1) for each in used}
    chosen: dict[_Used, list[Stage | None]] = {each: [None] * count for each in used}
    table[used[0]][count] = 0
    # The least first group of the stages of each number; nothing before it is reached.
    reached = dict.fromkeys(used, count + 1) | {used[0]: count}
    total = sum(devices.count for devices in problem.devices)
    steps = [(each, [*_steps(problem, each, replicas)]) for each in used[1:]]
    for first in reversed(range(count)):
        left = loads.least(0, first)
        for after, choices in steps:
            if left > most * (total - sum(after[1:])):
                continue  # The other devices cannot do what is before.
            best = most + 1
            for before, devices, number in choices:
                begin = max(first + 1, reached[before])
                if begin > count:
                    continue
                live = live_microbatches(problem, before[0])
                end = loads.last(first, devices, number, live)
                row = loads.row(first, devices, number)[begin - first - 1 : end - first]
                values = [*map(max, row, table[before][begin : end + 1])]
                if values and (least := min(values)) < best:
                    best = least
                    cut = begin + values.index(least)
                    chosen[after][first] = Stage(first, cut, devices.kind, number)
            if best <= most:
                table[after][first] = best
                reached[after] = first
    return [
        _stages(chosen, problem, each) for each in used[1:] if table[each][0] <= most
    ]


def _stages(
    chosen: dict[_Used, list[Stage | None]], problem: Problem, used: _Used
) -> Stages:
    """Return the stages that the table chose, from the first."""
    found: list[Stage] = []
    first = 0
    while used[0]:
        stage = chosen[used][first]
        assert stage is not None, used
        found.append(stage)
        used = _before(problem, used, stage.kind, stage.replicas)
        first = stage.end
    return tuple(found)


def _numbers(problem: Problem, groups: int, replicas: int) -> Iterator[_Used]:
    """Yield the numbers of stages and devices, so that smaller ones come first."""
    ranges = [range(devices.count + 1) for devices in problem.devices]
    most = sum(devices.count for devices in problem.devices)
    for stages in range(min(most, groups) + 1):
        for devices in product(*ranges):
            if stages <= sum(devices) <= stages * replicas:
                yield stages, *devices


def _steps(
    problem: Problem, used: _Used, replicas: Sequence[int]
) -> Iterator[tuple[_Used, Devices, int]]:
    """Yield the ways to come to these numbers by one stage more."""
    fewer = used[0] - 1
    for devices in problem.devices:
        for number in replicas:
            before = _before(problem, used, devices.kind, number)
            others = sum(before[1:])
            exists = min(before[1:]) >= 0
            if exists and fewer <= others <= fewer * max(replicas):
                yield before, devices, number


def _before(problem: Problem, used: _Used, kind: str, replicas: int) -> _Used:
    """Return the numbers without one stage."""
    return (
        used[0] - 1,
        *(
            number - replicas if devices.kind == kind else number
            for devices, number in zip(problem.devices, used[1:], strict=True)
        ),
    )


def live_microbatches(problem: Problem, after: int) -> int:
    """Return the number of microbatches whose activations a stage holds, which has `after`
    stages after it."""
    if problem.holds_all:
        return problem.microbatches
    return min(problem.microbatches, after + 1)

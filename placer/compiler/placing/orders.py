"""Topological orders of groups. A stage of a pipeline is an interval of one of them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from placer.compiler.placing.problem import Problem

Order = tuple[int, ...]
"""All groups by index, each after the groups whose values it uses."""


def orders(problem: Problem) -> tuple[Order, ...]:
    """Return the distinct orders among three, the program order first.

    Raises:
        ValueError: groups use each other's values in a cycle.
    """
    found = program_order(problem), branch_order(problem), narrow_order(problem)
    return tuple(dict.fromkeys(found))


def program_order(problem: Problem) -> Order:
    """Return the order that is nearest to the one in which groups are listed."""
    return _by_key(problem, lambda group, _: group)


def branch_order(problem: Problem) -> Order:
    """Return an order that completes a branch before it begins the next."""
    return _by_key(problem, lambda group, step: (-step, group))


def narrow_order(problem: Problem) -> Order:
    """Return an order in which few bytes are between groups that ran and others.

    Each step takes the group, of those that can run, that adds the fewest bytes.
    """
    added = [0] * len(problem.groups)
    freed: list[list[tuple[int, int]]] = [[] for _ in problem.groups]
    for flow in _forward(problem):
        added[flow[0]] += flow[2]
        for target in flow[1]:
            freed[target].append((flow[0], flow[2]))
    remaining = {
        (source, nbytes): len(targets) for source, targets, nbytes in _forward(problem)
    }
    before, after = _edges(problem)
    ready = {group for group, count in enumerate(before) if not count}
    order: list[int] = []

    def width(group: int) -> int:
        last = sum(each[1] for each in freed[group] if remaining[each] == 1)
        return added[group] - last

    while ready:
        group = min(ready, key=lambda each: (width(each), each))
        ready.remove(group)
        order.append(group)
        for each in freed[group]:
            remaining[each] -= 1
        for target in after[group]:
            before[target] -= 1
            if not before[target]:
                ready.add(target)
    return _complete(problem, order)


def _by_key(problem: Problem, key: Callable[[int, int], object]) -> Order:
    """Return the order that takes, of the groups that can run, the one of the least key.

    The key is of the group and the step in which it became able to run.
    """
    before, after = _edges(problem)
    ready: list[tuple[object, int]] = []
    for group, count in enumerate(before):
        if not count:
            heappush(ready, (key(group, 0), group))
    order: list[int] = []
    while ready:
        _, group = heappop(ready)
        order.append(group)
        for target in after[group]:
            before[target] -= 1
            if not before[target]:
                heappush(ready, (key(target, len(order)), target))
    return _complete(problem, order)


def _complete(problem: Problem, order: list[int]) -> Order:
    if len(order) < len(problem.groups):
        left = sorted({*range(len(problem.groups))} - {*order})
        names = ", ".join(problem.groups[each].name for each in left[:5])
        raise ValueError(f"groups use each other's values in a cycle: {names}")
    return tuple(order)


def _forward(problem: Problem) -> list[tuple[int, tuple[int, ...], int]]:
    """Return the source, the other targets and the bytes of each forward flow."""
    found = []
    for flow in problem.flows:
        targets = tuple(sorted({*flow.targets} - {flow.source}))
        if targets and not flow.is_backward:
            found.append((flow.source, targets, flow.nbytes))
    return found


def _edges(problem: Problem) -> tuple[list[int], list[list[int]]]:
    """Return how many groups are before each, and which are after it."""
    pairs = {
        (source, target)
        for source, targets, _ in _forward(problem)
        for target in targets
    }
    before = [0] * len(problem.groups)
    after: list[list[int]] = [[] for _ in problem.groups]
    for source, target in sorted(pairs):
        before[target] += 1
        after[source].append(target)
    return before, after

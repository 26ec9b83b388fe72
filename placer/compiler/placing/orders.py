"""Topological orders of groups. A stage of a pipeline is an interval of one of them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from placer.compiler.placing.problem import Problem

Order = tuple[int, ...]
"""All groups by index, each after the groups whose values it uses."""


def orders(problem: Problem) -> tuple[Order, ...]:
    """Return the distinct orders among three, the program order first.

    Raises:
        ValueError: groups use each other's values in a cycle.
    """
    found = program_order(problem), last_order(problem), narrow_order(problem)
    return tuple(dict.fromkeys(found))


def program_order(problem: Problem) -> Order:
    """Return the order that is nearest to the one in which groups are listed."""
    return _by_key(problem, lambda group: group)


def last_order(problem: Problem) -> Order:
    """Return the order that takes, of the groups that can run, the one listed last."""
    return _by_key(problem, lambda group: -group)


def narrow_order(problem: Problem) -> Order:
    """Return an order in which few bytes are between groups that ran and others.

    Each step takes the group, of those that can run, that adds the fewest bytes.
    """
    flows = _forward(problem)
    remaining = [len(targets) for _, targets, _ in flows]
    added = [0] * len(problem.groups)
    used: list[list[int]] = [[] for _ in problem.groups]
    for index, (source, targets, nbytes) in enumerate(flows):
        added[source] += nbytes
        for target in targets:
            used[target].append(index)
    before, after = _edges(problem)
    ready = {group for group, count in enumerate(before) if not count}
    order: list[int] = []

    def width(group: int) -> int:
        last = sum(flows[index][2] for index in used[group] if remaining[index] == 1)
        return added[group] - last

    while ready:
        group = min(ready, key=lambda each: (width(each), each))
        ready.remove(group)
        order.append(group)
        for index in used[group]:
            remaining[index] -= 1
        for target in after[group]:
            before[target] -= 1
            if not before[target]:
                ready.add(target)
    return _complete(problem, order)


def _by_key(problem: Problem, key: Callable[[int], int]) -> Order:
    """Return the order that takes, of the groups that can run, the one of the least key."""
    before, after = _edges(problem)
    ready = [(key(group), group) for group, count in enumerate(before) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, group = heappop(ready)
        order.append(group)
        for target in after[group]:
            before[target] -= 1
            if not before[target]:
                heappush(ready, (key(target), target))
    return _complete(problem, order)


def _complete(problem: Problem, order: list[int]) -> Order:
    if len(order) < len(problem.groups):
        left = sorted({*range(len(problem.groups))} - {*order})
        names = ", ".join(problem.groups[each].name for each in left[:5])
        raise ValueError(f"groups use each other's values in a cycle: {names}")
    return tuple(order)


def _forward(problem: Problem) -> list[tuple[int, tuple[int, ...], int]]:
    """Return the source, the targets that come after it and the bytes of each flow."""
    pairs = {*problem.edges}
    found = []
    for flow in problem.flows:
        after = {each for each in flow.targets if (flow.source, each) in pairs}
        if targets := tuple(sorted(after - {flow.source})):
            found.append((flow.source, targets, flow.nbytes))
    return found


def _edges(problem: Problem) -> tuple[list[int], list[list[int]]]:
    """Return how many groups are before each, and which are after it."""
    before = [0] * len(problem.groups)
    after: list[list[int]] = [[] for _ in problem.groups]
    for source, target in sorted({*problem.edges}):
        if source != target:
            before[target] += 1
            after[source].append(target)
    return before, after
